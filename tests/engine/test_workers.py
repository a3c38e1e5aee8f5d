"""What a worker process keeps between jobs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from semel.config import ConnectorConfig, read
from semel.core import watchdog
from semel.core.watchdog import Watchdog
from semel.tasks import control
from semel.tasks.control import Address, ControlServer, Lines
from semel.tasks.workers import Spec, Workers
from tests.engine.harness import wait_until


def spec(run: str, control: Address | None = None) -> Spec:
    raw = {
        "name": "workers",
        "connector.class": "delta",
        "topics": "t",
        "bootstrap.servers": "localhost:1",
    }
    return Spec(run=run, connector=read(ConnectorConfig, raw), environment={}, control=control)


class Worker:
    def __init__(self, *, fails: bool = False) -> None:
        self.heard: list[str] = []
        self.closed = False
        self._fails = fails

    def renew(self, spec: Spec) -> None:
        if self._fails:
            raise ValueError(spec.run)
        self.heard.append(spec.run)

    def close(self) -> None:
        self.closed = True


def of(workers: Workers[Worker], spec: Spec, make: Callable[[], Worker] = Worker) -> Worker:
    with workers.at_work(spec, 0, make) as worker:
        return worker


def test_a_run_keeps_its_worker_and_tells_it_each_time() -> None:
    workers: Workers[Worker] = Workers()
    first = of(workers, spec("a"))
    assert of(workers, spec("a")) is first
    assert first.heard == ["a", "a"]


def test_the_run_that_waited_longest_is_closed_first() -> None:
    workers: Workers[Worker] = Workers()
    made = [of(workers, spec(run)) for run in "abcd"]
    of(workers, spec("a"))
    of(workers, spec("e"))
    assert [worker.closed for worker in made] == [False, True, False, False]


def test_a_worker_that_cannot_take_a_newer_spec_is_not_kept() -> None:
    workers: Workers[Worker] = Workers()
    with pytest.raises(ValueError, match="a"):
        of(workers, spec("a"), lambda: Worker(fails=True))
    assert of(workers, spec("a")).heard == ["a"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Lines, Address]]:
    server = ControlServer("127.0.0.1")
    monkeypatch.setattr(control, "serving", lambda _context: (server, server.address("127.0.0.1")))
    made = Lines()
    yield made, made.address(None)  # type: ignore[arg-type]
    made.close()


def test_the_driver_hears_of_a_call_that_gets_no_answer(
    driver: tuple[Lines, Address], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "FIRST_WORD", 0.1)
    workers: Workers[Worker] = Workers()
    with workers.at_work(spec("a", driver[1]), 3, Worker), watchdog.waiting("the store"):
        wait_until(lambda: "task 3: waiting for the store for " in caplog.text)


def test_a_stop_reaches_the_calls_that_workers_wait_in(driver: tuple[Lines, Address]) -> None:
    workers: Workers[Worker] = Workers()
    here, there = socket.socketpair()
    with here, there, workers.at_work(spec("a", driver[1]), 0, Worker):
        dog = Watchdog("workers", "the store", timeout=600.0)
        dog.attach(here)
        driver[0].stop()
        with dog.call():
            assert here.recv(1) == b""  # the connection was shut down
    assert "has not answered" in dog.ended
    dog.detach()


def test_a_process_that_is_at_work_and_does_not_report_is_frozen(
    driver: tuple[Lines, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, address = driver
    now = 0.0
    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: now))

    def look(seconds: int) -> list[str]:
        nonlocal now
        found = []
        for _ in range(seconds):
            now += 1.0
            found.append(made.frozen())
        return [process for process in found if process]

    workers: Workers[Worker] = Workers()
    made.begin()
    with workers.at_work(spec("a", address), 0, Worker):
        wait_until(lambda: made._silence)
        assert look(100) == []
        now += 500.0  # the driver stands still
        assert look(1) == []
        assert look(200) == 2 * [f"process {os.getpid()} on {socket.gethostname()}"]
    wait_until(lambda: not made._silence)
    assert look(300) == []


def test_workers_of_a_driver_that_cannot_be_reached_do_their_work_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = Address("127.0.0.1", server.getsockname()[1], b"key")
    workers: Workers[Worker] = Workers()
    assert of(workers, spec("a", nobody)).heard == ["a"]
    assert "the driver cannot be told about calls that get no answer" in caplog.text
