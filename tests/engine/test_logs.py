"""Positions whose log is not the one that was read: created again, cut, or another cluster's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from semel.audit import audit
from semel.core.errors import OffsetOutOfRange
from semel.core.ledger import Hole, LedgerEntry, TopicPartition
from semel.driver.planning import plan
from semel_lab.embedded import Kafka, logs
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import (
    assert_nothing_lost_nothing_twice,
    caught_up,
    ids,
    name,
    positions,
    records,
    recreate,
    some,
    sql,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


def entries(config: Mapping[str, Any]) -> dict[TopicPartition, LedgerEntry]:
    sink = plan(config).sink
    try:
        return {e.topic_partition: e for e in sink.entries()}
    finally:
        sink.close()


def holes(config: Mapping[str, Any]) -> list[Hole]:
    sink = plan(config).sink
    try:
        return list(sink.snapshot([]).holes)
    finally:
        sink.close()


@pytest.mark.long
def test_entries_name_their_log_and_the_epoch_of_its_last_record(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    found = entries(config)[TopicPartition(source, 0)]
    assert found.cluster_id == kafka.cluster_id
    assert len(found.topic_id) == 22
    assert (found.epoch_offset, found.leader_epoch) == (10, 0)
    assert found.target.startswith(f"public.{source}#")


def test_a_topic_created_again_with_more_records_stops_it_and_is_read_if_so_configured(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(50))
    config = configure(source)
    caught_up(config)
    before = entries(config)
    recreate(kafka, source)
    produce(source, records(100, 50))
    with pytest.raises(
        OffsetOutOfRange,
        match=rf"topic {source} was deleted and created again: .* stored position 50, the new log "
        "holds offsets 0 to 99, none of which were committed.*topic.recreated=earliest",
    ):
        caught_up(config)
    assert entries(config) == before
    assert ids(config["connection.url"], source) == list(range(50))

    caught_up({**config, "topic.recreated": "earliest"})
    tp = TopicPartition(source, 0)
    after = entries(config)[tp]
    assert (after.position, after.start_position) == (100, 0)
    assert after.topic_id != before[tp].topic_id
    assert holes(config) == [Hole(source, 0, 0, 50, "topic created again")]
    assert ids(config["connection.url"], source) == list(range(150))


def test_a_topic_created_again_under_a_running_task_stops_it_before_anything_is_written(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    running = start(config)
    tp = TopicPartition(source, 0)
    running.until(lambda p: p.positions.get(tp) == 20)
    recreate(kafka, source)
    produce(source, records(60, 100))
    with pytest.raises(OffsetOutOfRange, match="was deleted and created again"):
        running.wait()
    assert ids(config["connection.url"], source) == list(range(20))
    assert positions(config) == {tp: 20}


def test_a_batch_is_not_committed_once_another_run_has_moved_the_position_to_another_log(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    running = start(config)
    tp = TopicPartition(source, 0)
    running.until(lambda p: p.positions.get(tp) == 20)
    sql(config["connection.url"], "UPDATE semel_offsets SET topic_id = 'another'")
    produce(source, records(10, 20))
    with pytest.raises(OffsetOutOfRange, match="was deleted and created again"):
        running.wait()
    assert ids(config["connection.url"], source) == list(range(20))
    assert positions(config) == {tp: 20}


def _slowly(rows: pa.Table) -> pa.Table:
    time.sleep(0.04)
    return rows


@pytest.mark.long
def test_a_topic_created_again_under_load_stops_it_before_its_records_are_committed(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    """The consumer gets the new topic's records while old ones still wait to be polled, so that
    there is no pause between the two."""
    source = topic(values=records(60))
    config = configure(source, {"max.poll.records": "1"})
    running = start(config, _slowly)
    tp = TopicPartition(source, 0)
    running.until(lambda p: p.positions.get(tp, 0) >= 5)
    recreate(kafka, source)
    produce(source, records(300, 1000))
    with pytest.raises(OffsetOutOfRange, match="was deleted and created again"):
        running.wait()
    assert ids(config["connection.url"], source) == list(range(positions(config)[tp]))


@pytest.mark.long
def test_the_same_name_in_another_cluster_stops_it(topic: MakeTopic, configure: Configure) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    sql(config["connection.url"], "UPDATE semel_offsets SET cluster_id = 'former'")
    with pytest.raises(OffsetOutOfRange, match="belong to cluster former, and this is"):
        caught_up(config)


@pytest.mark.long
def test_a_topic_that_was_left_out_for_a_while_is_read_on(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    first, second = topic(), topic()
    for each in (first, second):
        produce(each, records(10))
    config = configure(f"{first},{second}")
    caught_up(config)
    caught_up({**config, "topics": first})
    produce(second, records(10, 10))
    caught_up(config)
    assert ids(config["connection.url"], second) == list(range(20))


class Log:
    """A topic of one partition in a cluster of these tests' own, and a connector that reads it."""

    def __init__(self, kafka: Kafka, produce: Produce, configure: Configure) -> None:
        self.kafka = kafka
        self.topic = name()
        self.tp = TopicPartition(self.topic, 0)
        kafka.create_topic(self.topic, 1)
        self._produce = produce
        self.config: Config = configure(self.topic, {"bootstrap.servers": kafka.bootstrap_servers})

    def produce(self, count: int, start: int) -> None:
        servers = self.kafka.bootstrap_servers
        for at in range(start, start + count, 10):
            self._produce(self.topic, records(10, at), bootstrap_servers=servers)

    def cut(self, offset: int) -> None:
        """Lose what follows an offset, as an unclean leader election does."""
        self.kafka.stop()
        logs.truncate(logs.partition_directory(self.kafka.directory / "data", self.tp), offset)
        self.kafka.start()

    def transaction(self) -> Producer:
        """A producer whose transaction has begun."""
        servers = self.kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "transactional.id": name()})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        return producer


@pytest.fixture
def log(module_kafka: Kafka, produce: Produce, configure: Configure) -> Log:
    return Log(module_kafka, produce, configure)


def test_a_cut_log_stops_it_and_is_read_from_where_the_logs_diverge_if_configured(
    log: Log,
) -> None:
    log.produce(50, 0)
    caught_up(log.config)
    log.cut(30)
    log.produce(70, 100)
    with pytest.raises(
        OffsetOutOfRange,
        match=rf"{log.topic}-0: the log was truncated, .* stored position is 50, but from offset "
        r"30 on .*20 records that were read are gone from Kafka \(offsets 30 to 49\), 70 were not "
        r"read \(offsets 30 to 99\).*log.truncated=continue",
    ):
        caught_up(log.config)
    assert positions(log.config) == {log.tp: 50}

    caught_up({**log.config, "log.truncated": "continue"})
    assert positions(log.config) == {log.tp: 100}
    assert holes(log.config) == [Hole(log.topic, 0, 30, 50, "log truncated")]
    assert ids(log.config["connection.url"], log.topic) == [*range(50), *range(100, 170)]

    assert audit(log.config).complete  # all rows are there, by their number
    sql(log.config["connection.url"], f'DELETE FROM "{log.topic}" WHERE id BETWEEN 30 AND 49')
    report = audit(log.config)
    assert (report.lost, report.kept) == (0, False)
    (line,) = report.not_judged
    assert f"{log.tp}: offsets 30 to 49 were read from a part of the log that was cut off" in line
    sql(log.config["connection.url"], f'DELETE FROM "{log.topic}" WHERE id < 30')
    assert audit(log.config).lost == 30


@pytest.mark.parametrize("store", some(["postgresql", "sqlite"], []))
def test_rows_that_records_replaced_before_they_were_cut_off_are_not_judged(
    store: str, log: Log, tmp_path: Path
) -> None:
    """PostgreSQL shows the audit when a row's record was sent; SQLite does not."""
    config = {**log.config, "insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
    if store == "sqlite":
        url = f"jdbc:sqlite:{tmp_path}/rows.db"
        config |= {"connector.class": "sqlite", "connection.url": url}
        del config["connection.loginTimeout"]
    log.produce(10, 0)
    log.produce(10, 5)
    caught_up(config)
    log.cut(10)
    for _ in range(2):
        log.produce(10, 100)  # the second ones replace those at the offsets of the lost records
    caught_up({**config, "log.truncated": "continue"})
    report = audit(config)
    assert (report.lost, report.duplicated) == (0, 0)
    # The rows of 5 to 9 come from lost records. In SQLite, any of these may be a new record's.
    assert report.unknown == (5 if store == "postgresql" else 15)
    assert report.ghosts == 10
    assert not report.complete


@pytest.mark.long
def test_a_log_cut_under_a_running_task_stops_it(log: Log, start: Start) -> None:
    log.produce(50, 0)
    running = start(log.config)
    running.until(lambda p: p.positions.get(log.tp) == 50)
    log.cut(30)
    log.produce(70, 100)
    with pytest.raises(OffsetOutOfRange, match=r"gone from Kafka \(offsets 30 to 49\)"):
        running.wait()
    assert ids(log.config["connection.url"], log.topic) == list(range(50))


@pytest.mark.long
def test_a_log_that_was_cut_and_holds_less_than_was_read_stops_it(log: Log) -> None:
    log.produce(50, 0)
    caught_up(log.config)
    log.cut(30)
    with pytest.raises(OffsetOutOfRange, match=r"offsets 30 to 49\), 0 were not read"):
        caught_up(log.config)


@pytest.mark.long
def test_a_marker_of_a_later_epoch_than_the_last_records_is_no_false_alarm(log: Log) -> None:
    producer = log.transaction()
    for value in records(10):
        producer.produce(log.topic, value, partition=0)
    producer.flush(PATIENCE)
    log.kafka.stop()
    log.kafka.start()
    producer.commit_transaction(PATIENCE)
    caught_up(log.config)
    found = entries(log.config)[log.tp]
    assert (found.position, found.epoch_offset, found.leader_epoch) == (11, 10, 0)
    log.produce(10, 10)
    caught_up(log.config)
    assert_nothing_lost_nothing_twice(log.config, range(20))


@pytest.mark.long
def test_a_log_cut_after_the_last_record_and_before_the_position_is_noticed(
    log: Log, start: Start
) -> None:
    """Where the position is, the log has never been in the epoch of the last record."""
    log.produce(10, 0)
    producer = log.transaction()
    for value in records(5, 500):
        producer.produce(log.topic, value, partition=0)
    producer.flush(PATIENCE)
    producer.abort_transaction(PATIENCE)
    running = start(log.config)
    running.until(lambda p: p.positions.get(log.tp) == 16)
    log.cut(10)
    log.produce(10, 100)
    parted = r"from offset 10 on .* \(offsets 10 to 15\), "
    with pytest.raises(OffsetOutOfRange, match=parted):  # perhaps before there are new records
        running.wait()
    with pytest.raises(OffsetOutOfRange, match=parted + "10 were not read"):
        caught_up(log.config)
    caught_up({**log.config, "log.truncated": "continue"})
    assert ids(log.config["connection.url"], log.topic) == [*range(10), *range(100, 110)]


@pytest.mark.long
def test_damage_between_the_last_record_and_the_position_does_not_hold_it_up(log: Log) -> None:
    log.produce(10, 0)
    producer = log.transaction()
    for value in records(5, 500):
        producer.produce(log.topic, value, partition=0)
    producer.flush(PATIENCE)
    producer.abort_transaction(PATIENCE)
    caught_up(log.config)
    found = entries(log.config)[log.tp]
    assert (found.position, found.epoch_offset) == (16, 10)
    log.kafka.stop()
    directory = logs.partition_directory(log.kafka.directory / "data", log.tp)
    logs.flip(next(b for b in logs.batches(directory) if b.first_offset == 10))
    log.kafka.start()
    log.produce(10, 10)
    caught_up(log.config)
    assert ids(log.config["connection.url"], log.topic) == list(range(20))
