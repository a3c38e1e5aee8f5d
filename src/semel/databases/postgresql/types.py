"""PostgreSQL types and Arrow types, both ways.

COPY BINARY wants each value in the exact binary form of its column, so a column's PostgreSQL type
fixes the Arrow type that can be copied into it. Types without such an Arrow type (inet, ranges,
composite types, ...) are *staged*: copied as text into a temporary table and cast by the server.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from semel.databases.columns import (
    Column,
    NewTypes,
    digits_of,
    is_binary,
    is_list,
    is_text,
    new_type,
    timestamp,
)

PLAIN = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
}
"""Types whose values are the same in Arrow, both ways."""
_COPIED = PLAIN | {
    "citext": pa.string(),
    "xml": pa.string(),
    "json": pa.string(),
    "jsonb": pa.json_(),
    "uuid": pa.binary(16),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.duration("us"),
}
_CONVERTED = {"json": pa.json_(), "uuid": pa.string(), "interval": pa.string()}
"""The types to ask converters for where they differ from the copied types."""

# COPY BINARY names the type of an array's elements, and the driver names the plainest one.
_ARRAY_ELEMENTS = {
    *("int2", "int4", "int8", "float4", "float8", "numeric", "bool", "text", "bytea"),
    *("date", "time", "timestamp", "timestamptz"),
}
_ANY_NUMERIC = pa.decimal128(38, 18)
_INEXACT = {"citext", "bpchar", "float4", "float8", "jsonb", "interval"}
"""Types with values that are equal but not identical: ``a`` and ``A``, 0.0 and -0.0, 1 and 1.0."""

_MICROSECONDS = 6
_FRACTIONS = {"timestamp", "timestamptz", "time", "timetz"}
_TO_THE_SECOND = 1 << 28  # the bit of an interval's modifier for seconds


def column(
    name: str,
    oid: int,
    type: str,
    cast: str,
    base: str,
    modifier: int,
    *,
    array: bool = False,
    enum: bool = False,
    domain: bool = False,
    has_default: bool = False,
    nullable: bool = True,
    generated: bool = False,
    fixed: bool = False,
    collation: str | None = None,
) -> Column:
    """The column for a PostgreSQL type: ``base`` names it, or its elements' type for an array."""
    copied = _copied(base, modifier, enum=enum)
    if domain and copied == pa.json_():
        copied = None  # the driver does not recognise jsonb in a domain
    arrow = _CONVERTED.get(base, copied if copied is not None else pa.string())
    digits = _digits(base, modifier)
    rounds = digits is not None or (base == "interval" and copied is None)
    length = modifier - 4 if base in ("varchar", "bpchar") and modifier > 4 else None
    scalar = Column(
        name,
        oid,
        type,
        cast,
        arrow,
        copied,
        has_default,
        nullable,
        generated,
        fixed,
        any_numeric=copied is _ANY_NUMERIC,
        digits=digits,
        rounds=rounds,
        length=length,
        base=base,
        collation=collation,
        exact=base not in _INEXACT and copied not in (None, _ANY_NUMERIC) and collation is None,
    )
    if not array:
        return scalar
    native = copied is not None and base in _ARRAY_ELEMENTS and not domain
    return replace(
        scalar,
        arrow=pa.list_(pa.string() if scalar.is_json else arrow),
        copied=pa.list_(copied) if native else None,
        element=scalar,
        any_numeric=False,
        digits=None,
        length=None,
        base="",
        exact=False,
    )


def _digits(base: str, modifier: int) -> int | None:
    if modifier < 0 or base not in (*_FRACTIONS, "interval", "numeric"):
        return None
    if base == "numeric":
        return precision_and_scale(modifier)[1]
    digits = modifier & 0xFFFF
    return digits if digits < _MICROSECONDS else None


def precision_and_scale(modifier: int) -> tuple[int, int]:
    """Of a numeric, by its type's modifier. The scale is a number of 11 bits, one for the sign."""
    bits = modifier - 4
    return bits >> 16 & 0xFFFF, (bits & 0x7FF ^ 0x400) - 0x400


def _copied(base: str, modifier: int, *, enum: bool) -> pa.DataType | None:
    if enum:
        return pa.string()
    if base == "interval" and modifier >= 0 and not modifier & _TO_THE_SECOND:
        return None  # the server would drop what is smaller than its fields
    if base != "numeric":
        return _COPIED.get(base)
    precision, scale = precision_and_scale(modifier)
    if modifier < 0 or precision > 38 or not 0 <= scale <= precision:
        return _ANY_NUMERIC
    return pa.decimal128(precision, scale)


def _array(kind: pa.DataType) -> str:
    element = new_type(kind.value_type, TYPES) or "jsonb"
    return element if element == "jsonb" else f"{element}[]"


TYPES: NewTypes = (
    (is_list, _array),
    (pa.types.is_decimal, lambda k: "numeric({}, {})".format(*digits_of(k))),
    (pa.types.is_timestamp, timestamp("timestamptz", "timestamp")),
    (lambda k: bool(k == pa.uuid()), "uuid"),
    (pa.types.is_uint64, "numeric(20, 0)"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_float16, "real"),
    (pa.types.is_float32, "real"),
    (pa.types.is_floating, "double precision"),
    (pa.types.is_boolean, "boolean"),
    (is_text, "text"),
    (pa.types.is_null, "text"),
    (is_binary, "bytea"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "interval"),
)
"""The types of new columns, as Debezium's and Confluent's sinks choose them."""
OTHER_TYPES = ("jsonb", "text")
