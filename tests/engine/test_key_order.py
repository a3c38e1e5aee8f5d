"""Records of one key in several partitions, from a poll to the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semel.config import ConnectorConfig, read
from semel.core.ledger import TopicPartition
from semel.core.records import TIMESTAMP
from semel.sinks import sink_class
from semel.sinks.sql.sink import SqlSink
from semel.tasks.batch import Batcher
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import TopicTable
from tests.polled import polled

Record = tuple[int, int, int, str, int]  # partition, offset, timestamp, key, value


def made(path: Path) -> tuple[SqlSink, Batcher]:
    raw = {
        "name": "c",
        "connector.class": "sqlite",
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "connection.url": f"jdbc:sqlite:{path / 'database'}",
        "value.converter.schemas.enable": "false",
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "pk.fields": "k",
        "auto.create": "true",
    }
    connector = read(ConnectorConfig, raw)
    sink = sink_class("sqlite")(connector)
    assert isinstance(sink, SqlSink)
    sink.prepare([])
    return sink, Batcher(connector, Pipeline(connector, sink, target=sink.schema))


def written(path: Path, *records: Record) -> dict[str, int]:
    """What the table holds after one commit of these records."""
    sink, batcher = made(path)
    partitions, offsets, timestamps, keys, values = zip(*records, strict=True)
    table = polled(
        [f'{{"n":{v}}}'.encode() for v in values],
        [k.encode() for k in keys],
        offsets=offsets,
        partitions=partitions,
        timestamps=timestamps,
    )
    positions = {TopicPartition("t", p): 0 for p in np.unique(partitions).tolist()}
    batch = batcher.batch([TopicTable("t", table)], positions, {})
    assert (TIMESTAMP in batch.commit.records[0].rows.column_names) == (len(positions) > 1)
    sink.write(batch.commit)
    with sink._dialect.transaction(reading=True):
        rows = sink._dialect.query("SELECT k, n FROM t").to_pylist()
    sink.close()
    return {r["k"]: r["n"] for r in rows}


def test_of_two_partitions_the_later_record_wins_whatever_its_partition(tmp_path: Path) -> None:
    older, newer = (1, 7, 100, "a", 1), (0, 3, 200, "a", 2)
    assert written(tmp_path, older, newer) == {"a": 2}


@pytest.mark.parametrize("partition", [0, 1])
def test_within_a_partition_offsets_count_even_against_timestamps(
    tmp_path: Path, partition: int
) -> None:
    polled = [(partition, 0, 500, "a", 1), (partition, 1, 100, "a", 2), (2, 0, 50, "b", 3)]
    assert written(tmp_path, *polled) == {"a": 2, "b": 3}


def test_a_lone_partition_needs_no_timestamps(tmp_path: Path) -> None:
    assert written(tmp_path, (0, 0, 9, "a", 1), (0, 1, 3, "a", 2)) == {"a": 2}
