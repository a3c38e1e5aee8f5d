"""What only DuckDB does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.records import Commit
from semel.databases.duckdb import confined
from semel.sinks import sink_class
from semel.sinks.sql.sink import SqlSink
from tests.patience import PATIENCE
from tests.sinks.target import changes, records

UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "k"}


def made(file: Path, keys: Mapping[str, str]) -> SqlSink:
    raw = {
        "name": "c",
        "connector.class": "duckdb",
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "connection.url": f"jdbc:duckdb:{file}",
        **keys,
    }
    sink = sink_class("duckdb")(read(ConnectorConfig, raw))
    assert isinstance(sink, SqlSink)
    return sink


def test_tables_whose_names_differ_in_the_case_of_other_letters_are_two(tmp_path: Path) -> None:
    file = tmp_path / "d.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute('CREATE TABLE "Ä" (k VARCHAR); CREATE TABLE "ä" (v INT)')
    sink = made(file, {"topics": "Ä"})
    assert sink.lacking("Ä", ["k", "v"]) == ["v"]


@pytest.mark.parametrize("kind", ["VARCHAR COLLATE NOCASE", "BIGNUM"])
@pytest.mark.parametrize("mode", ["upsert", "update"])
def test_a_key_column_of_texts_that_are_equal_is_refused_before_anything_is_read(
    mode: str, kind: str, tmp_path: Path
) -> None:
    """Indexes tell bob from BOB, comparisons do not; 01 and 1 are one BIGNUM."""
    file = tmp_path / "d.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY, v INT)")
    with pytest.raises(ConfigError, match=r"key column k \(.*as VARCHAR, without COLLATE"):
        made(file, {**UPSERT, "insert.mode": mode}).prepare(["t"])
    made(file, {}).prepare(["t"])  # rows are inserted, whatever the key


def test_a_uuid_is_one_key_however_it_is_written(tmp_path: Path) -> None:
    key = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    file, keys = tmp_path / "d.duckdb", {"insert.mode": "upsert", "pk.mode": "record_key"}
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE t (k UUID PRIMARY KEY, v INT)")
    sink = made(file, {**keys, "pk.fields": "k", "delete.enabled": "true"})
    sink.write(Commit([changes((key, {"v": 1}), (key.upper(), {"v": 2}))]))
    with duckdb.connect(str(file)) as connection:
        assert connection.execute("SELECT v FROM t").fetchall() == [(2,)]
    sink.write(Commit([changes((key, {"v": 3}), (f"{{{key.upper()}}}", None))]))
    with duckdb.connect(str(file)) as connection:
        assert connection.execute("SELECT v FROM t").fetchall() == []


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        ("BIGNUM", "5", "5"),
        ("BIGNUM[]", ["5", None], "[5, NULL]"),
        ("BIT[2]", ["10", "1"], "[10, 1]"),
        ("STRUCT(b BIT, n INT)", {"b": "10", "n": 1}, "{'b': 10, 'n': 1}"),
        ("MAP(VARCHAR, TIMETZ)", [("a", "12:00:00+02")], "{a='12:00:00+02'}"),
        ("JSON[]", ['{"a": 1}'], '[{"a": 1}]'),
    ],
)
def test_texts_are_written_as_texts_however_deep_in_a_column(
    type_: str, value: Any, shown: str, tmp_path: Path
) -> None:
    """DuckDB would take the text for the bytes in which it keeps such a number, or such bits."""
    file = tmp_path / "d.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE TABLE t (v {type_})")
    kind = pa.map_(pa.string(), pa.string()) if type_.startswith("MAP") else None
    made(file, {}).write(Commit([records(pa.table({"v": pa.array([value], kind)}))]))
    with duckdb.connect(str(file)) as connection:
        assert connection.execute("SELECT v::VARCHAR FROM t").fetchall() == [(shown,)]


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Another process has the file open."""
    program = (
        f"import duckdb, sys; c = duckdb.connect({str(file)!r}); print(1, flush=True); "
        "sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        yield
        process.communicate(timeout=PATIENCE)


def test_a_file_that_another_process_has_open_is_a_transient_error(tmp_path: Path) -> None:
    folder = tmp_path / "Corrupt not a valid DuckDB database"
    folder.mkdir()
    sink = made(folder / "d.duckdb", {"connection.lock.timeout.ms": "100", "auto.create": "true"})
    with held(folder / "d.duckdb"), pytest.raises(TransientError, match="set lock on file"):
        sink.prepare(["t"])
    sink.prepare(["t"])
    sink.close()


def test_a_file_that_this_program_has_open_itself_must_be_closed(tmp_path: Path) -> None:
    file = tmp_path / "d.duckdb"
    sink = made(file, {"connection.lock.timeout.ms": "100", "auto.create": "true"})
    with (
        closing(duckdb.connect(str(file))),
        pytest.raises(ConfigError, match="Close your own connection to the file"),
    ):
        sink.prepare(["t"])
    sink.prepare(["t"])
    sink.close()


@pytest.mark.parametrize(
    ("content", "way"),
    [(b"text" * 9999, "Replace it with an intact copy"), (b"", "It is empty: remove it")],
)
def test_a_non_database_file_is_a_permanent_error(content: bytes, way: str, tmp_path: Path) -> None:
    file = tmp_path / "d.duckdb"
    file.write_bytes(content)
    sink = made(file, {"connection.lock.timeout.ms": "100"})
    with pytest.raises(ServiceError, match=f"not a valid DuckDB database file. {way}, or name"):
        sink.prepare(["t"])


@pytest.mark.parametrize("words", ["with version number 70", "with storage version number 70"])
def test_a_file_of_a_newer_duckdb_is_a_permanent_error(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise duckdb.IOException(f"IO Error: Trying to read a database file {words}")

    monkeypatch.setattr(duckdb, "connect", connect)
    sink = made(tmp_path / "d.duckdb", {"connection.lock.timeout.ms": "3600000"})
    with pytest.raises(ServiceError, match="upgrade the package duckdb"):
        sink.prepare(["t"])


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY t FROM '{file}'",
        "COPY t TO '{folder}/copy.csv'",
        "EXPORT DATABASE '{folder}/all'",
        "ATTACH '{folder}/other.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '{file}'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET temp_directory = '{folder}/spilt'",
        "SELECT * FROM a_view",
        "SELECT * FROM elsewhere",
    ],
)
def test_a_statement_reaches_nothing_but_the_database(statement: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("top secret\n")
    elsewhere = [secret]  # DuckDB looks for names of tables among Python's
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute("CREATE TABLE t (v VARCHAR)")
        connection.execute(f"CREATE VIEW a_view AS SELECT * FROM read_text('{elsewhere[0]}')")
    before = sorted(tmp_path.iterdir())
    sink = made(tmp_path / "d.duckdb", {})
    for _ in range(2):
        refused = pytest.raises(Exception, match=r"(?i)disabled|does not exist|change config")
        with refused, sink._dialect.transaction():
            sink._dialect.query(statement.format(file=secret, folder=tmp_path))
    sink.close()
    assert [f for f in sorted(tmp_path.iterdir()) if not f.name.startswith(".")] == before


def test_connections_of_a_process_share_a_confined_file(tmp_path: Path) -> None:
    with closing(confined(tmp_path / "d")) as one, closing(confined(tmp_path / "d")) as two:
        for each in (one, two):
            told = each.execute("SELECT current_setting('TimeZone')").fetchone()
            assert told == ("UTC",)
