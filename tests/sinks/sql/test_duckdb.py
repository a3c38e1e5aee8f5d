"""What only DuckDB does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from semel.config import ConnectorConfig, read
from semel.errors import ConfigError, ServiceError, TransientError
from semel.sinks import sink_class
from semel.sinks.sql.sink import SqlSink
from tests.patience import PATIENCE

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


@pytest.mark.parametrize("mode", ["upsert", "update"])
def test_a_key_column_with_a_collation_is_refused_before_anything_is_read(
    mode: str, tmp_path: Path
) -> None:
    """Its indexes tell bob from BOB, its comparisons do not."""
    file = tmp_path / "d.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE t (k VARCHAR COLLATE NOCASE PRIMARY KEY, v INT)")
    with pytest.raises(ConfigError, match=r"key column k has a collation.*without COLLATE"):
        made(file, {**UPSERT, "insert.mode": mode}).prepare(["t"])
    made(file, {}).prepare(["t"])  # rows are inserted, whatever the key


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
    def connect(path: str) -> None:
        raise duckdb.IOException(f"IO Error: Trying to read a database file {words}")

    monkeypatch.setattr(duckdb, "connect", connect)
    sink = made(tmp_path / "d.duckdb", {"connection.lock.timeout.ms": "3600000"})
    with pytest.raises(ServiceError, match="upgrade the package duckdb"):
        sink.prepare(["t"])
