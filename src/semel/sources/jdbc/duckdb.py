"""DuckDB: rows come as Arrow. The file is open only while a query lasts, so others may write it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa

from semel.core.errors import Unavailable
from semel.databases.duckdb import Duckdb as DuckdbSession
from semel.databases.duckdb import confined
from semel.databases.errors import SchemaChanged
from semel.databases.login import Timeouts
from semel.databases.names import literal, quote
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import INSTANT, Column, Database, TableId, numeric_type, wall
from semel.sources.jdbc.queries import check_names

_BATCH_ROWS = 2048
"""DuckDB's own vector size."""
_KINDS = {"TABLE": "BASE TABLE", "VIEW": "VIEW"}
_DIGITS = {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3}
_ZONED = "TIMESTAMP WITH TIME ZONE"
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_WITHIN = {
    *("tinyint", "smallint", "integer", "bigint", "float", "double", "boolean", "varchar"),
    *("utinyint", "usmallint", "uinteger", "decimal", "blob", "date", "time"),
    *("timestamp", "timestamp_s", "timestamp_ms", "timestamp with time zone"),
}
_PLAIN = _WITHIN | {"ubigint", "hugeint", "uhugeint", "timestamp_ns"}
"""Types that records have, within others and alone. The others are read as text: Arrow has neither
times with an offset nor bits, for example."""
_TEXT = duckdb.sqltype("VARCHAR")


def _readable(type_: Any, plain: Set[str] = _PLAIN) -> Any:
    """A type with text in the place of what records do not have."""
    if type_.id not in ("list", "array", "struct", "map"):
        return type_ if type_.id in plain else _TEXT
    parts: dict[str, Any] = {
        n: p if isinstance(p, int) else _readable(p, _WITHIN) for n, p in type_.children
    }
    if type_.id == "struct":
        return duckdb.struct_type(parts)
    if type_.id == "map":
        return duckdb.map_type(parts["key"], parts["value"])
    if type_.id == "list":
        return duckdb.list_type(parts["child"])
    return duckdb.array_type(parts["child"], parts["size"])


class _Session(DuckdbSession):
    """A session that writes nothing, and creates no file."""

    def _begin(self, reading: bool) -> None:
        if not self._path.exists():
            raise Unavailable(f"{self.where}: there is no such file")
        self._connection = self._open()
        self._session.execute("BEGIN")

    def statements(self, query: str) -> int:
        """How many statements a text holds."""
        return len(self._session.extract_statements(query))

    def described(self, query: str) -> duckdb.DuckDBPyRelation:
        """A query that nothing has run."""
        return self._session.sql(query)

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        yield from self._session.sql(sql).to_arrow_reader(_BATCH_ROWS)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return confined(self._path, read_only=True)


class Duckdb(Database):
    """See :class:`~semel.sources.jdbc.database.Database`."""

    _session: _Session

    def __init__(self, config: JdbcSourceConfig, connector: str) -> None:
        self._config = config
        self._session = _Session(config.login, connector, Timeouts())
        self.where = self._session.where

    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        types = ", ".join(literal(_KINDS[k]) for k in kinds)
        rows = self._session.query(
            "SELECT table_schema, table_name FROM information_schema.tables "
            f"WHERE table_catalog = current_catalog() AND table_type IN ({types}) "
            f"AND table_schema LIKE {literal(self._config.schema_pattern or '%')} "
            "ORDER BY table_schema, table_name"
        )
        return [TableId(None, *row.values()) for row in rows.to_pylist()]

    def table(self, name: str) -> TableId:
        schema, _, table = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
        return TableId(None, schema or None, table)

    def columns(self, table: TableId) -> Sequence[Column]:
        rows = self._session.query(
            "SELECT column_name, is_nullable, coalesce(column_default, '') LIKE 'nextval(%' "
            "AS counts FROM duckdb_columns() WHERE database_name = current_catalog() "
            f"AND schema_name = {literal(table.schema or 'main')} "
            f"AND table_name = {literal(table.name)}"
        ).to_pylist()
        keys = self._session.query(
            "SELECT unnest(constraint_column_names) AS name FROM duckdb_constraints() "
            "WHERE database_name = current_catalog() AND constraint_type = 'PRIMARY KEY' "
            f"AND schema_name = {literal(table.schema or 'main')} "
            f"AND table_name = {literal(table.name)}"
        )
        if not rows:
            return []
        facts = {row["column_name"]: row for row in rows}
        key = set(keys.column(0).to_pylist())
        return [
            replace(
                c,
                nullable=facts[c.name]["is_nullable"],
                counts=facts[c.name]["counts"],
                key=c.name in key,
            )
            for c in self._columns(f"SELECT * FROM {table.quoted}")
        ]

    def columns_of(self, query: str) -> Sequence[Column]:
        with self.snapshot():
            if (count := self._session.statements(query)) != 1:
                raise SchemaChanged(f"{self.where}: it holds {count} statements")
            return self._columns(query)

    def _columns(self, query: str) -> Sequence[Column]:
        rows = f"FROM ({query}\n) AS q"
        result = self._session.described(f"SELECT * {rows}")
        named = self._session.query(f"DESCRIBE {query}").column("column_name").to_pylist()
        check_names([name.lower() for name in named])  # a subquery would number them
        types = {n: (t, _readable(t)) for n, t in zip(result.columns, result.types, strict=True)}
        read = ", ".join(f"{quote(n)}::{r} AS {quote(n)}" for n, (_, r) in types.items())
        schema = self._session.query(f"SELECT {read} {rows} LIMIT 0").schema
        return [self._column(field, *types[field.name]) for field in schema]

    def _column(self, field: pa.Field, declared: Any, readable: Any) -> Column:
        type_, kind, name = str(declared), field.type, quote(field.name)
        column = Column(field.name, type_, _WIDER.get(kind, kind), digits=_DIGITS.get(type_, 6))
        if type_ == "TIMESTAMP_NS":  # a position has microseconds
            unfit = f"CASE WHEN isinf({name}) THEN {name}::VARCHAR ELSE '' END"
            return replace(column, arrow=INSTANT, expression=self.time(column), unfit=unfit)
        if pa.types.is_timestamp(kind):
            return replace(column, arrow=INSTANT)
        if type_ in ("HUGEINT", "UHUGEINT"):  # they may have 39 digits
            beyond = f"length(ltrim({name}::VARCHAR, '-')) > {kind.precision}"
            unfit = f"CASE WHEN {beyond} THEN {name}::VARCHAR ELSE '' END"
            expression = f"CASE WHEN {beyond} THEN NULL ELSE {name} END"
            column = replace(column, expression=expression, unfit=unfit)
        if pa.types.is_decimal(kind):
            kind = numeric_type(kind.precision, kind.scale, self._config.numerics)
            return replace(column, arrow=kind)
        return column if readable == declared else replace(column, expression=f"{name}::{readable}")

    def now(self) -> int:
        return time.time_ns() // 1000  # DuckDB runs here

    def stream(self, sql: str, widest: str | None = None) -> Generator[pa.RecordBatch, None, None]:
        yield from self._session.stream(sql)

    def time(self, column: Column) -> str:
        name = quote(column.name)
        if column.type != "TIMESTAMP_NS":
            return name
        return (
            f"make_timestamp((epoch_ns({name}) - (epoch_ns({name}) % 1000 + 1000) % 1000) // 1000)"
        )

    def timeless(self, column: Column) -> str:
        return f"isinf({quote(column.name)})"

    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        if column.type == _ZONED:
            return f"TIMESTAMPTZ '{wall(microseconds, None)}+00'"
        return f"TIMESTAMP '{wall(microseconds, timezone)}'"
