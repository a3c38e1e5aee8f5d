"""PostgreSQL's tables, and claims of a connector's runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from semel.converters.semantic import SemanticType
from semel.databases import base
from semel.databases.base import Database
from semel.databases.columns import Table, is_binary
from semel.databases.names import Name, literal
from semel.databases.postgresql.connection import Connection
from semel.databases.postgresql.types import OTHER_TYPES, TYPES, column

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
    NOT (a.attnotnull OR d.typnotnull) AS nullable,
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

# A server may lack the library that reads XML, though not the type.
_XML = """DO $$ BEGIN
    PERFORM '<a/>'::xml;
    PERFORM set_config('semel.xml', 'true', true);
EXCEPTION WHEN feature_not_supported THEN
    PERFORM set_config('semel.xml', 'false', true);
END $$"""


class Postgres(Connection, Database):
    """See :class:`~semel.databases.base.Database`."""

    system = "PostgreSQL"
    one_in_any_case = False
    most_columns = 1600
    longest_name = 63
    name_unit = "bytes"

    def exists(self, name: Name) -> bool:
        answer = self.query(f"SELECT to_regclass({literal(name.quoted)}) IS NOT NULL AS there")
        return bool(answer.column("there")[0].as_py())

    def find(self, name: Name) -> Table | None:
        relations = self.query(_RELATION.format(name=literal(name.quoted))).to_pylist()
        if not relations:
            return None
        relation = relations[0]
        rows = self.query(_COLUMNS.format(oid=relation["oid"])).to_pylist()
        columns = {row["name"]: column(**row) for row in rows}
        keys = self.query(_KEYS.format(oid=relation["oid"])).to_pylist()
        return Table(
            Name(relation["schema"], relation["name"]),
            columns,
            [frozenset(k["columns"]) for k in keys],
            relation["oid"],
            relation["copyable"],
        )

    def create(self, name: Name, fields: Sequence[pa.Field], key: Sequence[str]) -> None:
        self.serialise(name)
        super().create(name, fields, key)

    _add = "ADD COLUMN IF NOT EXISTS"

    def add_columns(self, name: Name, fields: Sequence[pa.Field]) -> None:
        self.serialise(name)
        for field in fields:
            self.add(name, field)
        self.comment(name, fields)

    def serialise(self, name: Name) -> None:
        """Let one transaction at a time create or alter the table: two that run CREATE TABLE IF NOT
        EXISTS at once can fail on the catalog's unique index."""
        self.execute(f"SELECT pg_advisory_xact_lock(hashtextextended({literal(str(name))}, 1))")

    def type_of(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        items = kind.items if isinstance(kind, SemanticType) else None
        if items is not None:
            return f"{self.type_of(items)}[]"
        return super().type_of(kind, in_key=in_key)

    types, other_types = TYPES, OTHER_TYPES

    def has_type(self, name: str) -> bool:
        if name == "xml":
            self.execute(_XML)
        test = "current_setting('semel.xml')::bool" if name == "xml" else "true"
        answer = self.query(f"SELECT to_regtype({literal(name)}) IS NOT NULL AND {test} AS there")
        return bool(answer.column("there")[0].as_py())

    _comment = "COMMENT ON COLUMN {at} IS {text}"

    def constant(self, value: pa.Scalar) -> str | None:
        if pa.types.is_floating(value.type):  # with NaN and the infinities
            return f"'{value.as_py()}'"
        if is_binary(value.type):
            return f"'\\x{value.as_py().hex()}'"
        return super().constant(value)

    # The life of a run

    def claim(self) -> None:
        self.on_connect(f"SELECT pg_advisory_lock_shared({self._lock_key})")

    def hold_off(self) -> bool:
        """Hold off runs of the connector until the open transaction ends; False if one is alive and
        does not end within RELEASE_TIME."""
        take = f"SELECT pg_try_advisory_xact_lock({self._lock_key}) AS free"
        deadline = time.monotonic() + base.RELEASE_TIME
        while not self.query(take).column("free")[0].as_py():
            if time.monotonic() >= deadline:
                return False
            time.sleep(base.RELEASE_PAUSE)
        return True

    @property
    def _lock_key(self) -> str:
        return f"hashtextextended({literal(f'semel run {self._connector}')}, 2)"
