"""SQLite: rows come through ADBC.

A column may hold values of any type. ADBC infers its type from the first rows, so each value is
read in its column's declared type, and a separate column says which are null.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from semel.config import read
from semel.errors import ConfigError, Problem, Unavailable
from semel.sinks.sql.names import literal, quote
from semel.sinks.sql.sqlite import Sqlite as SqliteSession
from semel.sinks.sql.sqlite_config import SqliteConfig
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import Column, Database, TableId
from semel.sources.jdbc.values import INSTANT, numeric_type

_BATCH_ROWS = 4096
_BATCH_BYTES = 16 * 1024 * 1024
_DIGITS = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_INTEGER, _REAL, _TEXT, _BLOB = "0", "0.0", "''", "x''"


class _Session(SqliteSession):
    """A session that writes nothing, not even the file's journal mode."""

    def _open(self) -> Any:
        from adbc_driver_sqlite import dbapi

        if not self._path.exists():
            raise Unavailable(f"{self.where}: there is no such file")
        connection = dbapi.connect(f"file:{_escaped(str(self._path))}?mode=ro", autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {self._config.lock_timeout_ms}")
            cursor.fetchall()
        return connection

    def stream(self, sql: str, rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        options = {"adbc.sqlite.query.batch_rows": rows}
        with self._connection.cursor(adbc_stmt_kwargs=options) as cursor:
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()


class Sqlite(Database):
    """See :class:`~semel.sources.jdbc.database.Database`."""

    misses_columns = False  # a double-quoted name that is not a column is taken for a string

    def __init__(self, config: JdbcSourceConfig, connector: str) -> None:
        if config.timezone.upper() not in ("UTC", "Z"):
            raise ConfigError(
                Problem(
                    "db.timezone",
                    f"db.timezone={config.timezone} must be UTC with SQLite, whose functions take "
                    "times as UTC",
                )
            )
        self._config = config
        keys = {"connector.class": "sqlite", "connection.url": config.connection_url}
        self._session = _Session(read(SqliteConfig, keys), connector)
        self.where = self._session.where

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._session.transaction(reading=True):
            yield

    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        types = ", ".join(literal(k.lower()) for k in kinds)
        found = self._session.query(
            f"SELECT name FROM sqlite_master WHERE type IN ({types}) "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        )
        return [TableId(None, None, name) for name in found.column(0).to_pylist()]

    def table(self, name: str) -> TableId:
        return TableId(None, None, name)

    def columns(self, table: TableId) -> Sequence[Column]:
        found = self._session.query(
            'SELECT name, type, pk, "notnull" AS required '
            f"FROM pragma_table_info({literal(table.name)})"
        ).to_pylist()
        alone = sum(bool(r["pk"]) for r in found) == 1
        return [
            self._column(
                r["name"],
                r["type"],
                required=bool(r["required"]),
                counts=alone and bool(r["pk"]) and r["type"].upper() == "INTEGER",
            )
            for r in found
        ]

    def columns_of(self, query: str) -> Sequence[Column]:
        with self.snapshot():
            # The first statement is prepared with the columns that the session already knows,
            # perhaps stale.
            self._session.query("SELECT count(*) AS n FROM sqlite_master")
            first = self._session.query(f"SELECT * FROM ({query}\n) AS q LIMIT 1")
            return [self._guessed(field) for field in first.schema]

    def _guessed(self, field: pa.Field) -> Column:
        times = [name.lower() for name in self._config.timestamp_columns]
        if self._config.by_time and field.name.lower() in times:  # SQLite has no type for it
            return self._column(field.name, "TIMESTAMP", required=False, counts=False)
        for matches, type_ in (
            (pa.types.is_floating, "REAL"),
            (pa.types.is_binary, "BLOB"),
            (pa.types.is_integer, "INTEGER"),
        ):
            if matches(field.type):
                return self._column(field.name, type_, required=False, counts=False)
        return self._column(field.name, "TEXT", required=False, counts=False)

    def _column(self, name: str, type_: str, *, required: bool, counts: bool) -> Column:
        declared, quoted = type_.upper(), quote(name)
        column = Column(name, type_, pa.string(), not (required or counts), counts)
        digits = _DIGITS.search(declared)
        if declared.startswith(("TIMESTAMP", "DATETIME")):
            return replace(
                column,
                arrow=INSTANT,
                expression=f"1000 * {_time(quoted)}",
                guard=_INTEGER,
                digits=3,
            )
        if declared == "DATE":
            days = f"CAST(julianday({quoted}) - 2440587.5 AS INTEGER)"
            return replace(column, arrow=pa.date32(), expression=days, guard=_INTEGER)
        if declared.startswith("BOOL"):
            return replace(column, arrow=pa.bool_(), expression=f"{quoted} <> 0", guard=_INTEGER)
        kind: pa.DataType = pa.float64()
        if "INT" in declared:
            kind = pa.int64()
        elif re.search("CHAR|CLOB|TEXT|JSON|TIME|UUID", declared) or not declared:
            kind = pa.string()
        elif "BLOB" in declared:
            kind = pa.binary()
        elif digits and not re.search("REAL|FLOA|DOUB", declared):
            scale = int(digits[2] or 0)
            kind = numeric_type(int(digits[1]), scale, self._config.numerics)
        for matches, affinity, guard in _READ:
            if matches(kind):
                return replace(
                    column, arrow=kind, expression=f"CAST({quoted} AS {affinity})", guard=guard
                )
        raise AssertionError(kind)

    def now(self) -> int:
        return time.time_ns() // 1_000_000 * 1000  # SQLite runs here, and has milliseconds

    def time(self, column: Column) -> str:
        return _time(quote(column.name))

    def stream(self, sql: str, widest: str = "") -> Generator[pa.RecordBatch, None, None]:
        most = int(self._session.query(widest).column(0)[0].as_py() or 0) if widest else 0
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, most)))
        held: list[pa.RecordBatch] = []
        count = size = 0
        for batch in self._session.stream(sql, rows):
            held.append(batch)
            count, size = count + batch.num_rows, size + batch.nbytes
            if count >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _joined(held)
                held, count, size = [], 0, 0
        if held:
            yield _joined(held)

    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        return str(microseconds // 1000)

    def close(self) -> None:
        self._session.close()


_READ = (
    (pa.types.is_integer, "INTEGER", _INTEGER),
    (pa.types.is_floating, "REAL", _REAL),
    (pa.types.is_binary, "BLOB", _BLOB),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_decimal(kind), "TEXT", _TEXT),
)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _time(quoted: str) -> str:
    """Milliseconds since 1970, which are stored as such or as text."""
    text = f"CAST(round((julianday({quoted}) - 2440587.5) * 86400000) AS INTEGER)"
    return f"(CASE typeof({quoted}) WHEN 'integer' THEN {quoted} ELSE {text} END)"


def _escaped(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
