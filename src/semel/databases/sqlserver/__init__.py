"""SQL Server: sessions through python-tds, and its tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from semel.config.extras import require
from semel.converters.json.facts import facts_in
from semel.core.errors import TransientError, Unavailable
from semel.databases import base, grants
from semel.databases.base import ServerSession
from semel.databases.columns import Table, stored_type
from semel.databases.login import Login, Timeouts
from semel.databases.names import Name, literal
from semel.databases.sqlserver.client import Client, translated
from semel.databases.sqlserver.types import (
    OTHER_TYPES,
    TYPES,
    TYPES_IN_KEYS,
    column_of,
    json_check,
)
from semel.databases.sqlserver.url import address

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


class SqlServer(ServerSession):
    """See :class:`~semel.databases.base.Database`."""

    system = "SQL Server"
    most_columns = 1024
    longest_name = 128
    keeps_versions: bool | None = None
    """Whether the database keeps versions of rows; None before the first transaction that reads."""

    def __init__(self, login: Login, connector: str, timeouts: Timeouts) -> None:
        self._address = address(login)
        require(
            "SQL Server",
            "mssql",
            {"pytds": "python-tds", "OpenSSL": "pyopenssl"},
            key="connector.class",
        )
        super().__init__(self._address.where, connector, timeouts)
        self._lock_timeout = timeouts.lock
        self._columns: dict[Name, dict[str, Mapping[str, Any]]] = {}
        """What the catalog said about a table's columns when it was last looked up."""

    def _open(self) -> Client:
        try:
            client = Client(self._address, self._watchdog)
        except OSError as error:
            raise Unavailable(f"{self.where}: {error}") from None
        try:
            for setting in (*_SETTINGS, f"LOCK_TIMEOUT {self._lock_timeout}"):
                client.execute(f"SET {setting}")
            # A change of positions holds it for a moment.
            if self._claimed and not self._locked(client, "Shared", self._lock_timeout):
                raise TransientError(f"{self.where}: positions are being changed")
        except BaseException:
            with suppress(Exception):
                client.close()
            raise
        return client

    def _start(self, reading: bool) -> None:
        level = "READ COMMITTED"
        if reading:  # one instant: by versions of rows where the database keeps them, else by locks
            if self.keeps_versions is None:
                self.keeps_versions = _answer(self._client, _SNAPSHOTS) == 1
            level = "SNAPSHOT" if self.keeps_versions else "SERIALIZABLE"
        self.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        self.execute("BEGIN TRANSACTION")

    def _commit(self) -> None:
        self.execute("COMMIT TRANSACTION")

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self.execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
            except Exception:
                self._leave()

    def _judged(self, error: BaseException) -> Exception | None:
        return translated(self.where, error, self._advice)

    def _advice(self, message: str) -> str:
        return grants.sqlserver(message, self._address.user, self.privileges)

    @property
    def _client(self) -> Client:
        assert self._connection is not None
        client: Client = self._connection
        return client

    def execute(self, sql: str) -> None:
        self._client.execute(sql)

    def query(self, sql: str) -> pa.Table:
        return self._client.query(sql)

    def first(self, columns: str, name: Name, count: int, which: str = "") -> str:
        return f"SELECT TOP {count} {columns} FROM {name.quoted} {which}"

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        return self._client.stream(sql)

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
        return Table(
            name,
            {c["name"]: column_of(c) for c in columns},
            [frozenset(k) for k in keys.values()],
        )

    types, types_in_keys, other_types = TYPES, TYPES_IN_KEYS, OTHER_TYPES

    def definition(self, field: pa.Field, *, in_key: bool = False) -> str:
        checked = "" if in_key else json_check(field.with_type(stored_type(field.type)))
        return super().definition(field, in_key=in_key) + checked

    def create(self, name: Name, fields: Sequence[pa.Field], key: Sequence[str]) -> None:
        if self.find(name) is None:
            super().create(name, fields, key)

    _create, _add = "CREATE TABLE", "ADD"

    @contextmanager
    def alone(self) -> Iterator[bool]:
        with self.transaction(reading=True):
            alone = self._locked(self._client, "Exclusive", int(base.RELEASE_TIME * 1000))
        try:
            yield alone
        finally:
            self._leave()  # which releases it

    def _locked(self, client: Client, mode: str, timeout: int) -> bool:
        """Take the lock of the connector's runs, until the session ends."""
        digest = hashlib.blake2s(self._connector.encode(), digest_size=12).hexdigest()
        taken = _answer(
            client,
            f"DECLARE @taken int; EXEC @taken = sp_getapplock @Resource = N'semel.{digest}', "
            f"@LockMode = '{mode}', @LockOwner = 'Session', @LockTimeout = {timeout}; "
            "SELECT @taken AS taken",
        )
        return bool(taken >= 0)


def _answer(client: Client, sql: str) -> Any:
    """The one value of a query."""
    return client.query(sql).column(0)[0].as_py()


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
    c.is_nullable AS is_nullable,
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
