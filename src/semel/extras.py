"""Optional packages, asked for while a configuration is read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from semel.errors import ConfigError


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
        raise ConfigError(
            f"{what} needs the {several} {' and '.join(missing)}: pip install 'semel[{extra}]'"
        )
