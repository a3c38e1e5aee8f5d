"""Reads target tables from the catalog, creates and extends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from semel.converters.semantic import Described
from semel.core.ledger import Target
from semel.sinks.postgresql.connection import Connection
from semel.sinks.postgresql.types import column, sql_type
from semel.sinks.sql.columns import Table
from semel.sinks.sql.names import Name, literal, quote
from semel.sinks.sql.semantic import new_type, stored

Clauses = Callable[..., str]
""":meth:`semel.sinks.sql.database.Database.clauses`."""

# A name is looked up once: COPY needs the schema in which the search path finds the table.
_RELATION = """SELECT c.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name,
    c.relkind IN ('r', 'p') AND NOT row_security_active(c.oid) AS copyable
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass({name}) AND c.relkind IN ('r', 'p', 'f', 'v')"""

_COLUMNS = """SELECT a.attname::text AS name, a.atttypid::bigint AS oid,
    coalesce(e.typname, t.typname)::text AS base,
    format_type(a.atttypid, a.atttypmod) AS type,
    format_type(t.oid, -1) AS cast,
    CASE WHEN d.typtype = 'd' THEN d.typtypmod ELSE a.atttypmod END AS modifier,
    e.oid IS NOT NULL AS array,
    coalesce(e.typtype, t.typtype) = 'e' AS enum,
    d.typtype = 'd' AS domain,
    a.atthasdef OR a.attidentity <> '' AS has_default,
    a.attgenerated <> '' AS generated, a.attidentity = 'a' AS fixed,
    CASE WHEN NOT k.collisdeterministic THEN format('%I.%I', n.nspname, k.collname) END AS collation
FROM pg_attribute a
JOIN pg_type d ON d.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE d.oid END
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_collation k ON k.oid = a.attcollation
LEFT JOIN pg_namespace n ON n.oid = k.collnamespace
WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""

# Only what ON CONFLICT accepts: not partial, not deferrable, on plain columns (not of INCLUDE).
_KEYS = """SELECT array_agg(a.attname::text) AS columns
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
    AND a.attnum = ANY((i.indkey::smallint[])[:i.indnkeyatts - 1])
WHERE i.indrelid = {oid} AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid ORDER BY bool_or(i.indisprimary) DESC, i.indexrelid"""


_LOOSE = """SELECT a.attname::text AS name FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = {oid} AND a.attnum > 0
    AND (t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true))"""


def targets(
    connection: Connection, names: Mapping[str, Name], ledger: str
) -> dict[str, Target | None]:
    """The tables of topics as entries of the ledger remember them, inside the open transaction.

    A restored dump has different oids, but its ledger's table is a different one, too.
    """
    if not names:
        return {}
    wanted = ", ".join(
        f"({literal(topic)}, to_regclass({literal(name.quoted)}))" for topic, name in names.items()
    )
    rows = connection.query(
        f"""SELECT t.topic, format('%s.%s', n.nspname, c.relname) AS name,
            c.oid::text AS made, to_regclass({literal(ledger)})::oid::text AS store
        FROM (VALUES {wanted}) AS t(topic, oid)
        JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace"""
    ).to_pylist()
    found = {r["topic"]: Target(r["name"], r["made"], r["store"] or "") for r in rows}
    return {topic: found.get(topic) for topic in names}


def exists(connection: Connection, name: Name) -> bool:
    """Whether there is such a table; needs an open transaction."""
    found = connection.query(f"SELECT to_regclass({literal(name.quoted)}) IS NOT NULL AS there")
    return bool(found.column("there")[0].as_py())


def find(connection: Connection, name: Name) -> Table | None:
    """Read a table from the catalog; needs an open transaction."""
    found = connection.query(_RELATION.format(name=literal(name.quoted))).to_pylist()
    if not found:
        return None
    relation = found[0]
    rows = connection.query(_COLUMNS.format(oid=relation["oid"])).to_pylist()
    columns = {
        row["name"]: column(
            row["name"],
            row["oid"],
            row["type"],
            row["cast"],
            row["base"],
            row["modifier"],
            array=row["array"],
            enum=row["enum"],
            domain=row["domain"],
            has_default=row["has_default"],
            generated=row["generated"],
            fixed=row["fixed"],
            collation=row["collation"],
        )
        for row in rows
    }
    keys = connection.query(_KEYS.format(oid=relation["oid"])).to_pylist()
    return Table(
        Name(relation["schema"], relation["name"]),
        relation["oid"],
        columns,
        [frozenset(k["columns"]) for k in keys],
        relation["copyable"],
    )


def loose_columns(connection: Connection, table: Table) -> list[str]:
    """The columns in which different texts may be equal."""
    found = connection.query(_LOOSE.format(oid=table.oid))
    names: list[str] = found.column("name").to_pylist()
    return names


def create(
    connection: Connection,
    name: Name,
    fields: Iterable[pa.Field],
    key: Sequence[str],
    clauses: Clauses,
) -> None:
    """CREATE TABLE with a primary key; two tasks may do it at once."""
    lines = [
        f"{quote(f.name)} {_type(connection, f.type, in_key=f.name in key)}"
        + clauses(f, in_key=f.name in key)
        for f in fields
    ]
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    serialise(connection, name)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {name.quoted} ({', '.join(lines)})")


def evolve(
    connection: Connection, name: Name, fields: Iterable[pa.Field], clauses: Clauses
) -> None:
    """Add columns; existing rows hold their default in them, or null. Two tasks may do it at
    once."""
    serialise(connection, name)
    for field in fields:
        connection.execute(
            f"ALTER TABLE {name.quoted} ADD COLUMN IF NOT EXISTS "
            f"{quote(field.name)} {_type(connection, field.type)}{clauses(field)}"
        )


def _type(connection: Connection, kind: pa.DataType, *, in_key: bool = False) -> str:
    items = kind.items if isinstance(kind, Described) else None
    if items is not None:
        return f"{_type(connection, items)}[]"
    known = new_type(kind, "PostgreSQL", partial(_there, connection), in_key=in_key)
    return known or sql_type(stored(kind), in_key=in_key)


# A server may lack the library that reads XML, though not the type.
_XML = """DO $$ BEGIN
    PERFORM '<a/>'::xml;
    PERFORM set_config('semel.xml', 'true', true);
EXCEPTION WHEN feature_not_supported THEN
    PERFORM set_config('semel.xml', 'false', true);
END $$"""


def _there(connection: Connection, name: str) -> bool:
    """Whether the server has a type, inside the open transaction."""
    if name == "xml":
        connection.execute(_XML)
    test = "current_setting('semel.xml')::bool" if name == "xml" else "true"
    found = connection.query(f"SELECT to_regtype({literal(name)}) IS NOT NULL AND {test} AS there")
    return bool(found.column("there")[0].as_py())


def serialise(connection: Connection, name: Name) -> None:
    """Let one transaction at a time create or alter the table: two that run CREATE TABLE IF NOT
    EXISTS at once can fail on the catalog's unique index."""
    connection.execute(f"SELECT pg_advisory_xact_lock(hashtextextended({literal(str(name))}, 1))")
