"""Records of one poll whose schemas contradict each other: they are converted apart, and reach the
target in their order."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.config import ConnectorConfig, read
from semel.core.ledger import Advance, OffsetRange, TopicPartition, firsts
from semel.core.records import Commit
from semel.kafka.transactions import Transactions
from semel.sinks import create, sink_class
from semel.sinks.base import Capabilities, Sink
from semel.sinks.kafka.config import KafkaConfig
from semel.sinks.kafka.sender import Sender
from semel.sinks.kafka.targets import Targets
from semel.tasks.pipeline import ConvertedRecords, Pipeline
from tests import databases
from tests.polled import polled

KINDS = ["int64", "string", "boolean"]
VALUES = {"int64": 7, "string": "x", "boolean": True}
BASE = {
    "name": "c",
    "topics": "t",
    "bootstrap.servers": "nowhere:9092",
    "errors.tolerance": "all",
}
TRANSFORMED = {
    "transforms": "x",
    "transforms.x.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
    "transforms.x.exclude": "nothing",
}
SEVERAL = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
Record = tuple[int, str | None, int]  # partition, the type of field v, key
polls = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([*KINDS, None]), st.integers(0, 2)), min_size=2
)


def value(number: int, kind: str | None) -> bytes | None:
    """A record's value with its schema; no type stands for a tombstone."""
    if kind is None:
        return None
    fields = [{"field": "id", "type": "int32"}, {"field": "v", "type": kind}]
    payload = {"id": number, "v": VALUES[kind]}
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": payload}).encode()


def raw(poll: Sequence[Record], values: Sequence[bytes | None] = ()) -> pa.Table:
    """A poll by partitions, as consumers give it; the offset is the place in the partition."""
    offsets = [sum(r[0] == p for r in poll[:n]) for n, (p, _, _) in enumerate(poll)]
    table = polled(
        values or [value(n, kind) for n, (_, kind, _) in enumerate(poll)],
        [str(key).encode() for _, _, key in poll],
        offsets=offsets,
        partitions=[p for p, _, _ in poll],
        headers=[None] * len(poll),
    )
    return table.take(pa.array(np.argsort([p for p, _, _ in poll], kind="stable")))


def converted(
    config: Mapping[str, str], table: pa.Table, sink: Sink | None = None
) -> ConvertedRecords:
    connector = read(ConnectorConfig, dict(config))
    sink = sink or create(connector)
    return Pipeline(connector, sink, target=sink.schema).convert("t", table)


def of_partition(poll: Sequence[Record], partition: int) -> list[int | None]:
    """The ids of a partition's records in their order."""
    return [n if kind else None for n, (p, kind, _) in enumerate(poll) if p == partition]


@pytest.mark.parametrize("keys", [{}, TRANSFORMED], ids=["copied", "transformed"])
@SEVERAL
@given(poll=polls)
def test_a_topic_gets_the_records_of_a_partition_in_order(
    keys: Mapping[str, str], poll: list[Record]
) -> None:
    class OneTopic:
        def of(self, topic: str) -> str:
            return topic

    config = {**BASE, "connector.class": "kafka", "topic.rename.format": "copy", **keys}
    connector = read(ConnectorConfig, config)
    made = converted(config, raw(poll))
    sender = Sender(
        connector,
        read(KafkaConfig, config),
        {},
        cast(Targets, OneTopic()),
        cast(Transactions, None),
    )
    (messages,) = sender.messages(Commit(made.parts), 0)
    for partition in (0, 1):
        sent = [
            None if m.value is None else json.loads(m.value)["payload"]["id"]
            for m in messages.each()
            if m.partition == partition
        ]
        assert sent == of_partition(poll, partition)


@SEVERAL
@given(poll=polls)
def test_a_file_of_lines_gets_the_records_of_a_partition_in_order(poll: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "lines")
        config = {**BASE, "connector.class": "FileStreamSink", "file": str(path)}
        sink = create(read(ConnectorConfig, config))
        sink.write(Commit(converted(config, raw(poll), sink).parts))
        written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [w and w["id"] for w in written] == of_partition(poll, 0) + of_partition(poll, 1)


@SEVERAL
@given(poll=polls.map(lambda rs: [(p, kind or "string", k) for p, kind, k in rs]))
def test_files_hold_the_records_of_a_partition_in_order(poll: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = {
            **BASE,
            "connector.class": "files",
            "path": directory,
            "format": "json",
            "flush.size": "2",
            "fields.whitelist": "id",
        }
        sink = create(read(ConnectorConfig, config))
        sink.prepare(["t"])
        partitions = sorted({p for p, _, _ in poll})
        sink.start(firsts({TopicPartition("t", p): 0 for p in partitions}))
        made = converted(config, raw(poll), sink)
        counts = {p: len(of_partition(poll, p)) for p in partitions}
        moved = [Advance(OffsetRange("t", p, 0, n), n, n) for p, n in counts.items()]
        cast(Any, sink).commit(moved, Commit(made.parts))
        for p in partitions:
            paths = sorted(Path(directory, "t").rglob(f"t+{p}+*.json"))
            spans = [[int(n) for n in path.stem.split("+")[2].split("-")] for path in paths]
            assert [begin for begin, _ in spans[1:]] == [end for _, end in spans[:-1]]
            lines = [line for path in paths for line in path.read_text().splitlines()]
            assert [json.loads(line)["id"] for line in lines] == of_partition(poll, p)


class Keyed:
    """A table with a row for each key."""

    def __init__(self, directory: str, **keys: str) -> None:
        self.url = f"jdbc:sqlite:{directory}/db"
        databases.query(self.url, "CREATE TABLE t (k TEXT PRIMARY KEY, id BIGINT, v TEXT)")
        self.config = {
            **BASE,
            "connector.class": "sqlite",
            "connection.url": self.url,
            "insert.mode": "upsert",
            "pk.mode": "record_key",
            "pk.fields": "k",
            "delete.enabled": "true",
            "key.converter": "StringConverter",
            **keys,
        }

    def write(self, table: pa.Table) -> int:
        """Write a poll in one commit; returns the number of its parts."""
        sink = create(read(ConnectorConfig, self.config))
        sink.prepare(["t"])
        parts = converted(self.config, table, sink).parts
        sink.write(Commit(parts))
        sink.close()
        return len(parts)

    def rows(self) -> list[Any]:
        return databases.query(self.url, "SELECT k, id FROM t ORDER BY k")


def last(poll: Sequence[Record]) -> list[Any]:
    """What a table of keys holds after these records."""
    held = {str(key): None if kind is None else n for n, (_, kind, key) in enumerate(poll)}
    return sorted((k, n) for k, n in held.items() if n is not None)


@SEVERAL
@given(poll=polls.map(lambda rs: [(0, kind, k) for _, kind, k in rs]))
def test_the_last_record_of_a_key_stays(poll: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table = Keyed(directory)
        table.write(raw(poll))
        assert [tuple(row) for row in table.rows()] == last(poll)


@pytest.mark.parametrize("keys", [1, 3, 2000])
def test_alternating_schemas_make_few_parts_of_upserts(
    keys: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = [(0, KINDS[n % 7 % 2], n % keys) for n in range(2000)]
    calls: list[int] = []
    convert = Pipeline.convert

    def counted(self: Pipeline, topic: str, given: pa.Table) -> ConvertedRecords:
        calls.append(given.num_rows)
        return convert(self, topic, given)

    monkeypatch.setattr(Pipeline, "convert", counted)
    table = Keyed(str(tmp_path))
    assert table.write(raw(poll)) <= 4
    assert calls[0] == 2000
    assert len(calls[1:]) == 2  # one for each schema
    assert [tuple(row) for row in table.rows()] == last(poll)


def test_a_sink_that_says_nothing_of_order_gets_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["int64", "string", "string", "int64"]
    config = {**BASE, "connector.class": "sqlite", "connection.url": "jdbc:sqlite:nowhere"}
    monkeypatch.setattr(sink_class("sqlite"), "capabilities", Capabilities())
    monkeypatch.setattr(sink_class("sqlite"), "schema", lambda _self, _topic: None)
    parts = converted(config, raw([(0, kind, 0) for kind in kinds])).parts
    assert [part.rows.column("id").to_pylist() for part in parts] == [[0], [1, 2], [3]]


def test_keys_that_a_collation_takes_for_equal_keep_their_order(tmp_path: Path) -> None:
    table = Keyed(str(tmp_path))
    databases.query(table.url, "DROP TABLE t")
    databases.query(
        table.url, "CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, id BIGINT, v TEXT)"
    )
    poll = [(0, KINDS[n % 2], 0) for n in range(99)]
    given_ = raw(poll)
    spelled = pa.array([b"aA"[n // 2 % 2 :][:1] for n in range(99)], pa.binary())
    table.write(given_.set_column(0, "key", spelled))
    assert [row[1] for row in table.rows()] == [98]
