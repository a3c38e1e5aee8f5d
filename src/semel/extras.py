"""What other packages bring: those that are optional, and those that add to semel."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from semel.errors import ConfigError, Problem


def require(what: str, extra: str, packages: Mapping[str, str]) -> None:
    """Ask for packages without importing them.

    Args:
        what: what needs them, for the message.
        extra: semel's extra that installs them.
        packages: module -> the package that has it.

    Raises:
        ConfigError: some are not installed; says how to install them.
    """
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        several = "packages" if len(missing) > 1 else "package"
        lacking = f"{what} needs the {several} {' and '.join(missing)}"
        raise ConfigError(
            Problem("", f"{lacking}: pip install 'semel[{extra}]'", not_installed=True)
        )


@contextmanager
def deferred(name: str) -> Iterator[None]:
    """Keep what is imported meanwhile from importing a module of a package: that is imported when
    somebody uses it."""
    package, _, last = name.rpartition(".")
    parent, later = import_module(package), _Later(name)
    if sys.modules.setdefault(name, later) is not later:
        yield
        return
    setattr(parent, last, later)
    try:
        yield
    finally:
        later.step_aside()


_stepping = threading.Lock()


class _Later(ModuleType):
    """Stands for a module that has not been imported yet, and stays what others know it by."""

    def step_aside(self) -> None:
        """Let the next import find the module itself."""
        with _stepping:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks every module for
            raise AttributeError(name)
        self.step_aside()
        return getattr(import_module(self.__name__), name)


def entries(group: str) -> Mapping[str, str]:
    """The entry points of a group: what each name stands for, as ``module:attribute``."""
    # Spark puts a folder of its own, another one in each context, before the others.
    return _entries(group, tuple(p for p in sys.path if not Path(p).name.startswith("userFiles-")))


@lru_cache
def _entries(group: str, path: tuple[str, ...]) -> Mapping[str, str]:
    """Finding them reads what is known of every package in ``path``, some 5 ms."""
    return {entry.name: entry.value for entry in entry_points(group=group)}
