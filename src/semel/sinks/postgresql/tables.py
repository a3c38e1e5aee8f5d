"""Target tables: what the catalog says of them, and creating and extending them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from semel.errors import ConfigError
from semel.sinks.postgresql.connection import Connection
from semel.sinks.postgresql.types import Column, arrow_type, sql_type

_COLUMNS = """SELECT a.attname AS name,
    coalesce(e.typname, t.typname)::text AS base,
    format_type(a.atttypid, a.atttypmod) AS type,
    a.atttypmod AS modifier,
    t.typelem <> 0 AND t.typcategory = 'A' AS array,
    a.attnotnull AS not_null,
    a.atthasdef OR a.attidentity <> '' AS has_default,
    a.attgenerated <> '' OR a.attidentity = 'a' AS generated
FROM pg_attribute a
JOIN pg_type t0 ON t0.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN t0.typtype = 'd' THEN t0.typbasetype ELSE t0.oid END
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""

_KEYS = """SELECT i.indexrelid::regclass::text AS index, array_agg(a.attname::text) AS columns
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY 1"""


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name, in a schema or found by the search path."""

    schema: str | None
    table: str

    @property
    def quoted(self) -> str:
        return ".".join(quote(p) for p in (self.schema, self.table) if p)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table


@dataclass(frozen=True, slots=True)
class Table:
    """An existing table: its columns, and the column sets that are unique."""

    name: Name
    columns: dict[str, Column]
    keys: Sequence[frozenset[str]]

    @property
    def writable(self) -> dict[str, Column]:
        return {n: c for n, c in self.columns.items() if not c.generated}


def quote(identifier: str) -> str:
    """A quoted SQL identifier."""
    return '"' + identifier.replace('"', '""') + '"'


_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def parse_name(text: str, *, fold: bool) -> Name:
    """Parse ``table``, ``schema.table`` or quoted parts.

    Raises:
        ConfigError: more than two parts, or an empty one.
    """
    parts = [
        m.group(1) or (m.group(2).lower() if fold else m.group(2)) for m in _PART.finditer(text)
    ]
    if not 1 <= len(parts) <= 2:
        raise ConfigError(
            f"table name {text!r} is not table or schema.table. Does the topic's name contain a "
            'dot? Set table.name.format, with quotes where a dot belongs to the name: "${topic}"'
        )
    return Name(parts[0] if len(parts) == 2 else None, parts[-1].replace('""', '"'))


def find(connection: Connection, name: Name) -> Table | None:
    """Read a table from the catalog; needs an open transaction."""
    rows = connection.query(_COLUMNS, (name.quoted,)).to_pylist()
    if not rows:
        return None
    columns = {}
    for row in rows:
        arrow, staged = arrow_type(row["base"], row["modifier"], array=row["array"])
        columns[row["name"]] = Column(
            name=row["name"],
            type=row["type"],
            arrow=arrow,
            staged=row["type"] if staged else "",
            not_null=row["not_null"],
            has_default=row["has_default"],
            generated=row["generated"],
        )
    keys = connection.query(_KEYS, (name.quoted,)).to_pylist()
    return Table(name, columns, [frozenset(k["columns"]) for k in keys])


def create(connection: Connection, name: Name, fields: Iterable[pa.Field], key: list[str]) -> None:
    """CREATE TABLE with a primary key; two tasks may do it at once."""
    lines = [
        f"{quote(f.name)} {sql_type(f.type, in_key=f.name in key)}"
        + (" NOT NULL" if f.name in key else "")
        for f in fields
    ]
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    _serialise(connection, name)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {name.quoted} ({', '.join(lines)})")


def evolve(connection: Connection, name: Name, fields: Iterable[pa.Field]) -> None:
    """Add columns; existing rows hold null in them. Two tasks may do it at once."""
    _serialise(connection, name)
    for field in fields:
        connection.execute(
            f"ALTER TABLE {name.quoted} ADD COLUMN IF NOT EXISTS "
            f"{quote(field.name)} {sql_type(field.type)}"
        )


def _serialise(connection: Connection, name: Name) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", (str(name),))
