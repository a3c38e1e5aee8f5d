"""PostgreSQL: rows come by COPY, in columns."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from semel.core.errors import ServiceError, Unavailable
from semel.databases import grants
from semel.databases.errors import SchemaChanged
from semel.databases.names import literal, quote
from semel.databases.postgresql.connection import Connection
from semel.databases.postgresql.types import PLAIN, precision_and_scale
from semel.databases.postgresql.url import libpq_uri
from semel.sources.jdbc.batches import fetched_ahead
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import (
    INSTANT,
    Column,
    Database,
    TableId,
    numeric_type,
    unbounded_type,
    wall,
)

_IDLE_MS = 3_600_000
"""Long, because a query that waits for Kafka holds no lock that others wait for."""

_KINDS = {
    "TABLE": "r",
    "PARTITIONED TABLE": "p",
    "VIEW": "v",
    "MATERIALIZED VIEW": "m",
    "FOREIGN TABLE": "f",
}

_TABLES = """SELECT n.nspname AS schema, c.relname AS name
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = ANY ('{{{kinds}}}'::"char"[]) AND NOT c.relispartition
AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
AND n.nspname LIKE {schema} AND current_database() LIKE {catalog}
AND has_table_privilege(c.oid, 'SELECT')
ORDER BY n.nspname, c.relname"""

_COLUMNS = """SELECT a.attname::text AS name, coalesce(b.typname, t.typname)::text AS base,
format_type(coalesce(b.oid, a.atttypid), NULL) AS plain,
format_type(a.atttypid, a.atttypmod) AS type, t.typtype = 'd' AS domain,
CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END::int AS modifier,
a.attnotnull OR t.typnotnull AS required,
EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary
AND a.attnum = ANY (i.indkey)) AS key, a.attndims > 1 AS nested,
a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false) AS counts
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON t.typtype = 'd' AND b.oid = t.typbasetype
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = to_regclass({table}) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""

_VIEW = "semel_query"

_ELEMENTS = ("int2", "int4", "int8", "float4", "float8", "text", "varchar")
_AS_THEY_ARE = {
    **PLAIN,
    **dict.fromkeys(("timestamp", "timestamptz"), INSTANT),
    **{f"_{name}": pa.list_(PLAIN[name]) for name in _ELEMENTS},
}


class Postgresql(Database):
    """See :class:`~semel.sources.jdbc.database.Database`."""

    kinds = tuple(_KINDS)

    def __init__(self, config: JdbcSourceConfig, connector: str) -> None:
        uri = libpq_uri(config.login, f"semel-{connector}")
        uri = re.sub(r"&?\btarget_session_attrs=read-write\b", "", uri)  # a standby will do
        self._config = config
        self._connection = Connection(uri, _IDLE_MS, connector)
        self._connection.privileges = grants.READ
        self._database = unquote(urlsplit(uri).path.lstrip("/"))
        self.where = self._connection.where

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._connection.transaction(reading=True):
            yield

    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        sql = _TABLES.format(
            kinds=",".join(_KINDS[k] for k in kinds),
            schema=literal(self._config.schema_pattern or "%"),
            catalog=literal(self._config.catalog_pattern or "%"),
        )
        return [
            TableId(None, r["schema"], r["name"]) for r in self._connection.query(sql).to_pylist()
        ]

    def table(self, name: str) -> TableId:
        schema, _, table = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
        return TableId(None, schema or None, table)

    def former_names(self, table: TableId) -> Sequence[str]:
        return [f"{self._database}.{table}"]  # of pgjdbc since 42.7.5

    def columns(self, table: TableId) -> Sequence[Column]:
        return self._columns(table.quoted)

    def columns_of(self, query: str) -> Sequence[Column]:
        try:
            with self.snapshot():  # prepared, and so one statement; a view's text may hold several
                schema = self._connection.query(f"SELECT * FROM ({query}\n) AS q LIMIT 0").schema
        except Unavailable as error:
            if "read-only transaction" in str(error):  # it would lock rows, or write
                raise SchemaChanged(str(error)) from None
            raise
        try:
            return self._viewed(query)
        except ServiceError as error:
            if "read-only" not in str(error) and "permission denied" not in str(error):
                raise
        # a standby, or no right to make views: types without their digits
        return [self._described(field) for field in schema]

    def _described(self, field: pa.Field) -> Column:
        base = (field.metadata or {}).get(b"ADBC:postgresql:typname", b"").decode()
        kind = field.type
        if pa.types.is_timestamp(kind):
            base = "timestamptz" if kind.tz else "timestamp"
            type_ = f"timestamp with{'' if kind.tz else 'out'} time zone"
            return Column(field.name, type_, _AS_THEY_ARE[base])
        if base == "numeric":
            return self._numeric(Column(field.name, base, kind), -1)
        if isinstance(kind, pa.BaseExtensionType):
            return Column(field.name, base, pa.string(), expression=f"{quote(field.name)}::text")
        return Column(field.name, base or str(kind), kind)

    def _viewed(self, query: str) -> Sequence[Column]:
        """A view of this session has the columns of its query, with all that is known of them."""
        with self._connection.transaction():
            self._connection.execute(f"CREATE TEMPORARY VIEW {_VIEW} AS {query}")
            columns = self._columns(f"pg_temp.{_VIEW}")
            self._connection.execute(f"DROP VIEW pg_temp.{_VIEW}")
        return [replace(c, nullable=True) for c in columns]

    def _columns(self, table: str) -> Sequence[Column]:
        rows = self._connection.query(_COLUMNS.format(table=literal(table)))
        return [self._column(**r) for r in rows.to_pylist()]

    def _column(
        self,
        name: str,
        base: str,
        plain: str,
        type: str,
        domain: bool,
        modifier: int,
        required: bool,
        counts: bool,
        key: bool,
        nested: bool,
    ) -> Column:
        quoted = quote(name)
        expression = f"{quoted}::{plain}" if domain else ""
        column = Column(name, type, pa.string(), not required, counts, 6, expression, key=key)
        if base.startswith("_") and base in _AS_THEY_ARE and not nested:
            fits = f"array_ndims({quoted}) = 1 AND array_lower({quoted}, 1) = 1"
            other = f"{quoted} IS NOT NULL AND cardinality({quoted}) > 0 AND NOT ({fits})"
            expression = f"CASE WHEN {other} THEN NULL ELSE {expression or quoted} END"
            unfit = _shown(other, quoted)
            return replace(column, arrow=_AS_THEY_ARE[base], expression=expression, unfit=unfit)
        if base in _AS_THEY_ARE and not base.startswith("_"):
            times = base in ("timestamp", "timestamptz")
            digits = modifier if times and modifier >= 0 else 6
            return replace(column, arrow=_AS_THEY_ARE[base], digits=digits)
        if base == "numeric":
            return self._numeric(column, modifier)
        if base == "oid":
            return replace(column, arrow=pa.int64(), expression=f"{quote(name)}::bigint")
        return replace(column, expression=f"{quote(name)}::text")

    def _numeric(self, column: Column, modifier: int) -> Column:
        kind = unbounded_type(self._config.numerics)
        if modifier >= 4:
            kind = numeric_type(*precision_and_scale(modifier), self._config.numerics)
        name = quote(column.name)
        if pa.types.is_integer(kind):
            other = f"{name} IN ('NaN', 'Infinity', '-Infinity')"
            expression = f"CASE WHEN {other} THEN NULL ELSE {name}::bigint END"
            return replace(column, arrow=kind, expression=expression, unfit=_shown(other, name))
        if pa.types.is_floating(kind):
            return replace(column, arrow=kind, expression=f"{name}::float8")
        return replace(column, arrow=kind, expression=f"{name}::text")

    def now(self) -> int:
        with self.snapshot():
            answer = self._connection.query("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
        return int(answer.column(0)[0].as_py())

    def stream(self, sql: str, widest: str | None = None) -> Generator[pa.RecordBatch, None, None]:
        with closing(self._connection.stream(sql)) as batches:
            yield from fetched_ahead(batches)

    def timeless(self, column: Column) -> str:
        return f"{quote(column.name)} IN ('infinity', '-infinity')"

    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        if "with time zone" in column.type:
            return f"TIMESTAMPTZ '{_of_era(wall(microseconds, None), '+00')}'"
        return f"TIMESTAMP '{_of_era(wall(microseconds, timezone))}'"

    def close(self) -> None:
        self._connection.close()


def _of_era(moment: str, zone: str = "") -> str:
    """A time as PostgreSQL reads it: years before Christ are counted backwards from 1."""
    if not moment.startswith(("-", "0000")):
        return f"{moment}{zone}"
    year, _, rest = moment.removeprefix("-").partition("-")
    return f"{int(year) + 1:04}-{rest}{zone} BC"


def _shown(condition: str, quoted: str) -> str:
    """A column's value as text where a condition holds, and an empty text elsewhere."""
    return f"CASE WHEN {condition} THEN {quoted}::text ELSE '' END"
