"""The tables of MariaDB and MySQL: what the catalog says, and types and Arrow types, both ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.databases.columns import SPATIAL, Column, Table, column, decimal, is_binary, is_text
from semel.databases.names import Name, literal

_KEY_LENGTH = 255  # of four bytes each: an index takes 3072 bytes in all

_ARROW = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "mediumint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "year": pa.int16(),
    "json": pa.json_(),
}
_UNSIGNED = {
    "tinyint": pa.uint8(),
    "smallint": pa.uint16(),
    "mediumint": pa.uint32(),
    "int": pa.uint32(),
    "bigint": pa.uint64(),
}
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit", *SPATIAL}
Query = Callable[[str], pa.Table]

_FLOATS = {"float": 6, "double": 15}
"""Decimal digits that these types keep of any number."""

TYPES = (
    (pa.types.is_decimal, decimal(65, 30)),
    (is_text, "LONGTEXT"),
    (pa.types.is_null, "LONGTEXT"),
    (is_binary, "LONGBLOB"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INT"),
    (pa.types.is_uint8, "TINYINT UNSIGNED"),
    (pa.types.is_uint16, "SMALLINT UNSIGNED"),
    (pa.types.is_uint32, "INT UNSIGNED"),
    (pa.types.is_uint64, "BIGINT UNSIGNED"),
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_floating, "FLOAT"),
    (pa.types.is_timestamp, "DATETIME(6)"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME(6)"),
)
TYPES_IN_KEYS = (
    (is_text, f"VARCHAR({_KEY_LENGTH})"),
    (pa.types.is_null, f"VARCHAR({_KEY_LENGTH})"),
    (is_binary, f"VARBINARY({_KEY_LENGTH})"),
)
"""Of bounded length, as indexes demand."""
OTHER_TYPES = ("JSON", f"VARCHAR({_KEY_LENGTH})")


def column_of(row: Mapping[str, Any], *, is_json: bool) -> Column:
    """A column, from its row in the catalog."""
    kind, type_, stored, digits = row["kind"], row["type"], None, None
    if is_json:
        arrow = pa.json_()
    elif type_ == "tinyint(1)":  # what BOOLEAN is
        arrow, stored = pa.bool_(), pa.int8()
    elif kind == "decimal":
        precision, scale = int(row["digits"]), int(row["scale"])
        wide = pa.decimal256 if precision > 38 else pa.decimal128
        arrow = wide(precision, scale)
    elif kind in _FLOATS and row["scale"] is not None:  # FLOAT(7,2), which rounds
        arrow = pa.decimal128(min(_FLOATS[kind], int(row["digits"])), int(row["scale"]))
    elif kind in _BINARY:
        arrow = pa.binary()
    elif "unsigned" in type_ and kind in _UNSIGNED:
        arrow = _UNSIGNED[kind]
    else:
        arrow = _ARROW.get(kind, pa.string())
        if pa.types.is_timestamp(arrow) or pa.types.is_time(arrow):
            digits = row["fraction"] or 0
            stored = _to_the_fraction(arrow, digits)
    extra, preset = row["extra"] or "", row["preset"]
    return column(
        row["name"],
        type_,
        arrow,
        stored=stored,
        has_default=preset not in (None, "NULL") or "auto_increment" in extra,
        nullable=row["nullable"] != "NO",
        generated="generated" in extra and "default_generated" not in extra,
        digits=digits,
        exact=_is_exact(kind, row["collation"]),
    )


_BYTEWISE = ("_nopad_bin", "_0900_bin")


def _is_exact(kind: str, collation: str | None) -> bool:
    """Whether values are equal only if they are the same. They are not if the column ignores case
    or trailing spaces, or if a value can be written in several ways."""
    if kind in _ARROW or kind in _UNSIGNED or kind in _BINARY or kind == "decimal":
        return kind not in ("float", "double", "json")
    return kind not in ("char", "enum", "set") and (collation or "").endswith(_BYTEWISE)


def _to_the_fraction(kind: pa.DataType, digits: int) -> pa.DataType:
    """The coarsest type that holds the column's fractions of a second."""
    unit = "s" if not digits else "ms" if digits <= 3 else "us"
    if pa.types.is_timestamp(kind):
        return pa.timestamp(unit, kind.tz)
    return pa.time64(unit) if unit == "us" else pa.time32(unit)


def check(values: pa.ChunkedArray, column: Column) -> None:
    """Raises ArrowInvalid for values that the server would pad, truncate or change."""
    kind, _, inside = column.type.partition("(")
    if kind == "year":
        least, greatest = pc.min_max(values).as_py().values()
        if least is not None and (least < 1901 or greatest > 2155):
            raise pa.ArrowInvalid("it is not a year from 1901 to 2155")
    elif kind in ("binary", "bit"):
        length = int(inside.rstrip(")"))
        size = length if kind == "binary" else (length + 7) // 8
        if not pc.all(pc.equal(pc.binary_length(values), size)).as_py():
            raise pa.ArrowInvalid(f"its length is not {size} bytes")
    elif kind == "char":
        long = pc.greater(pc.utf8_length(values), int(inside.split(")")[0]))
        if pc.any(pc.and_(pc.ends_with(values, " "), long)).as_py():
            raise pa.ArrowInvalid("it is too long, and the spaces at its end would be cut")
    elif kind in ("enum", "set"):  # text of digits would be taken as the number of a member
        members = [m.replace("''", "'") for m in re.findall(r"'((?:[^']|'')*)'", inside)]
        items = values
        if kind == "set":
            items = pc.list_flatten(pc.split_pattern(values.filter(pc.not_equal(values, "")), ","))
        valid = pc.is_in(items.drop_null(), value_set=pa.array(members, pa.string()))
        if not pc.all(valid).as_py():
            raise pa.ArrowInvalid(f"it is not a member of {column.type}")


def shown(column: Column, value: str) -> str | None:
    """An expression that differs where values of a column differ; None if there is none."""
    kind = column.type.partition("(")[0].partition(" ")[0]
    if kind in SPATIAL or kind == "vector":
        return None
    if kind in _BINARY:
        return f"HEX({value})"
    if kind == "float":  # which has more digits than its text
        return f"CAST(CAST({value} AS DOUBLE) AS CHAR)"
    return f"CAST({value} AS CHAR)"


def find_table(query: Query, name: Name, *, mariadb: bool) -> Table | None:
    """A table as it is now.

    Raises:
        ConfigError: its engine has no transactions.
    """
    schema = literal(name.schema) if name.schema else "DATABASE()"
    condition = f"WHERE table_schema = {schema} AND table_name = {literal(name.table)}"
    there = query(
        f"SELECT engine AS engine, table_type AS kind FROM information_schema.tables {condition}"
    ).to_pylist()
    if not there:
        return None
    if there[0]["engine"] not in ("InnoDB", None):
        raise ConfigError(
            f"table {named(name)} has the engine {there[0]['engine']}, which has no transactions. "
            f"Use InnoDB: ALTER TABLE {name} ENGINE=InnoDB"
        )
    columns = query(
        "SELECT column_name AS name, lower(data_type) AS kind, column_type AS type, "
        "numeric_precision AS digits, numeric_scale AS scale, column_default AS preset, "
        "is_nullable AS nullable, datetime_precision AS fraction, collation_name AS collation, "
        f"lower(extra) AS extra FROM information_schema.columns {condition} "
        "ORDER BY ordinal_position"
    ).to_pylist()
    indexes = query(
        "SELECT index_name AS name, column_name AS col, sub_part AS part "
        f"FROM information_schema.statistics {condition} AND non_unique = 0 "
        "ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"
    ).to_pylist()
    checks = _json_checks(query, name, schema) if mariadb else set()
    keys: dict[str, list[str | None]] = {}
    for row in indexes:
        keys.setdefault(row["name"], []).append(None if row["part"] else row["col"])
    return Table(
        name,
        {c["name"]: column_of(c, is_json=c["name"] in checks) for c in columns},
        [frozenset(n for n in k if n) if all(k) else frozenset() for k in keys.values()],
    )


def _json_checks(query: Query, name: Name, schema: str) -> set[str]:
    """MariaDB's JSON is text with a check of this form."""
    checks = query(
        "SELECT constraint_name AS name, check_clause AS clause "
        "FROM information_schema.check_constraints "
        f"WHERE constraint_schema = {schema} AND table_name = {literal(name.table)}"
    ).to_pylist()
    form = 'json_valid("{}")'
    return {
        c["name"]
        for c in checks
        if c["clause"].lower().replace("`", '"') == form.format(c["name"].lower())
    }
