"""Errors that one process reports and another one raises.

Pickling the exception would tie both to its constructor, and the driver may lack the module that
defines it. Instead, the report holds the kind of error, its message and its exit code.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass

from semel.core import errors
from semel.core.errors import SemelError


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of another process. ``kinds`` are its class and base classes, nearest first, each as
    a module and a name."""

    kinds: tuple[tuple[str, str], ...]
    message: str
    exit_code: int

    @classmethod
    def of(cls, error: SemelError) -> Failure:
        kinds = [k for k in type(error).__mro__ if issubclass(k, SemelError)]
        names = tuple((k.__module__, k.__qualname__) for k in kinds)
        return cls(names, str(error), error.exit_code)

    def error(self) -> SemelError:
        """The reported error, as the nearest class that this process can import."""
        for module, name in self.kinds:
            kind = _imported(module, name)
            found = _made(kind, self.message) if kind is not None else None
            if found is not None:
                break
        else:
            found = SemelError(self.message)
        if found.exit_code != self.exit_code:
            found.exit_code = self.exit_code
        return found


def _imported(module: str, name: str) -> type[SemelError] | None:
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError):
        return None  # it was defined in a function or a script, or is not installed here
    return found if isinstance(found, type) and issubclass(found, SemelError) else None


def _made(kind: type[SemelError], message: str) -> SemelError | None:
    """An error of this class with this ``message``, whatever arguments its constructor wants; None
    if the class cannot show the message without them."""
    own = next(k for k in kind.__mro__ if k.__module__ == errors.__name__)
    made = kind.__new__(kind, message)
    own.__init__(made, message)  # type: ignore[misc]
    try:
        return made if str(made) == message else None
    except Exception:  # its text comes from attributes that only its constructor sets
        return None
