"""Cast and TimestampConverter: convert fields, or the whole key or value, to another type."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.columns import JSON
from semel.converters.json.facts import default_of, facts_in, with_default
from semel.converters.semantic import floor_divided, milliseconds
from semel.core.errors import misconfigured
from semel.core.records import TIMESTAMP_TYPE, Facts
from semel.transforms.base import Batch, Contents, ContentsTransform, Refused, refuse, valid
from semel.transforms.fields import Defaults
from semel.transforms.structs import (
    Column,
    column,
    columns,
    connect_type,
    java_class,
    refuse_all,
    required,
    struct,
)
from semel.transforms.texts import DateFormat, java_text

_TYPES: Mapping[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
_OTHERS = ("bytes", "array", "map", "struct")
_DIGITS = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?"
_NUMBER = rf"^[\x00-\x20]*[+-]?(NaN|Infinity|{_DIGITS})[\x00-\x20]*$"
_SOURCES = "[INT8, INT16, INT32, INT64, FLOAT32, FLOAT64, BOOLEAN, STRING, BYTES]"


@dataclass(frozen=True)
class CastConfig(Defaults):
    """The keys of Cast."""

    spec: tuple[str, ...] = key(
        "spec",
        doc="Pairs field:type; one type alone casts the whole key or value. Types: "
        + ", ".join(_TYPES),
    )
    types: dict[str, pa.DataType] = field(default_factory=dict, init=False)
    whole: pa.DataType | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        types: dict[str, pa.DataType] = {}
        whole = None
        for mapping in self.spec:
            name, colon, kind = (part.strip() for part in mapping.partition(":"))
            if ":" in kind.rstrip(":"):
                raise misconfigured("spec", f"Invalid rename mapping: {mapping}")
            if colon and kind.rstrip(":"):
                types[name] = _type(kind.rstrip(":"))
            else:
                whole = _type(name)
        if whole is not None and len(self.spec) > 1:
            raise misconfigured(
                "spec",
                "Cast transformations that specify a type to cast the entire value to may "
                "only specify a single cast in their spec",
            )
        object.__setattr__(self, "types", types)
        object.__setattr__(self, "whole", whole)


def _type(name: str) -> pa.DataType:
    if name.lower() in _TYPES:
        return _TYPES[name.lower()]
    if name.lower() in _OTHERS:
        message = f"Cast transformation does not support casting to {name.upper()}"
    else:
        message = f"Invalid type found in casting spec: {name}"
    raise misconfigured("spec", f"{message}; supported types are {', '.join(_TYPES)}")


class Cast(ContentsTransform):
    """See Kafka Connect's Cast. Dates become text in UTC."""

    section = CastConfig
    config: CastConfig
    moves_numbers = True

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        if self.config.whole is not None:
            whole = column("", contents.array)
            if nested := connect_type(whole, has_schema=contents.has_schema):
                refuse_all(contents.array, _unsupported(nested))
            values = cast(contents.array, self.config.whole, contents.has_schema)
            return Contents(values, contents.has_schema, _facts(contents, self.config.whole))
        array = required(contents, "cast types", nulls=True)
        fields = columns(array, defaults=self.config.replace_nulls)
        for name, target in self.config.types.items():
            if name in fields:
                if fields[name].type == JSON and not contents.has_schema:
                    values = _cast_mixed(fields[name].array, target)
                    fields[name] = Column(pa.field(name, target), values)
                    continue
                nested = connect_type(fields[name], has_schema=contents.has_schema)
                if nested:
                    refuse_all(fields[name].array, _unsupported(nested))
                values = cast(fields[name].array, target, contents.has_schema)
                field_ = _field(fields[name].field, target, contents.has_schema)
                absent = fields[name].absent if contents.has_schema else None
                fields[name] = Column(field_, values, absent)
            elif not contents.has_schema:
                fields[name] = column(name, pa.nulls(len(array)))
        return contents.holding(struct(fields, array))


def _facts(contents: Contents, target: pa.DataType) -> Facts:
    """The facts of whole values in another type, with their default in that type, too."""
    child = column("", contents.array, facts=contents.facts)
    default = facts_in(_field(child.field, target, contents.has_schema)).get("default")
    kept = {n: v for n, v in contents.facts.items() if n != "default"}
    return kept if default is None else {**kept, "default": default}


def _field(source: pa.Field, target: pa.DataType, has_schema: bool) -> pa.Field:
    """The field of another type, with its default in that type, too."""
    converted = pa.field(source.name, target, source.nullable)
    default = default_of(source)
    if default is None:
        return converted
    return with_default(converted, cast(pa.array([default], source.type), target, has_schema)[0])


def cast(array: pa.Array, target: pa.DataType, has_schema: bool) -> pa.Array:
    """Values in another type, as Java converts them.

    Raises:
        Refused: names the records whose values that type cannot hold.
    """
    array = array.storage if array.type == JSON else array  # text that is said to hold JSON
    kind, kinds = array.type, pa.types
    if kinds.is_null(kind):
        return array.cast(target)
    if kinds.is_temporal(kind):
        if not has_schema:
            refuse_all(
                array,
                "Cast transformation was passed a value of type class java.util.Date which is not "
                "supported by Connect's data API",
            )
        if not kinds.is_string(target):
            array, kind = _encoded(array), pa.int64()
    elif kinds.is_nested(kind) or kind == JSON:  # only nulls
        return pa.nulls(len(array), target)
    if kinds.is_string(target):
        return java_text(array)
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        what = java_class(pa.binary(), has_schema=has_schema)
        refuse_all(array, f"Unexpected type in Cast transformation: class {what}")
        return pa.nulls(len(array), target)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _of_text(array.cast(pa.string()), target)
    if kinds.is_boolean(target):
        return array if kinds.is_boolean(kind) else pc.not_equal(_long(array), 0)
    if kinds.is_boolean(kind):
        return array.cast(pa.int8()).cast(target)
    if kinds.is_floating(target):
        if kinds.is_decimal(kind):  # Arrow's own cast does not always find the nearest number
            array = array.cast(pa.string())
        return array.cast(target, safe=False)
    return _narrowed(array, target)


def _cast_mixed(array: pa.Array, target: pa.DataType) -> pa.Array:
    """JSON of several types, value by value."""
    values = [None if text is None else _read(text) for text in array.storage.to_pylist()]
    values = [_lowest(v) if type(v) is int else v for v in values]  # as Java's longValue does
    converted: list[Any] = [None] * len(values)
    refused: dict[int, str] = {}
    for python, arrow in _SCALARS.items():
        rows = [n for n, value in enumerate(values) if type(value) is python]
        try:
            cast_ = cast(pa.array([values[n] for n in rows], arrow), target, False).to_pylist()
        except Refused as error:
            refused |= {rows[at]: why for at, why in error.reasons.items()}
        else:
            for n, value in zip(rows, cast_, strict=True):
                converted[n] = value
    for n, value in enumerate(values):
        if isinstance(value, dict | list):
            refused[n] = _unsupported("ARRAY" if isinstance(value, list) else "MAP")
    if refused:
        raise Refused(refused)
    return pa.array(converted, target)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:  # a struct or an array, which no cast takes
        return [] if text.lstrip().startswith("[") else {}


_SCALARS: Mapping[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}


def _unsupported(kind: str) -> str:
    return (
        f"Cast transformation does not support casting from {kind}; supported types are {_SOURCES}"
    )


def _encoded(array: pa.Array) -> pa.Array:
    """The number that a schema's logical type stands for."""
    if pa.types.is_date(array.type):
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(array.type) and array.type.tz is None:
        return array.cast(pa.int64())  # one of Debezium's, in its own unit
    return milliseconds(array)


def _narrowed(array: pa.Array, target: pa.DataType) -> pa.Array:
    """A number in fewer bits: the lowest ones, as in Java."""
    if target == pa.int64() or not pa.types.is_floating(array.type):
        return _long(array).cast(target, safe=False)
    return _saturated(array, 31).cast(target, safe=False)


def _long(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_floating(kind):
        return _saturated(array, 63)
    if pa.types.is_decimal(kind):
        wrapped = [None if v is None else _lowest(int(v)) for v in array.to_pylist()]
        return pa.array(wrapped, pa.int64())
    return array.cast(pa.int64(), safe=False)  # one without a sign may have 64 bits


def _lowest(number: int) -> int:
    low = number & ((1 << 64) - 1)
    return low - (1 << 64) if low >> 63 else low


def _saturated(array: pa.Array, bits: int) -> pa.Array:
    """Fractions cut at the point; numbers out of range become the largest or the smallest one."""
    filled = pc.fill_null(array.cast(pa.float64()), 0).to_numpy(zero_copy_only=False)
    most, least = (1 << bits) - 1, -(1 << bits)
    inside = (filled > least) & (filled < float(1 << bits))
    whole = np.where(inside, filled, 0).astype(np.int64)
    whole = np.where(filled >= float(1 << bits), most, np.where(filled <= least, least, whole))
    return pa.array(whole, mask=~valid(array))


def _of_text(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(target):
        return pc.equal(pc.ascii_lower(array), "true")
    if pa.types.is_floating(target):
        _refuse(array, pc.invert(pc.match_substring_regex(array, _NUMBER)))
        return _fractions(array, target)
    _refuse(array, pc.invert(pc.match_substring_regex(array, r"^[+-]?[0-9]+$")))
    most = 1 << (target.bit_width - 1)
    try:
        numbers = pc.ascii_ltrim(array, characters="+").cast(pa.int64())
    except pa.ArrowInvalid:  # more digits than int64 has
        outside = [v is not None and not -most <= int(v) < most for v in array.to_pylist()]
        _refuse(array, pa.array(outside))
        raise
    _refuse(array, pc.or_(pc.less(numbers, -most), pc.greater(numbers, most - 1)))
    return numbers.cast(target)


_UNREADABLE = "Value ({}) was out of range for requested data type"


def _refuse(texts: pa.Array, wrong: pa.Array) -> None:
    """Raises Refused if any of these is wrong."""
    at = np.flatnonzero(np.asarray(pc.fill_null(wrong, False)))
    if len(at):
        values = texts.take(pa.array(at)).to_pylist()
        raise Refused({int(i): _UNREADABLE.format(v) for i, v in zip(at, values, strict=True)})


def _fractions(texts: pa.Array, target: pa.DataType) -> pa.Array:
    plain = pc.ascii_trim(texts, characters="".join(map(chr, range(33))))
    plain = pc.replace_substring_regex(plain, r"^\+", "")
    plain = pc.replace_substring_regex(plain, r"([0-9.])[fFdD]$", r"\1")
    return plain.cast(target)


_DAY = 86_400_000
_LAST_DAY = 2**31 - 1
_CONNECT_EXCEPTION = "org.apache.kafka.connect.errors.ConnectException"
_PER_MILLISECOND = {"microseconds": 1000, "nanoseconds": 1_000_000}
_LONGEST = 2**63 - 1


def _pattern(text: str) -> None:
    if text.strip():
        DateFormat(text).check_it_reads()


@dataclass(frozen=True)
class TimestampConverterConfig(Defaults):
    """The keys of TimestampConverter."""

    field: str = key("field", "", "The field to convert; empty for the whole key or value.")
    target: str = key(
        "target.type",
        doc="The type to convert it to.",
        choices=("string", "unix", "date", "time", "timestamp"),
    )
    format: str = key(
        "format",
        "",
        "How text is read and written, as in java.text.SimpleDateFormat, in UTC.",
        validator=_pattern,
    )
    precision: str = key(
        "unix.precision",
        "milliseconds",
        "The unit of numbers.",
        choices=("seconds", "milliseconds", "microseconds", "nanoseconds"),
    )

    def __post_init__(self) -> None:
        if self.target == "string" and not self.format.strip():
            raise misconfigured(
                "format",
                "TimestampConverter requires format option to be specified when using string "
                "timestamps",
            )


class TimestampConverter(ContentsTransform):
    """See Kafka Connect's TimestampConverter. Digits finer than a millisecond are cut off."""

    section = TimestampConverterConfig
    config: TimestampConverterConfig

    def __init__(self, config: TimestampConverterConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._format = DateFormat(config.format) if config.format.strip() else None

    @property
    def fields_by_type(self) -> Sequence[str]:
        return (self.config.field,)

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        name = self.config.field
        if not name:
            values = self._converted(self._milliseconds(contents.array, contents, contents.array))
            kept = {n: v for n, v in contents.facts.items() if n == "optional"}
            return Contents(values, contents.has_schema, kept)
        array = required(contents, "converting timestamp formats", nulls=True)
        fields = columns(array, defaults=self.config.replace_nulls)
        if name in fields:
            old = fields[name]
            values = self._converted(self._milliseconds(old.array, contents, array))
            absent = old.absent if contents.has_schema else None
            fields[name] = Column(pa.field(name, values.type, old.field.nullable), values, absent)
        elif not contents.has_schema:
            fields[name] = column(name, pa.nulls(len(array)))
        return contents.holding(struct(fields, array))

    def _milliseconds(self, array: pa.Array, contents: Contents, records: pa.Array) -> pa.Array:
        kind, kinds = array.type, pa.types
        if kinds.is_null(kind):
            return array.cast(pa.int64())
        if kinds.is_temporal(kind):
            return milliseconds(array)
        if kinds.is_string(kind) or kinds.is_large_string(kind):
            return self._parsed(array)
        if kinds.is_int64(kind):
            return self._of_unix(array)
        if contents.has_schema:
            refuse_all(
                records,
                f"Schema {kind} does not correspond to a known timestamp type format",
                _CONNECT_EXCEPTION,
            )
        what = java_class(kind, has_schema=False)
        refuse_all(array, f"TimestampConverter does not support class {what} objects as timestamps")
        return pa.nulls(len(array), pa.int64())

    def _parsed(self, array: pa.Array) -> pa.Array:
        if self._format is None:
            refuse_all(array, "the timestamp is text, and format= does not say how to read it")
            return pa.nulls(len(array), pa.int64())
        stamps = self._format.parse(array)
        wrong = np.flatnonzero(np.asarray(pc.and_(array.is_valid(), stamps.is_null())))
        if len(wrong):
            texts = array.take(pa.array(wrong)).to_pylist()
            raise Refused(
                {
                    int(at): f"Could not parse timestamp: value ({text}) does not match pattern "
                    f"({self._format.pattern})"
                    for at, text in zip(wrong, texts, strict=True)
                }
            )
        return stamps

    def _of_unix(self, array: pa.Array) -> pa.Array:
        precision = self.config.precision
        if precision == "seconds":
            return _times(array, 1000)
        if precision == "milliseconds":
            return array
        return pc.divide(array, _PER_MILLISECOND[precision])

    def _converted(self, stamps: pa.Array) -> pa.Array:
        target, precision = self.config.target, self.config.precision
        if target == "string":
            assert self._format is not None
            return self._format.format(stamps)
        if target == "unix":
            if precision == "seconds":
                return pc.divide(stamps, 1000)
            return _times(stamps, _PER_MILLISECOND.get(precision, 1))
        if target == "timestamp":
            return stamps.cast(TIMESTAMP_TYPE)
        days = floor_divided(stamps, _DAY)
        if target == "date":
            refuse(np.abs(np.asarray(pc.fill_null(days, 0))) > _LAST_DAY, "there is no such date")
            return days.cast(pa.int32()).cast(pa.date32())
        return pc.subtract(stamps, pc.multiply(days, _DAY)).cast(pa.int32()).cast(pa.time32("ms"))


def _times(numbers: pa.Array, by: int) -> pa.Array:
    """Multiplication that saturates at the largest number."""
    if by == 1:
        return numbers
    most = _LONGEST // by
    filled = np.asarray(pc.fill_null(numbers, 0))
    product = np.clip(filled, -most, most) * by
    product = np.where(filled > most, _LONGEST, np.where(filled < -most, -_LONGEST - 1, product))
    return pa.array(product, mask=~valid(numbers))
