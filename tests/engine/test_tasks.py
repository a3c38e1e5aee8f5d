"""Tasks that die, freeze, meet a twin or lose their driver."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupState, Message

from semel.core import failpoints
from semel.core.errors import ConfigError, Failure, Fenced, SemelError
from semel.driver import supervisor
from semel.kafka.clients import client_config
from semel.kafka.groups import Groups
from semel.tasks import control
from semel.tasks.control import ControlLine, ControlServer, Report
from semel.tasks.retry import Backoff
from tests.conftest import MakeTopic, Produce, wait_gone
from tests.engine.conftest import Configure, Start
from tests.engine.harness import (
    MANY_COMMITS,
    SHORT_SESSION,
    LocalSpark,
    assert_nothing_lost_nothing_twice,
    caught_up,
    freezing,
    one_takes_the_place,
    records,
    some,
    sql,
    wait_until,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


def _without_events(rows: pa.Table) -> pa.Table:
    """As in a task that drops the polls that hold them."""
    from semel.kafka.consumer import Events
    from semel.tasks.direct import reader

    def records_of(messages: Sequence[Message], _tell: object) -> Events:
        return Events([m for m in messages if m.error() is None])

    if parent_process() is not None:  # the driver calls it with a sample
        reader.without_events = records_of  # type: ignore[assignment]
    return rows


@pytest.mark.parametrize("transform", some([None, _without_events], [None]))
def test_of_two_runs_of_one_connector_one_stops_as_fenced_and_nothing_is_written_twice(
    transform: Callable[[pa.Table], pa.Table] | None,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
) -> None:
    source = topic(partitions=2, values=records(500))
    config = configure(source, MANY_COMMITS)
    first = start(config, transform)
    first.until(lambda p: p.rows > 0)
    second = start(config, transform)
    winner = one_takes_the_place(first, second)
    produce(source, records(500, start=500))
    winner.stop_when(lambda p: sum(p.positions.values()) >= 1000)
    assert_nothing_lost_nothing_twice(config, range(1000))


@pytest.mark.long
def test_a_connector_that_is_back_with_other_topics_reads_no_others(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    """Within the session Kafka gives its tasks the partitions that they had."""
    before = topic(partitions=2, values=records(100))
    after = topic(partitions=2, values=records(100))
    config = configure(before, {"tasks.max": 2, "table.name.format": "${topic}"})
    caught_up(config)
    produce(before, records(100))
    caught_up({**config, "topics": after})
    url = config["connection.url"]
    assert [sql(url, f'SELECT count(*) FROM "{t}"') for t in (before, after)] == [[100], [100]]


def test_a_task_that_wakes_up_after_its_partitions_were_taken_over_writes_nothing_twice(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start, points: Path
) -> None:
    source = topic(partitions=2, values=records(400))
    config = configure(
        source,
        {
            "tasks.max": 2,
            **SHORT_SESSION,
            "max.retries": 5000,
        },
    )
    failpoints.arm(points, "sink.before_commit", "freeze", skip=3)
    soon = {"connection.idle.in.transaction.timeout.ms": 3000}
    running = start({**config, **soon}, spark=LocalSpark(points))
    # The other task continues with all partitions while one is frozen inside its transaction.
    running.until(lambda p: sum(p.positions.values()) >= 400)
    assert running.alive
    failpoints.thaw(points, failpoints.fired(points)[-1].pid)
    produce(source, records(200, start=400))
    running.stop_when(lambda p: sum(p.positions.values()) >= 600)
    assert_nothing_lost_nothing_twice(config, range(600))


def test_a_frozen_task_that_spark_has_replaced_does_not_fence_its_successor(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source, session = topic(), 1.5
    produce(source, records(100))
    config = configure(
        source,
        {
            "consumer.override.session.timeout.ms": int(session * 1000),
            "consumer.override.heartbeat.interval.ms": 300,
        },
    )
    running = start(config)
    running.until(lambda p: p.rows == 100)
    running.spark.signal(0, signal.SIGSTOP)
    since = time.monotonic()
    frozen = running.spark.replace(0)
    produce(source, records(100, start=100))
    running.until(lambda p: p.rows == 200)
    wait_until(lambda: time.monotonic() - since > session)  # of the frozen one
    os.kill(frozen, signal.SIGCONT)
    assert wait_gone(frozen)
    produce(source, records(100, start=200))
    running.stop_when(lambda p: p.rows == 300)
    assert_nothing_lost_nothing_twice(config, range(300))


def test_a_run_that_was_frozen_ends_and_the_one_that_has_replaced_it_continues(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    """Kafka would give a place back to the older run when it wakes up and joins again."""
    source, session = topic(partitions=2), 1.5
    produce(source, records(100))
    config = configure(
        source,
        {
            "tasks.max": 2,
            "consumer.override.session.timeout.ms": int(session * 1000),
            "consumer.override.heartbeat.interval.ms": 300,
        },
    )
    older = start(config)
    older.until(lambda p: p.rows == 100 and len(p.positions) == 2)
    frozen = [older.spark.signal(task, signal.SIGSTOP) for task in (0, 1)]
    since = time.monotonic()
    newer = start({**config, "consumer.override.session.timeout.ms": 300_000})
    produce(source, records(100, start=100))
    newer.until(lambda p: sum(p.positions.values()) >= 200)
    wait_until(lambda: time.monotonic() - since > session)  # of the older run
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    with pytest.raises(Fenced, match="another run of this connector has taken its place"):
        older.wait()
    produce(source, records(100, start=200))
    newer.until(lambda p: sum(p.positions.values()) >= 300)
    assert newer.spark.attempts[0] == 0  # its task 0, which decides, was not displaced
    newer.stop()
    assert_nothing_lost_nothing_twice(config, range(300))


@pytest.mark.long
def test_more_tasks_than_partitions_is_no_error(topic: MakeTopic, configure: Configure) -> None:
    source = topic(partitions=1, values=records(50))
    config = configure(source, {"tasks.max": 3})
    progress = caught_up(config)
    assert len(progress.tasks) == 3
    assert_nothing_lost_nothing_twice(config, range(50))


@pytest.mark.long
def test_a_job_that_fails_is_started_again_after_a_pause(
    topic: MakeTopic,
    configure: Configure,
    points: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(supervisor, "Backoff", lambda: Backoff(0.1, 1.0))
    source = topic(partitions=2, values=records(200))
    config = configure(source, {"consumer.override.max.poll.records": 20})
    failpoints.arm(points, "sink.after_commit", "kill-worker", skip=1)
    spark = LocalSpark(points, restarts=0)
    progress = caught_up(config, spark=spark)
    assert spark.jobs == progress.restarts + 1 >= 2
    assert "the Spark job of task" in caplog.text
    assert_nothing_lost_nothing_twice(config, range(200))


def test_workers_that_cannot_import_semel_end_the_run_with_what_to_do(
    topic: MakeTopic, configure: Configure
) -> None:
    class Bare(LocalSpark):
        """As Spark tells of workers without a module; the real ones of the tests have it."""

        def parallelize(self, *_arguments: object) -> Any:
            return self

        def mapPartitionsWithIndex(self, _body: object) -> Any:
            return self

        def count(self) -> int:
            raise RuntimeError(
                "Job aborted due to stage failure: Lost task 0.3 in stage 0.0 (TID 3): "
                "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
                "  return cloudpickle.loads(obj)\nModuleNotFoundError: No module named 'semel'"
            )

    with pytest.raises(
        ConfigError, match=r"cannot import semel\. If .*PYSPARK_PYTHON.*spark\.archives"
    ):
        caught_up(configure(topic()), spark=Bare())


@pytest.mark.long
@pytest.mark.parametrize("evolve", ["false", "true"])
def test_two_tasks_may_make_the_table_of_an_empty_topic_at_once(
    evolve: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    points: Path,
) -> None:
    source = topic(partitions=2)
    config = configure(source, {"tasks.max": 2, "auto.evolve": evolve, "retry.backoff.ms": "50"})
    failpoints.arm(points, "task.after_convert", "freeze")
    running = start(config, spark=LocalSpark(points))
    running.until(lambda p: len(p.positions) == 2 and len(p.tasks) == 2)
    produce(source, [b'{"id": 0, "a": 1}'], partition=0)
    wait_until(lambda: bool(failpoints.fired(points)))
    frozen = failpoints.fired(points)[-1].pid
    produce(source, [b'{"id": 1, "b": "x"}'], partition=1)
    running.until(lambda p: p.rows >= 1)
    failpoints.thaw(points, frozen)
    running.stop_when(lambda p: p.rows == 2)
    assert_nothing_lost_nothing_twice(config, range(2))
    columns = sql(
        config["connection.url"],
        "SELECT column_name::text FROM information_schema.columns "
        f"WHERE table_name = '{source}' AND column_name IN ('a', 'b') ORDER BY 1",
    )
    assert columns == (["a", "b"] if evolve == "true" else ["b"])


def test_a_run_that_is_stopped_while_its_job_waits_to_start_again_ends_at_once(
    topic: MakeTopic, configure: Configure, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "Backoff", lambda: Backoff(10 * PATIENCE, 10 * PATIENCE))
    spark = LocalSpark(restarts=0)
    running = start(configure(topic()), spark=spark)
    running.until(lambda p: bool(p.tasks))
    spark.signal(0, signal.SIGKILL)
    running.stop_when(lambda p: p.restarts == 1)
    assert spark.jobs == 1


@pytest.mark.long
def test_a_task_that_does_not_stop_in_time_is_cancelled(
    topic: MakeTopic, configure: Configure, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SETTLE", 0.5)
    source = topic(values=records(10))
    config = configure(source)
    running = start(config)
    running.until(lambda p: p.rows == 10)
    pid = running.spark.signal(0, signal.SIGSTOP)
    running.stop()
    assert wait_gone(pid)
    assert_nothing_lost_nothing_twice(config, range(10))


@pytest.mark.long
def test_a_task_whose_driver_is_gone_fails(
    topic: MakeTopic, configure: Configure, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = []

    class Kept(ControlServer):
        def __init__(self, host: str) -> None:
            super().__init__(host)
            servers.append(self)

    monkeypatch.setattr(control, "ControlServer", Kept)
    monkeypatch.setattr(supervisor, "Backoff", lambda: Backoff(60.0, 60.0))
    running = start(configure(topic()), spark=LocalSpark(restarts=0))
    running.until(lambda p: bool(p.tasks))
    worker = running.spark.workers[0]
    servers[0].close()
    worker.join(PATIENCE)
    assert worker.exitcode == 1


def test_an_error_that_nobody_expected_ends_the_connector_with_a_message(
    topic: MakeTopic, configure: Configure, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "run_task", _BrokenTask(supervisor.run_task))
    running = start(configure(topic()))
    with pytest.raises(SemelError, match="failed unexpectedly: ZeroDivisionError: nobody saw"):
        running.wait()
    assert running.spark.attempts[0] == 0


class _BrokenTask:
    """Runs a task whose loop fails."""

    def __init__(self, run_task: object) -> None:
        self._run_task = run_task

    def __call__(self, *arguments: object) -> None:
        from semel.tasks.direct import task

        def broken(self: task.Task) -> None:
            connector = self._connector
            groups = Groups(client_config(connector, "admin"))

            def is_answered() -> bool:
                group = groups.describe(connector.group_id)
                return group is not None and group.state is ConsumerGroupState.STABLE

            wait_until(is_answered)  # the group's answer waits for the consumer's end
            raise ZeroDivisionError("nobody saw it coming")

        task.Task._step = broken  # type: ignore[method-assign,assignment]
        self._run_task(*arguments)  # type: ignore[operator]


@pytest.mark.long
def test_a_task_whose_consumer_has_lost_sight_of_all_brokers_connects_anew(
    topic: MakeTopic,
    configure: Configure,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(values=records(50))
    monkeypatch.setattr(supervisor, "run_task", _BlindTask(supervisor.run_task))
    session = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 300}
    config = configure(source, {f"consumer.override.{k}": v for k, v in session.items()})
    with caplog.at_level("INFO"):
        running = start(config)
        running.stop_when(lambda p: p.rows >= 50)
    assert any("reconnecting" in line for line in caplog.messages)
    assert_nothing_lost_nothing_twice(config, range(50))


class _BlindTask:
    """Runs a task whose first consumer never finds a broker."""

    def __init__(self, run_task: object) -> None:
        self._run_task = run_task

    def __call__(self, *arguments: object) -> None:
        from semel.kafka import consumer as consumers
        from semel.tasks.direct import subscription

        consumer, made = consumers.Consumer, []

        def blind_at_first(config: dict[str, object], **more: object) -> object:
            made.append(config)
            nowhere = {"bootstrap.servers": "127.0.0.1:1"} if len(made) == 1 else {}
            return consumer({**config, **nowhere}, **more)  # type: ignore[arg-type]

        subscription._OUT = 1.0
        consumers.Consumer = blind_at_first  # type: ignore[misc,assignment]
        self._run_task(*arguments)  # type: ignore[operator]


@pytest.mark.long
@pytest.mark.parametrize(
    "deaf_for",
    [
        pytest.param({0, 1}, id="all"),
        pytest.param({0}, id="one, while others flow"),
    ],
)
def test_a_consumer_that_hears_nothing_more_of(
    deaf_for: set[int],
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As librdkafka's may, when its partitions' leaders have changed again and again."""
    source = topic(partitions=2, values=records(300))

    def deaf(rows: pa.Table) -> pa.Table:
        from semel.tasks.direct import subscription

        consumers: list[Any] = []

        def pause(self: subscription.Subscription, *arguments: Any) -> None:
            consumers.append(self.consumer)
            if self.consumer is consumers[0]:
                given = self.consumer.assignment()
                self.consumer.pause([p for p in given if p.partition in deaf_for])
            reconnect_if_stalled(self, *arguments)

        if subscription._OUT > 1 and parent_process() is not None:
            subscription._OUT = 0.5
            reconnect_if_stalled = subscription.Subscription.reconnect_if_stalled
            subscription.Subscription.reconnect_if_stalled = pause  # type: ignore[method-assign]
        return rows

    config = configure(
        source,
        {
            "tasks.max": "1",
            **SHORT_SESSION,
        },
    )
    others = itertools.count(300)
    done = threading.Event()

    def flow() -> None:
        while not done.wait(0.1):
            produce(source, records(1, next(others)), partition=1)

    flowing = threading.Thread(target=flow)
    if 1 not in deaf_for:
        flowing.start()
    try:
        with caplog.at_level(logging.WARNING):
            caught_up(config, deaf)
    finally:
        done.set()
    if flowing.ident is not None:
        flowing.join(PATIENCE)
    for partition in deaf_for:
        deaf_to = rf"gets none of the records that wait for it in .*{source}-{partition}\b"
        assert re.search(deaf_to, caplog.text)
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(next(others)))


def test_a_fenced_or_failed_task_of_an_earlier_attempt_does_not_end_the_run() -> None:
    nothing: Any = None
    task = supervisor.TaskJobs(nothing, nothing, 0)
    task.hear(Report("log", task=0, attempt=1))
    task.hear(Report("fenced", task=0, attempt=0, message="an old one"))
    task.hear(Report("failed", task=0, attempt=0, message="an old one"))
    assert task.error is None
    newest = Failure.of(Fenced("the newest one"))
    task.hear(Report("fenced", task=0, attempt=1, failure=newest))
    assert isinstance(task.error, Fenced)


def test_a_process_that_gives_no_sign_of_life_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(supervisor, "FROZEN", 26.0)
    cancelled: list[None] = []
    task = supervisor.TaskJobs(None, SimpleNamespace(connector=SimpleNamespace(name="c")), 0)  # type: ignore[arg-type]
    task.job = SimpleNamespace(ended=False, cancel=lambda: cancelled.append(None))  # type: ignore[assignment]

    def look(seconds: int) -> None:
        for _ in range(seconds):
            task.look(is_connected=True, stopping=False)

    look(30)  # Spark may have no place for it yet
    task.hear(Report("alive", task=0, attempt=0))
    look(9)
    for _ in range(500):
        next(clock)  # the driver stands still
    look(1)
    task.hear(Report("alive", task=0, attempt=0))
    look(26)
    assert not cancelled
    look(2)
    assert len(cancelled) == 1
    assert "task 0 has not reported for 27 s; ending its process" in caplog.text


@pytest.mark.long
def test_a_task_that_freezes_with_all_its_threads_is_replaced(
    topic: MakeTopic,
    configure: Configure,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(supervisor, "FROZEN", 50.0)
    source = topic(values=records(10))
    config = configure(source)
    running = start(config, freezing(tmp_path / "marker"))
    running.stop_when(lambda p: p.rows == 10)
    assert "has not reported for" in caplog.text
    assert_nothing_lost_nothing_twice(config, range(10))


def test_an_older_attempt_of_a_task_is_told_to_stop_whichever_speaks_first() -> None:
    server = ControlServer("127.0.0.1")
    lines = [ControlLine(server.address("127.0.0.1")) for _ in range(4)]
    for line, (task, attempt) in zip(lines, [(0, 1), (0, 2), (1, 0), (0, 0)], strict=True):
        line.send(Report("started", task, attempt))
        server.reports.get(timeout=PATIENCE)
    assert lines[0].stop.wait(PATIENCE)
    assert lines[3].stop.wait(PATIENCE)
    assert not lines[1].stop.is_set()
    assert not lines[2].stop.is_set()
    assert not lines[0].orphaned
    server.close()


def test_closing_either_end_of_a_control_line_ends_the_other() -> None:
    server = ControlServer("127.0.0.1")
    line = ControlLine(server.address("127.0.0.1"))
    line.send(Report("log", task=0, attempt=0, message="hello"))
    assert server.reports.get(timeout=PATIENCE).message == "hello"
    other = ControlLine(server.address("127.0.0.1"))
    wait_until(lambda: len(server._lines) == 2)
    other.close()
    wait_until(lambda: len(server._lines) == 1)
    assert not line.stop.is_set()
    server.close()
    assert line.stop.wait(PATIENCE)
    assert line.orphaned
    with pytest.raises(OSError, match=r"refused|reset"):
        ControlLine(server.address("127.0.0.1"))


def test_a_stranger_cannot_speak_on_a_control_line() -> None:
    server = ControlServer("127.0.0.1")
    address = server.address("127.0.0.1")
    with pytest.raises(Exception, match="digest"):
        ControlLine(type(address)(address.host, address.port, b"guess"))
    line = ControlLine(address)
    server.stop_tasks()
    assert line.stop.wait(PATIENCE)
    assert not line.orphaned
    server.close()
