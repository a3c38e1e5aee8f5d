"""MariaDB and MySQL: sessions through PyMySQL, their tables, and the URLs that the JDBC drivers of
both take."""

from __future__ import annotations

import hashlib
import random
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from semel.config.extras import require
from semel.converters.json.facts import facts_in
from semel.core.errors import TransientError, Unavailable, misconfigured
from semel.databases import base, grants
from semel.databases.base import ServerSession, fetched, fetched_batches
from semel.databases.columns import Table, is_text
from semel.databases.errors import DataRefused, Nature
from semel.databases.login import Login, Timeouts
from semel.databases.mysql import driver
from semel.databases.mysql.types import OTHER_TYPES, TYPES, TYPES_IN_KEYS, find_table
from semel.databases.names import Name

_MODE = (
    "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
)
LONGEST = 31_536_000
"""The most seconds that an idle session lives: an idle run must not lose its claim."""
_DEPRECATED = 1287
_LONGEST_COMMENT = 1024
"""Characters of a column's comment."""
_SLOTS = 256
"""How many locks stand for a connector's runs, as no lock can be shared."""


class Mysql(ServerSession):
    """See :class:`~semel.databases.base.Database`."""

    system = "MySQL"  # or MariaDB: its URL says which
    most_columns = 1017
    longest_name = 64

    def __init__(self, login: Login, connector: str, timeouts: Timeouts) -> None:
        self.system, self._arguments, self._tls = connect_arguments(login)
        require(self.system, "mysql", {"pymysql": "pymysql"}, key="connector.class")
        where = "{system} at {host}:{port}/{database}".format(system=self.system, **self._arguments)
        super().__init__(where, connector, timeouts)
        self._idle = timeouts.idle // 1000
        self._mariadb = True
        self._packet = 1 << 20
        self._account = ""

    def _open(self) -> Any:
        self._watchdog.attach(None)
        try:
            connection = driver.connection_class(self._watchdog)(
                charset="utf8mb4",
                autocommit=True,
                local_infile=True,
                connect_timeout=10,
                **self._secured,
            )
        except Exception as error:
            # A proxy in front of a server that is down accepts connections and closes them.
            if driver.is_lost(error):
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
                f"SESSION wait_timeout = {LONGEST}",
                f"SESSION net_read_timeout = {self._idle}",  # a process frozen within a statement
                # A frozen process must not hold the ledger's rows forever: the server ends its
                # transaction, and the new owner of its partitions continues.
                *([f"idle_transaction_timeout = {self._idle}"] if self._mariadb else []),
            ):
                connection.query(f"SET {setting}")
            packet, self._account = _row(connection, "SELECT @@max_allowed_packet, CURRENT_USER()")
            self._packet = int(packet)
            if self._claimed:
                self._take_a_slot(connection)
        except BaseException:
            connection.close()
            self._watchdog.detach()  # it holds the connection, too
            raise
        return connection

    @property
    def _secured(self) -> dict[str, Any]:
        """What PyMySQL takes to connect."""
        return {"ssl": None if self._tls is None else self._tls.context(), **self._arguments}

    def _end_silence(self) -> str:
        return driver.end(self._connection, self._secured)

    def _start(self, reading: bool) -> None:
        if not self._mariadb:  # only MariaDB has a timeout for transactions
            self.execute(f"SET SESSION wait_timeout = {self._idle}")
        begin = "START TRANSACTION"
        if reading:
            self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            begin += " WITH CONSISTENT SNAPSHOT, READ ONLY"
        self.execute(begin)

    def _commit(self) -> None:
        self.execute("COMMIT")
        if not self._mariadb:
            self.execute(f"SET SESSION wait_timeout = {LONGEST}")

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self.execute("ROLLBACK")
                if not self._mariadb:
                    self.execute(f"SET SESSION wait_timeout = {LONGEST}")
            except Exception:
                self._leave()

    def _judged(self, error: BaseException) -> Exception | None:
        return driver.translated(self.where, error, self._advice)

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
        refusals = [
            w for w in warnings if w[1] != _DEPRECATED and driver.nature_of(w[1]) is Nature.DATA
        ]
        if refusals:
            raise DataRefused(f"{self.where}: {refusals[0][2]} ({refusals[0][1]})")

    def query(self, sql: str) -> pa.Table:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return fetched(cursor)

    def stream(self, sql: str, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        from pymysql.cursors import SSCursor

        with self._connection.cursor(SSCursor) as cursor:  # the rows stay with the server
            cursor.execute(sql)
            yield from fetched_batches(cursor, schema)

    def find(self, name: Name) -> Table | None:
        return find_table(self.query, name, mariadb=self._mariadb)

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
        expression = super().constant(value)
        return expression and f"({expression})"

    types, types_in_keys, other_types = TYPES, TYPES_IN_KEYS, OTHER_TYPES

    @property
    def _options(self) -> str:  # type: ignore[override]
        # Texts are equal if their characters are: 'a' is not 'A', nor 'a '.
        collation = "utf8mb4_nopad_bin" if self._mariadb else "utf8mb4_0900_bin"
        return f" ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"

    # The life of a run: each session takes one of many locks; no run is alive if all are free.

    def _take_a_slot(self, connection: Any) -> None:
        """Take a free lock. If so many sessions of the connector are alive that none is free,
        continue without one: the others show that it runs.

        Raises:
            TransientError: one session holds all of them, to change positions.
        """
        holders = ", ".join(f"IS_USED_LOCK('{slot}')" for slot in self._slots)
        deadline = time.monotonic() + base.RELEASE_TIME
        while True:
            owners = _row(connection, f"SELECT {holders}")
            free = [slot for slot, by in zip(self._slots, owners, strict=True) if by is None]
            if free:
                (got,) = _row(connection, f"SELECT GET_LOCK('{random.choice(free)}', 0)")
                if got == 1:
                    return
            elif len(set(owners)) == len(owners):
                return
            if time.monotonic() >= deadline:
                raise TransientError(f"{self.where}: positions are being changed")
            time.sleep(base.RELEASE_PAUSE)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        every = ", ".join(f"GET_LOCK('{slot}', 0)" for slot in self._slots)
        deadline = time.monotonic() + base.RELEASE_TIME
        try:
            while True:
                with self.transaction(reading=True):
                    alone = all(got == 1 for got in _row(self._connection, f"SELECT {every}"))
                if alone or time.monotonic() >= deadline:
                    break
                self._leave()
                time.sleep(base.RELEASE_PAUSE)
            yield alone
        finally:
            self._leave()  # which releases them

    @property
    def _slots(self) -> list[str]:
        owner = f"{self._arguments['database']}\0{self._connector}".encode()
        name = hashlib.blake2s(owner, digest_size=12).hexdigest()
        return [f"semel.{name}.{slot}" for slot in range(_SLOTS)]


def _row(connection: Any, sql: str) -> tuple[Any, ...]:
    """The one row of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        row: tuple[Any, ...] = cursor.fetchone()
        return row


# URLs

# sslMode, in MariaDB's words and in MySQL's
_PLAIN = ("disable", "disabled")
_IF_OFFERED = ("preferred",)  # what PyMySQL does of its own accord
_UNVERIFIED = ("trust", "required")
_VERIFIED = ("verify-ca", "verify-full", "verify-identity")


class Tls(NamedTuple):
    """The TLS settings of a connection. The certificate is a PEM file of authorities; without one
    those of the system are trusted."""

    certificate: str
    verifies: bool
    checks_host: bool

    def context(self) -> ssl.SSLContext:
        """Made here: PyMySQL (1.2) checks host names only if it is given a certificate.

        Raises:
            ConfigError: the certificate cannot be read.
        """
        try:
            context = ssl.create_default_context(cafile=self.certificate or None)
        except OSError as error:
            raise misconfigured(
                "connection.serverSslCert",
                f"connection.serverSslCert={self.certificate}: {error}. Name a file of PEM "
                "certificates",
            ) from None
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # MySQL's own certificates lack some parts
        context.check_hostname = self.checks_host
        context.verify_mode = ssl.CERT_REQUIRED if self.verifies else ssl.CERT_NONE
        return context


_SEVERAL = re.compile(r"[,()=]")
"""What hosts hold only in other forms of the drivers' URLs: ``one,two`` and
``address=(host=one)``."""


def parameters_of(url: str) -> dict[str, str]:
    """The parameters of a URL. They are percent-encoded, except in ``jdbc:mariadb:``: MariaDB's
    JDBC driver takes them as they are written."""
    url = url.strip()
    if url.lower().startswith("jdbc:mariadb:"):
        pairs = [p.partition("=") for p in url.partition("?")[2].split("&")]
        return {name: value for name, _, value in pairs if value}
    return dict(parse_qsl(urlsplit(url.removeprefix("jdbc:")).query))


def connect_arguments(login: Login) -> tuple[str, dict[str, Any], Tls | None]:
    """The system that a URL names, the URL as PyMySQL's arguments, and TLS if it is required."""
    url = login.url.strip().removeprefix("jdbc:")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 3306
        is_one = url[len(parts.scheme) :].startswith("://") and not _SEVERAL.search(host)
    except ValueError:  # whose message may hold the password
        is_one = False
    if not is_one:
        raise misconfigured(
            "connection.url",
            "connection.url is not of the form jdbc:mysql://host:port/database, with one host. Set "
            "connection.user and connection.password separately",
        )
    parameters, more = parameters_of(login.url), login.parameters
    database = unquote(parts.path.lstrip("/"))
    if parts.scheme not in ("mysql", "mariadb") or not database:
        raise misconfigured(  # not the URL itself: it may hold a password
            "connection.url",
            "connection.url does not name a MySQL or MariaDB database. "
            "Set jdbc:mysql://host:port/database or jdbc:mariadb://host:port/database",
        )
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "database": database,
        "user": login.user or parameters.get("user") or unquote(parts.username or ""),
        "password": login.password or parameters.get("password") or unquote(parts.password or ""),
    }
    mode, where = parameters.get("sslMode", parameters.get("sslmode")), "connection.url"
    if mode is None:
        mode, where = more.get("sslMode", ""), "connection.sslMode"
    mode = mode.lower().replace("_", "-")
    uses_tls = parameters.get("useSSL", parameters.get("useSsl", more.get("useSSL")))
    if not mode and "true" in (uses_tls, parameters.get("requireSSL", more.get("requireSSL"))):
        mode = "verify-full"
    modes = (*_PLAIN, *_IF_OFFERED, *_UNVERIFIED, *_VERIFIED)
    if mode and mode not in modes:
        raise misconfigured(
            where,
            f"connection.url: sslMode={mode} must be one of {', '.join(modes)}; so must "
            "connection.sslMode",
        )
    system = "MariaDB" if parts.scheme == "mariadb" else "MySQL"
    if mode in _PLAIN or (not mode and uses_tls == "false"):
        options["ssl_disabled"] = True  # else PyMySQL would try
    if not mode or mode in (*_PLAIN, *_IF_OFFERED):
        return system, options, None
    certificate = parameters.get("serverSslCert") or more.get("serverSslCert", "")
    return system, options, Tls(certificate, mode in _VERIFIED, mode in _VERIFIED[1:])
