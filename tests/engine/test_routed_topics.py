"""A transform that routes records changes where they go. What becomes of them counts for the topic
that they were read from: positions, counts, refusals and dead letters."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel import sinks
from semel.config import ConnectorConfig, read
from semel.core.delivery import resolve
from semel.core.ledger import LedgerEntry, TopicPartition, firsts
from semel.core.records import ConnectRecords, RowsRejected
from semel.sinks.base import Sink
from semel.tasks import pipeline
from semel.tasks.batch import Batcher
from semel.tasks.commit import deliver
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import TopicTable
from semel.tasks.transform import TransformedRecords
from tests.polled import polled
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import Target

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LARGE, REFUSED = 2**40, 200
"""More than the column holds, and more than the database's constraint allows."""
SQL = {"insert.mode": "insert", "pk.mode": "none", "auto.create": "true"}
TABLE = "CREATE TABLE routed (n INTEGER CHECK (n < 100))"


@dataclass(frozen=True)
class Store:
    """A sink's keys, and how another program reads what it wrote."""

    keys: dict[str, str]
    rows: Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def sqlite(tmp_path: Path) -> Store:
    file = tmp_path / "database"

    def rows(table: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(file)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]

    with closing(sqlite3.connect(file)) as connection:
        connection.execute(TABLE)
    return Store(SQL | {"connector.class": "sqlite", "connection.url": f"jdbc:sqlite:{file}"}, rows)


@pytest.fixture
def postgresql(database: str) -> Iterator[Store]:
    target = Target(database)
    target.execute(TABLE)
    keys = SQL | {"connector.class": "postgresql", "connection.url": database}
    yield Store(keys, lambda table: target.query(f"SELECT * FROM {table}"))
    target.close()


@pytest.fixture
def iceberg(tmp_path: Path) -> Store:
    warehouse = Warehouse(tmp_path)
    warehouse.catalog.create_namespace("db")
    warehouse.catalog.create_table("db.routed", pa.schema([("n", pa.int32())]))
    keys = warehouse.config(keys={"iceberg.tables": "db.routed"})
    keys["errors.deadletterqueue.table"] = "db.dead"
    return Store(keys, lambda table: warehouse.rows(f"db.{table}"))


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration), "iceberg"]
)
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def _all_to_one_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    def routed(_connector: str, _transform: object, records: ConnectRecords) -> TransformedRecords:
        return TransformedRecords(replace(records, topic="routed"))

    monkeypatch.setattr(pipeline, "transformed", routed)


def poll(topic: str, values: Sequence[int]) -> TopicTable:
    return TopicTable(topic, polled([json.dumps({"n": n}).encode() for n in values]))


def committed(store: Store, polls: Sequence[TopicTable]) -> dict[TopicPartition, LedgerEntry]:
    """Commit as the engines do: again without what the sink has refused. What the ledger says."""
    raw = {
        "name": "c",
        "bootstrap.servers": "nowhere:9092",
        "value.converter.schemas.enable": "false",
        "errors.tolerance": "all",
        "errors.deadletterqueue.table": "dead",
        **store.keys,
        "topics": "a,b",
    }
    connector = read(ConnectorConfig, raw)
    sink = sinks.create(connector)
    try:
        return _committed(connector, sink, polls)
    finally:
        sink.close()


def _committed(
    connector: ConnectorConfig, sink: Sink, polls: Sequence[TopicTable]
) -> dict[TopicPartition, LedgerEntry]:
    positions = {A: 0, B: 0}
    sink.prepare(["a", "b"])
    sink.start(firsts(positions))
    schemas = dict.fromkeys("ab", pa.schema([("n", pa.int64())]))
    batcher = Batcher(
        connector,
        Pipeline(connector, sink, target=sink.schema, transform=lambda b: b, schemas=schemas),
    )
    guarantee = resolve(connector.delivery, connector.delivery_mechanism, sink.support())
    refused: list[Any] = []
    while True:
        batch = batcher.batch(polls, positions, {}, refused)
        try:
            deliver(sink, guarantee, batch.advances, batch.commit)
            return {e.topic_partition: e for e in sink.entries()}
        except RowsRejected as rejection:
            again = {(r.topic, r.partition, r.offset) for r in refused}
            assert not again & {(r.topic, r.partition, r.offset) for r in rejection.rejected}
            refused += rejection.rejected


def test_what_is_refused_is_a_dead_letter_of_the_topic_it_was_read_from(store: Store) -> None:
    bad = LARGE if "iceberg" in store.keys["connector.class"] else REFUSED
    found = committed(store, [poll("a", [1, LARGE, 3]), poll("b", [10, 20, bad, 40])])
    assert sorted(row["n"] for row in store.rows("routed")) == [1, 3, 10, 20, 40]
    letters = {(x["topic"], x["partition"], x["offset"]) for x in store.rows("dead")}
    assert letters == {("a", 0, 1), ("b", 0, 2)}
    counts = {
        tp.topic: (e.position, e.records_read, e.rows_written, e.records_failed)
        for tp, e in found.items()
    }
    assert counts == {"a": (3, 3, 2, 1), "b": (4, 4, 3, 1)}
