"""What a task's consumer says of its place in the group."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import Displaced, ServiceError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.kafka.consumer import fenced, translated
from semel.kafka.groups import Groups
from semel.sinks.protocols import Membership
from semel.tasks.direct import membership
from semel.tasks.direct import subscription as direct
from semel.tasks.direct.subscription import Assigned, Lost, Revoked, State, Subscription
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

LATE = "an earlier request of its own to join may have been answered late"


_SHORT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}
_LONG = {"consumer.override.session.timeout.ms": 300_000}
"""Nobody is away, however slow the machine is."""
IDLE: Any = SimpleNamespace(settle=lambda: None)
"""A committer that commits nothing."""


def _sleeper(
    config: Mapping[str, Any], topic: str, assigns: bool, told: Connection[str, None]
) -> None:
    """Takes its partitions, falls asleep, and continues as a task does until it is displaced."""
    connector = plan(config).connector
    subscription = Subscription(connector, 0, IDLE, told.send, _never)
    subscription.subscribe([topic])
    _take_what_it_gives(subscription)
    told.send("assigned")
    member = subscription.consumer.memberid()
    os.kill(os.getpid(), signal.SIGSTOP)
    if assigns:
        with suppress(AssertionError):  # unless it is told first that it was fenced
            wait_until(lambda: subscription.consumer.memberid() != member, 5.0)
        subscription.consumer.assign([])
    try:
        while True:
            subscription.reconnect_if_stalled({})
            message = subscription.consumer.poll(0.1)
            error = message.error() if message is not None else None
            if error is not None and (found := translated(connector, 0, error)) is not None:
                raise found
            subscription.renew()
    except Displaced:
        told.send("displaced")
    with suppress(KafkaException):
        subscription.close()


@pytest.mark.parametrize("assigns", [True, False])
def test_a_task_that_slept_for_longer_than_its_session_does_not_displace_its_replacement(
    assigns: bool, topic: MakeTopic, configure: Configure
) -> None:
    """librdkafka would join again without a member id, and Kafka would mistake it for the newer
    one. If partitions are assigned meanwhile, it does not even report that the session has
    ended."""
    source = topic()
    config = configure(source, {f"consumer.override.{k}": v for k, v in _SHORT.items()})
    group = f"connect-{config['name']}"
    servers = {"bootstrap.servers": config["bootstrap.servers"]}
    same = {"group.id": group, "group.instance.id": f"{group}-0"}
    ours, theirs = multiprocessing.Pipe()
    forks = multiprocessing.get_context("forkserver")
    sleeper = forks.Process(target=_sleeper, args=(config, source, assigns, theirs))
    sleeper.start()
    replacement = Consumer({**servers, **same, "session.timeout.ms": 300_000, "log_level": 0})
    try:
        assert ours.poll(PATIENCE)
        assert ours.recv() == "assigned"
        asleep = psutil.Process(sleeper.pid)
        wait_until(lambda: asleep.status() == psutil.STATUS_STOPPED)
        since = time.monotonic()
        replacement.subscribe([source])
        _poll_until(replacement, replacement.assignment)
        wait_until(lambda: time.monotonic() - since > 1.5)  # by its own clock, too
        asleep.resume()
        assert ours.poll(PATIENCE)
        assert ours.recv() == "displaced"
        sleeper.join(PATIENCE)
        found = Groups(servers).describe(group)
        assert found is not None
        assert [m.member_id for m in found.members] == [replacement.memberid()]
    finally:
        sleeper.kill()
        replacement.close()


def test_a_task_whose_session_has_ended_joins_again_once_kafka_says_that_its_place_is_free(
    topic: MakeTopic, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "STOP_DELAY", 0.0)
    monkeypatch.setattr(membership, "_RETRY", 0.0)
    source = topic()
    connector = plan(configure(source, _LONG)).connector
    stops = False
    subscription = Subscription(connector, 0, IDLE, _nothing, lambda _seconds: stops)
    answers: Iterator[bool | None] = iter([None, None, False])
    asked = threading.Semaphore(0)

    def is_taken() -> bool | None:
        asked.release()
        return next(answers)

    def look() -> None:
        """A step of the task, as it makes them while it is paused, too."""
        subscription.refresh()
        subscription.consumer.poll(0.01)
        subscription.take_events()
        subscription.renew()

    monkeypatch.setattr(subscription.membership, "is_taken", is_taken)
    try:
        _lose_session(subscription, source)
        stops = True
        for _ in range(10):
            look()
        assert not asked.acquire(blocking=False)  # it will not join any more
        stops = False
        for _ in range(3):
            assert subscription.member is None
            wait_until(lambda: look() or asked.acquire(blocking=False))
        wait_until(lambda: look() or subscription.member is not None)
    finally:
        subscription.close()


@pytest.mark.parametrize(("member_id", "event"), [("", Lost), ("me", Revoked)])
def test_a_consumer_without_a_member_id_has_lost_its_session(
    member_id: str, event: type[Revoked], topic: MakeTopic, configure: Configure
) -> None:
    source = topic()
    subscription = Subscription(plan(configure(source)).connector, 0, IDLE, _nothing, _never)
    consumer = subscription.consumer
    stand_in: Any = SimpleNamespace(
        memberid=lambda: member_id, unassign=_nothing, unsubscribe=_nothing
    )
    owned = frozenset({TopicPartition(source, 0)})
    subscription.member = Membership("me", owned, None)
    subscription.consumer = stand_in
    try:
        subscription._revoked(stand_in, [])
        assert subscription.take_events() == [event(owned)]
        assert subscription.member is None
    finally:
        subscription.consumer = consumer
        subscription.close()


def test_a_task_that_may_not_ask_who_has_its_place_joins_again(
    topic: MakeTopic, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``admin.override`` may name another user than the consumer's."""
    monkeypatch.setattr(membership, "STOP_DELAY", 0.0)
    source = topic()
    connector = plan(configure(source, _LONG)).connector
    subscription = Subscription(connector, 0, IDLE, _nothing, _never)

    def is_taken() -> bool | None:
        raise ServiceError("not authorized")

    monkeypatch.setattr(subscription.membership, "is_taken", is_taken)
    try:
        _lose_session(subscription, source)
        subscription.take_events()

        def is_back() -> bool:
            subscription.consumer.poll(0.01)
            subscription.renew()
            return subscription.member is not None

        wait_until(is_back)
    finally:
        subscription.close()


def test_a_place_is_taken_only_if_kafka_shows_another_consumer_there(
    topic: MakeTopic, configure: Configure
) -> None:
    """librdkafka says that its consumer was fenced when it was mistaken for another one, too."""
    source = topic()
    session = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300}
    config = configure(source, {f"consumer.override.{k}": v for k, v in session.items()})
    planned = plan(config)

    subscription = Subscription(planned.connector, 0, IDLE, _nothing, _never)
    instance = f"{planned.connector.group_id}-0"
    settings = {"group.id": planned.connector.group_id, "group.instance.id": instance}
    settings |= {"bootstrap.servers": config["bootstrap.servers"]}
    other = Consumer({**settings, **session, "log_level": 0})
    try:
        subscription.subscribe([source])
        _take_what_it_gives(subscription)
        _poll_until(subscription.consumer, lambda: subscription.membership.is_taken() is False)
        other.subscribe([source])
        _poll_until(other, other.assignment)  # one that has none yet may not come back from close()
        _poll_until(other, subscription.membership.is_taken)
        other.close()  # a static member stays until its session is over
        _poll_until(None, lambda: subscription.membership.is_taken() is False)
    finally:
        with suppress(KafkaException):
            subscription.close()


def test_a_consumer_that_was_given_up_is_not_another_run(
    topic: MakeTopic, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that were away may answer its request to join after its successor's. Nobody hears
    under which id, so that it looks like another run until its session is over."""
    source = topic()
    config = configure(source, {f"consumer.override.{k}": v for k, v in _SHORT.items()})

    connector = plan(config).connector
    subscription = Subscription(connector, 0, IDLE, _nothing, _never)
    same = {key: subscription.config[key] for key in ("group.id", "group.instance.id")}
    late = Consumer(
        {**same, "bootstrap.servers": config["bootstrap.servers"], **_SHORT, "log_level": 0}
    )
    fence = fenced(connector, 0, "Static consumer fenced")
    monkeypatch.setattr(membership, "_OWN_DOING", PATIENCE)
    monkeypatch.setattr(subscription.membership, "_stays", PATIENCE)
    try:
        subscription.subscribe([source])
        _take_what_it_gives(subscription)
        assert (
            subscription.membership.false_fence_reason(fence) == "nobody else has taken its place"
        )
        subscription._reconnect()
        subscription.take_events()
        _take_what_it_gives(subscription)
        late.subscribe([source])
        _poll_until(late, late.assignment)
        _poll_until(late, subscription.membership.is_taken)
        late.close()  # a static member stays until its session is over
        assert subscription.membership.false_fence_reason(fence) == LATE
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

    def members() -> list[Subscription]:
        made = [Subscription(connector, i, IDLE, told.append, _never) for i in range(tasks)]
        for member in made:
            member.subscribe([source])
        return made

    def owned(members: Sequence[Subscription]) -> list[int]:
        """The partitions of all members, which continue as tasks do."""
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
    Python's lock forever, and the process with it, while its heartbeats continue."""
    source = topic()
    heard: list[object] = []
    config = configure(source)
    committer: Any = SimpleNamespace(settle=lambda: heard.append("settles"))
    subscription = Subscription(plan(config).connector, 0, committer, heard.append, _never)
    subscription.subscribe([source])
    _take_what_it_gives(subscription)

    def late(consumer: Consumer) -> None:
        held = consumer.assignment()
        subscription._assigned(consumer, [])
        subscription._revoked(consumer, held)
        assert consumer.assignment() == held != []
        consumer.close()

    monkeypatch.setattr(direct, "close", late)
    subscription.close()
    assert (heard, subscription.take_events()) == ([], [])


def _nothing(*_arguments: object) -> None: ...


def _never(seconds: float) -> bool:
    """Wait; the driver never says stop."""
    return threading.Event().wait(seconds)


def _lose_session(subscription: Subscription, source: str) -> None:
    """Take partitions, and then do what a task does at the end of its session."""
    subscription.subscribe([source])
    _take_what_it_gives(subscription)
    subscription.membership.note_loss()
    subscription._stay_out()
    subscription._give_up()
    subscription._enter(State.OUT)


def _take_what_it_gives(subscription: Subscription) -> None:
    """Poll until the group has given partitions, and assign them, as a task does."""
    deadline = time.monotonic() + PATIENCE
    while subscription.member is None and time.monotonic() < deadline:
        subscription.reconnect_if_stalled({})
        subscription.consumer.poll(0.1)
    *_, event = subscription.take_events()
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
