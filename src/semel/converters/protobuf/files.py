"""The declarations in Protobuf files that affect values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SCALARS = frozenset(
    {
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
    }
)


class SchemaError(ValueError):
    """A text that is not a Protobuf schema, or that uses an unsupported feature."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. ``type`` is a scalar's, or the name of a message or an enum, as it is
    written; ``label`` is ``optional``, ``required``, ``repeated`` or nothing."""

    name: str
    number: int
    type: str
    label: str = ""
    oneof: int | None = None
    default: Any = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What ``(confluent.field_meta)`` says of it."""


@dataclass(slots=True)
class Message:
    """A message, and the types inside it. ``is_entry`` says that a ``map`` field made it."""

    name: str
    fields: list[Field] = field(default_factory=list)
    oneofs: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    enums: list[Enum] = field(default_factory=list)
    is_entry: bool = False


@dataclass(slots=True)
class Enum:
    """Names and their numbers, in the order of the declaration."""

    name: str
    values: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class File:
    """A file. ``syntax`` is ``proto2``, ``proto3`` or ``editions``."""

    package: str = ""
    syntax: str = "proto2"
    imports: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    enums: list[Enum] = field(default_factory=list)

    def declared(self) -> Iterator[tuple[str, Message | Enum]]:
        """All types with their full names."""
        yield from _declared(self.package, self.messages, self.enums)


def _declared(
    scope: str, messages: list[Message], enums: list[Enum]
) -> Iterator[tuple[str, Message | Enum]]:
    for enum in enums:
        yield f"{scope}.{enum.name}".lstrip("."), enum
    for message in messages:
        full = f"{scope}.{message.name}".lstrip(".")
        yield full, message
        yield from _declared(full, message.messages, message.enums)
