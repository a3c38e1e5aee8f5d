"""Arrow to Avro: the schemas of types, as Kafka Connect's AvroData writes them, and the values of a
schema.

Values are written in columns: each field of all values, then the fields are joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.avro.schema import (
    NAME,
    NAMESPACE,
    Array,
    Decimal,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
)
from semel.converters.binary import (
    SchemaMismatch,
    fitted,
    of_numbers,
    scrubbed,
    unscaled,
    varints,
)
from semel.converters.json.columns import JSON
from semel.converters.semantic import (
    CONNECT,
    DEBEZIUM,
    WRITTEN,
    check_types,
    counts,
    plain_type,
    schema_in,
    suits,
)
from semel.core.quoting import all_named, in_field, named, typed
from semel.core.records import Facts

_ENTRY = "MapEntry"
_VALID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_NOTHING: Facts = {}
_EMPTY = pa.scalar(b"", pa.binary())
_END = pa.scalar(b"\0", pa.binary())

Schema = Any
Piece = Any
"""The bytes of each value (a binary array), or the bytes that all values share (a scalar)."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How schemas are written: with Kafka Connect's own properties (``connect.meta.data``), and
    with valid names in place of those that Avro does not allow (``scrub.invalid.names``).
    ``facts`` is what the top-level schema says of itself."""

    connect_properties: bool = True
    scrub: bool = False
    facts: Facts = field(default_factory=dict)


def schema_of(kind: pa.DataType, options: WriteOptions) -> Schema:
    """The schema of values of this type.

    Raises:
        ValueError: Avro has no such type, or allows no such name.
    """
    check_types(kind, "Avro")
    writer = _SchemaWriter(options)
    name = writer.full_name(options.facts)
    if pa.types.is_struct(kind) and name and not _is_name(name):
        way = "Set scrub.invalid.names=true, or" if all(name.split(".")) else "Set"
        raise ValueError(
            f"schema name {named(name)}: Avro allows letters, digits and underscores between dots "
            f"only. {way} another name in SetSchemaMetadata"
        )
    return writer.of(kind, options.facts)


def _is_name(full: str) -> bool:
    return all(_VALID.fullmatch(part) for part in full.split("."))


class _SchemaWriter:
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._records = 0
        self._written: dict[str, pa.StructType] = {}

    def full_name(self, facts: Facts) -> str:
        """The name of a record; empty if it has none of its own."""
        name = facts.get("name") or ""
        return ".".join(map(scrubbed, name.split("."))) if self._options.scrub else name

    def of(self, kind: pa.DataType, facts: Facts = _NOTHING) -> Schema:
        """The schema of a type; ``facts`` is what Kafka Connect's schema says of itself."""
        if pa.types.is_struct(kind):
            return self._record(kind, facts)
        if pa.types.is_map(kind):
            value = self._optional(kind.item_type)
            if pa.types.is_string(kind.key_type):
                return {"type": "map", "values": value}
            return self._entries(kind.key_type, value)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            items = self._optional(kind.value_type, facts.get("items", _NOTHING))
            return {"type": "array", "items": items, **self._facts(kind, facts)}
        if pa.types.is_dictionary(kind):
            return self.of(kind.value_type, facts)
        schema, properties = self._plain(kind), self._facts(kind, facts)
        if not properties:
            return schema
        return {**(schema if isinstance(schema, dict) else {"type": schema}), **properties}

    def _facts(self, kind: pa.DataType, facts: Facts) -> Facts:
        """Kafka Connect's properties of a schema, unless the type itself has a name."""
        name = facts.get("name")
        if not self._with_properties or name in WRITTEN or not suits(name, kind):
            return _NOTHING
        parts = {"version": facts.get("version"), "parameters": facts.get("parameters")}
        parts["name"] = name
        return {f"connect.{n}": part for n, part in parts.items() if part}

    def _optional(self, kind: pa.DataType, facts: Facts = _NOTHING) -> Schema:
        return ["null", self.of(kind, facts)]

    def _record(self, kind: pa.StructType, facts: Facts) -> Schema:
        """A record of its schema's name, which Avro defines once."""
        full = self.full_name(facts)
        nested = bool(self._written)
        if nested and not ("." in full and _is_name(full)):
            full = ""
        if full in self._written:
            if self._written[full].equals(kind, check_metadata=True):
                return full
            full = ""
        if not full:
            self._records += 1
            full = f"{NAMESPACE}.{NAME}{self._records if self._records > 1 else ''}"
        self._written[full] = kind
        namespace, _, name = full.rpartition(".")
        return {
            "type": "record",
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "fields": [self._field(field) for field in kind],
            **self._facts(kind, facts),
        }

    def _field(self, field: pa.Field) -> Schema:
        name, facts = self._name(field.name), schema_in(field)
        if field.nullable:
            return {"name": name, "type": self._optional(field.type, facts), "default": None}
        return {"name": name, "type": self.of(field.type, facts)}

    def _name(self, name: str) -> str:
        if _VALID.fullmatch(name):
            return name
        if not name or not self._options.scrub:
            way = "Set scrub.invalid.names=true, or let" if name else "Let"
            raise ValueError(
                f"field {named(name)}: Avro allows letters, digits and underscores only. {way} a "
                "transform rename it"
            )
        return scrubbed(name)

    def _entries(self, key: pa.DataType, value: Schema) -> Schema:
        self._records += 1
        suffix = "" if self._records == 1 else str(self._records)
        return {
            "type": "array",
            "items": {
                "type": "record",
                "name": f"{_ENTRY}{suffix}",
                "namespace": NAMESPACE,
                "fields": [{"name": "key", "type": self.of(key)}, {"name": "value", "type": value}],
                "connect.internal.type": _ENTRY,
            },
        }

    def _plain(self, kind: pa.DataType) -> Schema:
        if kind == JSON:
            return self._named("string", DEBEZIUM + "data.Json")
        if pa.types.is_decimal(kind):
            return self._decimal(kind)
        connect, logical = plain_type(kind)
        primitive = _PLAIN[connect]
        if logical:
            return {**self._named(primitive, CONNECT + logical), "logicalType": _LOGICAL[logical]}
        if connect in ("int8", "int16") and self._with_properties:
            return {"type": primitive, "connect.type": connect}
        return primitive

    @property
    def _with_properties(self) -> bool:
        return self._options.connect_properties

    def _named(self, kind: str, name: str) -> Schema:
        if not self._with_properties:
            return {"type": kind}
        return {"type": kind, "connect.version": 1, "connect.name": name}

    def _decimal(self, kind: pa.DataType) -> Schema:
        schema = {"type": "bytes", "scale": kind.scale, "precision": kind.precision}
        if self._with_properties:
            parameters = {
                "scale": str(kind.scale),
                "connect.decimal.precision": str(kind.precision),
            }
            schema |= {"connect.version": 1, "connect.parameters": parameters}
            schema |= {"connect.name": CONNECT + "Decimal"}
        return {**schema, "logicalType": "decimal"}


_LOGICAL = {"Date": "date", "Time": "time-millis", "Timestamp": "timestamp-millis"}
_PLAIN = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}
_PLAIN |= {"float32": "float", "float64": "double"}
_PLAIN |= {name: name for name in ("boolean", "bytes", "string")}


def write(node: Node, values: pa.Array) -> pa.Array:
    """The bytes of each value, none of which is null.

    Raises:
        SchemaMismatch: names the field and what does not fit.
    """
    return _joined(_pieces(node, values, ""), len(values))


def _joined(pieces: Sequence[Piece], count: int) -> pa.Array:
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        return pa.repeat(pa.scalar(b"".join(p.as_py() for p in pieces), pa.binary()), count)
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _EMPTY)


def _pieces(node: Node, values: pa.Array, path: str) -> list[Piece]:
    kind = values.type
    if values.null_count and not node.takes_null:
        raise SchemaMismatch(f"{in_field(path)}null, but its schema requires a value")
    match node:
        case Union():
            return _union(node, values, path)
        case Record() if pa.types.is_struct(kind):
            return _record(node, values, path)
        case Primitive():
            return _primitive(node, values, path)
        case Decimal() if pa.types.is_decimal(kind):
            digits = unscaled(fitted(values, node.type, path))
            if node.size is not None:
                return [_widened(digits, node.size, path)]
            return [_lengths(digits), digits]
        case Fixed(size) if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return [fitted(values, pa.binary(size), path).cast(pa.binary())]
        case Enum(symbols):
            indices = pc.index_in(fitted(values, pa.string(), path), pa.array(symbols))
            if indices.null_count:
                other = values.filter(indices.is_null())[0]
                raise SchemaMismatch(f"{in_field(path)}{other} is not one of {all_named(symbols)}")
            return [longs(indices.to_numpy())]
        case Map() if pa.types.is_map(kind):
            return _entries(node.entry, values, path)
        case Array() if node.entries is not None and pa.types.is_map(kind):
            return _entries(node.entries, values, path)
        case Array(item) if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return _list(values, _joined_items(item, values.flatten(), path))
    raise SchemaMismatch(f"{in_field(path)}{kind} cannot be written as {node.type}")


def _record(node: Record, values: pa.StructArray, path: str) -> list[Piece]:
    names = [f.name for f in values.type]
    columns = values.flatten()
    by_name = dict(zip(map(scrubbed, names), columns, strict=True))
    by_name |= dict(zip(names, columns, strict=True))
    pieces: list[Piece] = []
    for member in node.fields:
        inner = f"{path}.{member.name}".strip(".")
        column = by_name.get(member.name)
        if column is None:
            column = _missing(member.node, member.written_default, len(values), inner)
        pieces += _pieces(member.node, column, inner)
    return pieces or [_EMPTY]


def _missing(node: Node, default: pa.Scalar | None, count: int, path: str) -> pa.Array:
    if default is not None:
        return pa.repeat(default, count)
    if node.takes_null:
        return pa.nulls(count, node.type)
    raise SchemaMismatch(f"{in_field(path)}it is missing, and the schema has no default for it")


def _union(node: Union, values: pa.Array, path: str) -> list[Piece]:
    only_nulls = pa.types.is_null(values.type) or 0 < values.null_count == len(values)
    if only_nulls and node.null is not None:
        return [_tag(node.null)]
    if len(node.values) != 1:
        why = f"a union of {all_named(node.names)} cannot be written"
        raise SchemaMismatch(f"{in_field(path)}{why}")
    (branch,) = node.values
    if node.null is None or not values.null_count:
        return [_tag(branch), *_pieces(node.branches[branch], values, path)]
    present = values.drop_null()
    inner = _joined([_tag(branch), *_pieces(node.branches[branch], present, path)], len(present))
    return [pc.replace_with_mask(pa.repeat(_tag(node.null), len(values)), values.is_valid(), inner)]


def _tag(branch: int) -> pa.Scalar:
    return longs(np.array([branch], np.int64))[0]


def _primitive(node: Primitive, values: pa.Array, path: str) -> list[Piece]:
    if node.kind == "null":
        return [_EMPTY]
    if isinstance(values, pa.ExtensionArray) and values.type == JSON:
        values = values.storage
    values = _physical(node, values, path)
    if node.kind in ("int", "long"):
        return [longs(values.to_numpy())]
    if node.kind in ("float", "double"):
        return [of_numbers(values.to_numpy(), 4 if node.kind == "float" else 8)]
    if node.kind == "boolean":
        return [of_numbers(values.cast(pa.uint8()).to_numpy(), 1)]
    content = values.cast(pa.binary())
    return [_lengths(content), content]


def _physical(node: Primitive, values: pa.Array, path: str) -> pa.Array:
    """Convert logical values to numbers."""
    if pa.types.is_temporal(values.type):
        values = counts(_as_counted(node, values, path))
    elif node.logical is not None and node.kind != "string":
        values = fitted(values, node.logical, path).cast(node.physical)
    return fitted(values, node.physical, path)


def _as_counted(node: Primitive, values: pa.Array, path: str) -> pa.Array:
    """Dates and times in the units that the schema counts, which are Kafka Connect's if it does not
    say. Finer digits are cut."""
    kind = values.type
    connects = next((t for is_, t in _CONNECTS if is_(kind)), None)  # none for a duration
    target = node.logical or node.counted or connects or node.physical
    alike = any(is_(kind) and is_(target) for is_, _ in _CONNECTS)
    midnights = pa.types.is_date(kind) and pa.types.is_timestamp(target)
    if node.kind not in ("int", "long") or not (alike or midnights):
        other = typed(target) if node.kind in ("int", "long") else node.kind
        raise SchemaMismatch(f"{in_field(path)}{typed(kind)} cannot be written as {other}")
    if not pa.types.is_timestamp(target):
        return values.cast(target, safe=False)
    if pa.types.is_timestamp(kind):
        values = pc.floor_temporal(values, unit=_UNITS[target.unit])
        values = values.cast(pa.timestamp(kind.unit, target.tz))
    return fitted(values, target, path)


_CONNECTS: Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType]] = (
    (pa.types.is_date, pa.date32()),
    (pa.types.is_time, pa.time32("ms")),
    (pa.types.is_timestamp, pa.timestamp("ms", "UTC")),
)
_UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}


def longs(numbers: npt.NDArray[Any]) -> pa.Array:
    """Numbers of variable length (zigzag)."""
    signed = numbers.astype(np.int64)
    return varints(((signed << 1) ^ (signed >> 63)).view(np.uint64))


def _lengths(values: pa.Array) -> pa.Array:
    return longs(pc.binary_length(values).to_numpy())


def _widened(digits: pa.Array, size: int, path: str) -> pa.Array:
    numbers = [int.from_bytes(d, "big", signed=True) for d in digits.to_pylist()]
    try:
        widened = [n.to_bytes(size, "big", signed=True) for n in numbers]
    except OverflowError:
        raise SchemaMismatch(
            f"{in_field(path)}its schema has {size} bytes for a decimal, but it takes more"
        ) from None
    return pa.array(widened, pa.binary())


def _joined_items(node: Node, items: pa.Array, path: str) -> pa.Array:
    return _joined(_pieces(node, items, f"{path}[]"), len(items))


def _entries(entry: Record, values: pa.MapArray, path: str) -> list[Piece]:
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    columns = [values.keys[first:last], values.items[first:last]]
    pairs = pa.StructArray.from_arrays(columns, names=["key", "value"])
    return _list(values, _joined_items(entry, pairs, path))


def _list(values: pa.Array, items: pa.Array) -> list[Piece]:
    """One block of all items, and the end; a list without items is only an end."""
    counts = np.diff(values.offsets.to_numpy()).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), _EMPTY)
    if (counts > 0).all():
        return [longs(counts), joined, _END]
    begin = pc.if_else(pa.array(counts > 0), longs(counts), _EMPTY)
    return [begin, joined, _END]
