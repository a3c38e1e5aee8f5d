"""Task attempts and their connection to the driver."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.core.errors import Fenced, ServiceError
from semel.tasks import attempt, control
from semel.tasks.control import Address, ControlLine, ControlServer, Report
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

Run = Callable[..., None]


@pytest.fixture
def run_task(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(attempt, "_PAUSE", 0)

    def run(control: Address, task: Callable[..., Any] = Any) -> None:
        connector = SimpleNamespace(name="c", task_memory=1 << 40)
        spec: Any = SimpleNamespace(environment={}, control=control, connector=connector, task=task)
        try:
            attempt.run_task(spec, 0, 0)
        finally:
            assert gc.isenabled()

    return run


def test_an_attempt_that_its_driver_no_longer_waits_for_fails(run_task: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            server.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        with pytest.raises(
            ConnectionError, match=r"no connection to its driver at 127\.0\.0\.1:\d+: ."
        ):
            run_task(Address("127.0.0.1", server.getsockname()[1], b"key"))
        hanging_up.join(PATIENCE)


@pytest.mark.parametrize("error", [None, Fenced("displaced"), ServiceError("no database")])
def test_an_attempt_that_loses_its_connection_fails_whatever_its_result(
    error: Exception | None, run_task: Run
) -> None:
    server = ControlServer("127.0.0.1")

    class Cut:
        def __init__(self, _index: int, _attempt: int, line: ControlLine) -> None:
            self._line = line

        def run(self) -> None:
            server.close()
            assert self._line.stop.wait(PATIENCE)
            if error is not None:
                raise error

        def false_fence_reason(self, _fence: Fenced) -> None:
            return None

    with pytest.raises(ConnectionError, match="no connection to its driver"):
        run_task(server.address("127.0.0.1"), Cut)


def test_an_attempt_that_is_told_to_stop_ends_without_an_error(run_task: Run) -> None:
    server = ControlServer("127.0.0.1")

    class Idle:
        def __init__(self, _index: int, _attempt: int, line: ControlLine) -> None:
            self.run = lambda: line.stop.wait(PATIENCE)

    server.stop_tasks()
    run_task(server.address("127.0.0.1"), Idle)
    told = [server.reports.get(timeout=PATIENCE).kind for _ in range(2)]
    assert told == ["alive", "stopped"]
    server.close()


def test_tasks_get_the_drivers_plan_whether_they_come_before_or_after_it() -> None:
    server = ControlServer("127.0.0.1")
    address = server.address("127.0.0.1")
    early, late = ControlLine(address), ControlLine(address)
    early.send(Report("alive", 0, 0))
    assert server.reports.get(timeout=PATIENCE).task == 0
    server.announce({"t": 1})
    late.send(Report("alive", 1, 0))
    assert early.plan() == late.plan() == {"t": 1}
    assert not early.stop.is_set()
    server.close()


@pytest.mark.parametrize("speaks_first", [True, False])
def test_a_task_that_has_moved_away_before_the_plan_does_not_get_it(speaks_first: bool) -> None:
    server = ControlServer("127.0.0.1")
    line = ControlLine(server.address("127.0.0.1"))
    if speaks_first:
        line.send(Report("alive", 0, 0))
        assert server.reports.get(timeout=PATIENCE).task == 0
    server.stop_task(0, for_good=True)
    server.announce({"t": 1})
    if not speaks_first:
        line.send(Report("alive", 0, 0))
    assert line.plan() is None
    server.want_task(0)
    back = ControlLine(server.address("127.0.0.1"))
    back.send(Report("alive", 0, 1))
    assert back.plan() == {"t": 1}
    server.close()


@pytest.mark.long
def test_a_task_that_takes_nothing_does_not_hold_up_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "_TAKES", 1)
    server = ControlServer("127.0.0.1")
    address = server.address("127.0.0.1")
    frozen = control.connected(address)
    frozen.send(Report("alive", 0, 0))
    assert server.reports.get(timeout=PATIENCE).task == 0
    server.announce(b"x" * 100_000_000)
    wait_until(lambda: not server.is_connected(0))
    frozen.close()
    server.close()


def test_a_task_that_waits_for_its_plan_is_stopped() -> None:
    server = ControlServer("127.0.0.1")
    line = ControlLine(server.address("127.0.0.1"))
    server.stop_tasks()
    assert line.plan() is None
    server.close()


def test_all_reports_of_a_task_have_arrived_once_it_is_disconnected() -> None:
    server = ControlServer("127.0.0.1")
    address = server.address("127.0.0.1")
    for index in range(20):
        line = ControlLine(address)
        line.send(Report("progress", index, 0))
        line.close()
    wait_until(lambda: not any(server.is_connected(index) for index in range(20)))
    assert server.reports.qsize() == 20
    line = ControlLine(address)
    assert server.is_connected(0)  # it has not said which one it is
    line.close()
    server.close()
