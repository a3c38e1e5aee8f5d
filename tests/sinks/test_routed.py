"""What each kind of sink makes of records that go to another topic than they were read from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semel.config import read
from semel.converters import create
from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition, firsts
from semel.core.records import Commit, Records, RowsRejected
from semel.sinks.kafka.config import KafkaConfig
from semel.sinks.kafka.sender import Encoder
from semel.sinks.search.config import SearchConfig
from semel.sinks.search.writing import Writer
from tests.sinks.delta.conftest import Lake
from tests.sinks.files.conftest import Folder
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance, records

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def routed(origin: str, count: int = 2, **more: object) -> Records:
    """Records of partition 0 of a topic, from offset 0 on, on their way to topic t."""
    rows = [{"id": i, **more} for i in range(count)]
    return replace(records(rows, topic=origin), topic="t")


def test_files_are_in_the_folder_of_one_topic_under_the_names_of_the_others(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    sink = folder.sink()
    sink.start(firsts({A: 0, B: 0}))
    moved = [advance(0, 2, topic="a"), advance(0, 2, topic="b")]
    sink.commit(moved, Commit([routed("a"), routed("b")]))
    names = [name.rpartition("/")[2] for name in folder.files()]
    assert sorted(name.partition("+")[0] for name in names) == ["a", "b"]
    assert sorted(row["id"] for row in folder.read()) == [0, 0, 1, 1]


def test_files_reject_records_by_their_origin(tmp_path: Path) -> None:
    keys = {"partitioner.class": "TimeBasedPartitioner", "timestamp.extractor": "RecordField"}
    keys |= {"timestamp.field": "id", "path.format": "YYYY", "partition.duration.ms": "3600000"}
    sink = Folder(str(tmp_path)).sink(keys=keys)
    beyond = replace(records([{"id": 10**15}], topic="a"), topic="t")
    with pytest.raises(RowsRejected) as refusal:
        sink.stage(Commit([beyond]))
    assert [(r.topic, r.offset) for r in refusal.value.rejected] == [("a", 0)]


def test_iceberg_tables_count_rows_by_their_origin(tmp_path: Path) -> None:
    keys = {
        "iceberg.tables": "db.x,db.y",
        "iceberg.tables.route-field": "kind",
        "iceberg.table.db.x.route-regex": "x",
        "iceberg.table.db.y.route-regex": "y",
    }
    warehouse = Warehouse(tmp_path)
    sink = warehouse.made(keys=keys)
    sink.prepare(["a", "b"])
    sink.start(firsts({A: 0, B: 0}))
    commit = Commit([routed("a", 3, kind="x"), routed("b", 2, kind="z")])
    sink.commit([advance(0, 3, topic="a"), advance(0, 2, topic="b")], commit)
    found = {e.topic: (e.rows_written, e.records_filtered) for e in sink.entries()}
    assert found == {"a": (3, 0), "b": (0, 2)}


def test_delta_refuses_rows_whose_positions_are_in_another_table(tmp_path: Path) -> None:
    sink = Lake(tmp_path).sink()
    with pytest.raises(ConfigError, match="records of topic a are routed to topic t, whose table"):
        sink.stage(Commit([routed("a")]))
    one = Lake(tmp_path).sink(keys={"table.name.format": "everything"})
    assert one.stage(Commit([routed("a")])).files


def test_documents_without_keys_have_ids_of_their_origin() -> None:
    raw = {"connector.class": "opensearch", "connection.url": "http://n:9200", "key.ignore": "true"}
    writer = Writer(read(SearchConfig, raw), {}, passes=False)
    asked = []

    def generation(tp: TopicPartition) -> int:
        asked.append(tp)
        return 1

    lines = [
        line
        for origin in ("a", "b")
        for part in writer.parts(routed(origin, 1), "t", generation)
        for line in part.lines.to_pylist()
    ]
    assert ['"a+0+0"' in lines[0], '"b+0+0"' in lines[1]] == [True, True]
    assert asked == [A, B]


def test_provenance_headers_and_refusals_of_copies_name_the_origin() -> None:
    json = create("JsonConverter", {}, is_key=False, where="value.converter")
    encoder = Encoder(read(KafkaConfig, {}), provenance=True, key=json, value=json)
    messages = encoder.messages([routed("a", 1)], "t")
    (message,) = messages.each()
    assert (messages.topic, messages.source) == ("t", "a")
    assert message.headers is not None
    assert ("__connect.topic", b"a") in message.headers
