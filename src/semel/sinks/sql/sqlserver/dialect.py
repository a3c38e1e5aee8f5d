"""The dialect: bulk loads into a temporary table, and one statement from there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from semel.config.extras import require
from semel.converters.json.facts import facts_in
from semel.core.errors import TransientError, Unavailable
from semel.core.quoting import named
from semel.core.watchdog import Watchdog
from semel.sinks import jdbc
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.rereading import NotShown
from semel.sinks.sql import grants
from semel.sinks.sql.columns import Column, Table
from semel.sinks.sql.dialect import KEPT, STAGE, Dialect, listed, no_rows, table
from semel.sinks.sql.errors import DataRefused
from semel.sinks.sql.names import Name, literal, quote
from semel.sinks.sql.semantic import stored
from semel.sinks.sql.sqlserver.client import Session
from semel.sinks.sql.sqlserver.config import SqlServerConfig, login
from semel.sinks.sql.sqlserver.errors import translated
from semel.sinks.sql.sqlserver.types import (
    column_of,
    declared,
    equal,
    json_check,
    new_type,
    sent_type,
    shown,
    unfit,
)

_LONGEST_COMMENT = 3750
"""Characters of a description."""

_SETTINGS = (
    "XACT_ABORT ON",  # an error ends the transaction, not just its statement
    "IMPLICIT_TRANSACTIONS OFF",
    "QUOTED_IDENTIFIER ON",
    "ANSI_NULLS ON",
    "ANSI_PADDING ON",
    "ANSI_WARNINGS ON",  # truncation is an error
    "ARITHABORT ON",
    "CONCAT_NULL_YIELDS_NULL ON",
    "NUMERIC_ROUNDABORT OFF",
    "DATEFORMAT ymd",
    "NOCOUNT ON",
)
_STAGE, _KEPT = f"#{STAGE}", f"#{KEPT}"
_NUMBER = "semel row number"


class SqlServer(Dialect):
    """See :class:`~semel.sinks.sql.dialect.Dialect`."""

    system = "SQL Server"
    most_columns = 1024
    longest_name = 128
    now = "SYSUTCDATETIME()"
    compares_bytes = False
    kept_order = quote(_NUMBER)
    reads_only = True

    def __init__(self, config: JdbcConfig, connector: str) -> None:
        assert isinstance(config, SqlServerConfig)
        self._login = login(config)
        require(
            "SQL Server",
            "mssql",
            {"pytds": "python-tds", "OpenSSL": "pyopenssl"},
            key="connector.class",
        )
        self._timeout = config.lock_timeout_ms
        self._connector = connector
        self._session: Session | None = None
        self._watchdog: Watchdog | None = None
        self._claimed = False
        self._snapshots: bool | None = None  # not known yet
        self._columns: dict[Name, dict[str, Mapping[str, Any]]] = {}
        """What the catalog said about a table's columns when it was last looked up."""

    @property
    def where(self) -> str:
        return self._login.where

    # Sessions

    def _open(self) -> None:
        try:
            self._session = Session(self._login, self._watched())
        except OSError as error:
            raise Unavailable(f"{self.where}: {error}") from None
        try:
            for setting in (*_SETTINGS, f"LOCK_TIMEOUT {self._timeout}"):
                self.execute(f"SET {setting}")
            # A change of positions holds it for a moment.
            if self._claimed and not self._locked("Shared", self._timeout):
                raise TransientError(f"{self.where}: positions are being changed")
        except BaseException:
            self._close_session()  # or it would be used as it is
            raise

    def _begin(self, reading: bool) -> None:
        fresh = self._session is None
        if fresh:
            self._open()
        try:
            self._start(reading)
        except Exception as error:
            if fresh or not isinstance(self._translated(error), TransientError):
                raise
            self._close_session()  # it was lost while idle
            self._open()
            self._start(reading)

    def _start(self, reading: bool) -> None:
        level = "READ COMMITTED"
        if reading:  # one instant: by versions of rows where the database keeps them, else by locks
            if self._snapshots is None:
                self._snapshots = self._answer(_SNAPSHOTS) == 1
            level = "SNAPSHOT" if self._snapshots else "SERIALIZABLE"
        self.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        self.execute("BEGIN TRANSACTION")

    def _commit(self) -> None:
        self.execute("COMMIT TRANSACTION")

    def _roll_back(self) -> None:
        if self._session is not None:
            try:
                self.execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
            except Exception:
                self._close_session()

    def _leave(self) -> None:
        self._close_session()

    def _watched(self) -> Watchdog:
        if self._watchdog is None:  # the server tells users nothing about their other sessions
            self._watchdog = Watchdog(self._connector, self.where, self.timeout)
        return self._watchdog

    def _translated(self, error: BaseException) -> Exception | None:
        if self._watchdog is not None and self._watchdog.ended:
            return Unavailable(self._watchdog.ended)
        return translated(self.where, error, self._advice)

    def _advice(self, message: str) -> str:
        return grants.sqlserver(message, self._login.user, self.privileges)

    def execute(self, sql: str) -> None:
        self._live.execute(sql)

    def query(self, sql: str) -> pa.Table:
        return self._live.query(sql)

    def first(self, columns: str, name: Name, count: int) -> str:
        return f"SELECT TOP {count} {columns} FROM {name.quoted}"

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        return self._live.stream(sql)

    def rows_of(self, target: Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        query = f"SELECT {listed(names)} FROM {target.name.quoted}"
        return self._live.stream(query, target.schema_of(names))

    @property
    def _live(self) -> Session:
        assert self._session is not None
        return self._session

    def _answer(self, sql: str) -> Any:
        """The one value of a query."""
        return self.query(sql).column(0)[0].as_py()

    booleans = ("0", "1")
    blob = "0x{}"

    def comment(self, name: Name, fields: Sequence[pa.Field]) -> None:
        schema = self.literal(name.schema) if name.schema else "SCHEMA_NAME()"
        for field in fields:
            doc = facts_in(field).get("doc")
            if doc:
                self.execute(
                    f"DECLARE @schema sysname = {schema}; EXEC sp_addextendedproperty "
                    f"N'MS_Description', {self.literal(str(doc)[:_LONGEST_COMMENT])}, N'SCHEMA', "
                    f"@schema, N'TABLE', {self.literal(name.table)}, N'COLUMN', "
                    f"{self.literal(field.name)}"
                )

    def literal(self, text: str) -> str:
        return f"N{literal(text)}"  # else in the code page of the database

    def _close_session(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with suppress(Exception):
                session.close()

    def close(self) -> None:
        self._claimed = False
        self._close_session()

    # Rows

    def insert(self, target: Name, rows: pa.Table) -> None:
        with self.staged(target, rows) as stage, self._identities(target, rows):
            names = listed(rows.column_names)
            self.execute(f"INSERT INTO {target.quoted} ({names}) SELECT {names} FROM {stage}")

    def upsert(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        # Not MERGE: it would need HOLDLOCK, whose range locks cause deadlocks. A writer that
        # inserts a key at the same time is refused by the index, and retries.
        name, names = target.name, rows.column_names
        with self.staged(name, rows) as stage, self._identities(name, rows):
            self._update(name, names, key, stage)
            self.execute(
                f"INSERT INTO {name.quoted} ({listed(names)}) "
                f"SELECT {listed(names)} FROM {stage} AS s WHERE NOT EXISTS "
                f"(SELECT 1 FROM {name.quoted} AS t WHERE {self._same(name, key)})"
            )

    def update(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        with self.staged(target.name, rows) as stage:
            self._update(target.name, rows.column_names, key, stage)

    def _update(self, target: Name, names: Sequence[str], key: Sequence[str], stage: str) -> None:
        known = self._columns[target]
        sets = [
            f"{quote(n)} = s.{quote(n)}"
            for n in names
            if n not in key and not known[n]["is_identity"]  # which cannot be updated
        ]
        if sets:
            self.execute(
                f"UPDATE t SET {', '.join(sets)} FROM {target.quoted} AS t "
                f"JOIN {stage} AS s ON {self._same(target, key)}"
            )

    def delete(self, target: Name, keys: pa.Table) -> None:
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE t FROM {target.quoted} AS t "
                f"JOIN {stage} AS s ON {self._same(target, keys.column_names)}"
            )

    def _same(self, target: Name, key: Sequence[str]) -> str:
        known = self._columns[target]
        return " AND ".join(equal(known[n], f"t.{quote(n)}", f"s.{quote(n)}") for n in key)

    @contextmanager
    def staged(self, target: Name, rows: pa.Table) -> Iterator[str]:
        """Rows in a temporary table, all of which fit into the target's columns."""
        fields = ", ".join(f"{quote(f.name)} {sent_type(f.type)} NULL" for f in rows.schema)
        self.execute(f"CREATE TABLE {_STAGE} ({fields})")
        self._live.load(_STAGE, rows)
        self._check(target, rows.column_names)
        yield _STAGE
        self.execute(f"DROP TABLE {_STAGE}")

    def _check(self, target: Name, names: Sequence[str]) -> None:
        """Raises DataRefused for values that SQL Server would silently truncate or change."""
        known = self._columns[target]
        conditions = [(n, unfit(known[n], quote(n))) for n in names if n in known]
        counts = [f"COUNT(CASE WHEN {c} THEN 1 END) AS {quote(n)}" for n, c in conditions if c]
        if not counts:
            return
        (found,) = self.query(f"SELECT {', '.join(counts)} FROM {_STAGE}").to_pylist()
        for name in (n for n, count in found.items() if count):
            raise DataRefused(
                f"{self.where}: column {named(name)} ({declared(known[name])}) of {target} would "
                "cut or replace a value"
            )

    @contextmanager
    def _identities(self, target: Name, rows: pa.Table) -> Iterator[None]:
        """Lets rows bring the values of an IDENTITY column."""
        if not any(self._columns[target][n]["is_identity"] for n in rows.column_names):
            yield
            return
        self.execute(f"SET IDENTITY_INSERT {target.quoted} ON")
        try:
            yield
        except BaseException:
            with suppress(Exception):  # it belongs to the session, for one table at a time
                self.execute(f"SET IDENTITY_INSERT {target.quoted} OFF")
            raise
        self.execute(f"SET IDENTITY_INSERT {target.quoted} OFF")

    # For the audit

    @contextmanager
    def instant(self) -> Iterator[None]:
        with self.transaction(reading=True):
            if not self._snapshots:
                raise NotShown(
                    f"{self.where} keeps no versions of rows, so the audit would hold up the "
                    "connector. Run ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"
                )
            yield

    def shown(self, column: Column, value: str) -> str | None:
        return shown(column, value)

    @contextmanager
    def kept(self, target: Name, rows: pa.Table) -> Iterator[str]:
        if target not in self._columns:
            self.find(target)
        names = listed(rows.column_names)
        numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
        self.execute(no_rows(target, rows.column_names, f" INTO {_KEPT}"))
        self.execute(f"ALTER TABLE {_KEPT} ADD {self.kept_order} bigint")
        with self.staged(target, numbered) as stage:
            self.execute(
                f"INSERT INTO {_KEPT} ({names}, {self.kept_order}) "
                f"SELECT {names}, {self.kept_order} FROM {stage}"
            )
        yield _KEPT
        self.execute(f"DROP TABLE {_KEPT}")

    # Tables

    def held(self, names: Sequence[str], target: Name, where: str) -> str:
        # An update that changes nothing: Microsoft's server would accept a SELECT WITH (UPDLOCK),
        # but Babelfish ignores lock hints. The update's OUTPUT would show rows as they were before
        # it waited, so they are read by the next statement.
        still = quote(names[-1])
        return (
            f"UPDATE {target.quoted} WITH (ROWLOCK) SET {still} = {still} WHERE {where}; "
            f"SELECT {listed(names)} FROM {target.quoted} WHERE {where}"
        )

    def find(self, name: Name) -> Table | None:
        at = f"OBJECT_ID({self.literal(name.quoted)})"
        columns = self.query(_COLUMNS.format(at=at)).to_pylist()
        if not columns:
            self._columns.pop(name, None)
            return None
        keys: dict[int, set[str]] = {}
        for row in self.query(_KEYS.format(at=at)).to_pylist():
            keys.setdefault(row["id"], set()).add(row["name"])
        self._columns[name] = {c["name"]: c for c in columns}
        return table(
            name,
            {c["name"]: column_of(c) for c in columns},
            [frozenset(k) for k in keys.values()],
        )

    def column_type(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        return new_type(kind, in_key=in_key)

    def definition(self, field: pa.Field, *, in_key: bool = False) -> str:
        checked = "" if in_key else json_check(field.with_type(stored(field.type)))
        return super().definition(field, in_key=in_key) + checked

    def create(self, name: Name, fields: Sequence[pa.Field], key: Sequence[str]) -> None:
        if self.find(name) is None:
            super().create(name, fields, key)

    _create, _add = "CREATE TABLE", "ADD"

    # The life of a run

    def claim(self) -> None:
        self._claimed = True
        self._close_session()  # the next one takes the lock
        with self.transaction(reading=True):
            pass

    @contextmanager
    def alone(self) -> Iterator[bool]:
        with self.transaction(reading=True):
            alone = self._locked("Exclusive", int(jdbc.RELEASE_TIME * 1000))
        try:
            yield alone
        finally:
            self._close_session()  # which releases it

    def _locked(self, mode: str, timeout: int) -> bool:
        """Take the lock of the connector's runs, until the session ends."""
        digest = hashlib.blake2s(self._connector.encode(), digest_size=12).hexdigest()
        taken = self._answer(
            f"DECLARE @taken int; EXEC @taken = sp_getapplock @Resource = N'semel.{digest}', "
            f"@LockMode = '{mode}', @LockOwner = 'Session', @LockTimeout = {timeout}; "
            "SELECT @taken AS taken"
        )
        return bool(taken >= 0)


_SNAPSHOTS = (
    "SELECT CAST(snapshot_isolation_state AS int) AS state FROM sys.databases "
    "WHERE name = DB_NAME()"
)
_COLUMNS = """
SELECT c.name AS name, c.max_length AS max_length,
    LOWER(COALESCE(TYPE_NAME(c.system_type_id), TYPE_NAME(c.user_type_id))) AS kind,
    c.precision AS precision, c.scale AS scale, c.collation_name AS collation,
    c.is_identity AS is_identity,
    CASE WHEN c.is_computed = 1 OR c.generated_always_type <> 0 THEN 1 ELSE 0 END AS is_computed,
    CASE WHEN c.default_object_id <> 0 THEN 1 ELSE 0 END AS has_default,
    (SELECT COUNT(*) FROM sys.check_constraints k WHERE k.parent_object_id = c.object_id
     AND k.parent_column_id = c.column_id AND LOWER(k.definition) LIKE '%isjson%') AS is_json
FROM sys.columns c WHERE c.object_id = {at} ORDER BY c.column_id
"""
_KEYS = """
SELECT i.index_id AS id, c.name AS name FROM sys.indexes i
JOIN sys.index_columns k ON k.object_id = i.object_id AND k.index_id = i.index_id
JOIN sys.columns c ON c.object_id = k.object_id AND c.column_id = k.column_id
WHERE i.object_id = {at} AND i.is_unique = 1 AND i.has_filter = 0 AND i.is_disabled = 0
AND k.is_included_column = 0 ORDER BY i.is_primary_key DESC, i.index_id
"""
