"""What is read, from where, and what happens when it is not there."""

from __future__ import annotations

import itertools
import json
import signal
import time
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from semel.audit import audit
from semel.core.errors import OffsetOutOfRange, SemelError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.kafka.reader import read_ranges
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Start
from tests.engine.harness import (
    assert_nothing_lost_nothing_twice,
    caught_up,
    ids,
    name,
    positions,
    records,
    recreate,
    sql,
    wait_until,
)

pytestmark = pytest.mark.integration

FRESH = {"consumer.override.metadata.max.age.ms": 1000}


@pytest.mark.long
def test_a_commit_holds_at_most_max_poll_records(topic: MakeTopic, configure: Configure) -> None:
    source = topic(values=records(100))
    config = configure(source, {"consumer.override.max.poll.records": 30})
    progress = caught_up(config)
    assert progress.commits >= 4
    assert (
        max(sql(config["connection.url"], f'SELECT count(*) FROM "{source}" GROUP BY xmin')) <= 30
    )


@pytest.mark.long
def test_a_commit_holds_at_most_a_quarter_of_max_poll_bytes(
    topic: MakeTopic, configure: Configure
) -> None:
    text = "some text " * 20_000
    source = topic(values=[json.dumps({"id": i, "text": text}) for i in range(40)])
    config = configure(source, {"max.poll.bytes": 4 * 1024 * 1024})
    caught_up(config)
    query = f'SELECT count(*), sum(length(text)) FROM "{source}" GROUP BY xmin'
    commits = sql(config["connection.url"], query)
    assert sum(count for count, _ in commits) == 40
    assert all(size <= 1024 * 1024 for _, size in commits)


def test_aborted_transactions_are_not_read_and_markers_at_the_end_are_passed(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name()})
    producer.init_transactions()
    for start, commit in ((0, True), (10, False), (20, True), (30, False)):
        producer.begin_transaction()
        for value in records(10, start):
            producer.produce(source, value)
        if commit:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    config = configure(source)
    progress = caught_up(config)
    assert progress.records == 20
    assert positions(config) == {TopicPartition(source, 0): 44}
    assert_nothing_lost_nothing_twice(config, [*range(10), *range(20, 30)])


def test_partitions_added_while_it_runs_are_read_from_their_start_even_with_latest(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(partitions=1, values=records(10))
    config = configure(source, {**FRESH, "consumer.override.auto.offset.reset": "latest"})
    running = start(config)
    running.until(lambda p: TopicPartition(source, 0) in p.positions and bool(p.tasks))
    kafka.increase_partitions(source, 2)
    produce(source, records(10, start=10), partition=1)
    produce(source, records(5, start=20), partition=0)
    running.until(lambda p: p.positions.get(TopicPartition(source, 1)) == 10)
    running.stop_when(lambda p: p.positions.get(TopicPartition(source, 0)) == 15)
    assert ids(config["connection.url"], source) == list(range(10, 25))


@pytest.mark.long
def test_topics_that_match_the_pattern_are_picked_up_while_it_runs(
    topic: MakeTopic, configure: Configure, start: Start
) -> None:
    prefix = name()
    first = topic(prefix=f"{prefix}-a1", values=records(5))
    # Python's pattern: librdkafka's has no \d, and would bind ^ and $ tighter than |.
    pattern = rf"{prefix}-a\d-.+|{prefix}-b.*"
    config = configure(
        "", {**FRESH, "topics.regex": pattern, "auto.offset.reset": "latest", "topics": None}
    )
    running = start(config)
    running.until(lambda p: TopicPartition(first, 0) in p.positions and bool(p.tasks))
    second = topic(prefix=f"{prefix}-b", values=records(7))
    topic(prefix=f"{prefix}-c", values=records(7))
    running.stop_when(lambda p: p.positions.get(TopicPartition(second, 0)) == 7)
    assert ids(config["connection.url"], second) == list(range(7))
    assert {tp.topic for tp in positions(config)} == {first, second}


def test_a_topic_never_seen_before_starts_at_its_end_with_latest(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(values=records(10))
    config = configure(source, {"auto.offset.reset": "latest"})
    running = start(config)
    running.until(lambda p: bool(p.tasks))
    produce(source, records(5, start=10))
    running.stop_when(lambda p: p.positions.get(TopicPartition(source, 0)) == 15)
    assert_nothing_lost_nothing_twice(config, range(10, 15))


def test_records_removed_before_they_were_read_stop_it_with_all_facts(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    caught_up(config)
    produce(source, records(20, start=20))
    kafka.delete_records(source, {0: 33})
    with pytest.raises(
        OffsetOutOfRange,
        match=rf"{source}-0: stored position 20, earliest available 33, 13 records lost",
    ):
        caught_up(config)
    assert positions(config) == {TopicPartition(source, 0): 20}

    caught_up({**config, "offset.out.of.range": "earliest"})
    holes = sql(
        config["connection.url"],
        "SELECT topic, partition, from_offset, until_offset, reason FROM semel_holes",
    )
    assert holes == [(source, 0, 20, 33, "removed by retention")]
    report = audit(config)
    assert report.kept
    assert (report.lost, report.duplicated, report.partitions[0].retention) == (0, 0, 13)
    assert ids(config["connection.url"], source) == [*range(20), *range(33, 40)]


def test_records_removed_under_a_running_task_stop_it(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic()
    config = configure(source, {"consumer.override.fetch.max.wait.ms": 10})
    running = start(config)
    running.until(lambda p: bool(p.tasks))
    tp = TopicPartition(source, 0)
    for known in itertools.count(0, 20):
        task = psutil.Process(running.spark.signal(0, signal.SIGSTOP))
        wait_until(lambda task=task: task.status() == psutil.STATUS_STOPPED)  # type: ignore[misc]
        time.sleep(0.1)  # ten times as long as the broker holds a fetch
        produce(source, records(20, known))
        kafka.delete_records(source, {0: known + 15})
        task.resume()
        wait_until(
            lambda end=known + 20: (  # type: ignore[misc]
                not running.alive or running.progress.positions.get(tp) == end
            )
        )
        if not running.alive:  # otherwise the fetch had not ended: it brought them
            break
    told = rf"stored position {known}, earliest available {known + 15}"
    with pytest.raises(OffsetOutOfRange, match=told):
        running.wait()


def test_records_that_are_gone_are_not_passed_over_in_a_sample_or_an_audit(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(20))
    kafka.delete_records(source, {0: 15})
    planned = plan(configure(source))
    tp = TopicPartition(source, 0)
    with pytest.raises(OffsetOutOfRange, match="retention has removed them meanwhile"):
        list(read_ranges(planned.connector, {tp: 10}, {tp: 20}))
    (found,) = read_ranges(planned.connector, {tp: 15}, {tp: 20})
    assert [m.offset() for m in found] == [15, 16, 17, 18, 19]


def test_no_commit_begins_once_a_task_has_subscribed_again(
    topic: MakeTopic, configure: Configure, tmp_path: Path
) -> None:
    """librdkafka may give up the partitions before it says so."""
    source = topic(values=records(100))
    config = configure(source, {"consumer.override.max.poll.records": 10})
    begun = tmp_path / "begun"

    def subscribes(rows: pa.Table) -> pa.Table:
        from semel.tasks.commit import Committer
        from semel.tasks.direct.subscription import Subscription

        if begun.exists() or parent_process() is None:  # the driver calls it with a sample
            return rows
        begun.touch()
        refresh, begin = Subscription.refresh, Committer.begin
        again: list[Subscription] = []

        def ask_again(self: Subscription) -> None:
            Subscription.refresh = refresh  # type: ignore[method-assign]
            again.append(self)
            self._resubscribe()

        def beginning(self: Committer, *arguments: Any) -> None:
            if again:
                with begun.open("a") as log:
                    log.write(f"{again[0].rejoins}\n")
            begin(self, *arguments)

        Subscription.refresh = ask_again  # type: ignore[method-assign]
        Committer.begin = beginning  # type: ignore[method-assign]
        return rows

    caught_up(config, subscribes)
    assert set(begun.read_text().split()) == {"False"}
    assert_nothing_lost_nothing_twice(config, range(100))


@pytest.mark.long
def test_a_topic_deleted_and_created_again_stops_it(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    caught_up(config)
    recreate(kafka, source)
    produce(source, records(5))
    with pytest.raises(OffsetOutOfRange, match=r"created again.*topic.recreated=earliest"):
        caught_up(config)
    with pytest.raises(SemelError, match="was created again"):
        audit(config)


@pytest.mark.long
def test_a_topic_deleted_and_created_again_under_a_running_task_stops_it(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(values=records(20))
    config = configure(source, FRESH)
    running = start(config)
    running.until(lambda p: p.rows == 20)
    recreate(kafka, source)
    produce(source, records(5))
    with pytest.raises(SemelError, match=r"created again|does not exist"):
        running.wait()


def test_dead_letters_keep_the_headers_of_their_records(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    produce(source, [b"{"], keys=[b"k"], headers=[[("h", b"1"), ("h", b"2"), ("none", None)]])
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = configure(source, keys)
    caught_up(config)
    (headers,) = sql(config["connection.url"], "SELECT headers::text FROM dead")
    assert json.loads(headers) == [["h", "1"], ["h", "2"], ["none", None]]
