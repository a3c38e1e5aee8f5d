"""First positions of topics that appear while a connector runs, without a service."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from semel.core.errors import ConfigError, OffsetOutOfRange, Unavailable
from semel.core.ledger import LedgerEntry, LogId, OffsetRange, TopicPartition
from semel.driver.microbatch import plan as microtopics
from semel.driver.microbatch.plan import KnownTopics
from semel.driver.planning import Plan, plan
from semel.kafka.answers import failure
from semel.sinks.protocols import Membership
from semel.tasks import ranges
from semel.tasks.direct import reader
from semel.tasks.direct.reader import Conflicts, Reader
from tests.sinks.search.test_config import BASE

ZERO, ONE, TWO = (TopicPartition("orders.new", p) for p in range(3))


class Kafka:
    """Partitions that begin at offset 5."""

    def logs(self, topics: Iterable[str]) -> dict[str, LogId]:
        return {topic: LogId("cluster", topic) for topic in topics}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (9, 0))

    def topics(self) -> dict[str, int]:
        return {"orders.new": 3, "other": 8}

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 5)

    def latest(self, partitions: Iterable[TopicPartition], **_: bool) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 9)


def made(monkeypatch: pytest.MonkeyPatch, **keys: str) -> tuple[Plan, dict[TopicPartition, int]]:
    """A plan, and what its sink is given to enter."""
    raw = {**BASE, "topics.regex": "orders.*", **{k.replace("_", "."): v for k, v in keys.items()}}
    del raw["topics"]
    found = plan(raw)
    entered: dict[TopicPartition, int] = {}

    def start(entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        entered.update({e.topic_partition: e.position for e in entries})
        return dict(entered)

    monkeypatch.setattr(found.sink, "start", start)
    monkeypatch.setattr(found.sink, "prepare", lambda _topics: None)
    monkeypatch.setattr(found.sink, "entries", list)
    monkeypatch.setattr(found.sink, "targets", lambda _topics: {})
    return found, entered


def test_a_new_topics_partitions_are_entered_at_once_also_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is entered after another has moved would look as if added later."""
    found, entered = made(monkeypatch)
    facts = {"connector": found.connector, "sink": found.sink}
    run: Any = SimpleNamespace(**facts, cluster=Kafka(), guarantee=found.guarantee)
    monkeypatch.setattr(microtopics.sample, "schemas", lambda *_: {})
    known = KnownTopics(run, frames=False)
    known.enter_new([OffsetRange("orders.new", 1, 6, 8)])
    assert entered == {ZERO: 5, ONE: 6, TWO: 5}
    entered.clear()
    known.enter_new([OffsetRange("orders.new", 0, 5, 8)])
    assert not entered


def test_a_task_waits_for_the_groups_answer_when_a_topic_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = made(monkeypatch)
    kafka: Any = Kafka()
    there = kafka.earliest
    gone = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    monkeypatch.setattr(kafka, "earliest", Mock(side_effect=failure("k:9092", gone)))
    monkeypatch.setattr(reader, "_ASK_AGAIN", -1.0)
    told: list[str] = []
    subscription = Mock(cluster=kafka, member=Membership("m", frozenset([ONE]), None))
    committer = Mock(retrying=lambda action: action())
    conflicts = Conflicts("c", 1.0, told.append)
    task = Reader(found.connector, found.sink, subscription, committer, conflicts, Mock(), Mock())
    task.seek()
    assert "Was a topic deleted" in told[0]
    assert not task.positions
    monkeypatch.setattr(kafka, "earliest", there)
    task.ask_again()
    assert task.positions == {ONE: 5}


def test_a_cut_that_was_met_in_a_partition_that_is_another_tasks_by_now_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = made(monkeypatch)
    cluster: Any = Kafka()
    standing = ranges.stored_entries(found.connector, found.sink, cluster, [ONE], {ZERO: 3})
    assert {tp: e.position for tp, e in standing.items()} == {ONE: 5}


@pytest.mark.parametrize("then", [{}, {"orders.new": LogId("cluster", "another")}])
@pytest.mark.parametrize("truncated", ["stop", "continue"])
def test_a_topic_that_is_created_again_while_it_is_looked_at_is_not_mistaken_for_a_cut_one(
    truncated: str, then: dict[str, LogId], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id was asked for before its offsets, and was still the former topic's."""
    found, _ = made(monkeypatch, log_truncated=truncated)
    entry = LedgerEntry(*ZERO, 12, 5, cluster_id="cluster", topic_id="orders.new")
    monkeypatch.setattr(found.sink, "entries", lambda: [entry])
    monkeypatch.setattr(found.sink, "rebase", lambda _rebases: pytest.fail("positions moved"))
    cluster: Any = Kafka()
    answers = [{"orders.new": entry.log}, then]
    monkeypatch.setattr(cluster, "logs", lambda _topics: answers.pop(0))
    with pytest.raises(Unavailable, match=r"topic orders\.new was deleted or created again while"):
        ranges.stored_entries(found.connector, found.sink, cluster, [ZERO])
    answers = [{"orders.new": entry.log}, {"orders.new": entry.log}]
    if truncated == "stop":
        with pytest.raises(OffsetOutOfRange, match="the log was truncated"):
            ranges.stored_entries(found.connector, found.sink, cluster, [ZERO])


def test_a_task_with_one_partition_enters_the_whole_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    found, entered = made(monkeypatch)
    cluster: Any = Kafka()
    assert ranges.positions(found.connector, found.sink, cluster, [ONE]) == {ONE: 5}
    assert entered == {ZERO: 5, ONE: 5, TWO: 5}


def test_partitions_are_entered_one_by_one_if_nothing_requires_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, entered = made(monkeypatch, key_ignore="true")
    cluster: Any = Kafka()
    ranges.positions(found.connector, found.sink, cluster, [ONE])
    assert entered == {ONE: 5}


def test_a_topic_that_is_deleted_under_a_running_connector_is_waited_for() -> None:
    class Gone:
        def matching(self, _connector: object) -> dict[str, int]:
            raise ConfigError("topic orders does not exist")

    connector: Any = SimpleNamespace(name="c")
    gone: Any = Gone()
    with pytest.raises(Unavailable, match="topic orders does not exist"):
        ranges.topics_now(connector, gone)
