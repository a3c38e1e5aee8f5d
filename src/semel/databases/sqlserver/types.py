"""SQL Server's types and Arrow types, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from semel.databases.columns import (
    Column,
    column,
    decimal,
    is_binary,
    is_text,
    new_type,
    timestamp,
)
from semel.databases.names import quote

COLLATION = "Latin1_General_100_BIN2"
"""Texts are equal if their characters are; but SQL Server pads texts with spaces first."""

_KEY_BYTES = 900  # of a clustered index

_ARROW = {
    "bit": pa.bool_(),
    "tinyint": pa.uint8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "float": pa.float64(),
    "money": pa.decimal128(19, 4),
    "smallmoney": pa.decimal128(10, 4),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "datetime": pa.timestamp("us"),
    "datetime2": pa.timestamp("us"),
    "smalldatetime": pa.timestamp("us"),
    "datetimeoffset": pa.timestamp("us", "UTC"),
    "json": pa.json_(),
}
_FRACTIONS = {"time", "datetime2", "datetimeoffset"}
_MICROSECONDS = 6
_BINARY = {"binary", "varbinary", "image"}
_TEXT_16 = {"nchar", "nvarchar"}
_TEXT_8 = {"char", "varchar"}

_SCALARS = (
    (pa.types.is_decimal, decimal(38, 38)),
    (pa.types.is_timestamp, timestamp("DATETIMEOFFSET(6)", "DATETIME2(6)")),
    (pa.types.is_uint64, "DECIMAL(20, 0)"),
    (pa.types.is_uint32, "BIGINT"),
    (pa.types.is_uint16, "INT"),
    (pa.types.is_uint8, "TINYINT"),
    (pa.types.is_int8, "SMALLINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INT"),
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_boolean, "BIT"),
    (pa.types.is_float64, "FLOAT"),
    (pa.types.is_floating, "REAL"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME(6)"),
)
"""The types of numbers, times and the like, which are the same wherever they are kept."""
TYPES = ((is_binary, "VARBINARY(MAX)"), *_SCALARS)
TYPES_IN_KEYS = ((is_binary, f"VARBINARY({_KEY_BYTES})"),)
"""Of bounded length, as indexes demand."""
OTHER_TYPES = (
    f"NVARCHAR(MAX) COLLATE {COLLATION}",
    f"NVARCHAR({_KEY_BYTES // 2}) COLLATE {COLLATION}",
)


def json_check(field: pa.Field) -> str:
    """A check that says that a new column of text holds JSON, if it does: SQL Server's own JSON is
    too new. ISJSON alone would accept only arrays and objects."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    text = is_text(kind) or is_binary(kind) or pa.types.is_null(kind)
    if text or new_type(kind, _SCALARS):
        return ""
    return f" CHECK (ISJSON(CONCAT(N'[', {quote(field.name)}, N']')) = 1)"


def sent_type(kind: pa.DataType) -> str:
    """The type of a stage's column, in which values arrive."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL(38, {kind.scale})"
    return new_type(kind, _SCALARS) or ("VARBINARY(MAX)" if is_binary(kind) else "NVARCHAR(MAX)")


def column_of(row: Mapping[str, Any]) -> Column:
    """A column, from its row in the catalog."""
    kind = row["kind"]
    arrow: pa.DataType
    if row["is_json"]:
        arrow = pa.json_()
    elif kind in ("decimal", "numeric"):
        arrow = pa.decimal128(row["precision"], row["scale"])
    elif kind in _BINARY:
        arrow = pa.binary()
    else:
        arrow = _ARROW.get(kind, pa.string())
    fraction = row["scale"] if kind in _FRACTIONS else _MICROSECONDS
    return column(
        row["name"],
        declared(row),
        arrow,
        has_default=bool(row["has_default"] or row["is_identity"]),
        nullable=bool(row["is_nullable"]),
        generated=bool(row["is_computed"]) or kind in ("timestamp", "rowversion"),
        digits=fraction if fraction < _MICROSECONDS else None,
    )


def declared(row: Mapping[str, Any]) -> str:
    """A column's type as one would write it."""
    kind, length = row["kind"], row["max_length"]
    if kind in ("decimal", "numeric"):
        return f"{kind}({row['precision']}, {row['scale']})"
    if kind in _FRACTIONS:
        return f"{kind}({row['scale']})"
    if kind in _TEXT_8 | _TEXT_16 | {"binary", "varbinary"}:
        units = length // 2 if kind in _TEXT_16 else length
        return f"{kind}({'max' if length < 0 else units})"
    return str(kind)


def unfit(row: Mapping[str, Any], value: str) -> str | None:
    """A condition that finds values that SQL Server would silently cut, pad or replace in a
    column: by spaces at the end of a text, and by characters that its code page lacks."""
    kind, length, type_ = row["kind"], row["max_length"], declared(row)
    if kind == "binary":
        return f"DATALENGTH({value}) <> {length}"
    if kind in ("nvarchar", "varbinary"):
        cut = f"DATALENGTH(CAST({value} AS {type_})) <> DATALENGTH({value})"
        return cut if length > 0 else None
    if kind not in _TEXT_8:
        return None
    page = f"{value} COLLATE {row['collation']}"
    stored = f"CAST({page} AS {type_})"
    changed = f"CAST({stored} AS nvarchar(max)) COLLATE {COLLATION} <> {value}"
    if kind == "char" or length < 0:
        return changed
    return f"{changed} OR DATALENGTH({stored}) <> DATALENGTH(CAST({page} AS varchar(max)))"


_STYLES = {
    **dict.fromkeys(("float", "real"), 3),  # all digits
    **dict.fromkeys(("money", "smallmoney"), 2),  # four decimals
    **dict.fromkeys(("date", "time", "datetime", "datetime2", "smalldatetime"), 121),
    **dict.fromkeys(("datetimeoffset",), 121),
}
_UNSHOWN = {"sql_variant", "geometry", "geography", "hierarchyid"}


def shown(column: Column, value: str) -> str | None:
    """An expression that differs where values of a column differ; None if there is none."""
    kind = column.type.partition("(")[0]
    if kind in _UNSHOWN:
        return None
    if kind in _BINARY:
        return f"CONVERT(varchar(max), CONVERT(varbinary(max), {value}), 2)"
    if kind in _STYLES:
        return f"CONVERT(varchar(64), {value}, {_STYLES[kind]})"
    return f"CONVERT(nvarchar(max), {value})"


def equal(row: Mapping[str, Any], target: str, sent: str) -> str:
    """The condition that a column has exactly the value sent. Its first part can use an index, by
    the column's own rules, under which different texts may be equal."""
    kind, collation = row["kind"], row["collation"]
    value = f"CAST({sent} AS {declared(row)})"
    if kind not in _TEXT_8 | _TEXT_16 | {"binary", "varbinary"}:
        return f"{target} = {value}"
    length = f"DATALENGTH({target}) = DATALENGTH({value})"
    if not collation:
        return f"{target} = {value} AND {length}"
    indexed = f"{target} = {value} COLLATE {collation}"
    exact = f"{target} COLLATE {COLLATION} = {value} COLLATE {COLLATION}"
    return f"{indexed} AND {length}" + ("" if "_BIN" in collation.upper() else f" AND {exact}")
