"""The declaration of a configuration key, as a field of a frozen dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

REQUIRED: Any = object()
"""Stands for the default of a key that must be given."""


def key(
    name: str,
    default: Any = REQUIRED,
    doc: str = "",
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    at_least: int | None = None,
    secret: bool = False,
) -> Any:
    """Declare a configuration key as a dataclass field.

    ``aliases`` are the names other connectors give to the same setting; ``choices`` are accepted
    in any case; ``secret`` values are never shown.
    """
    metadata = {
        "name": name,
        "doc": doc,
        "aliases": aliases,
        "choices": choices,
        "at_least": at_least,
        "secret": secret,
    }
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata, kw_only=True, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, kw_only=True, repr=not secret)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a key, or ``REQUIRED``."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED


def names(section: type) -> Iterator[str]:
    """Every key and alias that ``section`` declares."""
    for field in dataclasses.fields(section):
        yield field.metadata["name"]
        yield from field.metadata["aliases"]
