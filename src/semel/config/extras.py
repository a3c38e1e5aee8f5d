"""Other packages: those that semel can do without, and those that extend it; and short names of
classes, as Kafka Connect resolves them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from semel.core.errors import ConfigError, Problem, misconfigured


def require(what: str, extra: str, packages: Mapping[str, str], key: str = "") -> None:
    """Check that packages are installed, without importing them.

    Args:
        what: what needs them, for the message.
        extra: semel's extra that installs them.
        packages: modules, and the package that provides each.
        key: the key that asks for them, if there is one.

    Raises:
        ConfigError: some are not installed; says how to install them.
    """
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        several = "packages" if len(missing) > 1 else "package"
        lacking = f"{what} needs the {several} {' and '.join(missing)}"
        raise ConfigError(
            Problem(key, f"{lacking}: pip install 'semel[{extra}]'", not_installed=True)
        )


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Name the package, and semel's extra, that an import within a ``with`` block lacks."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = str(missing.name).partition(".")[0]
        raise misconfigured(
            "connector.class", f"{what} needs the package {package}: pip install 'semel[{extra}]'"
        ) from missing


def load(target: str, base: type, key: str, name: str) -> Any:
    """The class that ``module:attribute`` names, which ``name`` asked for in ``key``.

    Raises:
        ConfigError: there is no such class, or it is no subclass of ``base``.
    """
    module, _, attribute = target.partition(":")
    try:
        loaded = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise misconfigured(key, f"{key}={name}: cannot load {target}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise misconfigured(key, f"{key}={name}: {target} is not a semel {base.__name__}")
    return loaded


@contextmanager
def deferred(name: str) -> Iterator[None]:
    """Defer the import of a module within a ``with`` block: whatever imports it there gets a
    stand-in, which imports the module on first use."""
    package, _, last = name.rpartition(".")
    parent, later = import_module(package), _LazyModule(name)
    if sys.modules.setdefault(name, later) is not later:
        yield
        return
    setattr(parent, last, later)
    try:
        yield
    finally:
        later.step_aside()


_stepping = threading.Lock()


class _LazyModule(ModuleType):
    """Stands in for a module that has not been imported yet; those that hold it keep using it."""

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
    # Spark puts a directory of its own first, a different one for each context.
    return _entries(group, tuple(p for p in sys.path if "/userFiles-" not in p))


@lru_cache
def _entries(group: str, path: tuple[str, ...]) -> Mapping[str, str]:
    """Cached, because reading the metadata of every package in ``path`` takes some 5 ms."""
    return {entry.name: entry.value for entry in entry_points(group=group)}


def matches(alias: str, classes: Iterable[str], suffix: str) -> list[str]:
    """The classes with this simple name, with or without a suffix such as ``Connector``."""
    simple_names = {alias, alias + suffix}
    return [full for full in classes if "." in full and full.rpartition(".")[2] in simple_names]


def full_name(
    alias: str,
    classes: Mapping[str, str],
    suffix: str,
    *,
    key: str = "",
    differ: Callable[[list[str]], bool] | None = None,
) -> str:
    """The class that a name stands for: the first class with this simple name, or the name itself
    if it is known or matches none.

    Args:
        classes: full and short names, with what is loaded for each.
        key: the key that holds the name, for the error.
        differ: whether it matters which of several is meant even if all load the same thing.

    Raises:
        ConfigError: several classes match, and it matters which is meant.
    """
    if alias in classes:
        return alias
    names = matches(alias, classes, suffix)
    if len({classes[full] for full in names}) > 1 or (differ is not None and differ(names)):
        raise misconfigured(
            key,
            f"More than one {suffix.lower()} matches alias {alias}. Please use full package and "
            f"class name instead. Classes found: {', '.join(names)}",
        )
    return names[0] if names else alias
