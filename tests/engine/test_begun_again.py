"""Runs that begin again: because another process has moved their positions, or somebody asks."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from semel.core.delivery import Delivery, Guarantee
from semel.core.errors import Fenced, LedgerConflict
from semel.driver import run as of_run
from semel.driver import runtime as of_connector
from semel.driver.base import MOST_FENCES, FencesInARow, Progress, RunControl, State, Status
from semel.driver.runtime import Connector
from tests.engine.harness import wait_until
from tests.patience import PATIENCE


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A plan that the test runs itself."""
    made: Any = SimpleNamespace(
        connector=SimpleNamespace(name="c", originals={}, tasks_max=1),
        engine="bounded",
        guarantee=Guarantee(Delivery.EXACTLY_ONCE, None, "the test runs it"),
        warnings=(),
        is_source=False,
        check_runnable=lambda _transform: None,
        close=lambda: None,
    )
    monkeypatch.setattr(of_connector, "plan_any", lambda *_of: made)
    monkeypatch.setattr(of_run, "plan_any", lambda *_of: made)
    return made


SPARK: Any = SimpleNamespace(of=lambda _planned: None)


@pytest.mark.parametrize(
    ("engine", "share", "again"),
    [
        ("bounded", {"moves": True}, True),
        ("micro-batch", {"moves": True}, True),
        ("bounded", {}, False),
        ("direct", {"moves": True}, False),
    ],
    ids=["bounded", "micro-batch", "not in a cluster", "whose tasks begin again by themselves"],
)
def test_in_a_cluster_a_run_begins_again_after_a_conflict(
    plan: Any, monkeypatch: pytest.MonkeyPatch, engine: str, share: dict[str, bool], again: bool
) -> None:
    runs: list[RunControl] = []

    def drive(_planned: Any, _spark: Any, _transform: Any, orders: RunControl) -> None:
        runs.append(orders)
        if len(runs) == 1:
            orders.restart(0)
            orders.observe(Progress(records=5, states={0: Status(State.FAILED, "a conflict")}))
            raise LedgerConflict("the positions have moved")
        assert orders.restarts.empty()
        orders.stop.wait(PATIENCE)

    monkeypatch.setattr(of_run, "drive", drive)
    plan.engine = engine
    connector = Connector(plan, SPARK, **share)
    if again:
        wait_until(lambda: len(runs) == 2)
        assert connector.status().tasks[0].state is State.RESTARTING
        assert connector.stop(PATIENCE)
        assert connector.error is None
    else:
        assert connector.wait(PATIENCE)
        assert connector.status().connector.state is State.FAILED
        assert len(runs) == 1
    assert connector.tally.fences == 1


def test_a_run_that_always_loses_fails(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[None] = []

    def drive(*_of: Any) -> None:
        runs.append(None)
        raise Fenced("another run has taken over")

    monkeypatch.setattr(of_run, "drive", drive)
    monkeypatch.setattr(FencesInARow, "one_more", without_pause(FencesInARow.one_more))
    connector = Connector(plan, SPARK, moves=True)
    assert connector.wait(PATIENCE)
    assert isinstance(connector.error, Fenced)
    assert len(runs) == connector.tally.fences == MOST_FENCES + 1


def without_pause(one_more: Any) -> Any:
    def counted(self: FencesInARow, lasted: float) -> float:
        one_more(self, lasted)
        return 0.0

    return counted


def test_fences_count_as_in_a_row_while_each_comes_soon() -> None:
    fences = FencesInARow()
    pauses = [fences.one_more(lasted) for lasted in (5.0, 5.0, 5.0)]
    assert (fences.count, pauses) == (3, [1.0, 2.0, 4.0])
    assert fences.one_more(90.0) == 1.0
    assert fences.count == 1


def test_a_run_may_be_stopped_from_its_own_thread(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(_planned: Any, _spark: Any, _transform: Any, orders: RunControl) -> Progress:
        orders.observe(Progress(records=5))
        assert orders.stop.wait(PATIENCE)
        return Progress(records=6)

    monkeypatch.setattr(of_run, "drive", drive)
    ended: list[bool] = []
    connectors: list[Connector] = []

    def observe(_progress: Progress) -> None:
        ended.append(connectors[0].stop())

    connectors.append(Connector(plan, SPARK, observe=observe, initial_state=State.STOPPED))
    assert connectors[0].run().records == 6
    assert ended == [False]
    assert connectors[0].status().connector.state is State.STOPPED


def test_a_connector_that_runs_is_not_run_again(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_run, "drive", lambda *of: of[-1].stop.wait(PATIENCE))
    connector = Connector(plan, SPARK)
    with pytest.raises(RuntimeError, match="connector c is running already"):
        connector.run()
    assert connector.status().connector.state is State.RUNNING
    assert connector.stop(PATIENCE)


def test_a_thread_that_cannot_be_started_leaves_the_connector_stopped(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    connector = Connector(plan, SPARK, initial_state=State.STOPPED)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            connector.resume()
    assert connector.wait(0)
    monkeypatch.setattr(of_run, "drive", lambda *of: of[-1].stop.wait(PATIENCE))
    connector.restart()
    assert connector.status().connector.state is State.RUNNING
    assert connector.stop(PATIENCE)


def test_what_holds_up_a_start_holds_up_nobody_who_asks_for_the_state(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, answers = threading.Event(), threading.Event()

    def plan_slowly(*_of: Any) -> Any:
        plans.set()
        assert answers.wait(PATIENCE)
        return plan

    monkeypatch.setattr(of_connector, "plan_any", plan_slowly)
    monkeypatch.setattr(of_run, "drive", lambda *of: of[-1].stop.wait(PATIENCE))
    connector = Connector(plan, SPARK)
    assert connector.stop(PATIENCE)
    assert not connector.holds(0)
    resuming = threading.Thread(target=connector.resume)
    resuming.start()
    try:
        assert plans.wait(PATIENCE)
        assert connector.status().connector.state is State.STOPPED
        assert connector.holds(0), "another worker must not take it over now"
    finally:
        answers.set()
        resuming.join(PATIENCE)
    assert connector.status().connector.state is State.RUNNING
    assert connector.stop(PATIENCE)
    assert not connector.holds(0)
