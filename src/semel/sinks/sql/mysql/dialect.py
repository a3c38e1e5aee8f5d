"""The dialect: LOAD DATA for inserts, multi-row INSERT for upserts, InnoDB only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from semel.config.extras import require
from semel.converters.json.facts import facts_in
from semel.core.errors import TransientError, Unavailable
from semel.core.watchdog import Watchdog
from semel.sinks import jdbc
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.sql import grants
from semel.sinks.sql.columns import Column, Table, is_text
from semel.sinks.sql.convert import Converted
from semel.sinks.sql.dialect import (
    KEPT,
    STAGE,
    Dialect,
    changed,
    fetched,
    fetched_batches,
    listed,
    no_rows,
    ranks,
    same,
)
from semel.sinks.sql.errors import DataRefused, Nature
from semel.sinks.sql.mysql import claims, silence, text
from semel.sinks.sql.mysql.claims import row
from semel.sinks.sql.mysql.config import MysqlConfig, connect_arguments
from semel.sinks.sql.mysql.errors import is_lost, nature_of, translated
from semel.sinks.sql.mysql.load import SwitchedOff, load
from semel.sinks.sql.mysql.tables import find_table
from semel.sinks.sql.mysql.types import check, new_type, shown
from semel.sinks.sql.names import Name, quote
from semel.sinks.sql.prepare import Rows

_MODE = (
    "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
)
_LONG = 31_536_000  # the maximum: an idle run must not lose its claim
_DEPRECATED = 1287
_NUMBER = "semel row number"

_LONGEST_COMMENT = 1024
"""Characters of a column's comment."""


class Mysql(Dialect):
    """See :class:`~semel.sinks.sql.dialect.Dialect`."""

    most_columns = 1017
    longest_name = 64
    row_lock = "FOR UPDATE"
    compares_bytes = False
    compares_keys = True
    kept_order = quote(_NUMBER)
    reads_only = True

    def __init__(self, config: JdbcConfig, connector: str) -> None:
        assert isinstance(config, MysqlConfig)
        self.system, self._arguments, self._tls = connect_arguments(config)
        require(self.system, "mysql", {"pymysql": "pymysql"}, key="connector.class")
        self._idle = config.idle_timeout_ms // 1000
        self._connector = connector
        self._connection: Any = None
        self._watchdog: Watchdog | None = None
        self._mariadb = True
        self._packet = 1 << 20
        self._account = ""
        self._claimed = False
        self._loads = True

    @property
    def where(self) -> str:
        return "{system} at {host}:{port}/{database}".format(system=self.system, **self._arguments)

    # Sessions

    def _open(self) -> Any:
        self._watched().attach(None)
        try:
            connection = silence.session(self._watched())(
                charset="utf8mb4",
                autocommit=True,
                local_infile=True,
                connect_timeout=10,
                ssl=self._tls.context() if self._tls is not None else None,
                **self._arguments,
            )
        except Exception as error:
            # A proxy in front of a server that is down accepts connections and closes them.
            if is_lost(error):
                raise Unavailable(
                    f"{self.where}: connections are closed as soon as they open"
                ) from None
            raise
        try:
            self._mariadb = "mariadb" in connection.get_server_info().lower()
            for setting in (
                f"sql_mode = '{_MODE}'",
                "time_zone = '+00:00'",
                "SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",  # locks only what it finds
                "sql_notes = 1",
                f"SESSION wait_timeout = {_LONG}",
                f"SESSION net_read_timeout = {self._idle}",  # a process frozen within a statement
                # A frozen process must not hold the ledger's rows forever: the server ends its
                # transaction, and the new owner of its partitions continues.
                *([f"idle_transaction_timeout = {self._idle}"] if self._mariadb else []),
            ):
                connection.query(f"SET {setting}")
            packet, self._account = row(connection, "SELECT @@max_allowed_packet, CURRENT_USER()")
            self._packet = int(packet)
            if self._claimed:
                claims.take(connection, self._arguments["database"], self._connector, self.where)
        except BaseException:
            connection.close()
            self._watched().detach()  # it holds the connection, too
            raise
        return connection

    def _watched(self) -> Watchdog:
        if self._watchdog is None:
            self._watchdog = Watchdog(self._connector, self.where, self.timeout, self._end_silence)
        return self._watchdog

    def _end_silence(self) -> str:
        tls = self._tls.context() if self._tls is not None else None
        return silence.end(self._connection, {"ssl": tls, **self._arguments})

    def _begin(self, reading: bool) -> None:
        begin = "START TRANSACTION"
        if reading:
            begin = f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; {begin}"
            begin += " WITH CONSISTENT SNAPSHOT, READ ONLY"
        fresh = self._connection is None
        if fresh:
            self._connection = self._open()
        try:
            self._start(begin)
        except Exception as error:
            if fresh or not isinstance(self._translated(error), TransientError):
                raise
            self.close_session()  # it was lost while idle
            self._connection = self._open()
            self._start(begin)

    def _start(self, begin: str) -> None:
        if not self._mariadb:  # only MariaDB has a timeout for transactions
            self.execute(f"SET SESSION wait_timeout = {self._idle}")
        for statement in begin.split("; "):
            self.execute(statement)

    def _commit(self) -> None:
        self.execute("COMMIT")
        if not self._mariadb:
            self.execute(f"SET SESSION wait_timeout = {_LONG}")

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self.execute("ROLLBACK")
                if not self._mariadb:
                    self.execute(f"SET SESSION wait_timeout = {_LONG}")
            except Exception:
                self.close_session()

    def _translated(self, error: BaseException) -> Exception | None:
        if self._watchdog is not None and self._watchdog.ended:
            return Unavailable(self._watchdog.ended)
        return translated(self.where, error, self._advice)

    def _advice(self, message: str) -> str:
        return grants.mysql(message, self._arguments["database"], self._account, self.privileges)

    def execute(self, sql: str) -> None:
        self._run(sql.encode())

    def _run(self, sql: bytes) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            if cursor.warning_count:
                self._judge_warnings()

    def _judge_warnings(self) -> None:
        """In strict mode bad values are errors; a mere warning may mean that a value was
        changed."""
        warnings = self._connection.show_warnings()
        found = [w for w in warnings if w[1] != _DEPRECATED and nature_of(w[1]) is Nature.DATA]
        if found:
            raise DataRefused(f"{self.where}: {found[0][2]} ({found[0][1]})")

    def query(self, sql: str) -> pa.Table:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return fetched(cursor)

    def stream(self, sql: str, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        from pymysql.cursors import SSCursor

        with self._connection.cursor(SSCursor) as cursor:  # the rows stay with the server
            cursor.execute(sql)
            yield from fetched_batches(cursor, schema)

    def rows_of(self, target: Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        query = f"SELECT {listed(names)} FROM {target.name.quoted}"
        return self.stream(query, target.schema_of(names))

    def _leave(self) -> None:
        self.close_session()

    def close_session(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(Exception):
                connection.close()
        if self._watchdog is not None:
            self._watchdog.detach()

    def close(self) -> None:
        self._claimed = False
        self.close_session()

    # Rows

    def insert(self, target: Name, rows: pa.Table) -> None:
        if self._loads:
            try:
                if load(self._connection, target, rows):
                    return
            except SwitchedOff:
                self._loads = False
        self._insert(target, rows, "")

    def _insert(self, target: Name, rows: pa.Table, end: str) -> None:
        start = f"INSERT INTO {target.quoted} ({listed(rows.column_names)}) VALUES "
        room = self._packet - len(start) - len(end) - 1024
        for piece in text.values(rows, room):
            if len(piece) > room:
                raise DataRefused(
                    f"{self.where}: a row of {len(piece)} bytes is larger than "
                    f"max_allowed_packet={self._packet}"
                )
            self._run(start.encode() + piece + end.encode())

    def insert_defaults(self, target: Name, count: int) -> None:
        for _ in range(count):
            self.execute(f"INSERT INTO {target.quoted} () VALUES ()")

    def upsert(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        if len(target.keys) > 1:  # ON DUPLICATE KEY would update the row of another key, too
            self.update(target, rows, key)
            self._insert_new(target.name, rows, key)
            return
        others = changed(target, rows.column_names, key) or [key[0]]
        if self._mariadb:
            sets = ", ".join(f"{quote(n)} = VALUES({quote(n)})" for n in others)
            self._insert(target.name, rows, f" ON DUPLICATE KEY UPDATE {sets}")
        else:
            new = quote(f"new {target.name.table}")  # the table's own name would be ambiguous
            sets = ", ".join(f"{quote(n)} = {new}.{quote(n)}" for n in others)
            self._insert(target.name, rows, f" AS {new} ON DUPLICATE KEY UPDATE {sets}")

    def _insert_new(self, target: Name, rows: pa.Table, key: Sequence[str]) -> None:
        names = rows.column_names
        with self.staged(target, rows) as stage:
            self.execute(
                f"INSERT INTO {target.quoted} ({listed(names)}) "
                f"SELECT {', '.join(f's.{quote(n)}' for n in names)} FROM {stage} AS s "
                f"LEFT JOIN {target.quoted} AS t ON {same(key)} WHERE t.{quote(key[0])} IS NULL"
            )

    def update(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        names = changed(target, rows.column_names, key)
        sets = [f"t.{quote(n)} = s.{quote(n)}" for n in names]
        if sets:
            with self.staged(target.name, rows) as stage:
                self.execute(
                    f"UPDATE {target.name.quoted} AS t JOIN {stage} AS s ON {same(key)} "
                    f"SET {', '.join(sets)}"
                )

    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        names = keys.columns.column_names
        try:
            with self.transaction(), self.staged(target.name, keys.columns) as stage:
                found = self.query(ranks(names, stage, _NUMBER))
        except DataRefused:  # writing them will tell which
            found = keys.columns
        return dict(zip(names, found.columns, strict=True))

    def delete(self, target: Name, keys: pa.Table) -> None:
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE t FROM {target.quoted} AS t JOIN {stage} AS s ON {same(keys.column_names)}"
            )

    @contextmanager
    def staged(self, target: Name, rows: pa.Table) -> Iterator[str]:
        # Left by a transaction that rolled back: temporary tables are not part of it.
        self._connection.query(f"DROP TEMPORARY TABLE IF EXISTS {STAGE}")
        self.execute(
            # The key numbers the rows; sql_require_primary_key may demand one, too.
            f"CREATE TEMPORARY TABLE {STAGE} ({quote(_NUMBER)} BIGINT AUTO_INCREMENT PRIMARY KEY) "
            "ENGINE=InnoDB "
            f"SELECT {listed(rows.column_names)} FROM {target.quoted} WHERE FALSE"
        )
        self.insert(Name(None, STAGE), rows)
        yield STAGE
        self.execute(f"DROP TEMPORARY TABLE {STAGE}")

    # For the audit

    @contextmanager
    def instant(self) -> Iterator[None]:
        self._idle = _LONG  # Kafka is read meanwhile
        with self.transaction(reading=True):
            self.execute(f"SET SESSION net_write_timeout = {_LONG}")
            yield

    def shown(self, column: Column, value: str) -> str | None:
        return shown(column, value)

    @contextmanager
    def kept(self, target: Name, rows: pa.Table) -> Iterator[str]:
        self._connection.query(f"DROP TEMPORARY TABLE IF EXISTS {KEPT}")
        self.execute(
            f"CREATE TEMPORARY TABLE {KEPT} ({self.kept_order} BIGINT AUTO_INCREMENT PRIMARY KEY) "
            f"ENGINE=InnoDB {no_rows(target, rows.column_names)}"
        )
        self.insert(Name(None, KEPT), rows)
        yield KEPT
        self.execute(f"DROP TEMPORARY TABLE {KEPT}")

    # Tables

    def find(self, name: Name) -> Table | None:
        return find_table(self.query, name, mariadb=self._mariadb)

    def fit(self, values: pa.ChunkedArray, column: Column) -> Converted:
        converted = super().fit(values, column)
        check(converted.values, column)
        return converted

    utc = ""

    def definition(self, field: pa.Field, *, in_key: bool = False) -> str:
        doc = str(facts_in(field).get("doc") or "")[:_LONGEST_COMMENT]
        described = f" COMMENT {self.literal(doc)}" if doc else ""
        return super().definition(field, in_key=in_key) + described

    def constant(self, value: pa.Scalar) -> str | None:
        """In parentheses: texts, bytes and JSON take only expressions."""
        kind = value.type
        if is_text(kind) or kind == pa.json_():
            text = (value.value if kind == pa.json_() else value).as_py()
            return f"(CONVERT(X'{text.encode().hex()}' USING utf8mb4))"
        found = super().constant(value)
        return found and f"({found})"

    def column_type(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        return new_type(kind, in_key=in_key)

    @property
    def _options(self) -> str:  # type: ignore[override]
        # Texts are equal if their characters are: 'a' is not 'A', nor 'a '.
        collation = "utf8mb4_nopad_bin" if self._mariadb else "utf8mb4_0900_bin"
        return f" ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"

    # The life of a run

    def claim(self) -> None:
        self._claimed = True
        self.close_session()  # the next one takes a slot
        with self.transaction(reading=True):
            pass

    @contextmanager
    def alone(self) -> Iterator[bool]:
        every = claims.every_slot(self._arguments["database"], self._connector)
        deadline = time.monotonic() + jdbc.RELEASE_TIME
        try:
            while True:
                with self.transaction(reading=True):
                    alone = all(got == 1 for got in row(self._connection, every))
                if alone or time.monotonic() >= deadline:
                    break
                self.close_session()
                time.sleep(jdbc.RELEASE_PAUSE)
            yield alone
        finally:
            self.close_session()  # which releases them
