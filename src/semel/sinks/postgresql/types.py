"""PostgreSQL types and Arrow types, both ways.

COPY BINARY wants each value in the exact binary form of its column, so a column's Arrow type is
fixed by its PostgreSQL type. Types without a form of their own in Arrow (uuid, enums, inet, ...)
are *staged*: copied as text into a temporary table and cast by the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

_EXACT = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "citext": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "json": pa.json_(),
    "jsonb": pa.json_(),
}
_STAGED_ANYWAY = {"oid", "json"}
_UNCONSTRAINED_NUMERIC = pa.decimal128(38, 18)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a target table.

    ``arrow`` is the type its values are converted to; ``staged`` is the SQL type they are cast to
    from text (or from numeric) after a detour through a temporary table, or empty.
    """

    name: str
    type: str
    arrow: pa.DataType
    staged: str
    not_null: bool
    has_default: bool
    generated: bool

    def expression(self, quoted: str) -> str:
        """The SQL that turns the staged value into the column's."""
        if self.staged == "numeric":
            return f"trim_scale({quoted})"
        return f"{quoted}::{self.staged}" if self.staged else quoted


def arrow_type(base: str, modifier: int, *, array: bool) -> tuple[pa.DataType, bool]:
    """The Arrow type for a PostgreSQL type, and whether it must be staged."""
    if array:
        element, staged = arrow_type(base, modifier, array=False)
        plain = not staged and not isinstance(element, pa.BaseExtensionType)
        return (pa.list_(element), False) if plain else (pa.string(), True)
    if base == "numeric":
        if modifier < 0:
            return _UNCONSTRAINED_NUMERIC, True
        precision, scale = ((modifier - 4) >> 16) & 0xFFFF, (modifier - 4) & 0x7FF
        if precision > 38 or scale > precision:
            return _UNCONSTRAINED_NUMERIC, True
        return pa.decimal128(precision, scale), False
    if base in _EXACT:
        return _EXACT[base], base in _STAGED_ANYWAY
    return pa.string(), True


def sql_type(field: pa.DataType, *, in_key: bool = False) -> str:
    """The PostgreSQL type of a new column, as Debezium's and Confluent's sinks choose it."""
    if pa.types.is_list(field) or pa.types.is_large_list(field):
        element = sql_type(field.value_type)
        return "jsonb" if element == "jsonb" else f"{element}[]"
    if pa.types.is_decimal(field):
        return f"numeric({field.precision}, {field.scale})"
    if pa.types.is_timestamp(field):
        return "timestamptz" if field.tz else "timestamp"
    for matches, name in _NEW:
        if matches(field):
            return name
    return "text" if in_key else "jsonb"


_NEW = (
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_floating, "double precision"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_null, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
)
