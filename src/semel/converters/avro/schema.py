"""The parts of Avro schemas, as Kafka Connect understands them, with their Arrow types."""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON
from semel.converters.json.facts import described, with_default
from semel.converters.semantic import FACTS, PER_DAY, SemanticReader
from semel.core.quoting import in_field, named
from semel.core.records import Facts

PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
NAMESPACE, NAME = "io.confluent.connect.avro", "ConnectDefault"
"""Of records whose schema has no name of its own."""
MOST_EMPTY = 64
"""The most items in a block whose items take no bytes, such as nulls: nothing else bounds them."""


@dataclass(frozen=True)
class Node:
    """A part of a schema. ``type`` is the Arrow type of its values."""

    @property
    def type(self) -> pa.DataType:
        raise NotImplementedError

    @property
    def smallest(self) -> int:
        """The fewest bytes that a value takes."""
        return 1

    @property
    def takes_null(self) -> bool:
        """Whether a value may be null."""
        return False

    @property
    def parts(self) -> Sequence[Node]:
        return ()

    @property
    def facts(self) -> str:
        """What a column must know of the semantic type, as JSON; see
        :mod:`semel.converters.semantic`."""
        return ""

    @property
    def connect(self) -> Facts | None:
        """What Kafka Connect's schema says beyond the Arrow type, if anything."""
        return None

    @cached_property
    def columnar(self) -> bool:
        """Whether values can be read in columns: not those of recursive types."""
        return all(part.columnar for part in self.parts)


@dataclass(frozen=True)
class Primitive(Node):
    """``logical`` is the type that the number or the text stands for, if that is not ``kind``
    itself, and ``known`` the semantic type. ``counted`` is what numbers count that Kafka Connect
    takes for numbers."""

    kind: str
    logical: pa.DataType | None = None
    known: SemanticReader | None = None
    facts: str = ""
    connect: Facts | None = field(default=None, hash=False)
    counted: pa.DataType | None = None

    @property
    def type(self) -> pa.DataType:
        return self.logical or self.physical

    @property
    def physical(self) -> pa.DataType:
        return PRIMITIVES[self.kind]

    @property
    def takes_null(self) -> bool:
        return self.kind == "null"

    @property
    def smallest(self) -> int:
        return {"null": 0, "float": 4, "double": 8}.get(self.kind, 1)

    @cached_property
    def within(self) -> tuple[int, int] | None:
        """The range of its numbers, if that is narrower than the type's."""
        if self.logical is not None and pa.types.is_time(self.logical):
            return 0, PER_DAY[self.logical.unit] - 1
        if self.logical in (pa.int8(), pa.int16()):
            most = 2 ** (self.logical.bit_width - 1)
            return -most, most - 1
        return None

    def finish(self, values: pa.Array) -> pa.Array:
        """Convert values of the physical type to the logical one."""
        if self.known is not None:
            return self.known.of(values)
        return values if self.logical is None else values.cast(self.logical)


@dataclass(frozen=True)
class Decimal(Node):
    """Bytes, or a ``fixed`` of this size, that hold an unscaled number."""

    precision: int
    scale: int
    size: int | None = None

    @property
    def type(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)


@dataclass(frozen=True)
class Fixed(Node):
    """A fixed number of bytes."""

    size: int

    @property
    def type(self) -> pa.DataType:
        return pa.binary()

    @property
    def smallest(self) -> int:
        return self.size


@dataclass(frozen=True)
class Enum(Node):
    """One of these texts."""

    symbols: tuple[str, ...]

    @property
    def type(self) -> pa.DataType:
        return pa.string()


@dataclass(frozen=True)
class Field:
    """A field of a record. ``default`` is that of Kafka Connect's schema; a null stands for it if
    ``fills`` is true."""

    name: str
    node: Node
    default: Any = None
    given: Any = None
    """Avro's own default, for writers that lack the field."""
    doc: str | None = None
    fills: bool = True

    def check_defaults(self) -> None:
        """Raise ValueError if a default does not fit the type."""
        _ = self.written_default, self._known_default

    @cached_property
    def written_default(self) -> pa.Scalar | None:
        """The value to write for a missing field; None if that is null, or an error. Raises
        ValueError if it does not fit the type."""
        return self._scalar(self.given)

    @cached_property
    def _known_default(self) -> pa.Scalar | None:
        return self._scalar(self.default)

    def _scalar(self, default: Any) -> pa.Scalar | None:
        try:
            return None if default is None else _default(self.node, default)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(
                f"field {named(self.name)}: its default {json.dumps(default)[:80]} does not fit "
                f"its type: {error}"
            ) from None

    @cached_property
    def arrow(self) -> pa.Field:
        kind = self.node.type
        column = pa.field(self.name, kind, self.node.takes_null)
        facts = dict(self.node.connect or {})
        if self.doc and (pa.types.is_struct(kind) or not pa.types.is_nested(kind)):
            facts["doc"] = self.doc
        if facts and not pa.types.is_null(kind):
            column = described(column, facts)
        with suppress(ValueError):  # a default that does not fit matters to writers only
            if self._known_default is not None:
                column = with_default(column, self._known_default)
        if self.node.facts:
            column = column.with_metadata(
                {**(column.metadata or {}), FACTS: self.node.facts.encode()}
            )
        return column

    def filled(self, values: pa.Array) -> pa.Array:
        """Kafka Connect's ``Struct.get`` returns a field's default for null."""
        if not (self.fills and values.null_count) or self._known_default is None:
            return values
        return pc.fill_null(values, self._known_default)


@dataclass(frozen=True)
class Record(Node):
    """Fields in their order. ``known`` is the semantic type that they make up."""

    name: str
    fields: tuple[Field, ...]
    is_entry: bool = False
    known: SemanticReader | None = None
    facts: str = ""
    connect: Facts | None = field(default=None, hash=False)

    @cached_property
    def type(self) -> pa.DataType:
        return self.known.type if self.known else pa.struct([f.arrow for f in self.fields])

    def finish(self, values: pa.Array) -> pa.Array:
        """Convert structs of the fields to what they make up."""
        return values if self.known is None else self.known.of(values)

    @cached_property
    def smallest(self) -> int:
        return sum(f.node.smallest for f in self.fields)

    @property
    def parts(self) -> Sequence[Node]:
        return [f.node for f in self.fields]


@dataclass(frozen=True)
class Array(Node):
    """Items, or the entries of a map whose keys are not text."""

    item: Node
    known_as: str = ""
    connect: Facts | None = field(default=None, hash=False)

    @property
    def facts(self) -> str:
        inner = self.item.facts
        return self.known_as or (json.dumps({"items": json.loads(inner)}) if inner else "")

    @property
    def entries(self) -> Record | None:
        """The entries of a map, if that is what it holds."""
        return self.item if isinstance(self.item, Record) and self.item.is_entry else None

    @cached_property
    def type(self) -> pa.DataType:
        if self.entries is not None:
            key, value = (f.node.type for f in self.entries.fields)
            return pa.map_(key, value)
        return pa.list_(self.item.type)

    @property
    def parts(self) -> Sequence[Node]:
        return [self.item]


@dataclass(frozen=True)
class Map(Node):
    """Values keyed by text."""

    value: Node

    @cached_property
    def type(self) -> pa.DataType:
        return pa.map_(pa.string(), self.value.type)

    @cached_property
    def entry(self) -> Record:
        return Record("", (Field("key", Primitive("string")), Field("value", self.value)))

    @property
    def parts(self) -> Sequence[Node]:
        return [self.value]


@dataclass(frozen=True)
class Union(Node):
    """A union: a value, which may be null, if there is one type beside null, or none; else a struct
    with a field for each type."""

    branches: tuple[Node, ...]
    names: tuple[str, ...] = ()

    @cached_property
    def null(self) -> int | None:
        """Which branch is null."""
        return next((n for n, b in enumerate(self.branches) if b == Primitive("null")), None)

    @property
    def takes_null(self) -> bool:
        return self.null is not None

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The other branches."""
        return tuple(n for n in range(len(self.branches)) if n != self.null)

    @cached_property
    def type(self) -> pa.DataType:
        types = [self.branches[n].type for n in self.values]
        if len(types) <= 1:
            return types[0] if types else pa.null()
        fields = [pa.field(self.names[n], t) for n, t in zip(self.values, types, strict=True)]
        return pa.struct(fields)

    @property
    def parts(self) -> Sequence[Node]:
        return self.branches

    @property
    def facts(self) -> str:
        return self.branches[self.values[0]].facts if len(self.values) == 1 else ""

    @property
    def connect(self) -> Facts | None:
        return self.branches[self.values[0]].connect if len(self.values) == 1 else None


@dataclass(frozen=True)
class Recursion(Node):
    """A recursive type. Arrow has none, so its values are JSON."""

    name: str
    named: Mapping[str, Node] = field(compare=False, hash=False, repr=False)

    @property
    def type(self) -> pa.DataType:
        return JSON

    @cached_property
    def columnar(self) -> bool:
        return False


def _default(node: Node, value: Any) -> pa.Scalar | None:
    """A default of a schema in Arrow; None for types that have several parts."""
    if isinstance(node, Union):
        node = node.branches[node.values[0]]
    if isinstance(value, str) and isinstance(node, Decimal):
        number = int.from_bytes(value.encode("latin-1"), "big", signed=True)
        return pa.scalar(decimal.Decimal(number).scaleb(-node.scale), node.type)
    if isinstance(value, str) and node.type == pa.binary():
        return pa.scalar(value.encode("latin-1"), node.type)
    if isinstance(node, Primitive) and node.type != JSON:
        return node.finish(pa.array([value], node.physical))[0]
    return pa.scalar(value, node.type) if isinstance(node, Enum) else None


_WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def incompatible(reader: Node, writer: Node, path: str = "") -> Iterator[str]:
    """The reasons why a reader's schema cannot read what was written, part by part."""
    prefix = in_field(path)
    if isinstance(reader, Union) or isinstance(writer, Union):
        if writer.takes_null and not reader.takes_null:
            yield f"{prefix}it may be null, but not in the latest version"
        for branch in _types(writer):
            if all(list(incompatible(other, branch, path)) for other in _types(reader)):
                yield f"{prefix}{branch.type} is not one of its types"
        return
    match reader, writer:
        case Record(), Record():
            yield from _fields(reader, writer, path)
        case (Array(inner), Array(written)) | (Map(inner), Map(written)):
            yield from incompatible(inner, written, f"{path}[]")
        case _ if not _reads(reader, writer):
            yield f"{prefix}{writer.type} cannot be read as {reader.type}"


def _reads(reader: Node, writer: Node) -> bool:
    if isinstance(reader, Primitive) and isinstance(writer, Primitive):
        return reader.kind == writer.kind or reader.kind in _WIDER.get(writer.kind, ())
    return type(reader) is type(writer)


def _types(node: Node) -> list[Node]:
    return [node.branches[n] for n in node.values] if isinstance(node, Union) else [node]


def _fields(reader: Record, writer: Record, path: str) -> Iterator[str]:
    written = {f.name: f.node for f in writer.fields}
    for reader_field in reader.fields:
        inner = f"{path}.{reader_field.name}".strip(".")
        if reader_field.name in written:
            yield from incompatible(reader_field.node, written[reader_field.name], inner)
        elif reader_field.given is None and not reader_field.node.takes_null:
            why = "it is missing, and the latest version has no default for it"
            yield f"field {named(inner)}: {why}"
