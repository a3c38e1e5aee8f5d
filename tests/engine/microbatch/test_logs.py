"""Positions of a micro-batch whose log is not the one that was read: created again, or cut."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.errors import LogChanged, OffsetOutOfRange
from semel.core.ledger import LogId, OffsetRange, TopicPartition, first
from semel.kafka.cluster import Cluster
from semel.tasks.microbatch.commit import KnownLogs
from semel_lab.embedded import Kafka, logs
from tests.conftest import Produce
from tests.engine.harness import name, recreate
from tests.engine.microbatch.conftest import Go, Launch, MakeConfig, Query
from tests.engine.microbatch.transforms import passing, rows

pytestmark = pytest.mark.integration


class Log:
    """A topic of one partition in a cluster of these tests' own."""

    def __init__(self, kafka: Kafka, produce: Produce) -> None:
        self.kafka = kafka
        self._produce = produce
        self.tp = TopicPartition(name(), 0)
        kafka.create_topic(self.tp.topic, 1)

    def produce(self, count: int, start: int) -> None:
        for at in range(start, start + count, 10):
            servers = self.kafka.bootstrap_servers
            self._produce(self.tp.topic, rows(10, at), bootstrap_servers=servers)

    def cut(self, offset: int) -> None:
        """Lose what follows an offset, as an unclean leader election does."""
        self.kafka.stop()
        logs.truncate(logs.partition_directory(self.kafka.directory / "data", self.tp), offset)
        self.kafka.start()


@pytest.fixture
def log(module_kafka: Kafka, produce: Produce) -> Log:
    return Log(module_kafka, produce)


class Pins:
    """Pins ranges as the driver of a connector does that has read the topic up to 20."""

    def __init__(self, log: Log) -> None:
        tp = log.tp
        self.cluster = Cluster({"bootstrap.servers": log.kafka.bootstrap_servers})
        self.known = KnownLogs(self.cluster)
        self.known.expect([first(tp, 0, self.cluster.logs([tp.topic])[tp.topic], "")])
        log.produce(20, 0)
        self.read = OffsetRange(*tp, 0, 20)
        self.pinned = self.known.pin([self.read])


@pytest.mark.long
def test_records_of_the_pinned_log_are_confirmed_also_by_a_later_leader(log: Log) -> None:
    pins = Pins(log)
    pins.pinned.confirm(pins.cluster, [pins.read])
    log.kafka.stop()
    log.kafka.start()
    pins.pinned.confirm(pins.cluster, [pins.read])
    log.produce(10, 20)
    pins.known.pin([OffsetRange(*log.tp, 20, 30)])


@pytest.mark.long
def test_records_are_not_confirmed_of_a_log_that_was_cut_while_they_were_read(log: Log) -> None:
    pins = Pins(log)
    log.cut(10)
    log.produce(30, 100)
    with pytest.raises(LogChanged, match=f"the log of {log.tp} was truncated"):
        pins.pinned.confirm(pins.cluster, [pins.read])
    with pytest.raises(LogChanged, match=f"the log of {log.tp} was truncated"):
        pins.known.pin([OffsetRange(*log.tp, 20, 40)])


@pytest.mark.long
def test_records_are_not_confirmed_of_a_topic_created_again_while_they_were_read(log: Log) -> None:
    pins = Pins(log)
    recreate(log.kafka, log.tp.topic)
    log.produce(30, 100)
    with pytest.raises(LogChanged, match=f"topic {log.tp.topic} was created again"):
        pins.pinned.confirm(pins.cluster, [pins.read])
    with pytest.raises(LogChanged, match=f"topic {log.tp.topic} was created again"):
        pins.known.pin([OffsetRange(*log.tp, 20, 30)])


def test_a_partition_that_appears_in_another_log_than_the_topics_others_is_not_read() -> None:
    known = KnownLogs(Cluster({"bootstrap.servers": "none:9092"}))
    former, present = LogId("k", "former"), LogId("k", "present")
    known.add([first(TopicPartition("t", 0), 5, former), first(TopicPartition("t", 1), 0)])
    with pytest.raises(LogChanged, match="topic t was created again"):
        known.add([first(TopicPartition("t", 2), 0, present)])
    with pytest.raises(LogChanged, match="topic u was created again"):
        known.add(
            [first(TopicPartition("u", n), 0, log) for n, log in enumerate([former, present])]
        )


@pytest.mark.long
@pytest.mark.parametrize("transform", [None, passing])
def test_a_cut_log_stops_it_and_is_read_from_where_the_logs_diverge_if_configured(
    log: Log, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    config = configure(log.tp.topic) | {"bootstrap.servers": log.kafka.bootstrap_servers}
    log.produce(50, 0)
    go(config, transform)
    log.cut(30)
    log.produce(40, 100)
    with pytest.raises(
        OffsetOutOfRange,
        match=r"the stored position is 50, but from offset 30 on the log is a different one. 20 "
        r"records that were read are gone from Kafka \(offsets 30 to 49\), 40 were not read "
        r"\(offsets 30 to 69\)",
    ):
        go(config, transform)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in range(50)]
    go(config | {"log.truncated": "continue"}, transform)
    found = query("SELECT id FROM t ORDER BY id")
    assert found == [(i,) for i in (*range(50), *range(100, 140))]


@pytest.mark.long
def test_a_log_cut_under_a_running_query_stops_it(
    log: Log, configure: MakeConfig, query: Query, launch: Launch
) -> None:
    config = configure(log.tp.topic) | {"bootstrap.servers": log.kafka.bootstrap_servers}
    log.produce(50, 0)
    running = launch(config)
    running.reach(lambda p: p.positions.get(log.tp) == 50)
    log.cut(30)
    log.produce(40, 100)
    assert isinstance(running.end(), OffsetOutOfRange)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in range(50)]


@pytest.mark.parametrize("transform", [None, pytest.param(passing, marks=pytest.mark.long)])
def test_a_topic_created_again_under_a_running_query_stops_it_before_anything_is_written(
    log: Log, configure: MakeConfig, query: Query, launch: Launch, transform: Any
) -> None:
    config = configure(log.tp.topic) | {"bootstrap.servers": log.kafka.bootstrap_servers}
    log.produce(20, 0)
    running = launch(config, transform)
    running.reach(lambda p: p.positions.get(log.tp) == 20)
    recreate(log.kafka, log.tp.topic)
    log.produce(60, 100)
    error = running.end()
    assert isinstance(error, OffsetOutOfRange)
    assert "was deleted and created again" in str(error)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in range(20)]
    assert query("SELECT position FROM semel_offsets") == [(20,)]


@pytest.mark.long
@pytest.mark.parametrize("transform", [None, passing])
def test_a_batch_is_not_committed_once_another_run_has_moved_the_position_to_another_log(
    log: Log, configure: MakeConfig, query: Query, launch: Launch, transform: Any
) -> None:
    config = configure(log.tp.topic) | {"bootstrap.servers": log.kafka.bootstrap_servers}
    log.produce(20, 0)
    running = launch(config, transform)
    running.reach(lambda p: p.positions.get(log.tp) == 20)
    query("UPDATE semel_offsets SET topic_id = 'another'")
    log.produce(10, 20)
    error = running.end()
    assert isinstance(error, OffsetOutOfRange)
    assert "was deleted and created again" in str(error)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in range(20)]
    assert query("SELECT position FROM semel_offsets") == [(20,)]
