"""Semantic types: what the name of a schema says of a value beyond its type.

Kafka Connect and Debezium name their schemas: an int64 named ``io.debezium.time.MicroTimestamp`` is
a time. :data:`TYPES` says how each is read. All converters go by it, wherever a value is: on its
own, in a field, a list or a map.

A time has an Arrow type of its own. Others keep the type of what was sent, and the metadata of
their field says what they are (:data:`FACTS`): transforms see them as Kafka Connect does, and a
column gets the type and the form that the store has for them. :func:`described` makes a column of
such a field, whose type (:class:`SemanticType`) then holds the facts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import in_field
from semel.core.records import list_offsets, lists_like

CONNECT = "org.apache.kafka.connect.data."
DEBEZIUM = "io.debezium."
DECIMAL = CONNECT + "Decimal"
FACTS, SCHEMA = b"semel.semantic", b"semel.connect"
"""Metadata of a field: its schema's name and parameters, or those of a list's items, as JSON; and
Kafka Connect's whole schema."""

JSON_NAME = DEBEZIUM + "data.Json"
WRITTEN = (DECIMAL, *(CONNECT + n for n in ("Date", "Time", "Timestamp")), JSON_NAME)
"""The names that their Arrow types stand for."""

PRIMITIVES = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], str, str]] = (
    (pa.types.is_boolean, "boolean", ""),
    (pa.types.is_int8, "int8", ""),
    (lambda kind: kind in (pa.int16(), pa.uint8()), "int16", ""),
    (lambda kind: kind in (pa.int32(), pa.uint16()), "int32", ""),
    (lambda kind: kind in (pa.int64(), pa.uint32()), "int64", ""),
    (lambda kind: kind in (pa.float16(), pa.float32()), "float32", ""),
    (pa.types.is_floating, "float64", ""),
    (pa.types.is_binary, "bytes", ""),
    (pa.types.is_large_binary, "bytes", ""),
    (pa.types.is_fixed_size_binary, "bytes", ""),
    (pa.types.is_string, "string", ""),
    (pa.types.is_large_string, "string", ""),
    (pa.types.is_null, "string", ""),
    (pa.types.is_date, "int32", "Date"),
    (pa.types.is_time, "int32", "Time"),
    (pa.types.is_timestamp, "int64", "Timestamp"),
)


def plain_type(kind: pa.DataType) -> tuple[str, str]:
    """Kafka Connect's primitive type for an Arrow type, and its logical type, if it has one; both
    empty for types without."""
    pairs = ((name, logical) for matches, name, logical in _PLAIN if matches(kind))
    return next(pairs, ("", ""))


def check_types(kind: pa.DataType, written_as: str, path: str = "") -> None:
    """Raises ValueError: names a field of a type that Kafka Connect's schemas lack."""
    types = pa.types
    if types.is_struct(kind):
        for field in kind:
            check_types(field.type, written_as, f"{path}.{field.name}".strip("."))
    elif types.is_map(kind):
        check_types(kind.key_type, written_as, path)
        check_types(kind.item_type, written_as, path)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind):
        check_types(kind.value_type, written_as, path)
    elif not (types.is_decimal(kind) or isinstance(kind, pa.JsonType) or plain_type(kind)[0]):
        raise ValueError(
            f"{in_field(path)}{written_as} cannot represent {kind}. Let a transform convert it"
        )


UTC = pa.timestamp("us", "UTC")
PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_MOST_DIGITS, _FINEST = 131_072, 16_383
"""The digits that PostgreSQL allows before and after the point of a number."""
_MOST_SCALE = 38


@dataclass(frozen=True, slots=True)
class SemanticReader:
    """How values of a semantic type are read.

    ``wire`` is the Arrow type of what is sent, ``type`` that of the values, if it differs. ``read``
    converts whole arrays; it raises ValueError if a value cannot be converted. ``told`` says that
    columns must know the type: Arrow has none for it.
    """

    wire: pa.DataType
    type: pa.DataType
    read: Callable[[pa.Array], pa.Array]
    told: bool = False

    def of(self, values: pa.Array) -> pa.Array:
        """Convert what was sent; a struct's fields may be in any order."""
        if not pa.types.is_struct(self.wire):
            return self.read(values)
        columns = dict(zip([f.name for f in values.type], values.flatten(), strict=True))
        parts = [columns[f.name].cast(f.type) for f in self.wire]
        mask = values.is_null() if values.null_count else None
        return self.read(pa.StructArray.from_arrays(parts, fields=list(self.wire), mask=mask))


def time_of_day(numbers: pa.Array, unit: pa.DataType) -> pa.Array:
    """Numbers as times of the unit. Arrow accepts any number, but these must be within a day."""
    times = numbers.cast(pa.int32() if unit.bit_width == 32 else pa.int64()).cast(unit)
    least, greatest = pc.min_max(numbers).as_py().values()
    if least is not None and (least < 0 or greatest >= PER_DAY[unit.unit]):
        raise pa.ArrowInvalid("no time of a day")
    return times


def without_nanoseconds(timestamps: pa.Array) -> pa.Array:
    """The value in microseconds. Arrow's own cast truncates towards 1970, which rounds earlier
    times up."""
    cut = pc.floor_temporal(timestamps, unit="microsecond")
    return cut.cast(pa.timestamp("us", timestamps.type.tz))


def _moments(text: pa.Array) -> pa.Array:
    """ISO 8601 with a zone, to UTC. Digits finer than a microsecond are cut off."""
    try:
        return text.cast(UTC)
    except pa.ArrowInvalid:
        return without_nanoseconds(text.cast(pa.timestamp("ns", "UTC"))).cast(UTC)


def times_in_utc(text: pa.Array) -> pa.Array:
    """Times of day with a zone, ``10:20:30.5+02:00``, in UTC."""
    moments = _moments(pc.binary_join_element_wise("1970-01-02T", text, "")).cast(pa.int64())
    days = pc.multiply(pc.divide(moments, PER_DAY["us"]), PER_DAY["us"])
    return pc.subtract(moments, days).cast(pa.time64("us"))


def _iso_dates(text: pa.Array) -> pa.Array:
    """``2024-02-29Z``. Debezium always writes UTC; another zone would name another day."""
    return pc.replace_substring_regex(text, r"Z$", "").cast(pa.date32())


def _variable_scale(values: pa.Array) -> pa.Array:
    """Decimals with a scale of their own, as text in plain digits."""
    from semel.converters.json.duck import unscaled_texts
    from semel.converters.json.text import place

    scales, unscaled = values.flatten()
    there = values.is_valid()
    if pc.any(pc.and_(there, pc.or_(scales.is_null(), unscaled.is_null()))).as_py():
        raise ValueError("a VariableScaleDecimal without scale or value")
    digits = unscaled_texts(unscaled)
    bare = pc.ascii_ltrim(digits, characters="-")
    texts, rows = [pa.nulls(0, pa.string())], [pa.array([], pa.uint64())]
    for scale in pc.unique(scales.drop_null()).to_pylist():
        if not -_MOST_DIGITS <= scale <= _FINEST:
            raise ValueError(f"a scale of {scale}")
        rows.append(pc.indices_nonzero(pc.equal(scales, scale)))
        some = bare.take(rows[-1])  # padding may make them very long
        if scale > 0:
            padded = pc.utf8_lpad(some, scale + 1, "0")
            whole = pc.utf8_slice_codeunits(padded, 0, -scale)
            written = pc.binary_join_element_wise(
                whole, pc.utf8_slice_codeunits(padded, -scale), "."
            )
        else:
            zeros = pc.binary_join_element_wise(some, "0" * -scale, "")
            written = pc.if_else(pc.equal(some, "0"), some, zeros)
        texts.append(written)
    placed = place(pa.concat_arrays(texts), pa.concat_arrays(rows), len(values))
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    return pc.if_else(there, pc.binary_join_element_wise(sign, placed, ""), None)


def _sparse(values: pa.Array) -> pa.Array:
    """Sparse vectors in pgvector's form: ``{1:0.5,7:2}/9``."""
    dimensions, vectors = values.flatten()
    there = values.is_valid()
    if pc.any(pc.and_(there, pc.or_(dimensions.is_null(), vectors.is_null()))).as_py():
        raise ValueError("a sparse vector without dimensions or vector")
    pairs = vectors.cast(pa.list_(pa.struct([("key", pa.int16()), ("value", pa.float64())])))
    keys, items = pairs.flatten().flatten()
    entries = pc.binary_join_element_wise(keys.cast(pa.string()), items.cast(pa.string()), ":")
    inside = pc.binary_join(pa.ListArray.from_arrays(list_offsets(pairs), entries), ",")
    text = pc.binary_join_element_wise("{", inside, "}/", dimensions.cast(pa.string()), "")
    return pc.if_else(there, text, None)


def _geometries(values: pa.Array) -> pa.Array:
    wkb = values.field("wkb") if values.type.get_field_index("x") < 0 else values.field("x")
    if pc.any(pc.and_(values.is_valid(), wkb.is_null())).as_py():
        raise ValueError("a geometry without its bytes or coordinates")
    return values


def _number(wire: pa.DataType, kind: pa.DataType) -> SemanticReader:
    """A number that counts units of time."""
    if pa.types.is_time(kind):
        return SemanticReader(wire, kind, lambda a: time_of_day(a, kind))
    return SemanticReader(wire, kind, lambda a: a.cast(wire).cast(kind))


def _same(wire: pa.DataType) -> SemanticReader:
    return SemanticReader(wire, wire, lambda a: a, told=True)


def _text(kind: pa.DataType, read: Callable[[pa.Array], pa.Array]) -> SemanticReader:
    return SemanticReader(pa.string(), kind, read)


_GEOMETRY = pa.struct([("wkb", pa.binary()), ("srid", pa.int32())])
_POINT = pa.struct([("x", pa.float64()), ("y", pa.float64()), *_GEOMETRY])
_VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])
_SPARSE = pa.struct([("dimensions", pa.int16()), ("vector", pa.map_(pa.int16(), pa.float64()))])

TYPES: Mapping[str, SemanticReader] = {
    CONNECT + "Date": _number(pa.int32(), pa.date32()),
    CONNECT + "Time": _number(pa.int32(), pa.time32("ms")),
    CONNECT + "Timestamp": _number(pa.int64(), pa.timestamp("ms", "UTC")),
    **{
        DEBEZIUM + name: semantic
        for name, semantic in {
            "time.Date": _number(pa.int32(), pa.date32()),
            "time.Time": _number(pa.int32(), pa.time32("ms")),
            "time.MicroTime": _number(pa.int64(), pa.time64("us")),
            "time.NanoTime": _number(pa.int64(), pa.time64("ns")),
            # Without a zone: what a clock on the wall shows.
            "time.Timestamp": _number(pa.int64(), pa.timestamp("ms")),
            "time.MicroTimestamp": _number(pa.int64(), pa.timestamp("us")),
            "time.NanoTimestamp": _number(pa.int64(), pa.timestamp("ns")),
            "time.IsoDate": _text(pa.date32(), _iso_dates),
            "time.IsoTime": _text(pa.time64("us"), times_in_utc),
            "time.IsoTimestamp": _text(
                pa.timestamp("us"), lambda a: _moments(a).cast(pa.timestamp("us"))
            ),
            "time.ZonedTimestamp": _text(UTC, _moments),
            "time.ZonedTime": _same(pa.string()),
            "time.Interval": _same(pa.string()),
            "time.MicroDuration": _same(pa.int64()),
            "time.NanoDuration": _same(pa.int64()),
            "time.Year": _same(pa.int32()),
            "data.Bits": _same(pa.binary()),
            "data.Enum": _same(pa.string()),
            "data.EnumSet": _same(pa.string()),
            "data.Json": _text(pa.json_(), lambda a: pa.ExtensionArray.from_storage(pa.json_(), a)),
            "data.Ltree": _same(pa.string()),
            "data.Tsvector": _same(pa.string()),
            "data.Uuid": _same(pa.string()),
            "data.VariableScaleDecimal": SemanticReader(
                _VARIABLE, pa.string(), _variable_scale, told=True
            ),
            "data.Xml": _same(pa.string()),
            "data.DoubleVector": _same(pa.list_(pa.float64())),
            "data.FloatVector": _same(pa.list_(pa.float32())),
            "data.SparseDoubleVector": SemanticReader(_SPARSE, pa.string(), _sparse, told=True),
            "data.geometry.Geometry": SemanticReader(_GEOMETRY, _GEOMETRY, _geometries, told=True),
            "data.geometry.Geography": SemanticReader(_GEOMETRY, _GEOMETRY, _geometries, told=True),
            "data.geometry.Point": SemanticReader(_POINT, _POINT, _geometries, told=True),
        }.items()
    },
}
"""Every semantic type but Kafka Connect's ``Decimal``, whose Arrow type its parameters choose."""


def semantic(name: object, wire: pa.DataType) -> SemanticReader | None:
    """The semantic type of a schema's name, if this is how it is sent."""
    candidate = TYPES.get(name) if isinstance(name, str) else None
    return candidate if candidate is not None and _sent_as(wire, candidate.wire) else None


def _sent_as(wire: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a type is the expected one, or narrower; structs need the expected fields."""
    if pa.types.is_struct(expected):
        names = {f.name for f in wire} if pa.types.is_struct(wire) else set()
        return names == {f.name for f in expected}
    if pa.types.is_integer(expected) and pa.types.is_integer(wire):
        return True
    if pa.types.is_list(expected) and pa.types.is_list(wire):
        return bool(pa.types.is_floating(wire.value_type))
    return bool(wire == expected)


def decimal_type(parameters: Mapping[str, Any]) -> pa.DataType:
    """The type of Kafka Connect's ``Decimal``.

    Raises:
        KeyError, TypeError, ValueError: it has no usable scale.
    """
    precision = int(parameters.get("connect.decimal.precision", 38))
    scale = int(parameters["scale"])
    if abs(scale) > _MOST_SCALE:  # Arrow reads no such number
        raise ValueError(f"a decimal with a scale of {scale}, which is beyond {_MOST_SCALE}")
    return pa.decimal128(min(max(precision, 1), 38), scale)


def semantic_facts(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a column must know of a schema in Kafka Connect's form; None if that is nothing."""
    semantic_type = TYPES.get(str(schema.get("name")))
    if (
        semantic_type is not None
        and semantic_type.told
        and _sent_as(_wire(schema), semantic_type.wire)
    ):
        return {"name": schema["name"], "parameters": schema.get("parameters") or {}}
    items = schema.get("items")
    inner = semantic_facts(items) if isinstance(items, Mapping) else None
    return {"items": inner} if inner else None


def schema_in(field: pa.Field) -> dict[str, Any]:
    """Kafka Connect's schema in the metadata of a field; empty if there is none."""
    schema: dict[str, Any] = json.loads((field.metadata or {}).get(SCHEMA, b"{}"))
    return schema


def facts_for(kind: pa.DataType, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The same for values that have been read already, as ``kind``."""
    semantic_type = TYPES.get(str(schema.get("name")))
    if semantic_type is None or not semantic_type.told or semantic_type.type != kind:
        return None
    return {"name": schema["name"], "parameters": schema.get("parameters") or {}}


def suits(name: object, kind: pa.DataType) -> bool:
    """Whether a schema of this type may have this name: not that of a semantic type which is sent
    as another type."""
    semantic_type = TYPES.get(str(name))
    return semantic_type is None or _sent_as(kind, semantic_type.wire)


def sent_as(kind: pa.DataType, schema: Mapping[str, Any]) -> pa.DataType:
    """The type that values of a schema are sent as, which have been read as ``kind``."""
    semantic_type = TYPES.get(str(schema.get("name")))
    return semantic_type.wire if semantic_type is not None and semantic_type.type == kind else kind


def as_sent(values: pa.Array, schema: Mapping[str, Any]) -> pa.Array:
    """Values as they were sent, by their schema in Kafka Connect's form: times as its numbers or
    texts. What a transform has made of another type stays as it is."""
    kind = values.type
    wire = kind if schema.get("name") in WRITTEN else sent_as(kind, schema)
    if pa.types.is_temporal(kind) and wire != kind:
        return _iso(values, wire) if wire == pa.string() else counts(values).cast(wire)
    if pa.types.is_list(kind) and isinstance(schema.get("items"), Mapping):
        items = values.flatten()
        sent = as_sent(items, schema["items"])
        return values if sent is items else lists_like(values, sent)
    if not pa.types.is_struct(kind):
        return values
    arrays = values.flatten()
    converted = [as_sent(array, schema_in(f)) for f, array in zip(kind, arrays, strict=True)]
    if all(sent is array for sent, array in zip(converted, arrays, strict=True)):
        return values
    fields = [f.with_type(sent.type) for f, sent in zip(kind, converted, strict=True)]
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(converted, fields=fields, mask=mask)


def counts(values: pa.Array) -> pa.Array:
    """Dates and times as the numbers that Arrow stores."""
    return values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())


def milliseconds(array: pa.Array) -> pa.Array:
    """Dates and times as the milliseconds that a ``java.util.Date`` holds; finer digits are cut
    off."""
    kind = array.type
    if pa.types.is_date(kind):
        return pc.multiply(array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), PER_DAY["ms"])
    numbers = counts(array).cast(pa.int64())
    if kind.unit in ("s", "ms"):
        return pc.multiply_checked(numbers, 1000) if kind.unit == "s" else numbers
    return floor_divided(numbers, 1000 if kind.unit == "us" else 1_000_000)


def floor_divided(numbers: pa.Array, by: int) -> pa.Array:
    """Division that rounds down, also for times before 1970."""
    filled = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return pa.array(filled // by, mask=np.asarray(numbers.is_null()))


def _iso(values: pa.Array, wire: pa.DataType) -> pa.Array:
    """ISO 8601, in UTC, with as few digits as Java writes."""
    if pa.types.is_timestamp(values.type):
        values = pc.strftime(values, format="%Y-%m-%dT%H:%M:%S")
    text = values.cast(wire)
    if not pa.types.is_date(values.type):
        text = pc.replace_substring_regex(text, r"\.?0+$", "")
    return pc.binary_join_element_wise(text, "Z", "")


def _wire(schema: Mapping[str, Any]) -> pa.DataType:
    """The Arrow type of a schema in Kafka Connect's form, as far as it matters here."""
    kind = schema.get("type")
    if kind == "struct":
        fields = schema.get("fields")
        members = fields if isinstance(fields, list) else ()
        names = [f.get("field") for f in members if isinstance(f, Mapping)]
        return pa.struct([(str(name), pa.null()) for name in names])
    items = schema.get("items")
    if kind == "array" and isinstance(items, Mapping):
        return pa.list_(_wire(items))
    return PRIMITIVES.get(str(kind), pa.null())


def semantic_struct(schema: Mapping[str, Any]) -> SemanticReader | None:
    """The semantic type of a struct's schema in Kafka Connect's form, if it has one."""
    return semantic(schema.get("name"), _wire(schema))


def metadata(facts: Mapping[str, Any] | None) -> Mapping[bytes, bytes] | None:
    """The metadata of a field with these facts."""
    return {FACTS: json.dumps(facts).encode()} if facts else None


def name_in(field_metadata: Mapping[bytes, bytes] | None) -> str:
    """The name of the semantic type that a field's metadata tells; empty if it tells none."""
    facts = (field_metadata or {}).get(FACTS)
    return "" if facts is None else str(_parsed(facts).get("name", ""))


class SemanticType(pa.ExtensionType):  # type: ignore[misc]
    """The type of a column whose values are more than their Arrow type says."""

    def __init__(self, storage: pa.DataType, facts: bytes) -> None:
        self.serialized = facts
        super().__init__(storage, FACTS.decode())

    def __arrow_ext_serialize__(self) -> bytes:
        return self.serialized

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> SemanticType:
        return cls(storage, serialized)

    def __reduce__(self) -> tuple[Any, ...]:
        return SemanticType, (self.storage_type, self.serialized)

    @property
    def _facts(self) -> Mapping[str, Any]:
        return _parsed(self.serialized)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the schema says of itself; nothing for a list of described items."""
        return {n: fact for n, fact in self._facts.items() if n != "items" and fact}

    @property
    def name(self) -> str:
        """The schema's name, without ``io.debezium.``; empty for a list of described items."""
        return str(self._facts.get("name", "")).removeprefix(DEBEZIUM)

    @property
    def parameters(self) -> Mapping[str, str]:
        """The schema's parameters."""
        parameters: Mapping[str, str] = self._facts.get("parameters", {})
        return parameters

    @property
    def items(self) -> SemanticType | None:
        """The type of a list's items."""
        inner = self._facts.get("items")
        if not inner or not pa.types.is_list(self.storage_type):
            return None
        return SemanticType(self.storage_type.value_type, json.dumps(inner).encode())


@lru_cache(maxsize=1000)
def _parsed(facts: bytes) -> Mapping[str, Any]:
    parsed: Mapping[str, Any] = json.loads(facts)
    return parsed


def described(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The values of a field as a column whose type holds its facts, if it has any; a transform may
    have made other values of them."""
    facts = (field.metadata or {}).get(FACTS)
    if facts is None or not _suits(values.type, _parsed(facts)):
        return values
    kind = SemanticType(values.type, facts)
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, c) for c in values.chunks], kind)


def _suits(kind: pa.DataType, facts: Mapping[str, Any]) -> bool:
    """Whether values of a type may have these facts."""
    items = facts.get("items")
    if items is not None:
        return pa.types.is_list(kind) and _suits(kind.value_type, items)
    return bool(kind == TYPES[facts["name"]].type)


def plain(values: pa.Array) -> pa.Array:
    """A described array as its values are."""
    return values.storage if isinstance(values.type, SemanticType) else values
