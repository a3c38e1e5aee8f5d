"""``key.schema`` and ``value.schema``: the fields of records, and text as values of their types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import named
from semel.core.zones import in_utc
from semel.transforms.texts import DateFormat

_CONNECT = "org.apache.kafka.connect.data."
TIMESTAMP = pa.timestamp("ms", "UTC")
_TYPES = {
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT32": pa.float32(),
    "FLOAT64": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
}
_LOGICAL = {
    f"{_CONNECT}Timestamp": TIMESTAMP,
    f"{_CONNECT}Date": pa.date32(),
    f"{_CONNECT}Time": pa.time32("ms"),
}
_DATES = ("yyyy-MM-dd",)
_TIMES = ("HH:mm:ss",)
_DIGITS = 38
_DAY = 86_400_000


class Unfit(ValueError):
    """A value is not of its field's type; names field and value."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of records."""

    name: str
    type: pa.DataType
    optional: bool = True

    @property
    def is_time(self) -> bool:
        kind = self.type
        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=self.optional)


def fields_of(text: str) -> list[Field]:
    """The fields of a schema as spooldir writes it.

    Raises:
        ValueError: the text is not a schema; the message continues after the key's name.
    """
    try:
        schema = json.loads(text)
        fields = schema.get("fieldSchemas") if isinstance(schema, dict) else None
        if not isinstance(fields, dict) or schema.get("type") != "STRUCT":
            raise ValueError("must be of type STRUCT with fieldSchemas")
        return [
            Field(name, _type(name, field), bool(field.get("isOptional", False)))
            for name, field in fields.items()
        ]
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except (AttributeError, OverflowError, TypeError) as error:
        raise ValueError(f"is not a schema: {error}") from None


def _type(where: str, schema: Any) -> pa.DataType:
    if not isinstance(schema, Mapping) or "type" not in schema:
        raise ValueError(f"field {named(where)} must have a type")
    name, kind = schema.get("name"), str(schema["type"]).upper()
    if name in _LOGICAL:
        return _LOGICAL[name]
    if name == f"{_CONNECT}Decimal":
        scale = str((schema.get("parameters") or {}).get("scale", 0)).strip()
        if not (scale.isdecimal() and int(scale) <= _DIGITS):
            raise ValueError(
                f"field {named(where)}: its scale {named(scale)} must be from 0 to {_DIGITS}"
            )
        return pa.decimal128(_DIGITS, int(scale))
    match kind:
        case "ARRAY":
            return pa.list_(_type(where, schema.get("valueSchema")))
        case "MAP":
            return pa.map_(pa.string(), _type(where, schema.get("valueSchema")))
        case "STRUCT":
            inner = schema.get("fieldSchemas") or {}
            return pa.struct([(n, _type(f"{where}.{n}", s)) for n, s in inner.items()])
    if kind not in _TYPES:
        raise ValueError(f"field {named(where)}: {schema['type']} is not a type")
    return _TYPES[kind]


class Parser:
    """Parses text, with the configured patterns and zone for times."""

    def __init__(self, formats: Sequence[str], timezone: str) -> None:
        """Raises ValueError: says which key is wrong."""
        try:
            self._stamps = [DateFormat(f) for f in formats]
            for form in self._stamps:
                form.check_it_reads()
        except ValueError as error:
            raise ValueError(f"parser.timestamp.date.formats {error}") from None
        self._dates = [DateFormat(f) for f in (*_DATES, *formats)]
        self._times = [DateFormat(f) for f in (*_TIMES, *formats)]
        try:
            ZoneInfo(timezone)
        except (ValueError, OSError, KeyError):
            raise ValueError(
                f"parser.timestamp.timezone={timezone} is not a time zone, such as Europe/Vienna, "
                "or Etc/GMT-2 for GMT+2"
            ) from None
        self._timezone = timezone

    def values(self, text: pa.Array, field: Field) -> pa.Array:
        """A column of a field's type.

        Raises:
            Unfit: a text cannot be parsed, or is missing.
        """
        kind = field.type
        if not pa.types.is_string(kind):
            text = pc.utf8_trim_whitespace(text)
            text = pc.if_else(pc.equal(text, ""), None, text)
        if field.is_time:
            column = self._moments(text, kind)
        elif pa.types.is_boolean(kind):
            column = text.cast(pa.bool_(), safe=False) if _are_booleans(text) else None
        else:
            column = _cast(text, kind)
        if column is None or column.null_count > text.null_count:
            raise Unfit(
                f"field {named(field.name)}: {self._first(text, field)} is not of type {kind}"
            )
        self.check_nulls(column, field)
        return column

    def check_nulls(self, column: pa.Array, field: Field) -> None:
        """Raises Unfit: a required value is missing."""
        if column.null_count and not field.optional:
            raise Unfit(f"field {named(field.name)} is null, but isOptional is false")

    def _moments(self, text: pa.Array, kind: pa.DataType) -> pa.Array:
        formats = self._stamps
        if pa.types.is_date(kind):
            formats = self._dates
        elif pa.types.is_time(kind):
            formats = self._times
        moments = pa.nulls(len(text), pa.int64())
        for form in formats:
            if moments.null_count == text.null_count:
                break
            read = form.parse(pc.if_else(moments.is_valid(), None, text))
            if pa.types.is_timestamp(kind) and not form.has_zone:
                local = read.view(pa.timestamp("ms"))
                read = in_utc(local, self._timezone, second=True).view(pa.int64())  # as Java does
            moments = pc.coalesce(moments, read)
        if pa.types.is_date(kind):
            days = np.floor_divide(pc.fill_null(moments, 0), _DAY)
            days = pc.if_else(moments.is_valid(), pa.array(days), None)
            return _within(days, -(2**31), 2**31).cast(pa.int32()).view(kind)
        if pa.types.is_time(kind):
            return _within(moments, 0, _DAY).cast(pa.int32()).view(kind)
        return moments.view(TIMESTAMP)

    def _first(self, text: pa.Array, field: Field) -> str:
        """The first text that cannot be parsed."""
        for value in text.drop_null()[:1000].to_pylist():
            array = pa.array([value], pa.string())
            try:
                bad = (
                    self._moments(array, field.type).null_count
                    if field.is_time
                    else not _are_booleans(array)
                    if pa.types.is_boolean(field.type)
                    else _cast(array, field.type) is None
                )
            except pa.ArrowException:
                bad = True
            if bad:
                return repr(value[:60])
        return "a value"


def _within(numbers: pa.Array, first: int, end: int) -> pa.Array:
    """The numbers from ``first`` to before ``end``; null for all others."""
    fits = pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, end))
    return pc.if_else(fits, numbers, None)


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    if (
        pa.types.is_integer(kind)
        and pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py()
    ):
        return None  # Arrow takes hexadecimal numbers, and 0xff for -1
    if pa.types.is_integer(kind):
        text = pc.replace_substring_regex(text, r"^\+(\d)", r"\1")  # Arrow takes no sign but -
    try:
        return text.cast(kind)
    except pa.ArrowException:
        return None


def _are_booleans(text: pa.Array) -> bool:
    recognized = pc.is_in(pc.utf8_lower(text), pa.array(["true", "false", "1", "0"]))
    return bool(pc.all(pc.or_(recognized, text.is_null())).as_py() in (True, None))
