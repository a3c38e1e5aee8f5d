"""Databases in a file, on a disk that takes no writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from semel.errors import Unavailable
from semel.lab.drill.disk import Disk
from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.duckdb import Duckdb
from semel.sinks.sql.duckdb_config import DuckdbConfig
from semel.sinks.sql.files import LockFile
from semel.sinks.sql.sqlite import Sqlite
from semel.sinks.sql.sqlite_config import SqliteConfig
from tests.disks import read_only


def sqlite(path: Path) -> Dialect:
    return Sqlite(SqliteConfig(connection_url=f"jdbc:sqlite:{path}"), "c")


def duckdb(path: Path) -> Dialect:
    return Duckdb(DuckdbConfig(connection_url=f"jdbc:duckdb:{path}"), "c")


@pytest.mark.parametrize("dialect", [sqlite, duckdb])
def test_a_disk_that_is_read_only_is_waited_for(
    dialect: Callable[[Path], Dialect], disk: Disk
) -> None:
    path = disk.directory / "x.db"
    with closing(dialect(path)) as made, made.transaction():
        made.execute("CREATE TABLE t (v INTEGER)")
    with closing(dialect(path)) as made:
        with (
            read_only(disk),
            pytest.raises(Unavailable, match=r"read-only|Read-only"),
            made.transaction(),
        ):
            made.execute("INSERT INTO t VALUES (1)")
        with made.transaction():
            made.execute("INSERT INTO t VALUES (1)")
    with closing(dialect(path)) as made, made.transaction(reading=True):
        assert made.query("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 1}]


def test_a_lock_that_a_read_only_disk_refuses_is_waited_for(disk: Disk) -> None:
    with read_only(disk), pytest.raises(Unavailable, match="Read-only file system"):
        LockFile(disk.directory / "lock").acquire(shared=True, timeout=0)
