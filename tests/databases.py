"""SQL databases under test besides PostgreSQL, and plain SQL to look at what was written."""

from __future__ import annotations

import sqlite3
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import duckdb
import pymysql

SYSTEMS = ("sqlite", "duckdb", "mariadb")


def query(url: str, statement: str) -> list[Any]:
    """The rows of a statement, by the system's own driver."""
    system, _, rest = url.removeprefix("jdbc:").partition(":")
    if system == "sqlite":
        with sqlite3.connect(rest, timeout=30) as connection:
            return connection.execute(statement).fetchall()
    if system == "duckdb":
        return _duckdb(rest, statement)
    parts = urlsplit(url.removeprefix("jdbc:"))
    with (
        pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            database=parts.path[1:],
            user=dict(parse_qsl(parts.query))["user"],
            autocommit=True,
            init_command="SET sql_mode = 'ANSI_QUOTES', time_zone = '+00:00'",
        ) as session,
        session.cursor() as cursor,
    ):
        cursor.execute(statement)
        return list(cursor.fetchall())


def _duckdb(path: str, statement: str) -> list[Any]:
    deadline = time.monotonic() + 30
    while True:
        try:
            with duckdb.connect(path) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                return connection.execute(statement).fetchall()
        except duckdb.IOException:  # another process has it open
            assert time.monotonic() < deadline
            time.sleep(0.01)
