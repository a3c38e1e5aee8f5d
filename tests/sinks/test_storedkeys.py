"""A snapshot's keys are on disk, and come from the store and from there a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.core.records import Commit
from semel.sinks import sink_class
from semel.sinks.base import StoredKeys
from tests.sinks.target import Target, put, records

COUNT = 40_000
KEYS = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}


def test_keys_are_read_as_they_were_written_as_often_as_they_are_wanted() -> None:
    batches = [pa.record_batch([pa.array(part)], ["k"]) for part in ([1, 2], [], [None, 4])]
    stored = StoredKeys(b.cast(pa.schema([("k", pa.int64())])) for b in batches)
    assert stored.num_rows == 4
    for _ in range(2):
        assert pa.Table.from_batches(stored.batches()).column("k").to_pylist() == [1, 2, None, 4]


def test_no_keys_are_none() -> None:
    stored = StoredKeys(iter([]))
    assert (stored.num_rows, list(stored.batches())) == (0, [])


def test_keys_are_written_without_being_in_memory() -> None:
    before, highest = pa.total_allocated_bytes(), 0

    def keys() -> Iterator[pa.RecordBatch]:
        nonlocal highest
        for at in range(0, 100_000, 1_000):
            texts = pa.array([f"{n:01000}" for n in range(at, at + 1_000)])
            yield pa.record_batch([texts], ["k"])
            highest = max(highest, pa.total_allocated_bytes() - before)

    stored = StoredKeys(keys())
    for _ in stored.batches():
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert highest < 20e6  # of 100 MB


def in_batches(stored: StoredKeys) -> bool:
    sizes: list[int] = [batch.num_rows for batch in stored.batches()]
    return sum(sizes) == COUNT and max(sizes) < COUNT


@pytest.mark.parametrize("system", ["sqlite", "duckdb", "delta"])
def test_a_store_gives_its_keys_in_batches(system: str, tmp_path: Path) -> None:
    where = {"connection.url": f"jdbc:{system}:{tmp_path / 'database'}"}
    raw = {
        "name": "c",
        "connector.class": system,
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "auto.create": "true",
        **(where if system != "delta" else {"delta.table.path": str(tmp_path)}),
        **KEYS,
    }
    with closing(sink_class(system)(read(ConnectorConfig, raw))) as sink:
        sink.prepare(["t"])
        made = records({"id": list(range(COUNT))})
        sink.accommodate(made)
        sink.write(Commit([made]))
        assert in_batches(sink.snapshot(["t"]).keys["t"])


def test_postgresql_gives_its_keys_in_batches(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    sink = target.sink(insert_mode="upsert", pk_mode="record_value", pk_fields="id")
    put(sink, records({"id": list(range(COUNT))}))
    asked: list[str] = []
    query = sink._connection.query

    def asking(sql: str, *parameters: Any) -> pa.Table:
        asked.append(sql)
        return query(sql, *parameters)

    monkeypatch.setattr(sink._connection, "query", asking)
    assert sink.snapshot(["t"]).keys["t"].num_rows == COUNT
    assert not [sql for sql in asked if sql.startswith('SELECT "id"')]  # which gives one table
