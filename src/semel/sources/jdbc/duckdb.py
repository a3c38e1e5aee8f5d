"""DuckDB: rows come as Arrow. The file is open only while a query lasts, so others may write it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import duckdb
import pyarrow as pa

from semel.config import read
from semel.errors import Unavailable
from semel.sinks.sql.duckdb import Duckdb as DuckdbSession
from semel.sinks.sql.duckdb import confined
from semel.sinks.sql.duckdb_config import DuckdbConfig
from semel.sinks.sql.names import literal, quote
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import Column, Database, TableId
from semel.sources.jdbc.queries import check_names
from semel.sources.jdbc.values import INSTANT, numeric_type, wall

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
_AS_THEY_ARE = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN"),
    *("VARCHAR", "BLOB", "DATE", "TIME"),
}


class _Session(DuckdbSession):
    """A session that writes nothing, and creates no file."""

    def _begin(self, reading: bool) -> None:
        if not self._path.exists():
            raise Unavailable(f"{self.where}: there is no such file")
        self._connection = self._open()
        self._session.execute("BEGIN")

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        yield from self._session.sql(sql).to_arrow_reader(_BATCH_ROWS)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return confined(self._path, read_only=True)


class Duckdb(Database):
    """See :class:`~semel.sources.jdbc.database.Database`."""

    def __init__(self, config: JdbcSourceConfig, connector: str) -> None:
        self._config = config
        keys = {"connector.class": "duckdb", "connection.url": config.connection_url}
        self._session = _Session(read(DuckdbConfig, keys), connector)
        self.where = self._session.where

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._session.transaction(reading=True):
            yield

    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        types = ", ".join(literal(_KINDS[k]) for k in kinds)
        found = self._session.query(
            "SELECT table_schema, table_name FROM information_schema.tables "
            f"WHERE table_catalog = current_catalog() AND table_type IN ({types}) "
            f"AND table_schema LIKE {literal(self._config.schema_pattern or '%')} "
            "ORDER BY table_schema, table_name"
        )
        return [TableId(None, *row.values()) for row in found.to_pylist()]

    def table(self, name: str) -> TableId:
        schema, _, table = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
        return TableId(None, schema or None, table)

    def columns(self, table: TableId) -> Sequence[Column]:
        found = self._session.query(
            "SELECT column_name, is_nullable, coalesce(column_default, '') LIKE 'nextval(%' "
            "AS counts FROM duckdb_columns() WHERE database_name = current_catalog() "
            f"AND schema_name = {literal(table.schema or 'main')} "
            f"AND table_name = {literal(table.name)}"
        ).to_pylist()
        if not found:
            return []
        facts = {row["column_name"]: row for row in found}
        return [
            replace(c, nullable=facts[c.name]["is_nullable"], counts=facts[c.name]["counts"])
            for c in self._columns(f"SELECT * FROM {table.quoted}")
        ]

    def columns_of(self, query: str) -> Sequence[Column]:
        with self.snapshot():
            return self._columns(query)

    def _columns(self, query: str) -> Sequence[Column]:
        described = self._session.query(f"DESCRIBE {query}").to_pylist()
        check_names([row["column_name"].lower() for row in described])  # it folds them
        schema = self._session.query(f"SELECT * FROM ({query}\n) AS q LIMIT 0").schema
        return [
            self._column(row["column_name"], row["column_type"], field.type)
            for row, field in zip(described, schema, strict=True)
        ]

    def _column(self, name: str, type_: str, kind: pa.DataType) -> Column:
        column = Column(name, type_, _WIDER.get(kind, kind), digits=_DIGITS.get(type_, 6))
        if type_ == "TIMESTAMP_NS":  # a position has microseconds
            return replace(column, arrow=INSTANT, expression=self.time(column))
        if pa.types.is_timestamp(kind):
            return replace(column, arrow=INSTANT)
        if pa.types.is_decimal(kind):
            kind = numeric_type(kind.precision, kind.scale, self._config.numerics)
            return replace(column, arrow=kind)
        plain = kind in _WIDER or pa.types.is_nested(kind) or type_ in _AS_THEY_ARE
        if plain and not pa.types.is_dictionary(kind):
            return column
        return replace(column, arrow=pa.string(), expression=f"{quote(name)}::VARCHAR")

    def now(self) -> int:
        return time.time_ns() // 1000  # DuckDB runs here

    def stream(self, sql: str, widest: str = "") -> Generator[pa.RecordBatch, None, None]:
        yield from self._session.stream(sql)

    def time(self, column: Column) -> str:
        name = quote(column.name)
        return f"{name}::TIMESTAMP" if column.type == "TIMESTAMP_NS" else name

    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        if column.type == _ZONED:
            return f"TIMESTAMPTZ '{wall(microseconds, None)}+00'"
        return f"TIMESTAMP '{wall(microseconds, timezone)}'"

    def close(self) -> None:
        self._session.close()
