"""Reads tables from the catalog of MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.sinks.sql.columns import Table
from semel.sinks.sql.dialect import table
from semel.sinks.sql.mysql.types import column_of
from semel.sinks.sql.names import Name, literal

Query = Callable[[str], pa.Table]


def find_table(query: Query, name: Name, *, mariadb: bool) -> Table | None:
    """A table as it is now.

    Raises:
        ConfigError: its engine has no transactions.
    """
    schema = literal(name.schema) if name.schema else "DATABASE()"
    mine = f"WHERE table_schema = {schema} AND table_name = {literal(name.table)}"
    there = query(
        f"SELECT engine AS engine, table_type AS kind FROM information_schema.tables {mine}"
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
        "datetime_precision AS fraction, collation_name AS collation, "
        f"lower(extra) AS extra FROM information_schema.columns {mine} "
        "ORDER BY ordinal_position"
    ).to_pylist()
    indexes = query(
        "SELECT index_name AS name, column_name AS col, sub_part AS part "
        f"FROM information_schema.statistics {mine} AND non_unique = 0 "
        "ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"
    ).to_pylist()
    checks = _json_checks(query, name, schema) if mariadb else set()
    keys: dict[str, list[str | None]] = {}
    for row in indexes:
        keys.setdefault(row["name"], []).append(None if row["part"] else row["col"])
    return table(
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
