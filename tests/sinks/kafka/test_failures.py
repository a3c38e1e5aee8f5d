"""Crashes, zombies, twins and brokers that go away: each record once all the same."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer

from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import ConfigError, Fenced, LedgerConflict, NotAssigned
from semel.core.ledger import Advance, LedgerEntry, OffsetRange, Outcome, Rebase, TopicPartition
from semel.core.records import Commit
from semel.driver.planning import plan
from semel.kafka.consumer import consumer_config
from semel.kafka.groups import Groups
from semel.sinks.kafka import KafkaSink
from semel.sinks.kafka.ledger import Ledger
from semel.sinks.kafka.offsets import Group
from semel.sinks.protocols import Membership
from semel_lab.embedded import Kafka
from tests import matrix
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import (
    MANY_COMMITS,
    SHORT_SESSION,
    LocalJob,
    LocalSpark,
    assert_promise_kept,
    caught_up,
    once_let_go,
    one_takes_the_place,
    positions,
    records,
    some,
    wait_until,
)
from tests.patience import PATIENCE
from tests.sinks.kafka.conftest import Config, Configure, Start
from tests.sinks.kafka.copying import assert_each_once, ids, target

pytestmark = pytest.mark.integration

COUNT = 300
CLUSTERS = ("the same cluster", "another cluster")
SMALL = {"consumer.override.max.poll.records": 40}
PATIENT = {"producer.override.transaction.timeout.ms": 300_000}
"""An open transaction outlasts every wait of a test."""
LOSES = {"deliver.between", "sink.after_positions", "sink.before_commit"}
REPEATS = {"deliver.between", "sink.after_commit"}
PLACES = [("transactional", p) for p in failpoints.PLACES if p != "deliver.between"]
PLACES += [("at-least-once", p) for p in sorted(REPEATS)]
PLACES += [("at-most-once", p) for p in sorted(LOSES)]
SHORT = [("transactional", "sink.before_commit")]


@pytest.mark.cell(sink="kafka", mode="direct", delivery="delivery")
@pytest.mark.parametrize(("delivery", "place"), some(PLACES, SHORT))
def test_killed_at(
    delivery: str, place: str, topic: MakeTopic, configure: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = configure(source, {**SMALL, **matrix.DELIVERIES[delivery]})
    failpoints.arm(points, place, "kill-worker", skip=2)
    spark = LocalSpark(points)
    caught_up(config, spark=spark)
    assert failpoints.fired(points)[0][:2] == (place, "kill-worker")
    assert spark.attempts[0] >= 1
    shows = place in {"at-most-once": LOSES, "at-least-once": REPEATS}.get(delivery, set())
    assert_promise_kept(config, points, ids(config), COUNT, shows=shows)


@pytest.mark.long
def test_a_coordinator_that_does_not_know_the_group_yet(
    topic: MakeTopic, configure: Configure, tmp_path: Path
) -> None:
    """It has moved in the middle of a transaction. There is no rebalance: the group's generation
    is what it was when the coordinator has read it."""
    source = topic(partitions=2, values=records(COUNT))
    config = configure(source, SMALL)
    asked, patched = tmp_path / "asked", tmp_path / "patched"

    def unsettled(rows: pa.Table) -> pa.Table:
        from semel.core.errors import NotAssigned
        from semel.kafka.transactions import Transactions
        from semel.sinks.kafka.offsets import Group

        if patched.exists() or parent_process() is None:  # the driver calls it with a sample
            return rows
        patched.touch()
        absent, run = Group.absent, Transactions.run

        def unknown(*_arguments: object, **_named: object) -> None:
            with asked.open("a") as log:
                log.write("absent\n" if log.tell() else "run\n")
                if log.tell() > len("run\n") + len("absent\n"):
                    Group.absent, Transactions.run = absent, run  # type: ignore[method-assign]
            raise NotAssigned("no member of the group")

        Group.absent = Transactions.run = unknown  # type: ignore[method-assign,assignment]
        return rows

    caught_up(config, unsettled)
    assert asked.read_text().split() == ["run", "absent", "absent"]
    assert_each_once(config, range(COUNT))


@pytest.fixture(params=some(CLUSTERS, {"another cluster"}))
def copies(request: pytest.FixtureRequest, configure: Configure) -> Callable[[str, Config], Config]:
    """Connectors into the cluster that they read from, and into another one."""

    def make(source: str, keys: Config) -> Config:
        elsewhere = {}
        if request.param == "another cluster":
            other = request.getfixturevalue("other_kafka").bootstrap_servers
            elsewhere = {"dest.kafka.bootstrap.servers": other}
        return configure(source, {**keys, **elsewhere})

    return make


@pytest.mark.parametrize(
    ("copies", "place"),
    some(
        itertools.product(CLUSTERS, ("sink.after_positions", "sink.before_commit")),
        {("another cluster", "sink.before_commit")},
    ),
    indirect=["copies"],
)
def test_a_task_that_wakes_up_in_its_transaction_after_its_partitions_have_moved(
    place: str, topic: MakeTopic, produce: Produce, copies: Configure, start: Start, points: Path
) -> None:
    source = topic(partitions=2, values=records(400))
    config = copies(source, {**SHORT_SESSION, **PATIENT, "tasks.max": "2"})
    failpoints.arm(points, place, "freeze", skip=3)
    running = start(config, spark=LocalSpark(points))
    # The other task takes all partitions, long before the frozen transaction's time is out.
    running.until(lambda p: sum(p.positions.values()) >= 400)
    frozen = failpoints.fired(points)[-1].pid
    # Whoever takes over aborts a transaction that holds offsets, and any in another cluster.
    if place == "sink.before_commit" or "dest.kafka.bootstrap.servers" in config:
        assert_each_once(config, range(400))
    failpoints.thaw(points, frozen)
    produce(source, records(200, start=400))
    running.stop_when(lambda p: sum(p.positions.values()) >= 600)
    assert_each_once(config, range(600))


def joined(consumer: Consumer, source: str, partitions: int = 1, *others: Consumer) -> Membership:
    """A consumer's place in the group, once it has so many partitions; the others are polled."""
    consumer.subscribe([source])

    def has_them() -> bool:
        for each in (*others, consumer):
            each.poll(0.05)
        return len(consumer.assignment()) == partitions

    wait_until(has_them)
    given = frozenset(TopicPartition(p.topic, p.partition) for p in consumer.assignment())
    return Membership(str(consumer.memberid()), given, consumer.consumer_group_metadata())


@pytest.mark.long
def test_a_task_that_has_lost_partitions_without_knowing_it_moves_nothing_in_another_cluster(
    topic: MakeTopic, configure: Configure, other_kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka may join again before the task has given up what it had, and no broker of the
    other cluster knows the group's generations."""
    source = topic(partitions=2)
    elsewhere = {"dest.kafka.bootstrap.servers": other_kafka.bootstrap_servers, "tasks.max": "2"}
    long = {"consumer.override.session.timeout.ms": 300_000}  # nobody is away, however slow it is
    planned = plan(configure(source, {**PATIENT, **elsewhere, **long}))
    driver, connector = planned.sink, planned.connector
    driver.prepare([source])
    driver.start([LedgerEntry(source, partition, 0, 0) for partition in (0, 1)])
    consumers = [Consumer(consumer_config(connector, task)) for task in (0, 1)]
    tasks = [KafkaSink(connector) for _ in consumers]

    confirm, pending = Group.confirm, list[set[TopicPartition]]()
    offsets = Groups({"bootstrap.servers": other_kafka.bootstrap_servers})

    def asks(group: Group, owner: Membership) -> None:
        monkeypatch.setattr(Group, "confirm", confirm)
        place = TopicPartition(f"{source}.copy", moved)
        pending.append(offsets.offsets(connector.group_id, [place], stable=True)[1])
        confirm(group, owner)

    def skips(task: int) -> Outcome:
        return tasks[task].advance([Advance(OffsetRange(source, moved, 0, 10), lost=10)])

    try:
        tasks[0].joining(0)
        tasks[0].assigned(joined(consumers[0], source, 2))
        assert len(tasks[0].entries()) == 2
        successor = joined(consumers[1], source, 1, consumers[0])
        ((_, moved),) = successor.partitions
        monkeypatch.setattr(Group, "confirm", asks)
        with pytest.raises(NotAssigned, match="has moved on"):
            skips(0)
        assert pending == [{TopicPartition(f"{source}.copy", moved)}]
        assert tasks[0].write(Commit([])) is Outcome.APPLIED  # at most once: moves no position
        tasks[1].joining(1)
        tasks[1].assigned(successor)
        assert skips(1) is Outcome.APPLIED
    finally:
        for each in (*consumers, *tasks, driver):
            each.close()


def hook(patch: pytest.MonkeyPatch, owner: type, method: str, then: Callable[[], object]) -> None:
    """Have something happen after the next call of a method."""
    original = getattr(owner, method)

    def once(*arguments: Any) -> Any:
        patch.setattr(owner, method, original)
        found = original(*arguments)
        then()
        return found

    patch.setattr(owner, method, once)


@pytest.mark.parametrize(
    ("copies", "moves"),
    some(
        itertools.product(CLUSTERS, ("enters", "sets", "forgets")),
        {(cluster, "enters") for cluster in CLUSTERS},
    ),
    indirect=["copies"],
)
def test_a_driver_moves_nothing_once_a_task_of_another_run_has_joined(
    moves: str, topic: MakeTopic, copies: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has seen that the group is idle, and brokers accept its offsets in a
    transaction although it is not a member."""
    source = topic()
    planned = plan(copies(source, PATIENT))
    driver, connector = planned.sink, planned.connector
    driver.prepare([source])
    entries = [LedgerEntry(source, 0, 0, 0)]
    consumer = Consumer(consumer_config(connector, 0))
    try:
        if moves == "enters":
            hook(monkeypatch, Ledger, "settled", lambda: joined(consumer, source))
            with pytest.raises(LedgerConflict, match="another run is or was at work"):
                driver.start(entries)
            assert KafkaSink(connector).entries() == []
        else:
            driver.start(entries)
            hook(monkeypatch, Group, "is_idle", lambda: joined(consumer, source))
            with pytest.raises(ConfigError, match="is running"):
                driver.set_positions([LedgerEntry(source, 0, 5, 5)] if moves == "sets" else None)
            assert [e.position for e in KafkaSink(connector).entries()] == [0]
    finally:
        consumer.close()
        driver.close()


@pytest.mark.long
def test_a_driver_may_replace_what_it_has_entered(topic: MakeTopic, copies: Configure) -> None:
    source = topic()
    driver = plan(copies(source, {})).sink
    try:
        driver.prepare([source])
        driver.start([LedgerEntry(source, 0, 0, 0)])
        for position in (5, 3):
            driver.set_positions([LedgerEntry(source, 0, position, position)])
            assert [e.position for e in driver.entries()] == [position]
        driver.set_positions(None)
        assert driver.entries() == []
    finally:
        driver.close()


@pytest.mark.long
def test_a_driver_leaves_it_to_another_run_to_enter_the_number_of_tasks(
    topic: MakeTopic, configure: Configure, other_kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic()
    config = configure(source, {"dest.kafka.bootstrap.servers": other_kafka.bootstrap_servers})
    first = plan(config).sink
    first.prepare([source])
    first.start([LedgerEntry(source, 0, 0, 0)])
    first.close()
    planned = plan({**config, "tasks.max": "2"})
    consumer = Consumer(consumer_config(planned.connector, 0))
    hook(monkeypatch, Ledger, "settled", lambda: joined(consumer, source))
    try:
        planned.sink.prepare([source])
        assert consumer.assignment()
        assert [e.position for e in planned.sink.entries()] == [0]
    finally:
        consumer.close()
        planned.sink.close()


@pytest.mark.long
def test_a_driver_does_not_move_back_what_another_run_has_moved_meanwhile(
    topic: MakeTopic, copies: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has read the position and is frozen until that run has ended."""
    source = topic()
    planned = plan(copies(source, {**PATIENT, "consumer.override.session.timeout.ms": 6000}))
    driver, connector = planned.sink, planned.connector
    driver.prepare([source])
    driver.start([LedgerEntry(source, 0, 0, 0)])
    (entry,) = driver.entries()

    def another_run() -> None:
        consumer, task = Consumer(consumer_config(connector, 0)), KafkaSink(connector)
        try:
            task.joining(0)
            task.assigned(joined(consumer, source))
            task.advance([Advance(OffsetRange(source, 0, 0, 10), lost=10)])
        finally:
            consumer.close()
            task.close()
        wait_until(driver._group.is_idle)

    hook(monkeypatch, Ledger, "settled", another_run)
    try:
        with pytest.raises(LedgerConflict, match="another run is or was at work"):
            driver.rebase([Rebase(entry, replace(entry, target="another one"))])
        assert [e.position for e in KafkaSink(connector).entries()] == [10]
    finally:
        driver.close()


@pytest.mark.long
def test_a_first_transaction_that_was_never_seen_is_fenced_too(
    topic: MakeTopic, produce: Produce, copies: Configure, start: Start, points: Path
) -> None:
    """The ledger does not show whose turn it was: the frozen task has committed nothing yet."""
    source = topic(partitions=1)
    config = copies(source, {**SHORT_SESSION, **PATIENT, "tasks.max": "2"})
    failpoints.arm(points, "sink.before_commit", "freeze")
    running = start(config, spark=LocalSpark(points))
    running.until(lambda p: len(p.tasks) == 2)
    produce(source, records(100))
    wait_until(lambda: bool(failpoints.fired(points)))
    running.until(lambda p: sum(p.positions.values()) >= 100)
    failpoints.thaw(points, failpoints.fired(points)[-1].pid)
    produce(source, records(100, start=100))
    running.stop_when(lambda p: sum(p.positions.values()) >= 200)
    assert_each_once(config, range(200))


def test_of_two_runs_one_stops_as_fenced(
    topic: MakeTopic, produce: Produce, copies: Configure, start: Start
) -> None:
    source = topic(partitions=2, values=records(500))
    config = copies(source, MANY_COMMITS)
    first = start(config)
    first.until(lambda p: p.rows > 0)
    second = start(config)
    winner = one_takes_the_place(first, second)
    produce(source, records(500, start=500))
    winner.stop_when(lambda p: sum(p.positions.values()) >= 1000)
    assert_each_once(config, range(1000))


class GatedSpark(LocalSpark):
    """Starts a task that has died again only once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def start(self, job: LocalJob, task: int, attempt: int) -> None:
        if attempt:
            assert self.gate.wait(PATIENCE)
        super().start(job, task, attempt)


@pytest.mark.long
def test_two_runs_that_displace_a_task_of_each_other_do_not_both_end(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    """The first run has lost both places but does not know: task 0 is frozen, task 1 has died and
    is about to start again."""
    source = topic(partitions=2, values=records(100))
    config = configure(source, {**SHORT_SESSION, "tasks.max": "2"})
    older = start(config, spark=(spark := GatedSpark()))
    older.until(lambda p: sum(p.positions.values()) == 100)
    spark.signal(0, signal.SIGSTOP)
    spark.signal(1, signal.SIGKILL)
    newer = start(config)
    newer.until(lambda p: len(p.tasks) == 2)
    produce(source, records(100, start=100))
    newer.until(lambda p: sum(p.positions.values()) == 200)
    spark.gate.set()
    wait_until(lambda: newer.spark.attempts[1] > 0 or not newer.alive)
    assert newer.alive, newer.error
    spark.signal(0, signal.SIGCONT)
    wait_until(lambda: not (older.alive and newer.alive))
    loser, winner = (older, newer) if newer.alive else (newer, older)
    with pytest.raises(Fenced, match="another run of this connector has taken its place"):
        loser.wait()
    produce(source, records(100, start=200))
    winner.stop_when(lambda p: sum(p.positions.values()) == 300)
    assert_each_once(config, range(300))


@pytest.mark.long
def test_a_broker_that_dies_in_the_middle_of_a_transaction(
    own_kafka: Callable[[], Kafka],
    produce: Produce,
    configure: Configure,
    start: Start,
    points: Path,
) -> None:
    kafka = own_kafka()
    kafka.create_topic("source", 2)
    servers = kafka.bootstrap_servers
    produce("source", records(300), bootstrap_servers=servers)
    keys = {**SMALL, "bootstrap.servers": servers, "max.retries": 5000}
    config = configure("source", keys)
    failpoints.arm(points, "sink.before_commit", "freeze", skip=2)
    running = start(config, spark=LocalSpark(points))
    wait_until(lambda: bool(failpoints.fired(points)))
    kafka.kill()
    failpoints.thaw(points, failpoints.fired(points)[-1].pid)
    kafka.start()
    produce("source", records(300, start=300), bootstrap_servers=servers)
    running.stop_when(lambda p: sum(p.positions.values()) == 600)
    assert_each_once(config, range(600))


@pytest.mark.long
def test_a_transaction_that_has_timed_out_is_started_again(
    kafka: Kafka,
    topic: MakeTopic,
    configure: Configure,
    start: Start,
    points: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(values=records(200))
    config = configure(source, {**SMALL, "producer.override.transaction.timeout.ms": 2000})
    failpoints.arm(points, "sink.before_commit", "freeze", skip=1)
    running = start(config, spark=LocalSpark(points))
    wait_until(lambda: bool(failpoints.fired(points)))
    groups = Groups({"bootstrap.servers": kafka.bootstrap_servers})

    def is_open() -> bool:
        _, pending = groups.offsets(
            f"connect-{config['name']}", [TopicPartition(source, 0)], stable=True
        )
        return bool(pending)

    wait_until(lambda: not is_open())  # the broker looks once a second
    failpoints.thaw(points, failpoints.fired(points)[-1].pid)
    running.stop_when(lambda p: sum(p.positions.values()) == 200)
    assert "Failed to end transaction" in caplog.text
    assert_each_once(config, range(200))


@pytest.mark.long
def test_an_error_at_each_place_is_tried_again(
    topic: MakeTopic, configure: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(200))
    config = configure(source, SMALL)
    for skip, place in enumerate(failpoints.PLACES):
        if place != "deliver.between":
            failpoints.arm(points, place, "raise", skip=skip % 2)
    caught_up(config, spark=LocalSpark(points))
    assert len(failpoints.fired(points)) == len(failpoints.PLACES) - 1
    assert_each_once(config, range(200))


@pytest.mark.long
def test_a_driver_and_all_of_its_tasks_killed_leave_a_transaction_that_the_next_run_aborts(
    topic: MakeTopic, configure: Configure, start: Start, points: Path
) -> None:
    source = topic(partitions=2, values=records(200))
    config = configure(source, {**SMALL, **PATIENT})
    failpoints.arm(points, "sink.before_commit", "freeze", skip=1)
    spark = LocalSpark(points, restarts=0)
    running = start(config, spark=spark)
    wait_until(lambda: bool(failpoints.fired(points)))
    os.kill(failpoints.fired(points)[-1].pid, signal.SIGKILL)
    running.halt.set()
    caught_up(config)  # it does not wait until the transaction's time is out
    assert_each_once(config, range(200))


def test_aborted_records_in_the_source_are_not_copied(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(10))
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t", "log_level": 0}
    )
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for value in records(10, start=1000):
        producer.produce(source, value)
    producer.flush(PATIENCE)
    producer.abort_transaction(PATIENCE)
    produce(source, records(10, start=10))
    config = configure(source)
    caught_up(config)
    assert_each_once(config, range(20))
    assert positions(config).popitem()[1] == 31  # past the marker, too


@pytest.mark.long
def test_the_audit_finds_what_is_missing_and_what_is_there_twice(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    marks = [("__connect.topic", source.encode()), ("__connect.partition", b"0")]
    again = [*marks, ("__connect.offset", b"3")]
    produce(target(config), records(1, start=3), headers=[again])
    produce(source, records(5, start=10))
    further = LedgerEntry(source, 0, 12, 0, records_read=12, rows_written=12)
    sink = plan(config).sink
    once_let_go(lambda: sink.set_positions([further]))  # past two that were never copied
    sink.close()
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 1, False)
    assert sum(p.skipped for p in report.partitions) == 2
