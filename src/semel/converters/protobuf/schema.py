"""The parts of Protobuf schemas, as Kafka Connect understands them, with their Arrow types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from semel.converters.json.columns import JSON
from semel.converters.semantic import SemanticReader, metadata
from semel.core.quoting import in_field, named

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = 0, 1, 2, 3, 4, 5
"""Wire types."""
SCALARS: Mapping[str, tuple[int, pa.DataType, Any]] = {
    "double": (FIXED64, pa.float64(), 0.0),
    "float": (FIXED32, pa.float32(), 0.0),
    "int32": (VARINT, pa.int32(), 0),
    "int64": (VARINT, pa.int64(), 0),
    "uint32": (VARINT, pa.int64(), 0),
    "uint64": (VARINT, pa.int64(), 0),
    "sint32": (VARINT, pa.int32(), 0),
    "sint64": (VARINT, pa.int64(), 0),
    "fixed32": (FIXED32, pa.int64(), 0),
    "fixed64": (FIXED64, pa.int64(), 0),
    "sfixed32": (FIXED32, pa.int32(), 0),
    "sfixed64": (FIXED64, pa.int64(), 0),
    "bool": (VARINT, pa.bool_(), False),
    "string": (BYTES, pa.string(), ""),
    "bytes": (BYTES, pa.binary(), b""),
}
"""The wire type of each scalar, the Arrow type of its values, and its default. Kafka Connect has
no unsigned numbers: those of 32 bits and of 64 bits both become longs."""
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999."""


@dataclass(frozen=True, eq=False)
class Node:
    """A part of a schema. ``type`` is the Arrow type of its values."""

    @property
    def type(self) -> pa.DataType:
        raise NotImplementedError

    @property
    def wire(self) -> int:
        """The wire type of one value."""
        return BYTES

    @property
    def parts(self) -> Sequence[Node]:
        return ()

    @cached_property
    def columnar(self) -> bool:
        """Whether values can be read in columns: not those of recursive types."""
        return all(part.columnar for part in self.parts)


@dataclass(frozen=True, eq=False)
class Scalar(Node):
    """``narrow`` is the smaller type of numbers that ``connect.type`` declares."""

    kind: str
    narrow: pa.DataType | None = None

    @property
    def type(self) -> pa.DataType:
        return self.narrow or SCALARS[self.kind][1]

    @property
    def wire(self) -> int:
        return SCALARS[self.kind][0]


@dataclass(frozen=True, eq=False)
class Enum(Node):
    """Names by number. A closed one has no other numbers."""

    name: str
    values: tuple[tuple[str, int], ...]
    closed: bool = False
    as_number: bool = False

    @property
    def type(self) -> pa.DataType:
        return pa.int32() if self.as_number else pa.string()

    @property
    def wire(self) -> int:
        return VARINT

    @cached_property
    def names(self) -> Mapping[int, str]:
        """The first name of each number."""
        names: dict[int, str] = {}
        for name, number in self.values:
            names.setdefault(number, name)
        return names

    def unknown(self, number: int) -> str:
        """The name of a number that has none, as Java's library gives it."""
        return f"UNKNOWN_ENUM_VALUE_{self.name}_{number}"

    def shown(self, number: int) -> str | int:
        """The number itself, or its name."""
        return number if self.as_number else self.names.get(number) or self.unknown(number)


@dataclass(frozen=True, eq=False)
class Field:
    """A field of a message.

    Args:
        explicit: an absent one is null; otherwise it has its default.
        always: an absent message is an empty one.
        nullable: whether Kafka Connect's schema lets it be null.
    """

    name: str
    number: int
    node: Node
    repeated: bool = False
    explicit: bool = False
    required: bool = False
    always: bool = False
    nullable: bool = True
    group: bool = False
    """Whether a message stands between two tags, and not behind its length."""
    oneof: str | None = None
    default: Any = None
    """What stands for it where it is absent: a number, a text, bytes."""
    known: SemanticReader | None = None
    facts: Mapping[str, Any] | None = None
    """The semantic type of a scalar; see :mod:`semel.converters.semantic`."""

    @property
    def wire(self) -> int:
        """The wire type of one value."""
        return GROUP if self.group else self.node.wire

    @property
    def is_map(self) -> bool:
        return isinstance(self.node, Map)

    @property
    def is_list(self) -> bool:
        return self.repeated and not self.is_map

    @cached_property
    def type(self) -> pa.DataType:
        item = self.node.type if self.known is None else self.known.type
        return pa.list_(item) if self.is_list else item

    @cached_property
    def arrow(self) -> pa.Field:
        facts = self.node.facts if isinstance(self.node, Message) else self.facts
        if facts is not None and self.is_list:
            facts = {"items": facts}
        return pa.field(self.name, self.type, self.nullable, metadata(facts))

    def finish(self, values: pa.Array) -> pa.Array:
        """Convert scalars to what they stand for."""
        if self.known is None:
            return values
        try:
            if not self.is_list:
                return self.known.of(values)
            items = self.known.of(values.values)
            gone = values.is_null() if values.null_count else None
            return pa.ListArray.from_arrays(values.offsets, items, mask=gone)
        except ValueError as error:
            raise ValueError(f"field {named(self.name)}: {error}") from None

    @property
    def is_message(self) -> bool:
        return self.node.wire == BYTES and not isinstance(self.node, Scalar)


@dataclass(frozen=True, eq=False)
class Oneof:
    """A oneof: a message has at most one of these fields. It is a struct with a field for each."""

    name: str
    fields: tuple[Field, ...]

    @cached_property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, pa.struct([f.arrow for f in self.fields]))


@dataclass(frozen=True, eq=False)
class Message(Node):
    """Fields by their numbers, and the columns that are made of them. ``known`` is the semantic
    type that they make up."""

    name: str
    columns: tuple[Field | Oneof, ...]
    known: SemanticReader | None = None
    facts: Mapping[str, Any] | None = None

    @cached_property
    def type(self) -> pa.DataType:
        return self.known.type if self.known else pa.struct([c.arrow for c in self.columns])

    def finish(self, values: pa.Array) -> pa.Array:
        """Convert structs of the fields to what they make up."""
        return values if self.known is None else self.known.of(values)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        fields: list[Field] = []
        for column in self.columns:
            fields += column.fields if isinstance(column, Oneof) else [column]
        return tuple(fields)

    @cached_property
    def by_number(self) -> Mapping[int, Field]:
        return {f.number: f for f in self.fields}

    @cached_property
    def tags(self) -> frozenset[int]:
        """The tags of fields, those of packed ones among them."""
        packed = {f.number << 3 | BYTES for f in self.fields if f.repeated}
        return frozenset({f.number << 3 | f.wire for f in self.fields} | packed)

    @property
    def parts(self) -> Sequence[Node]:
        return [f.node for f in self.fields]


@dataclass(frozen=True, eq=False)
class LogicalMessage(Node):
    """A message that represents a value of another type: ``Timestamp``, ``Date``, ``TimeOfDay`` or
    ``Decimal``."""

    kind: str
    message: Message
    logical: pa.DataType

    @property
    def type(self) -> pa.DataType:
        return self.logical

    @property
    def parts(self) -> Sequence[Node]:
        return [self.message]


@dataclass(frozen=True, eq=False)
class Wrapper(Node):
    """A message with one field, ``value``, that stands for that field's value."""

    message: Message

    @property
    def value(self) -> Field:
        return self.message.fields[0]

    @property
    def type(self) -> pa.DataType:
        return self.value.type

    @property
    def parts(self) -> Sequence[Node]:
        return [self.message]


@dataclass(frozen=True, eq=False)
class Map(Node):
    """Messages with two fields, ``key`` and ``value``; if a key repeats, the last one counts."""

    entry: Message

    @cached_property
    def type(self) -> pa.DataType:
        key, value = self.entry.fields
        return pa.map_(key.type, value.type)

    @property
    def parts(self) -> Sequence[Node]:
        return [self.entry]


@dataclass(frozen=True, eq=False)
class Recursion(Node):
    """A recursive message. Arrow has no such types, so its values are JSON."""

    name: str
    named: Mapping[str, Message] = field(repr=False)

    @property
    def type(self) -> pa.DataType:
        return JSON

    @cached_property
    def columnar(self) -> bool:
        return False


_WIDER = {
    "int32": ("int64", "sint32", "sint64", "sfixed32", "sfixed64", "float", "double"),
    "int64": ("sint64", "sfixed64", "double"),
    "float": ("double",),
}


def incompatible(reader: Node, writer: Node, path: str = "") -> Iterator[str]:
    """The reasons why a message cannot hold what another schema describes, field by field."""
    prefix = in_field(path)
    match reader, writer:
        case Message(), Message():
            yield from _fields(reader, writer, path)
        case (Map(), Map()):
            yield from _fields(reader.entry, writer.entry, path)
        case (Wrapper(), Wrapper()):
            yield from incompatible(reader.value.node, writer.value.node, path)
        case _ if not _takes(reader, writer):
            yield f"{prefix}{_kind(writer)} cannot be read as {_kind(reader)}"


def _takes(reader: Node, writer: Node) -> bool:
    match reader, writer:
        case Scalar(), Scalar():
            return reader.kind == writer.kind or reader.kind in _WIDER.get(writer.kind, ())
        case Enum(), Scalar():
            return writer.kind in ("string", "int32")
        case LogicalMessage(), LogicalMessage():
            return reader.kind == writer.kind
    return False


def _kind(node: Node) -> str:
    kind: pa.DataType = node.type
    return node.kind if isinstance(node, Scalar) else str(kind)


def _fields(reader: Message, writer: Message, path: str) -> Iterator[str]:
    written = {f.name: f for f in writer.fields}
    for reader_field in reader.fields:
        inner = f"{path}.{reader_field.name}".strip(".")
        if reader_field.name in written:
            yield from _field(reader_field, written[reader_field.name], inner)
        elif reader_field.required:
            yield f"field {named(inner)}: it is missing, and the latest version requires it"


def _field(reader: Field, writer: Field, path: str) -> Iterator[str]:
    if reader.repeated != writer.repeated:
        yield f"field {named(path)}: only one of them is a list"
    else:
        yield from incompatible(reader.node, writer.node, path)
