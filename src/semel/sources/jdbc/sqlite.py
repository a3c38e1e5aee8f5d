"""SQLite: rows come through ADBC.

A column may hold values of any type. ADBC infers its type from the first rows, so each value is
read in its column's declared type, and a separate column says which are null.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from semel.core.errors import ConfigError, Problem, Unavailable
from semel.databases.login import Timeouts
from semel.databases.names import literal, quote
from semel.databases.sqlite import Sqlite as SqliteSession
from semel.databases.sqlite import declared_type
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import INSTANT, Column, Database, TableId, numeric_type
from semel.sources.jdbc.queries import check_names

_BATCH_ROWS = 4096
_BATCH_BYTES = 16 * 1024 * 1024
_DIGITS = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_DAY = 86_400_000
_LATEST = 2**63 // 1000
"""The most milliseconds since 1970 that a time can have."""
_INTEGER, _REAL, _TEXT, _BLOB = "0", "0.0", "''", "x''"


class _Session(SqliteSession):
    """A session that writes nothing, not even the file's journal mode."""

    def _open(self) -> Any:
        from adbc_driver_sqlite import dbapi

        if not self._path.exists():
            raise Unavailable(f"{self.where}: there is no such file")
        connection = dbapi.connect(f"file:{_escaped(str(self._path))}?mode=ro", autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {self._lock_timeout}")
            cursor.fetchall()
        return connection

    def described(self, query: str) -> pa.Schema:
        """The columns of a query, in the types of its first row."""
        options = {"adbc.sqlite.query.batch_rows": 1}
        with self._connection.cursor(adbc_stmt_kwargs=options) as cursor:
            cursor.execute(query)
            with cursor.fetch_record_batch() as reader:
                return reader.schema

    def stream(self, sql: str, rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        options = {"adbc.sqlite.query.batch_rows": rows}
        with self._connection.cursor(adbc_stmt_kwargs=options) as cursor:
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()


class Sqlite(Database):
    """See :class:`~semel.sources.jdbc.database.Database`."""

    _session: _Session

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
        self._session = _Session(config.login, connector, Timeouts())
        self.where = self._session.where

    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        types = ", ".join(literal(k.lower()) for k in kinds)
        rows = self._session.query(
            f"SELECT name FROM sqlite_master WHERE type IN ({types}) "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        )
        return [TableId(None, None, name) for name in rows.column(0).to_pylist()]

    def table(self, name: str) -> TableId:
        return TableId(None, None, name)

    def columns(self, table: TableId) -> Sequence[Column]:
        rows = self._session.query(
            'SELECT name, type, pk, "notnull" AS required '
            f"FROM pragma_table_xinfo({literal(table.name)}) WHERE hidden <> 1"  # 1: of a module
        ).to_pylist()
        alone = sum(bool(r["pk"]) for r in rows) == 1
        return [
            self._column(
                r["name"],
                r["type"],
                required=bool(r["required"]),
                counts=alone and bool(r["pk"]) and r["type"].upper() == "INTEGER",
                key=bool(r["pk"]),
            )
            for r in rows
        ]

    def columns_of(self, query: str) -> Sequence[Column]:
        with self.snapshot():
            # The first statement is prepared with the columns that the session already knows,
            # perhaps stale.
            self._session.query("SELECT count(*) AS n FROM sqlite_master")
            # The client runs the first of several statements. Only a single one can be read within
            # parentheses and without them.
            self._session.query(f"EXPLAIN SELECT * FROM ({query}\n) AS q")
            schema = self._session.described(query)
        check_names([name.lower() for name in schema.names])  # FROM (query) would number them
        return [self._guessed(field) for field in schema]

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

    def _column(
        self, name: str, type_: str, *, required: bool, counts: bool, key: bool = False
    ) -> Column:
        declared, quoted = type_.upper(), quote(name)
        column = Column(name, type_, pa.string(), not (required or counts), counts, key=key)

        def read(kind: pa.DataType, expression: str, guard: str) -> Column:
            """A column whose values do not fit where the expression has none for them."""
            unfit = f"CASE WHEN {quoted} IS NULL OR {expression} IS NOT NULL THEN '' ELSE "
            unfit += f"typeof({quoted}) || ' ' || substr(quote({quoted}), 1, 100) END"
            return replace(column, arrow=kind, expression=expression, guard=guard, unfit=unfit)

        if declared.startswith(("TIMESTAMP", "DATETIME")):
            return replace(read(INSTANT, f"(1000 * {_time(quoted)})", _INTEGER), digits=3)
        if declared == "DATE":
            time = _time(quoted)
            days = f"(CASE WHEN {time} % {_DAY} = 0 THEN {time} / {_DAY} END)"
            return read(pa.date32(), days, _INTEGER)
        if declared.startswith("BOOL"):
            return read(pa.bool_(), _boolean(quoted), _INTEGER)
        kind = declared_type(declared)
        digits = _DIGITS.search(declared)
        if kind == pa.float64() and digits and not re.search("REAL|FLOA|DOUB", declared):
            scale = int(digits[2] or 0)
            kind = numeric_type(int(digits[1]), scale, self._config.numerics)
        for matches, fits, affinity, guard in _READ:
            if matches(kind):
                fitting = fits.format(x=quoted)
                cast = f"(CASE WHEN {fitting} THEN CAST({quoted} AS {affinity}) END)"
                return read(kind, cast, guard)
        raise AssertionError(kind)

    def now(self) -> int:
        return time.time_ns() // 1_000_000 * 1000  # SQLite runs here, and has milliseconds

    def time(self, column: Column) -> str:
        return _time(quote(column.name))

    def stream(self, sql: str, widest: str | None = None) -> Generator[pa.RecordBatch, None, None]:
        most = int(self._session.query(widest).column(0)[0].as_py() or 0) if widest else 0
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, most)))
        buffered: list[pa.RecordBatch] = []
        count = size = 0
        for batch in self._session.stream(sql, rows):
            buffered.append(batch)
            count, size = count + batch.num_rows, size + batch.nbytes
            if count >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _joined(buffered)
                buffered, count, size = [], 0, 0
        if buffered:
            yield _joined(buffered)

    def timeless(self, column: Column) -> str:
        return f"{quote(column.name)} IS NOT NULL AND {self.time(column)} IS NULL"

    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        return str(microseconds // 1000)


_READ = (
    (pa.types.is_integer, "typeof({x}) = 'integer'", "INTEGER", _INTEGER),
    (
        pa.types.is_floating,
        "typeof({x}) = 'real' OR (typeof({x}) = 'integer' AND {x} <> 9223372036854775807 "
        "AND CAST(CAST({x} AS REAL) AS INTEGER) = {x})",
        "REAL",
        _REAL,
    ),
    (pa.types.is_binary, "typeof({x}) = 'blob'", "BLOB", _BLOB),
    (
        lambda kind: pa.types.is_string(kind) or pa.types.is_decimal(kind),
        "typeof({x}) <> 'blob'",
        "TEXT",
        _TEXT,
    ),
)
"""By type in records: which values fit it, and how they are read."""


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _time(quoted: str) -> str:
    """Milliseconds since 1970, as SQLite's JDBC driver takes them: an integer is their number, a
    real is a Julian day. Text is ISO 8601, and its digits beyond milliseconds are cut off. Null for
    all other values: SQLite's own functions would read ``now`` as the current time, and 30 February
    as 1 March."""
    day, rest = f"substr({quoted}, 1, 10)", f"substr({quoted}, 11)"
    seconds = f"(CASE substr({quoted}, 17, 1) WHEN ':' THEN 9 ELSE 6 END)"
    clock, after = f"substr({rest}, 2, {seconds} - 1)", f"substr({rest}, {seconds} + 1)"
    zone = f"ltrim({after}, '.0123456789')"
    fraction = f"substr({after}, 2, length({after}) - length({zone}) - 1)"
    milliseconds = (
        f"(CASE substr({after}, 1, 1) WHEN '.' "
        f"THEN CAST(substr({fraction} || '00', 1, 3) AS INTEGER) ELSE 0 END)"
    )
    at = f"CAST(strftime('%s', {day} || ' ' || {clock} || {zone}) AS INTEGER)"
    return (
        f"(CASE typeof({quoted}) "
        f"WHEN 'integer' THEN CASE WHEN abs({quoted}) <= {_LATEST} THEN {quoted} END "
        f"WHEN 'real' THEN CAST(round((julianday({quoted}) - 2440587.5) * {_DAY}) AS INTEGER) "
        f"WHEN 'text' THEN CASE WHEN instr({quoted}, char(0)) OR julianday({quoted}) IS NULL "
        f"OR date({day}) <> {day} THEN NULL "
        f"WHEN {rest} = '' THEN 1000 * CAST(strftime('%s', {day}) AS INTEGER) "
        f"WHEN {clock} < '24' AND substr({rest}, 1, 1) IN (' ', 'T') "
        f"THEN 1000 * {at} + {milliseconds} END END)"
    )


def _boolean(quoted: str) -> str:
    """As SQLite's JDBC driver takes it, zero or not; and as text."""
    return (
        f"(CASE typeof({quoted}) WHEN 'integer' THEN {quoted} <> 0 "
        f"WHEN 'text' THEN CASE lower({quoted}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 END END)"
    )


def _escaped(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
