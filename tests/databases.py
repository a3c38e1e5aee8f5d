"""SQL databases under test besides PostgreSQL, and plain SQL to look at what was written."""

from __future__ import annotations

import math
import os
import pickle
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import duckdb
import pymysql
import pytest

from semel.core.watchdog import Watchdog
from semel.databases.login import Login
from semel.databases.sqlserver.client import Client
from semel.databases.sqlserver.url import address
from tests.patience import PATIENCE

SYSTEMS = ("sqlite", "duckdb", "mariadb", "sqlserver")
_SERVER = "SEMEL_TEST_SQLSERVER"

MYSQL = os.environ.get("SEMEL_TEST_MYSQL", "")
"""A MySQL, or another MariaDB, that is tested in the place of the embedded one:
``mysql://root:password@host:port``. What is tested by ending the server has its own all the same.
"""


class Given:
    """A server that somebody has started, with what the tests want of :class:`MariaDB`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._where = f"{parts.hostname}:{parts.port or 3306}"
        self._scheme = parts.scheme
        self._user = {
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
        }

    def database_url(self, database: str) -> str:
        return f"jdbc:{self._scheme}://{self._where}/{database}?{urlencode(self._user)}"

    def create_database(self, name: str) -> str:
        self.execute(f"CREATE DATABASE {name}")
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name}")

    def execute(self, *statements: str, database: str = "mysql") -> list[Any]:
        with _session(self.database_url(database)) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


def query(url: str, statement: str) -> list[Any]:
    """The rows of a statement, by the system's own driver."""
    system, _, rest = url.removeprefix("jdbc:").partition(":")
    if system == "sqlite":
        return _sqlite(rest, statement)
    if system == "duckdb":
        return _duckdb(rest, statement)
    if system == "sqlserver":
        return sqlserver(url, statement)
    settings = "SET sql_mode = 'ANSI_QUOTES', time_zone = '+00:00'"
    with _session(url, init_command=settings) as session, session.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def _sqlite(path: str, statement: str) -> list[Any]:
    """By another process: two SQLite libraries in one lose each other's locks, and the one that
    closes takes the other's journal away."""
    found = subprocess.run(
        [sys.executable, "-c", _SQLITE, path, str(PATIENCE), statement],
        check=False,
        capture_output=True,
        timeout=2 * PATIENCE,
    )
    made = pickle.loads(found.stdout)
    if isinstance(made, Exception):
        raise made
    rows: list[Any] = made
    return rows


_SQLITE = """
import pickle, sqlite3, sys
try:
    with sqlite3.connect(sys.argv[1], timeout=float(sys.argv[2])) as connection:
        found = connection.execute(sys.argv[3]).fetchall()
except Exception as error:
    found = error
sys.stdout.buffer.write(pickle.dumps(found))
"""


def _session(url: str, **settings: Any) -> Any:
    parts = urlsplit(url.removeprefix("jdbc:"))
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        database=parts.path[1:],
        autocommit=True,
        **dict(parse_qsl(parts.query)),
        **settings,
    )


def new_sqlserver_database() -> Iterator[str]:
    """The URL of a new, empty database of the server that the environment names."""
    url = os.environ.get(_SERVER)
    if not url:
        pytest.skip(
            f"{_SERVER} names no server (jdbc:sqlserver://host:port;databaseName=master;...)"
        )
    name = f"test_{uuid.uuid4().hex[:8]}"
    sqlserver(url, f"CREATE DATABASE {name}")
    yield re.sub(r"(?i)(databaseName=)[^;]*", rf"\g<1>{name}", url)
    with suppress(Exception):  # sessions of Spark's workers are still open
        sqlserver(url, f"ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
    with suppress(Exception):  # Babelfish cannot end them
        sqlserver(url, f"DROP DATABASE {name}")


def sqlserver(url: str, statement: str) -> list[Any]:
    """The rows of a statement in a session of its own."""
    with sqlserver_session(url) as session, session._connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def sqlserver_session(url: str) -> Iterator[Client]:
    """A session of its own."""
    found = address(Login(url))
    with closing(Client(found, Watchdog("test", found.where, math.inf))) as session:
        yield session


def _duckdb(path: str, statement: str) -> list[Any]:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with duckdb.connect(path) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                return connection.execute(statement).fetchall()
        except duckdb.IOException:  # another process has it open
            assert time.monotonic() < deadline
            time.sleep(0.01)
