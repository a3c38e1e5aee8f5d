"""Partitions that the consumer group has given to a member that is no task of the run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer

from semel.core.ledger import TopicPartition
from semel.driver import direct
from semel.driver.base import Notifier, Progress, TaskAssignment, WaitKind
from semel.driver.direct import UnreadPartitions
from semel.driver.supervisor import Supervisor
from semel.kafka.groups import Groups
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Start
from tests.engine.harness import (
    SHORT_SESSION,
    assert_nothing_lost_nothing_twice,
    plan,
    records,
    wait_until,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

_PARTITIONS = 4
_HOURS = 1_800_000
"""Milliseconds: the longest session that brokers allow, longer than any test may take."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver look often, although nothing happens."""
    monkeypatch.setattr(direct, "_LOOK", 0.5)
    monkeypatch.setattr(Supervisor.supervise, "__defaults__", (None, 0.2))


class Member:
    """A member of a connector's group that is no task of its run. It takes part until it ends."""

    def __init__(self, kafka: str, group: str, topic: str, instance: str = "") -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": kafka,
            "group.id": group,
            "client.id": "intruder",
            "partition.assignment.strategy": "roundrobin,range",
        }
        if instance:
            config |= {"group.instance.id": instance, "session.timeout.ms": _HOURS}
            config |= {"max.poll.interval.ms": _HOURS}
        self.holds: set[TopicPartition] = set()
        self._stop = threading.Event()
        self._consumer = Consumer(config)
        self._consumer.subscribe([topic], on_assign=self._given, on_revoke=self._given)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _given(self, consumer: Consumer, partitions: list[Any]) -> None:
        consumer.assign([])
        self.holds = {TopicPartition(p.topic, p.partition) for p in partitions}

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._consumer.poll(0.05)

    def end(self) -> None:
        """End: a static member does not leave the group, as if it were killed."""
        self._stop.set()
        self._thread.join(PATIENCE)
        self._consumer.close()


@contextmanager
def member(config: dict[str, str], instance: str = "") -> Iterator[Member]:
    """A member of a connector's group, until the end of the block."""
    group = f"connect-{config['name']}"
    made = Member(config["bootstrap.servers"], group, config["topics"], instance)
    try:
        yield made
    finally:
        made.end()


def holders(config: dict[str, str]) -> set[str | None]:
    groups = Groups({"bootstrap.servers": config["bootstrap.servers"]})
    found = groups.describe(f"connect-{config['name']}")
    return {m.group_instance_id for m in found.members} if found else set()


@pytest.fixture
def config(topic: MakeTopic, produce: Produce, configure: Configure) -> dict[str, str]:
    """A connector whose topic has some records in each partition."""
    source = topic(partitions=_PARTITIONS)
    for p in range(_PARTITIONS):
        produce(source, records(10, start=10 * p), partition=p)
    return configure(source, {"tasks.max": "2", **SHORT_SESSION})


def test_what_a_member_that_has_gone_keeps_is_read_long_before_its_session_ends(
    config: dict[str, str],
    produce: Produce,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a task of a run that had more of them."""
    running = start(config)
    everything = {TopicPartition(config["topics"], p) for p in range(_PARTITIONS)}
    running.until(lambda _p: running.progress.partitions == everything)
    gone = f"connect-{config['name']}-7"
    monkeypatch.setattr(direct, "_LOOK", PATIENCE)
    with member(config, gone) as phantom:
        wait_until(lambda: bool(phantom.holds))
    kept = phantom.holds
    monkeypatch.setattr(direct, "_LOOK", 0.5)
    for p in range(_PARTITIONS):
        produce(config["topics"], records(10, start=40 + 10 * p), partition=p)
    running.until(lambda p: p.rows == 80)
    running.until(lambda p: running.progress.partitions == everything and p.waiting is None)
    assert holders(config) == {f"connect-{config['name']}-{n}" for n in range(2)}
    [line] = {m for m in caplog.messages if "are not read" in m and "has given" in m}
    assert line.startswith(f"connector {config['name']}: ")
    assert gone in line and all(str(tp) in line for tp in kept)
    running.stop()
    assert_nothing_lost_nothing_twice(config, range(80))


@pytest.mark.long
@pytest.mark.parametrize("instances", [["-7"], ["-7", "-8"], ["-of-another-program"]], ids=str)
def test_tasks_do_not_wait_for_the_sessions_of_members_that_have_gone_before_they_join(
    config: dict[str, str], start: Start, instances: Sequence[str]
) -> None:
    """Kafka waits for every member before it divides the partitions."""
    with ExitStack() as members:
        names = [f"connect-{config['name']}{instance}" for instance in instances]
        gone = [members.enter_context(member(config, each)) for each in names]
        wait_until(lambda: sum(len(each.holds) for each in gone) == _PARTITIONS)
    running = start(config)
    running.stop_when(lambda p: p.rows == 40)
    assert_nothing_lost_nothing_twice(config, range(40))


@pytest.mark.long
def test_a_member_that_lives_without_a_name_is_shown_and_left_alone(
    config: dict[str, str], start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(config)
    running.until(lambda p: p.rows == 40)
    with member(config) as living:
        running.until(lambda p: p.waiting is not None)
        wait_until(lambda: "End that program" in caplog.text)
        waits = running.progress.waiting
        assert waits is not None and waits.on is WaitKind.PARTITIONS
        assert all(str(tp) in waits.why for tp in living.holds)
        assert living.holds
    running.until(lambda p: p.waiting is None)
    assert "Taking its place" not in caplog.text


@pytest.mark.long
def test_a_program_that_comes_back_under_its_name_is_displaced_a_few_times_only(
    config: dict[str, str], start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(config)
    running.until(lambda p: p.rows == 40)
    for _ in range(direct._TAKES):
        with member(config, "program"):
            wait_until(lambda: "program" in holders(config))
            wait_until(lambda: "program" not in holders(config))
    with member(config, "program") as living:
        wait_until(lambda: "End that program" in caplog.text)
        assert living.holds and "program" in holders(config)
        assert running.progress.waiting is not None
        assert "member program" in running.progress.waiting.why


@pytest.mark.long
def test_the_driver_of_the_first_task_looks_although_tasks_run_elsewhere(
    config: dict[str, str],
) -> None:
    assignment, progress = TaskAssignment({1}), Progress()
    run: Any = SimpleNamespace(
        connector=plan(config).connector,
        topics={config["topics"]: _PARTITIONS},
        assignment=assignment,
        stop=threading.Event(),
        run_control=SimpleNamespace(notifier=Notifier()),
    )
    with member(config, "phantom") as phantom:
        wait_until(lambda: len(phantom.holds) == _PARTITIONS)
    unread = UnreadPartitions(run)

    def is_shown() -> bool:
        unread.look(progress)
        return progress.waiting is not None

    assert not is_shown() and unread._looking is None
    assignment.want({0, 1})
    wait_until(is_shown)
    group = Groups({"bootstrap.servers": config["bootstrap.servers"]})
    wait_until(lambda: not is_shown() and group.is_idle(run.connector.group_id))
