"""Which records an audit takes to be in one target, where several topics share it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest

from semel.audit.follow import follower
from semel.audit.follow.follower import Follower
from semel.audit.follow.progress import FollowState
from semel.audit.named import target_of
from semel.audit.referee import RecordOffsets
from semel.audit.workspace import Workspace
from semel.config import ConnectorConfig, read
from semel.core.delivery import Mechanism
from semel.core.ledger import TopicPartition, firsts
from semel.core.records import Commit
from semel.sinks import create
from semel.sinks.protocols import Gathering
from semel.sinks.sql.sink import SqlSink
from tests.sinks.target import advance, records

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ROUTER = {
    "transforms": "r",
    "transforms.r.type": "org.apache.kafka.connect.transforms.TimestampRouter",
}


def sqlite(path: Path, **keys: str) -> SqlSink:
    raw = {
        "name": "c",
        "connector.class": "sqlite",
        "bootstrap.servers": "nowhere:9092",
        "topics": "a,b",
        "connection.url": f"jdbc:sqlite:{path / 'x.db'}",
        "auto.create": "true",
        "provenance": "true",
        **{k.replace("_", "."): v for k, v in keys.items()},
    }
    made = create(read(ConnectorConfig, raw))
    assert isinstance(made, SqlSink)
    return made


@pytest.mark.parametrize(("format_", "tables"), [("${topic}", 2), ("everything", 1)])
def test_records_that_name_one_table_are_in_one_target(
    format_: str, tables: int, tmp_path: Path
) -> None:
    with closing(sqlite(tmp_path, table_name_format=format_, **ROUTER)) as sink:
        assert isinstance(sink, Gathering)
        sink.prepare(["a", "b"])
        found = sink.gathered(["a", "b"], lambda _: ["a", "b", "B"])
    assert target_of(found, "a", "b") == target_of(found, "b", "b") == target_of(found, "b")
    assert target_of(found, "a", "B") == target_of(found, "b", "b")  # one table to SQLite
    assert len({target_of(found, "a", "a"), target_of(found, "b", "b")}) == tables


def test_a_row_that_another_topic_has_replaced_is_not_lost_to_those_who_follow(
    tmp_path: Path,
) -> None:
    keys = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "id"}
    sink = sqlite(tmp_path, table_name_format="everything", **keys)
    sink.prepare(["a", "b"])
    sink.start(firsts({A: 0, B: 0}))
    given = {t: records([{"id": 1}], topic=t) for t in ("a", "b")}
    for topic, mine in given.items():
        sink.commit([advance(0, 1, topic=topic)], Commit([mine]))

    def from_kafka(*told: object) -> tuple[dict[TopicPartition, RecordOffsets], list[object]]:
        *_, taken = told
        assert callable(taken)
        for topic in given:
            taken(Mock(topic=topic))
        seen = {A: RecordOffsets(), B: RecordOffsets()}
        for each in seen.values():
            each.offsets.append(np.array([0]))
        return seen, []

    cluster = Mock()
    cluster.matching.return_value = {"a": 1, "b": 1}
    cluster.earliest.return_value = {A: 0, B: 0}
    cluster.latest.return_value = {A: 1, B: 1}
    cluster.compacted.return_value = set()
    pipeline = Mock(convert=lambda topic, _: Mock(parts=[given[topic]]))
    planned = Mock(sink=sink, connector=sink._connector)
    planned.guarantee.mechanism = Mechanism.TRANSACTIONAL
    with (
        closing(sink),
        closing(Workspace()) as workspace,
        patch.object(follower, "read", from_kafka),
        patch.object(Follower, "_check_logs"),
    ):
        state = FollowState("c", "x")
        following = Follower(planned, cluster, pipeline, state, print, workspace)
        found = following.round()
    assert {(j.topic, j.lost, j.duplicated, j.unknown) for j in found} == {
        ("a", 0, 0, 1),
        ("b", 0, 0, 1),
    }
