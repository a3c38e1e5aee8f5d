"""A PostgreSQL session through ADBC: transactions, COPY, and what the server's errors mean.

ADBC's own transactions are not used (it runs in autocommit mode): when it says BEGIN depends on its
version, and a COMMIT that the server turns into a rollback, because an error went unnoticed, looks
like any other. Statements without parameters go in one round trip and may be several in one string.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_manager
import pyarrow as pa
from adbc_driver_postgresql import StatementOptions

from semel.core import watchdog
from semel.core.errors import SemelError, ServiceError, TransientError, Unavailable
from semel.core.watchdog import Watchdog
from semel.databases import grants
from semel.databases.errors import DataRefused, Nature, SchemaChanged, by_code
from semel.databases.names import literal, quote
from semel.databases.postgresql import driver
from semel.databases.postgresql.url import shown, unnamed, user_of

_PASSING = (
    "starting up",
    "shutting down",
    "recovery",
    "not yet accepting",
    "too many clients",
    "too many connections",
    "remaining connection",
    "terminating connection",  # the server went down while the connection was being made
    "server closed the connection",
    # The server is busy, or this process was.
    "canceling authentication due to timeout",
    # From PgBouncer.
    "server login has been failing",
    "pgbouncer cannot connect to server",
    "client_login_timeout",
    "query_wait_timeout",
    "no more connections allowed",
    "client connections exceeded",
)
"""Reasons of a refused connection that pass by themselves."""

_SESSION = (
    "SET client_encoding = 'UTF8'; SET standard_conforming_strings = on; SET TimeZone = 'UTC'; "
    "SET tcp_user_timeout = 30000; SET tcp_keepalives_idle = 15; "
    "SELECT set_config('semel.lock_timeout', current_setting('lock_timeout'), false)"
)
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_QUERY_OPTIONS = {StatementOptions.USE_COPY.value: "false"}  # a result comes whole, or an error

TRUNCATE_FROM = 1000
"""Once a staging table has held this many rows, TRUNCATE empties it; until then DELETE, which is
quicker and does not touch the catalog, but leaves dead rows. ON COMMIT DELETE ROWS would cost
0.2 ms for each staging table of the session, used or not."""

_CONNECT = re.compile(r"\bconnect_timeout=(\d+)")
_SAMPLES = 5
_PAUSE = 0.2

_MINE = """SELECT pg_backend_pid()::bigint AS pid,
    (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()) AS begun"""
_STATE = """SELECT state, wait_event_type AS kind, wait_event AS event FROM pg_stat_activity
WHERE pid = {pid} AND backend_start::text = '{begun}' AND datname = current_database()"""
_COPIED = "SELECT bytes_processed FROM pg_stat_progress_copy WHERE pid = {pid}"


class LockTimeout(TransientError):
    """Another session has held a lock for too long."""


class Connection:
    """One session, opened when first used and opened again after it was lost.

    All errors are raised as semel's.
    """

    privileges = grants.ROWS
    """What the session needs to do with tables."""

    def __init__(
        self, uri: str, idle_timeout_ms: int, connector: str = "", timeout_ms: int = 60_000
    ) -> None:
        uri, name = unnamed(uri)  # connectors of one URL share what the driver knows
        self._uri = bounded(uri, timeout_ms / 1000)
        self._connector = connector
        self._backend: _Backend | None = None
        self._watchdog = Watchdog(connector, self.where, timeout_ms / 1000, self._end_silence)
        self._session_statements = [
            _SESSION,
            # A frozen process must not hold the ledger's rows forever: the server ends its
            # transaction, and the new owner of its partitions continues.
            f"SET idle_in_transaction_session_timeout = {idle_timeout_ms}",
            # Parsed before standard_conforming_strings is set.
            "SET application_name = E" + literal(name.replace("\\", "\\\\")),
        ]
        self._connection: Any = None
        self._version = 0
        self._begun = False
        self._begin_statement = "BEGIN"
        self._stages: set[str] = set()
        self._new_stages: set[str] = set()
        self._staged_rows: dict[str, int] = {}

    def on_connect(self, statement: str) -> None:
        """Run ``statement`` in this session, and in each later one."""
        if statement not in self._session_statements:
            with self.transaction():
                self.execute(statement)
            self._session_statements.append(statement)

    @property
    def where(self) -> str:
        """Host, port and database, without credentials."""
        return shown(self._uri)

    @property
    def server_version(self) -> int:
        """The major version of the server of the open session."""
        if not self._version:
            self._version = int(self._connection.adbc_get_info()["vendor_version"]) // 10_000
        return self._version

    # Transactions

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[None]:
        """See :meth:`semel.databases.base.Database.transaction`. BEGIN goes along with the
        first statement, and a transaction without statements sends nothing."""
        if self._connection is None:
            self._connection = self._open()
        self._begin_statement = _BEGIN_READING if reading else "BEGIN"
        try:
            yield
            if self._begun:
                # After an error that nobody noticed COMMIT alone would roll back and say nothing.
                self._run("SELECT 1; COMMIT")
                self._begun = False
            self._stages |= self._new_stages
        except adbc_driver_manager.Error as error:
            translated = self._translate(error)
            self._roll_back()
            if isinstance(translated, Unavailable):
                self.close()  # a new session looks the host up again, and may find another server
            if isinstance(translated, SchemaChanged):
                self._stages.clear()  # one of them may be what is missing
            raise translated from None
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._new_stages.clear()

    def _roll_back(self) -> None:
        """Roll back; if that fails, drop the session."""
        if self._begun and self._connection is not None:
            try:
                self._run("ROLLBACK")
            except adbc_driver_manager.Error:
                self.close()
        self._begun = False

    def execute(self, sql: str) -> int:
        """Run statements inside the open transaction; returns the rows that the last one changed,
        or -1."""
        if not self._begun:
            sql, self._begun = f"{self._begin_statement}; {sql}", True
        return self._run(sql)

    def query(self, sql: str, parameters: Sequence[object] | None = None) -> pa.Table:
        """Run a statement inside the open transaction and return all its rows."""
        self._begin()
        with (
            self._watchdog.call(),
            self._connection.cursor(adbc_stmt_kwargs=_QUERY_OPTIONS) as cursor,
        ):
            cursor.execute(sql, parameters)
            return cursor.fetch_arrow_table()

    def stream(self, sql: str) -> Generator[pa.RecordBatch, None, None]:
        """Run a query inside the open transaction and yield its rows as they arrive, so that they
        need not fit in memory. Run nothing else until the last one has arrived."""
        self._begin()
        with self._connection.cursor() as cursor:
            with self._watchdog.call():
                cursor.execute(sql)
                batches = cursor.fetch_record_batch()
            yield from self._watchdog.each(batches)

    def copy(self, table: str, rows: pa.Table, schema: str) -> None:
        """COPY BINARY ``rows`` into an existing table whose column types match exactly."""
        self._begin()
        with self._watchdog.call(), self._connection.cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="append", db_schema_name=schema)

    def stage(self, rows: pa.Table, types: Sequence[str]) -> str:
        """COPY ``rows`` into a temporary table of columns of these types; returns its name.

        The table must be left empty, by :meth:`emptied`.
        """
        columns = ", ".join(
            f"{quote(n)} {t}" for n, t in zip(rows.column_names, types, strict=True)
        )
        # Part of the name, because a table that is altered needs another staging table.
        name = f"semel_stage_{hashlib.blake2s(columns.encode(), digest_size=12).hexdigest()}"
        if name not in self._stages and name not in self._new_stages:
            self.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ({columns})")
            self._new_stages.add(name)
        self._begin()
        with self._watchdog.call(), self._connection.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode="append", temporary=True)
        stage = f"pg_temp.{name}"
        self._staged_rows[stage] = self._staged_rows.get(stage, 0) + rows.num_rows
        return stage

    def emptied(self, stage: str) -> str:
        """The statement that empties a staging table; send it along with the one that reads it."""
        if self._staged_rows[stage] < TRUNCATE_FROM:
            return f"DELETE FROM {stage}"
        self._staged_rows[stage] = 0
        return f"TRUNCATE {stage}"

    def close(self) -> None:
        """End the session; what is not committed rolls back."""
        self._begun = False
        self._stages.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._end(connection)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._run(self._begin_statement)

    def _run(self, sql: str) -> int:
        with self._watchdog.call(), self._connection.cursor() as cursor:
            cursor.executemany(sql, None)  # unlike execute(): one round trip, and a row count
            return int(cursor.rowcount)

    # Sessions and their errors

    def _open(self) -> Any:
        while True:
            before = watchdog.connections()
            self._backend = None
            self._watchdog.attach(None)
            try:
                with self._watchdog.call():
                    database = driver.shared(self._uri)
                    connection = database.connect()
            except adbc_driver_manager.Error as error:
                raise self._connect_error(str(error)) from None
            self._watchdog.attach(_line(self._uri, before))
            try:
                if database.knows(self._begin_session(connection)):
                    return connection
            except adbc_driver_manager.Error as error:
                translated = self._translate(error)
                self._end(connection)
                raise translated from None
            self._end(connection)  # the server has other types than the driver knows

    def _begin_session(self, connection: Any) -> str:
        """Prepare a new session; returns the digest of the server's types."""
        with self._watchdog.call(), connection.cursor() as cursor:
            cursor.executemany("; ".join(self._session_statements), None)
        with self._watchdog.call(), connection.cursor() as cursor:
            cursor.execute(f"{_MINE}, {driver.TYPES} AS types")
            pid, begun, types = cursor.fetchone()
        self._backend = _Backend(pid, begun)
        return str(types)

    def _end(self, connection: Any) -> None:
        # The session may be lost already, or hang in a statement of another thread.
        with suppress(adbc_driver_manager.Error, RuntimeError):
            connection.close()
        self._watchdog.detach()

    def _end_silence(self) -> str:
        return _end_idle(self._uri, self._backend)

    def _connect_error(self, text: str) -> SemelError:
        reason = " ".join(text.split("Failed to connect:", maxsplit=1)[-1].split())
        message = f"cannot connect to {self.where}: {reason}"
        if "FATAL" in reason and not any(s in reason for s in _PASSING):
            return ServiceError(f"{message}. Check connection.url, connection.user and password.")
        return Unavailable(message)

    def _translate(self, error: adbc_driver_manager.Error) -> Exception:
        if self._watchdog.ended:
            return Unavailable(self._watchdog.ended)
        state = getattr(error, "sqlstate", None) or ""
        details = dict(getattr(error, "details", None) or [])
        message = details.get(b"PG_DIAG_MESSAGE_PRIMARY", b"").decode() or _reason(str(error))
        extra = details.get(b"PG_DIAG_MESSAGE_DETAIL", b"").decode()
        text = " ".join((f"{message}. {extra}" if extra else message).split())
        plain, text = text, f"{self.where}: {text} ({state or 'no SQLSTATE'})"
        if "in target table" in text:
            return SchemaChanged(text)
        if not state:  # the driver's own
            lost = isinstance(error, adbc_driver_manager.OperationalError)
            return TransientError(text) if lost else ServiceError(text)
        if state == _DENIED:
            advice = grants.postgresql(plain, str(error), user_of(self._uri), self.privileges)
            return ServiceError(text + advice)
        if state == _LOCK_TIMEOUT:
            return LockTimeout(text)
        nature = _nature(state, message)
        return DataRefused(text, state) if nature is Nature.DATA else nature.error(text)


def _reason(text: str) -> str:
    """The driver's message without the statement, which is semel's own."""
    text = re.sub(r"(?s)^(\w+: )?(\[libpq\] )?Failed to \w+ query( '.*')?: ", "", text)
    return text.partition("Query was:")[0].strip()


@dataclass(frozen=True, slots=True)
class _Backend:
    """The server process of a session."""

    pid: int
    begun: str


def bounded(uri: str, seconds: float) -> str:
    """The URI with a ``connect_timeout`` of at most this long; libpq takes no less than two."""
    most = max(2, int(seconds))
    match = _CONNECT.search(uri)
    if match is None:
        return f"{uri}{'&' if '?' in uri else '?'}connect_timeout={most}"
    return _CONNECT.sub(f"connect_timeout={min(int(match[1][:9]) or most, most)}", uri)


def _line(uri: str, before: dict[int, tuple[int, int]]) -> int | None:
    """The descriptor of the connection that was opened since ``before``, if it is the only one."""
    ports = {int(port) for port in re.findall(r":(\d+)", urlsplit(uri).netloc)} or {5432}
    now = watchdog.connections()
    new = [handle for inode, (handle, port) in now.items() if inode not in before and port in ports]
    return new[0] if len(new) == 1 else None


def _end_idle(uri: str, backend: _Backend | None) -> str:
    """What the session is doing, according to the server. If it only waits for its client, it is
    ended together with its locks, and the answer is empty."""
    if backend is None:
        return ""
    connection = driver.connect(bounded(uri, 5))
    try:
        copied: list[Any] = []
        for _ in range(_SAMPLES):
            rows = _rows(connection, _STATE.format(pid=backend.pid, begun=backend.begun))
            if not rows:
                return ""  # it has ended, or this is another server
            (state, kind, event), *_ = rows
            if state == "active" and kind != "Client":
                return f"waits for {kind} {event}" if kind else "a statement is running"
            copied.append(_rows(connection, _COPIED.format(pid=backend.pid)))
            if copied[-1] != copied[0]:
                return "a COPY is in progress"
            time.sleep(_PAUSE)
        _rows(connection, f"SELECT pg_terminate_backend({backend.pid})")
    finally:
        with suppress(adbc_driver_manager.Error, RuntimeError):
            connection.close()
    return ""


def _rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


# Errors, by SQLSTATE

_DENIED = "42501"
_LOCK_TIMEOUT = "55P03"

NATURES = by_code(
    {
        Nature.DATA: [
            *("01", "02", "20"),  # a trigger may raise them, or lack a CASE
            *("09", "27", "2F", "38", "39", "P0"),  # triggers, in SQL and in other languages
            *("10", "21", "22", "23"),
            "44",  # a view's CHECK OPTION
            "54",  # too deep, too large a row or an index row
        ],
        Nature.CHANGED: [
            "42",
            *("08P01", "22P03"),  # a value in the binary form of another type than the column's
        ],
        Nature.PASSING: [
            *("40", "57", "72"),
            *("25P03", "25P04"),  # a session or a transaction took too long
            *("55006", _LOCK_TIMEOUT, "55P04"),
        ],
        Nature.AWAY: [
            *("08", "53", "58"),  # connections, resources and the server's own files
            "25006",  # read-only: the server was demoted, or the session began while it was
            "57P01",  # terminated by an administrator
            "57P02",  # crashed
            "57P03",  # starting up, or shutting down
        ],
        Nature.MISTAKE: [
            *("00", "03", "0A", "0B", "0F", "0L", "0P", "0Z", "24", "25", "26", "28", "2B", "2D"),
            *("34", "3B", "3D", "3F", "55", "F0", "HV", "XX"),
            "2200H",  # a sequence has no more numbers, for any record
            _DENIED,
        ],
    }
)
"""By whole states, or else by their classes. The codes of other classes are a trigger's own."""

_UNCONVERTIBLE = ("0A000", "cannot convert ")
"""What it says of NaN and infinities that an expression or a check makes whole numbers."""


def _nature(state: str, message: str) -> Nature:
    """What follows from an error that the server has reported."""
    if state == _UNCONVERTIBLE[0] and message.startswith(_UNCONVERTIBLE[1]):
        return Nature.DATA
    return NATURES.get(state) or NATURES.get(state[:2], Nature.DATA)


def _listed(*, whole: bool) -> str:
    others = (c for c, n in NATURES.items() if n is not Nature.DATA and (len(c) == 5) is whole)
    return ", ".join(f"'{code}'" for code in others)


IS_DATA = (
    f"(SQLSTATE NOT IN ({_listed(whole=True)}) AND left(SQLSTATE, 2) NOT IN "
    f"({_listed(whole=False)})) OR (SQLSTATE = '{_UNCONVERTIBLE[0]}' AND "
    f"SQLERRM LIKE '{_UNCONVERTIBLE[1]}%')"
)
"""The same in PL/pgSQL: whether the error at hand is about a record."""
