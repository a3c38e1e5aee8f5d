"""A PostgreSQL connection through ADBC: URLs, session settings, and errors told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from semel.errors import ConfigError, SemelError, ServiceError, TransientError

# pgjdbc's parameter -> libpq's; those that only tune the JDBC driver are left out.
_JDBC_PARAMETERS = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "options": "options",
    "gssEncMode": "gssencmode",
    "channelBinding": "channel_binding",
    "targetServerType": "target_session_attrs",
}

_TRANSIENT_CLASSES = ("08", "40", "53", "58")
_TRANSIENT_STATES = {
    "55P03",  # lock_timeout
    "25P03",  # idle_in_transaction_session_timeout
    "57014",  # statement_timeout or a cancel
    "57P01",  # server shut down
    "57P02",  # server crashed
    "57P03",  # server starting up
    "57P05",  # idle_session_timeout
}
_DATA_CLASSES = ("22", "23")
_PASSING = (
    "starting up",
    "shutting down",
    "recovery",
    "too many clients",
    "remaining connection",
    "terminating connection",  # the server went down while the connection was being made
    "server closed the connection",
)
"""Reasons of a refused connection that pass by themselves."""


class DataRefused(Exception):
    """PostgreSQL refused a value or a row (SQLSTATE class 22 or 23)."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class SchemaChanged(Exception):
    """A table or column is not what the catalog said (SQLSTATE class 42)."""


def libpq_uri(url: str, user: str, password: str) -> str:
    """Turn a JDBC or libpq URL into a libpq URI.

    Raises:
        ConfigError: the URL is not PostgreSQL's.
    """
    bare = url.strip().removeprefix("jdbc:")
    parts = urlsplit(bare)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError(
            f"connection.url={_masked(url)!r} is not a PostgreSQL URL. "
            "Set jdbc:postgresql://host:port/database or postgresql://host:port/database"
        )
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if url.strip().startswith("jdbc:"):
        parameters = _from_jdbc(parameters)
    if user:
        parameters["user"] = user
    if password:
        parameters["password"] = password
    query = urlencode(parameters, quote_via=quote)
    return f"postgresql://{parts.netloc}{parts.path}{'?' + query if query else ''}"


def _from_jdbc(given: dict[str, str]) -> dict[str, str]:
    renamed = {_JDBC_PARAMETERS[k]: v for k, v in given.items() if k in _JDBC_PARAMETERS}
    if given.get("ssl", "false") in ("true", "") and "ssl" in given:
        renamed.setdefault("sslmode", "verify-full")  # pgjdbc's meaning of ssl=true
    if "currentSchema" in given:
        renamed["options"] = f"{renamed.get('options', '')} -csearch_path={given['currentSchema']}"
    target = renamed.get("target_session_attrs", "").lower()
    if target:
        renamed["target_session_attrs"] = {"primary": "primary", "any": "any"}.get(
            target, "read-write"
        )
    return renamed


def _masked(url: str) -> str:
    parts = urlsplit(url.removeprefix("jdbc:"))
    return url.replace(parts.password, "****") if parts.password else url.split("?", maxsplit=1)[0]


class Connection:
    """One session, opened when first used and opened again after it was lost.

    ``on_connect`` statements run at the start of each session. All errors leave as semel's.
    """

    def __init__(self, uri: str, label: str, idle_timeout_ms: int) -> None:
        self._uri = uri
        self._label = label
        self._on_connect = [
            # A frozen process must not hold the ledger's rows for ever: the server ends its
            # transaction, and the new owner of its partitions goes on.
            f"SET idle_in_transaction_session_timeout = {idle_timeout_ms}",
            "SET tcp_user_timeout = 30000",
            "SET tcp_keepalives_idle = 15",
        ]
        self._connection: Any = None

    def on_connect(self, statement: str) -> None:
        """Run ``statement`` in this session, and in each later one."""
        self._on_connect.append(statement)
        if self._connection is not None:
            self.execute(statement)
            self._connection.commit()

    @property
    def where(self) -> str:
        """Host, port and database, without credentials."""
        parts = urlsplit(self._uri)
        host = parts.netloc.rsplit("@", maxsplit=1)[-1]
        return f"PostgreSQL at {host}{parts.path}"

    def _open(self) -> Any:
        try:
            connection = adbc.connect(
                self._uri,
                conn_kwargs={},
                autocommit=False,
            )
        except adbc_driver_manager.Error as error:
            raise self._connect_error(str(error)) from None
        cursor = connection.cursor()
        name = f"semel/{self._label}"[:63].replace("'", "")
        for statement in (f"SET application_name = '{name}'", *self._on_connect):
            cursor.execute(statement)
        cursor.close()
        connection.commit()
        return connection

    def _connect_error(self, text: str) -> SemelError:
        reason = " ".join(text.split("Failed to connect:", maxsplit=1)[-1].split())
        message = f"cannot connect to {self.where}: {reason}"
        if "FATAL" in reason and not any(s in reason for s in _PASSING):
            return ServiceError(f"{message}. Check connection.url, connection.user and password.")
        return TransientError(message)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end; roll back on any error.

        Raises:
            TransientError: also when it is unknown whether the commit took place.
            DataRefused, SchemaChanged, ServiceError.
        """
        if self._connection is None:
            self._connection = self._open()
        try:
            yield
            self._connection.commit()
        except adbc_driver_manager.Error as error:
            translated = self._translate(error)
            self._abandon(lost=isinstance(translated, TransientError))
            raise translated from None
        except BaseException:
            self._abandon(lost=False)
            raise

    def _abandon(self, *, lost: bool) -> None:
        if lost:
            self.close()
            return
        try:
            self._connection.rollback()
        except adbc_driver_manager.Error:
            self.close()

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> None:
        """Run a statement inside the open transaction and drop its result."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def query(self, sql: str, parameters: Sequence[object] | None = None) -> pa.Table:
        """Run a statement inside the open transaction and return all its rows."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetch_arrow_table()

    def copy(self, table: str, rows: pa.Table, schema: str | None, *, temporary: bool) -> None:
        """COPY BINARY ``rows`` into an existing table whose column types match exactly."""
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(
                table,
                rows,
                mode="append",
                db_schema_name=None if temporary else schema,
                temporary=temporary,
            )

    def close(self) -> None:
        """End the session; what is not committed rolls back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(adbc_driver_manager.Error):  # the session may be lost already
                connection.close()

    def _translate(self, error: adbc_driver_manager.Error) -> Exception:
        state = getattr(error, "sqlstate", None) or ""
        details = dict(getattr(error, "details", None) or [])
        message = details.get(b"PG_DIAG_MESSAGE_PRIMARY", b"").decode() or str(error)
        extra = details.get(b"PG_DIAG_MESSAGE_DETAIL", b"").decode()
        text = f"{message}. {extra}" if extra else message
        if state.startswith(_DATA_CLASSES):
            return DataRefused(state, text)
        if state.startswith("42") and state != "42501":
            return SchemaChanged(text)
        if "does not exist in target table" in text:
            return SchemaChanged(text)
        lost = not state and isinstance(error, adbc_driver_manager.OperationalError)
        if lost or state.startswith(_TRANSIENT_CLASSES) or state in _TRANSIENT_STATES:
            return TransientError(f"{self.where}: {' '.join(text.split())} ({state or 'lost'})")
        return ServiceError(f"{self.where}: {text} (SQLSTATE {state})")
