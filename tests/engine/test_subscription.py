"""What a task's consumer says of its place in the group."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from semel.engine.direct import subscription as direct
from semel.engine.direct.subscription import Assigned, Subscription
from semel.kafka.consumer import fenced
from semel.kafka.groups import Groups
from semel.lab.embedded import Kafka
from semel.ledger import TopicPartition
from semel.planning import plan
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

LATE = "its former consumer may have joined after it"


def _sleeper(config: Mapping[str, Any], topic: str, told: Connection[str, None]) -> None:
    """Takes its partitions, falls asleep, and assigns before it hears what the group has to say."""

    def let_go(away: bool) -> None:
        told.send("away" if away else "revoked")

    subscription = Subscription(plan(config).connector, 0, told.send, let_go)
    subscription.ask([topic])
    _take_what_it_gives(subscription)
    told.send("assigned")
    member = subscription.consumer.memberid()
    os.kill(os.getpid(), signal.SIGSTOP)
    wait_until(lambda: subscription.consumer.memberid() != member)  # the consumer has noticed
    subscription.consumer.assign([])
    wait_until(lambda: subscription.consumer.poll(0.1) or subscription.take_events())
    subscription.close()


def test_a_task_that_slept_for_longer_than_its_session_is_told_that_it_may_be_over(
    topic: MakeTopic, configure: Configure
) -> None:
    """librdkafka forgets it when partitions are assigned meanwhile. A task that thinks that it has
    still its place would take it from the one that has replaced it."""
    source = topic()
    session = 1.5
    keys = {"session.timeout.ms": int(session * 1000), "heartbeat.interval.ms": 300}
    config = configure(source, {f"consumer.override.{k}": v for k, v in keys.items()})
    ours, theirs = multiprocessing.Pipe()
    forks = multiprocessing.get_context("forkserver")
    sleeper = forks.Process(target=_sleeper, args=(config, source, theirs))
    sleeper.start()
    try:
        assert ours.poll(PATIENCE)
        assert ours.recv() == "assigned"
        asleep = psutil.Process(sleeper.pid)
        wait_until(lambda: asleep.status() == psutil.STATUS_STOPPED)
        since = time.monotonic()
        groups = Groups({"bootstrap.servers": config["bootstrap.servers"]})
        wait_until(lambda: groups.is_idle(f"connect-{config['name']}"))  # its session is over
        wait_until(lambda: time.monotonic() - since > session)  # by its own clock, too
        asleep.resume()
        assert ours.poll(PATIENCE)
        assert ours.recv() == "away"
        sleeper.join(PATIENCE)
        assert sleeper.exitcode == 0
    finally:
        sleeper.kill()


def test_a_place_is_taken_only_if_kafka_shows_another_consumer_there(
    topic: MakeTopic, configure: Configure
) -> None:
    """librdkafka says that its consumer was fenced when it was mistaken for another one, too."""
    source = topic()
    session = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300}
    config = configure(source, {f"consumer.override.{k}": v for k, v in session.items()})
    planned = plan(config)

    def ignore(_what: object) -> None:
        pass

    subscription = Subscription(planned.connector, 0, ignore, ignore)
    instance = f"{planned.connector.group_id}-0"
    settings = {"group.id": planned.connector.group_id, "group.instance.id": instance}
    settings |= {"bootstrap.servers": config["bootstrap.servers"]}
    other = Consumer({**settings, **session, "log_level": 0})
    try:
        subscription.ask([source])
        _take_what_it_gives(subscription)
        _poll_until(subscription.consumer, lambda: subscription.replaced() is False)
        other.subscribe([source])
        _poll_until(other, other.assignment)  # one that has none yet may not come back from close()
        _poll_until(other, subscription.replaced)
        other.close()  # a static member stays until its session is over
        _poll_until(None, lambda: subscription.replaced() is False)
    finally:
        with suppress(KafkaException):
            subscription.close()


def test_a_consumer_that_was_given_up_is_not_another_run(
    topic: MakeTopic, configure: Configure
) -> None:
    """Brokers that were away may answer its request to join after its successor's. Nobody hears
    under which id, so that it looks like another run for as long as it may do so."""
    source = topic()
    config = configure(source)

    def ignore(_what: object) -> None:
        pass

    connector = plan(config).connector
    subscription = Subscription(connector, 0, ignore, ignore)
    place = {key: subscription.config[key] for key in ("group.id", "group.instance.id")}
    late = Consumer({**place, "bootstrap.servers": config["bootstrap.servers"], "log_level": 0})
    fence = fenced(connector, 0, "Static consumer fenced")
    try:
        subscription.ask([source])
        _take_what_it_gives(subscription)
        assert subscription.excuse(fence) == "nobody else has taken its place"
        subscription._connect_anew()
        assert subscription.excuse(fence) == LATE
        subscription.take_events()
        _take_what_it_gives(subscription)
        late.subscribe([source])
        _poll_until(late, late.assignment)
        _poll_until(late, subscription.replaced)
        assert subscription.excuse(fence) == LATE
        subscription._mistaken_until = time.monotonic()
        assert subscription.excuse(fence) == ""
    finally:
        late.close()
        with suppress(KafkaException):
            subscription.close()


@pytest.mark.parametrize("tasks", [1, 2])
def test_partitions_that_were_added_while_tasks_were_away_are_assigned(
    tasks: int, kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    """Kafka gives static members that are back in time their old partitions, and does not tell the
    one that leads the group: nobody would assign the new partitions (KIP-814)."""
    source = topic()
    long = {"consumer.override.session.timeout.ms": 300_000, "tasks.max": tasks}
    connector = plan(configure(source, long)).connector
    told: list[str] = []

    def ignore(_away: bool) -> None:
        pass

    def members() -> list[Subscription]:
        made = [Subscription(connector, i, told.append, ignore) for i in range(tasks)]
        for member in made:
            member.ask([source])
        return made

    def owned(members: Sequence[Subscription]) -> list[int]:
        """The partitions of all members, which go on as tasks do."""
        for member in members:
            member.consumer.poll(0.05)
            member.refresh()
            member.renew()
        return sorted(tp.partition for m in members if m.member for tp in m.member.partitions)

    before = members()
    wait_until(lambda: owned(before) == [0] and all(m.member for m in before))
    for member in before:
        member.close()
    kafka.increase_partitions(source, 4)
    back = members()
    try:
        wait_until(lambda: owned(back) == [0, 1, 2, 3])
    finally:
        for member in back:
            member.close()
    missed = ", ".join(str(TopicPartition(source, p)) for p in (1, 2, 3))
    assert set(told) == {f"no task reads {missed}; joining the consumer group again"}


def test_what_the_group_says_within_close_is_not_answered(
    topic: MakeTopic, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka may drop what is asked of the group by then, and never answer: the call would hold
    Python's lock for ever, and the process with it, while its heartbeats go on."""
    source = topic()
    heard: list[object] = []
    config = configure(source)
    subscription = Subscription(plan(config).connector, 0, heard.append, heard.append)
    subscription.ask([source])
    _take_what_it_gives(subscription)

    def late(consumer: Consumer) -> None:
        held = consumer.assignment()
        subscription._assigned(consumer, [])
        subscription._revoked(consumer, held)
        subscription._lost(consumer, held)
        assert consumer.assignment() == held != []
        consumer.close()

    monkeypatch.setattr(direct, "close", late)
    subscription.close()
    assert (heard, subscription.take_events()) == ([], [])


def _take_what_it_gives(subscription: Subscription) -> None:
    """Poll until the group has given partitions, and assign them, as a task does."""
    deadline = time.monotonic() + PATIENCE
    while subscription.member is None and time.monotonic() < deadline:
        subscription.find_back({})
        subscription.consumer.poll(0.1)
    [event] = subscription.take_events()
    assert isinstance(event, Assigned)
    owned = event.member.partitions
    subscription.consumer.assign([KafkaPartition(*tp) for tp in owned])


def _poll_until(consumer: Consumer | None, true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        if consumer is None:
            time.sleep(0.1)
        else:
            consumer.poll(0.1)
