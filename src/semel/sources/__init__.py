"""Sources: one module or folder per system. Third parties add theirs through the entry point group
``semel.sources``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from semel.config import extras
from semel.config.extras import entries, load
from semel.core.errors import misconfigured
from semel.sources.base import Source

_MODULES = {
    "semel.sources.datagen.source:DatagenSource": "semel.sources.datagen.config",
    "semel.sources.directory.source:DirectorySource": "semel.sources.directory.config",
    "semel.sources.filestream:FileStreamSource": "semel.sources.filestream",
    "semel.sources.jdbc.source:JdbcSource": "semel.sources.jdbc.config",
}
"""Source -> the module whose ``CLASSES`` are the ``connector.class`` names it answers to."""


def is_source(name: str) -> bool:
    """Whether a ``connector.class`` is a source's."""
    classes = known()
    return name in classes or bool(extras.matches(name, classes, "Connector"))


def source_class(name: str) -> type[Source]:
    """The source for a ``connector.class``.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    target = known().get(full_name(name))
    if target is None:
        raise misconfigured(
            "connector.class", f"connector.class={name!r} is not a source connector that semel has"
        )
    loaded: type[Source] = load(target, Source, "connector.class", name)
    return loaded


def full_name(name: str) -> str:
    """The class that a name stands for; the name itself if there is none.

    Raises:
        ConfigError: the name is ambiguous.
    """
    return extras.full_name(name, known(), "Connector", key="connector.class")


def known() -> Mapping[str, str]:
    """Every ``connector.class`` of a source, with the class to load for it."""
    own = {
        name: target
        for target, module in _MODULES.items()
        for name in import_module(module).CLASSES
    }
    return {**entries("semel.sources"), **own}
