"""Converts one field's JSON to one Arrow column: types and their written forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json import duck
from semel.converters.semantic import SCHEMA, time_of_day, without_nanoseconds

JSON = pa.json_()
Texts = TypeVar("Texts", pa.Array, pa.ChunkedArray)

ARROW, CONNECT = b"semel.arrow", SCHEMA
"""Metadata of a field. ``CONNECT`` is Kafka Connect's schema, if that says more than the Arrow
type: what is inside JSON, a name, a default. ``ARROW`` is the type of what is inside JSON."""
WALL = b"semel.wall"
"""Metadata of a column of times without a zone that leaves out the zone of a text, instead of
converting it to UTC."""

_WHOLE = r"-?\d+\Z"
_NUMBER = r"-?\d|NaN|-?Inf"
_STRING = r'"'
_DECIMAL = r'-?\d|"'
_BOOLEAN = r"true|false"
_ISO = r'"(\d{4}-\d\d-\d\d|[^"]*\\)(?![^"]*\.\d{7})'
_ISO_NANOSECONDS = r'"\d{4}-\d\d-\d\d[^"]*\.\d{7}'
_ISO_ANY = r'"(\d{4}-\d\d-\d\d|[^"]*\\)'
_ZONE = r"""([T ]\d\d(?::\d\d){0,2}[.,\d]*)(?:Z|[+-](?:0\d|1[0-8])(?::?[0-5]\d)?)("?)$"""
_LIST = r"\[\s*((null\s*,\s*)*(null\s*)?\]|(null\s*,\s*)*({item}))"


@dataclass(frozen=True, slots=True)
class Notation:
    """One way in which a type is written in JSON.

    ``parsed`` is the type that ``pyarrow.json`` parses it as; ``finish`` makes the column from
    that. A value whose beginning does not match ``pattern`` is certainly not written this way.
    """

    parsed: pa.DataType
    finish: Callable[[pa.Array], pa.Array]
    pattern: str

    def recognises(self, text: str) -> bool:
        return re.match(self.pattern, text) is not None

    def in_list(self, item: pa.DataType) -> Notation:
        """The reading of a list whose items are written this way."""

        def finish(array: pa.Array) -> pa.Array:
            mask = array.is_null() if array.null_count else None
            return pa.ListArray.from_arrays(array.offsets, self.finish(array.values), mask=mask)

        pattern = _LIST.replace("{item}", self.pattern.replace(r"\Z", r"\s*[,\]]"))
        return Notation(pa.list_(self.parsed), _same if self.parsed == item else finish, pattern)


@dataclass(frozen=True, slots=True)
class Column:
    """A field to read. Without readings its JSON text is kept as it is."""

    name: str
    type: pa.DataType
    readings: Sequence[Notation] = field(default=())
    required: bool = False
    default: str | None = None
    """JSON text that stands for a missing or null value."""
    known: Mapping[bytes, bytes] | None = None
    """The metadata of the field: ``ARROW`` or ``CONNECT``, and what is known of its type, see
    :mod:`semel.converters.semantic`."""
    required_items: bool = False
    """Whether no item of a list may be null."""
    item_default: str | None = None
    """JSON text that stands for a null item of a list."""

    @property
    def raw(self) -> bool:
        return not self.readings

    def takes(self, text: str) -> bool:
        """Whether a JSON value may belong to this column; only False is certain."""
        return self.raw or any(way.recognises(text) for way in self.readings)

    @property
    def arrow_field(self) -> pa.Field:
        return pa.field(self.name, self.type, not self.required, self.known)


def column(
    name: str, target: pa.DataType, *, required: bool = False, default: str | None = None
) -> Column:
    """The column for a type that a sink or a user wants.

    Structs, maps and lists of them are kept as JSON, whose field says what they are.
    """
    ways = readings(target)
    kept = target if ways else JSON
    if ways and (pa.types.is_list(target) or pa.types.is_large_list(target)):
        kept = pa.list_(target.value_type)
    nested = None
    if not ways and pa.types.is_nested(target):
        nested = {ARROW: pa.schema([(name, target)]).serialize().to_pybytes()}
    return Column(name, kept, ways, required, default, nested)


def column_of(field: pa.Field, *, required: bool = False) -> Column:
    """The column for a field that a sink wants."""
    plain = column(field.name, field.type, required=required)
    if WALL not in (field.metadata or {}):
        return plain
    text = Notation(pa.string(), lambda a: _wall_times(without_zone(a), field.type), _STRING)
    return replace(plain, readings=(text, *plain.readings[1:2]))


def without_zone(values: Texts) -> Texts:
    """Times in ISO 8601, also as JSON, without their zone."""
    return pc.replace_substring_regex(values, _ZONE, r"\1\2")


def _wall_times(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Digits finer than a microsecond are cut off."""
    try:
        return text.cast(pa.timestamp("us")).cast(target)
    except pa.ArrowInvalid:
        return without_nanoseconds(text.cast(pa.timestamp("ns"))).cast(target)


def readings(target: pa.DataType) -> tuple[Notation, ...]:
    """The ways to read a type, the most likely first; none for what is kept as JSON."""
    t = pa.types
    if t.is_list(target) or t.is_large_list(target):
        if t.is_nested(target.value_type):
            return ()
        return tuple(way.in_list(target.value_type) for way in readings(target.value_type))
    if isinstance(target, pa.BaseExtensionType):
        return (Notation(pa.string(), duck.uuids, _STRING),) if target == pa.uuid() else ()
    if t.is_nested(target):
        return ()
    if t.is_timestamp(target):
        return _timestamp(target)
    if t.is_date(target):
        return (
            Notation(pa.string(), _cast(target), _STRING),
            Notation(pa.int32(), _through(pa.date32(), target), _WHOLE),
        )
    if t.is_time(target):
        return (
            Notation(pa.string(), lambda a: clock_times(a, target), _STRING),
            Notation(pa.int32(), lambda a: time_of_day(a, pa.time32("ms")).cast(target), _WHOLE),
        )
    if t.is_decimal128(target) or t.is_decimal256(target):
        return (Notation(_roomy(target), _cast(target), _DECIMAL),)
    if t.is_binary(target) or t.is_large_binary(target) or t.is_fixed_size_binary(target):
        return (Notation(pa.string(), _through_call(duck.from_base64, target), _STRING),)
    pattern = _native_pattern(target)
    if pattern:
        return (Notation(target, _same, pattern),)
    if t.is_float16(target):
        return (Notation(pa.float32(), _cast(target), _NUMBER),)
    return (Notation(pa.string(), _cast(target), _STRING),)


def _native_pattern(target: pa.DataType) -> str:
    """The pattern in JSON of a type that ``pyarrow.json`` reads directly; empty for other types."""
    t = pa.types
    if t.is_integer(target):
        return _WHOLE
    if t.is_float32(target) or t.is_float64(target):
        return _NUMBER
    if t.is_boolean(target):
        return _BOOLEAN
    if t.is_null(target):
        return "null"
    return _STRING if t.is_string(target) or t.is_large_string(target) else ""


def _roomy(target: pa.DataType) -> pa.DataType:
    """The decimal type to parse numbers as. ``pyarrow.json`` checks only a number's own digits and
    then shifts it to the scale: without room for both, the result is another number."""
    scale = max(target.scale, 0)
    if target.precision < 38 - scale:
        return pa.decimal128(38 - scale, target.scale)
    return pa.decimal256(76 - scale, target.scale)


def _timestamp(target: pa.DataType) -> tuple[Notation, ...]:
    """ISO 8601 text or epoch milliseconds; digits finer than a microsecond are cut off."""
    micros, nanos = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")
    epoch = Notation(pa.int64(), _epoch_milliseconds(target), _WHOLE)
    if target.unit == "ns":
        return (Notation(nanos, _cast(target), _ISO_ANY), epoch)
    return (
        Notation(micros, _cast(target), _ISO),
        epoch,
        Notation(nanos, lambda a: without_nanoseconds(a).cast(target), _ISO_NANOSECONDS),
    )


def _same(array: pa.Array) -> pa.Array:
    return array


def _cast(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda array: array.cast(target)


def _through(between: pa.DataType, target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda array: array.cast(between).cast(target)


def _through_call(
    call: Callable[[pa.Array], pa.Array], target: pa.DataType
) -> Callable[[pa.Array], pa.Array]:
    return lambda array: call(array).cast(target)


def _epoch_milliseconds(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Overflow is an error, and so are milliseconds in a column of seconds."""

    def finish(array: pa.Array) -> pa.Array:
        milliseconds = array.cast(pa.timestamp("ms", "UTC"))
        return milliseconds.cast(pa.timestamp(target.unit, "UTC")).cast(target)

    return finish


def clock_times(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Times of day from text; digits finer than a microsecond are cut off. Arrow cannot cast text
    to times, only to timestamps."""
    day = pc.binary_join_element_wise("1970-01-01T", text, "")
    times = day.cast(pa.timestamp("ns")).cast(pa.time64("ns"))
    return times if target.unit == "ns" else times.cast(pa.time64("us"), safe=False).cast(target)
