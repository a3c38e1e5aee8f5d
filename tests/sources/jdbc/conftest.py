"""Databases to read from, and what the source reads from them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel.core.errors import BadRecord
from semel.driver.planning import plan_source
from semel.sources.base import Source, SourceBatch, SourceOffset
from semel_lab.embedded.mariadb import MariaDB
from tests.databases import Given, new_sqlserver_database, query
from tests.engine.harness import some

Execute = Callable[..., None]
Make = Callable[..., Source]


DATABASES = ("postgresql", "sqlite", "mariadb", "duckdb", "sqlserver")


@pytest.fixture(params=some(DATABASES, DATABASES[:3]))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new, empty database of each system. `make test` tries DuckDB, which is slow to
    begin, where a test asks for it."""
    if request.param == "postgresql":
        yield str(request.getfixturevalue("database"))
    elif request.param == "mariadb":
        server: MariaDB | Given = request.getfixturevalue("mariadb")
        name = f"source_{uuid.uuid4().hex[:8]}"
        yield server.create_database(name)
        server.drop_database(name)
    elif request.param == "sqlserver":
        yield from new_sqlserver_database()
    else:
        yield f"jdbc:{request.param}:{tmp_path / 'source.db'}"


@pytest.fixture
def execute(url: str) -> Execute:
    """Runs statements in the database, each committed by itself."""
    return lambda *statements: executed(url, *statements)


def executed(url: str, *statements: str) -> None:
    """Run statements, each committed by itself. SQLite's through ADBC, as the source does: two
    SQLite libraries in one process break each other's locks."""
    if url.startswith(("jdbc:duckdb:", "jdbc:mariadb:", "jdbc:mysql:")):
        for statement in statements:
            query(url, statement)
        return
    if url.startswith("jdbc:sqlserver:"):
        for statement in statements:
            query(url, _transact(statement))
        return
    if url.startswith("postgresql:"):
        from semel.databases.postgresql import driver

        connection = driver.connect(url)
    else:
        from adbc_driver_sqlite import dbapi as sqlite

        connection = sqlite.connect(url.removeprefix("jdbc:sqlite:"), autocommit=True)
    with closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.executemany(statement, None)


_IN_TRANSACT_SQL = {
    r"\bTIMESTAMP\(": "DATETIME2(",
    r"\bTEXT\b": "NVARCHAR(MAX)",
    r"\bBOOLEAN\b": "BIT",
    r"\bTRUE\b": "1",
    r"'ü'": "N'ü'",
    r"\bADD COLUMN\b": "ADD",
    r"INSERT INTO t WITH RECURSIVE (n \(i\) AS \(.*?\)) SELECT (.*)": (
        r"WITH \1 INSERT INTO t SELECT \2 OPTION (MAXRECURSION 0)"
    ),
    r"ALTER TABLE (\w+) RENAME COLUMN (\w+) TO (\w+)": r"EXEC sp_rename '\1.\2', '\3', 'COLUMN'",
}


def _transact(statement: str) -> str:
    """A statement of the tests in SQL Server's dialect."""
    for pattern, replacement in _IN_TRANSACT_SQL.items():
        statement = re.sub(pattern, replacement, statement)
    return statement


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """A source of the database, with keys of the test's own."""
    made: list[Source] = []

    def source(**keys: str) -> Source:
        raw = {
            "name": "rows",
            "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
            "connection.url": url,
            "topic.prefix": "t-",
            "poll.interval.ms": "0",
            "bootstrap.servers": "localhost:1",
        }
        found = plan_source(raw | {k.replace("_", "."): v for k, v in keys.items()}).source
        made.append(found)
        return found

    yield source
    for found in made:
        found.close()


Read = tuple[list[dict[str, Any]], Mapping[str, Any] | None]


def values(batch: SourceBatch) -> list[dict[str, Any]]:
    return [row for records in batch.records for row in records.values.to_pylist()]


def taken(batches: Iterator[SourceBatch | None]) -> Read:
    """All rows that can be read now, and the offset after the last one."""
    found: list[dict[str, Any]] = []
    offset = None
    while (batch := next(batches)) is not None:
        for unread in batch.unread:
            raise BadRecord(unread.message)
        found += values(batch)
        offset = batch.offset
    return found, offset


def rows(source: Source, offset: SourceOffset | None = None) -> Read:
    """What the only partition has after an offset."""
    (partition,) = source.partitions()
    reading = source.read(partition, offset)
    with closing(reading):  # type: ignore[type-var]
        return taken(reading)
