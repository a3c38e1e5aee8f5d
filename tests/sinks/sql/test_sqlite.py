"""What SQLite says of its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from semel.core.errors import ServiceError, TransientError
from semel.databases.errors import DataRefused
from semel.databases.login import Login, Timeouts
from semel.databases.names import Name
from semel.databases.sqlite import Sqlite


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a table of some pages."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (v TEXT)")
        connection.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 100)
        connection.commit()
    return path


@pytest.fixture
def dialect(file: Path) -> Iterator[Sqlite]:
    made = Sqlite(Login(f"jdbc:sqlite:{file}"), "c", Timeouts())
    yield made
    made.close()


@pytest.mark.parametrize(
    ("declared", "arrow"),
    [
        ("UUID", pa.string()),
        ("ENUM", pa.string()),
        ("JSONB", pa.string()),
        ("STRING(3)", pa.string()),
        ("INTERVAL", pa.string()),
        ("VARBINARY(16)", pa.binary()),
        ("NUMBER", pa.float64()),
        ("MONEY(10, 2)", pa.decimal128(10, 2)),
        ("REAL(10, 2)", pa.float64()),
        ("UNSIGNED BIG INT", pa.int64()),
        ("FLOATING POINT", pa.int64()),
        *[(name, pa.float64()) for name in ("LONG", "BIGSERIAL", "OFFSET", "BINARY_DOUBLE")],
        ("PERCENT(5,2)", pa.decimal128(5, 2)),
        ("", pa.string()),
    ],
)
def test_a_type_that_sqlite_does_not_know_holds_numbers_unless_its_name_means_text_or_bytes(
    declared: str, arrow: pa.DataType, dialect: Sqlite
) -> None:
    with dialect.transaction():
        dialect.execute(f"CREATE TABLE u (c {declared})")
        found = dialect.find(Name("main", "u"))
    assert found is not None
    assert found.columns["c"].arrow == arrow


@pytest.mark.parametrize("statement", ["INSERT INTO t VALUES ('y')", "DELETE FROM t"])
def test_a_damaged_file_is_a_permanent_error(statement: str, file: Path, dialect: Sqlite) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + b"\xab" * (len(whole) - 4096))
    said = r"malformed\. The file is damaged"
    with pytest.raises(ServiceError, match=said) as raised, dialect.transaction():
        dialect.execute(statement)
    assert not isinstance(raised.value, (TransientError, DataRefused))


def test_a_full_disk_says_how_much_is_free(dialect: Sqlite) -> None:
    said = r"disk is full \(\d+ bytes are free there\)"
    with pytest.raises(TransientError, match=said), dialect.transaction():
        dialect.query("PRAGMA max_page_count = 1")
        dialect.execute("INSERT INTO t SELECT hex(randomblob(100000)) FROM t")
