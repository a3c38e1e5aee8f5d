"""Drivers without Spark: what they do when it, or a service, has gone."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from semel.core import watchdog
from semel.core.abandoned import abandoned
from semel.core.errors import (
    ConfigError,
    Failure,
    Fenced,
    ServiceError,
    TransientError,
    Unavailable,
)
from semel.driver import run as runs
from semel.driver import supervisor as supervising
from semel.driver.base import Progress, RunControl, State, TaskAssignment
from semel.driver.bounded import BoundedEngine, Jobs
from semel.driver.microbatch import engine as microbatch
from semel.driver.microbatch.engine import MicroBatchEngine
from semel.driver.supervisor import Supervisor, TaskJobs
from semel.spark.job_errors import SparkGone
from semel.tasks.bounded import BoundedSpec
from semel.tasks.control import Address, Report
from semel.tasks.retry import Backoff, Retries
from tests.engine.harness import wait_until
from tests.patience import PATIENCE


class Gone:
    """A context that has ended; ``calls`` are the calls to it that fail."""

    master = "local"

    def __init__(self, failure: Exception, *calls: str) -> None:
        self._failure = failure
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name in self._calls:
            raise self._failure
        return lambda *_arguments: self


GONE = [
    Gone(Py4JNetworkError("nobody listens"), "setJobGroup", "cancelJobGroup"),
    Gone(ConnectionRefusedError("nobody listens"), "setJobGroup", "cancelJobGroup"),
    Gone(RuntimeError("Cannot call methods on a stopped SparkContext"), "parallelize"),
]


def _run() -> Any:
    connector = SimpleNamespace(
        name="c",
        tasks_max=1,
        max_retries=3,
        retry_backoff_ms=0,
        fail_on_data_loss=True,
        originals={},
    )
    orders = RunControl()
    return SimpleNamespace(
        connector=connector,
        run_control=orders,
        stop=orders.stop,
        over=lambda *_arguments: False,
        observe=lambda _progress: None,
        waits=lambda _progress, _why: None,
        until_caught_up=False,
        paused=orders.paused,
        keeps_going=False,
        interrupted=False,
    )


def _server(*, reached: bool) -> Any:
    return SimpleNamespace(
        reports=queue.Queue(),
        reached=reached,
        is_connected=lambda _task: False,
        stop_tasks=lambda: None,
        want_task=lambda _task: None,
        announce=lambda _plan: None,
        wake=lambda: None,
    )


def _direct(spark: Any) -> None:
    run = _run()
    server = _server(reached=True)
    spec: Any = SimpleNamespace(connector=run.connector)
    Supervisor(RunControl(), lambda: spark).supervise(server, spec, 1, lambda _progress: False)


def _engine(spark: Any = None) -> BoundedEngine:
    engine = BoundedEngine.__new__(BoundedEngine)
    engine._run = _run()
    engine._jobs = Jobs("c", lambda: spark, lambda: False)
    engine._connector, engine._progress, engine._interval = engine._run.connector, Progress(), 0
    engine._spec = BoundedSpec(run="r", connector=engine._connector, environment={})
    return engine


def _bounded(spark: Any) -> None:
    engine = _engine(spark)
    engine._trigger = lambda: bool(engine._jobs.results(engine._spec, [], []))  # type: ignore[method-assign]
    engine._loop({})


@pytest.mark.parametrize("spark", GONE)
@pytest.mark.parametrize("drive", [_direct, _bounded])
def test_a_driver_whose_spark_is_gone_ends_and_says_so(
    drive: Callable[[Any], None], spark: Gone, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(SparkGone, match="Spark has stopped: "):
        drive(spark)
    assert "Spark" not in caplog.text


def test_a_bounded_run_that_is_to_stop_may_outlive_its_spark() -> None:
    engine = _engine()

    def trigger() -> bool:
        engine._run.stop.set()
        raise SparkGone("connector c: Spark has gone")

    engine._trigger = trigger  # type: ignore[method-assign]
    engine._loop({})


@pytest.mark.parametrize("reached", [True, False])
def test_the_driver_warns_once_that_no_task_has_reached_it(
    reached: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervising, "_SILENT", 0.0)
    supervisor = Supervisor(RunControl(), None)  # type: ignore[arg-type]
    spec: Any = SimpleNamespace(control=Address("driver", 7077, b""))
    for _ in range(3):
        supervisor._warn_if_unreached(_server(reached=reached), spec, 0.0)
    said = caplog.text.count("no task has reached this driver at driver:7077")
    assert said == (0 if reached else 1)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_fence_is_judged_when_the_fenced_attempts_successor_has_had_time_to_speak(
    replaced: bool,
) -> None:
    supervisor = Supervisor(RunControl(), None)  # type: ignore[arg-type]
    supervisor._tasks = {0: TaskJobs(None, None, 0)}  # type: ignore[arg-type]
    fenced = Report("fenced", 0, 0, failure=Failure.of(Fenced("by another run")))
    coming = [fenced] + [Report("started", 0, 1)] * replaced

    def get(waits: bool, _timeout: float) -> Report:
        if not (waits and coming):
            raise queue.Empty
        return coming.pop(0)

    server: Any = SimpleNamespace(reports=SimpleNamespace(get=get))
    supervisor._listen(server, 0.1)
    assert isinstance(supervisor._tasks[0].error, Fenced) is not replaced


@pytest.mark.parametrize(
    ("share", "outlived"),
    [
        (TaskAssignment(), 0),
        (TaskAssignment([0]), 0),
        (TaskAssignment(moves=True), 3),
        (TaskAssignment([0], moves=True), 3),
    ],
    ids=["alone", "a part", "in a cluster", "a part in a cluster"],
)
def test_fences_in_a_row_end_a_task_that_other_workers_may_have_run_after_a_while(
    share: TaskAssignment, outlived: int
) -> None:
    """A worker that was cut off may take longer to stop its tasks than they need to come back."""
    supervisor = Supervisor(RunControl(assignment=share), None, fences=3)  # type: ignore[arg-type]
    spec: Any = SimpleNamespace(connector=SimpleNamespace(name="c"))
    task = TaskJobs(None, spec, 0)  # type: ignore[arg-type]
    supervisor._tasks = {0: task}
    states = []
    for attempt in range(5):
        job: Any = SimpleNamespace(ended=False, cancel=lambda: None)
        task.job = job
        task.hear(Report("fenced", 0, attempt, failure=Failure.of(Fenced("by another run"))))
        supervisor._look([0], stopping=False)
        states.append(task.status.state)
    ends = [State.FAILED] * (5 - outlived)
    assert states == [State.RESTARTING] * outlived + ends
    assert isinstance(supervisor._error, Fenced)
    assert supervisor.progress.fences == supervisor.progress.restarts == outlived


@pytest.mark.long
@pytest.mark.parametrize("stopped", [True, False])
def test_tasks_of_a_run_that_was_stopped_while_it_was_prepared_get_no_plan(stopped: bool) -> None:
    orders, said = RunControl(assignment=TaskAssignment([])), list[str]()
    if stopped:
        orders.stop.set()
    server: Any = SimpleNamespace(
        stop_tasks=lambda: said.append("stop"),
        announce=lambda _plan: said.append("plan"),
        wake=lambda: None,
        reports=queue.Queue(),
        reached=True,
    )
    spec: Any = SimpleNamespace(connector=SimpleNamespace(name="c"))
    supervisor = Supervisor(orders, None)  # type: ignore[arg-type]
    supervisor.supervise(server, spec, 1, lambda _progress: True)
    assert said[0] == ("stop" if stopped else "plan")


def test_a_driver_rests_while_its_tasks_work_or_have_failed() -> None:
    spec: Any = SimpleNamespace(connector=SimpleNamespace(name="c"))
    task = TaskJobs(None, spec, 0)  # type: ignore[arg-type]
    assert not task.is_settled(is_connected=False)  # it is to be started
    job: Any = SimpleNamespace(ended=False)
    task.job = job
    assert task.is_settled(is_connected=True)
    assert not task.is_settled(is_connected=False)
    task.restart()
    assert not task.is_settled(is_connected=True)
    task.hear(Report("failed", 0, 0, failure=Failure.of(ServiceError("for good"))))
    job.ended = True
    assert not task.is_settled(is_connected=True)  # its end is to be noted
    task.job = None
    assert task.is_settled(is_connected=False)


def test_a_task_that_has_ended_is_given_to_its_new_worker_at_once() -> None:
    share = TaskAssignment([0, 1], moves=True)
    supervisor = Supervisor(RunControl(assignment=share), None)  # type: ignore[arg-type]
    server: Any = SimpleNamespace(stop_task=lambda _n, **_how: None, want_task=lambda _n: None)
    spec: Any = SimpleNamespace(connector=SimpleNamespace(name="c"))
    supervisor._apply_assignment(server, spec, 2)
    for task in supervisor._tasks.values():
        task.job = SimpleNamespace(ended=False)  # type: ignore[assignment]
    share.want([0])
    assert not supervisor._apply_assignment(server, spec, 2)
    assert share.holds(1)
    supervisor._tasks[1].job = None
    assert supervisor._apply_assignment(server, spec, 2)
    assert not share.holds(1)


@pytest.mark.parametrize(
    ("outcomes", "passes"),
    [(["idle", "fails", "idle"], True), (["fails", "idle"], False)],
    ids=["later", "at the start"],
)
def test_a_bounded_run_that_has_been_idle_survives_an_error_that_may_pass(
    outcomes: list[str], passes: bool
) -> None:
    engine = _engine()

    def trigger() -> bool:
        outcome = outcomes.pop(0)
        if not outcomes:
            engine._run.stop.set()
        if outcome == "fails":
            raise ServiceError("the store restarts")
        return False

    engine._trigger = trigger  # type: ignore[method-assign]
    with contextlib.nullcontext() if passes else pytest.raises(ServiceError, match="restarts"):
        engine._loop({})
    assert bool(outcomes) is not passes


def test_a_micro_batch_run_that_resumes_survives_a_transient_error() -> None:
    run = _run()
    engine = MicroBatchEngine(run, None, None)  # type: ignore[arg-type]
    engine._retries = Retries(run.connector, lambda _line: None)
    outcomes: list[str] = ["a pause", "the store is away", "the end"]

    def entries() -> dict[Any, Any]:
        outcome = outcomes.pop(0)
        if outcome == "a pause":
            run.paused.set()
        elif outcome == "the end":
            run.stop.set()
        else:
            raise Unavailable(outcome)
        return {}

    run.observe = lambda _progress: run.paused.clear()
    engine._entries = entries  # type: ignore[method-assign]
    engine._query = lambda *_: None  # type: ignore[method-assign]
    size = SimpleNamespace(outgrown=False)
    batches: Any = SimpleNamespace(enter=lambda _entries: None, size=size)
    engine._supervise(batches, {})
    assert not outcomes


def _micro_batches(outcomes: Sequence[Exception | None], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run batches with these outcomes, each in a query of its own, then stop; how many were run."""
    monkeypatch.setattr(microbatch, "Backoff", lambda **_more: Backoff(0.0))
    run, left = _run(), list(outcomes)

    def process(_batch: object) -> None:
        outcome = left.pop(0)
        if not left:
            run.stop.set()
        if outcome is not None:
            raise outcome

    size = SimpleNamespace(outgrown=False)
    batches: Any = SimpleNamespace(enter=lambda _entries: None, size=size)
    batch: Any = None
    engine = MicroBatchEngine(run, None, None)  # type: ignore[arg-type]

    def query(*_arguments: object) -> None:
        with contextlib.suppress(TransientError):
            engine._process(batches, lambda: process(batch))

    engine._entries = dict  # type: ignore[method-assign]
    engine._query = query  # type: ignore[method-assign]
    engine._supervise(batches, {})
    return len(outcomes) - len(left)


LOST = TransientError("the connection is lost")


def test_a_micro_batch_with_a_transient_error_is_run_again_in_a_new_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = [LOST, LOST, LOST, None, LOST, LOST, LOST, None]
    assert _micro_batches(outcomes, monkeypatch) == len(outcomes)
    assert "the streaming query ended (the connection is lost)" in caplog.text


def test_a_micro_batch_that_never_passes_ends_the_run_after_max_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gave_up = r"gave up after 3 retries \(max.retries\): the connection is lost"
    with pytest.raises(ServiceError, match=gave_up):
        _micro_batches([LOST] * 5, monkeypatch)


def _plan() -> Any:
    return SimpleNamespace(connector=SimpleNamespace(name="c"))


def test_a_run_stops_though_its_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = threading.Event()
    before = len(abandoned())

    def works(_plan: Any, _spark: Any, _transform: Any, orders: RunControl) -> Progress:
        orders.observe(Progress(rows=7))
        with watchdog.waiting("the store"):
            assert answer.wait(PATIENCE)
        return Progress()

    seen: list[int] = []
    orders = RunControl(observe=lambda progress: seen.append(progress.rows))
    orders.stop.set()
    monkeypatch.setattr(runs, "LEAVE", 0.3)
    monkeypatch.setattr(runs, "_run_engine", works)
    assert runs.drive(_plan(), lambda: None, None, orders).rows == 7
    assert set(seen) == {7}
    assert "connector c: its current work does not finish; waiting for the store" in caplog.text
    assert abandoned()[before:] == ["running connector c"]
    answer.set()
    wait_until(lambda: len(abandoned()) == before)


def test_a_mistake_about_kafka_does_not_wait_for_a_silent_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, closed = threading.Event(), threading.Event()
    sink = SimpleNamespace(connect_early=lambda: answer.wait(PATIENCE), close=closed.set)
    planned: Any = SimpleNamespace(connector=SimpleNamespace(name="c"), sink=sink, topology=None)

    def topics(_connector: Any, _topology: Any) -> None:
        raise ConfigError("topic t does not exist")

    monkeypatch.setattr(runs, "_topics", topics)
    with pytest.raises(ConfigError, match="does not exist"):
        runs._prepared(planned, runs.RunControl())
    assert not closed.is_set()
    answer.set()
    assert closed.wait(PATIENCE)  # what has connected after all is not left behind


def test_an_observer_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def works(_plan: Any, _spark: Any, _transform: Any, orders: RunControl) -> Progress:
        orders.observe(Progress())
        assert orders.stop.wait(PATIENCE)
        ended.set()
        return Progress()

    def fails(_progress: Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_run_engine", works)
    with pytest.raises(KeyboardInterrupt):
        runs.drive(_plan(), lambda: None, None, RunControl(observe=fails))
    assert ended.is_set()
