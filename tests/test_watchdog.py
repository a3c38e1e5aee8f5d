"""When the log speaks of calls and commits that do not end, and when a call is ended."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from semel.core import watchdog
from semel.core.watchdog import Watchdog, waiting
from semel.tasks.retry import OverdueWarning
from semel_lab.embedded.process import comes_true
from tests.patience import PATIENCE


@pytest.fixture
def told() -> Iterator[list[str]]:
    lines: list[str] = []
    with watchdog.in_task(lines.append, lambda: lines.append("gave up")):
        yield lines


def look(dog: Watchdog, *, until: Callable[[], bool], stopping: float | None = None) -> float:
    """Look as though half a second went by each time; returns the time of the last look."""
    now = began = time.monotonic()
    while not until():
        assert time.monotonic() < began + PATIENCE
        now += 0.5
        dog.look(now, stopping)
        time.sleep(0.005)  # what it calls answers in another thread
    return now


def test_the_log_says_what_is_waited_for_after_ten_seconds_and_then_each_minute(
    told: list[str],
) -> None:
    dog = Watchdog("c", "PostgreSQL at h", timeout=1000)
    with dog.call():
        now = time.monotonic()
        for second in range(0, 140):
            dog.look(now + second, stopping=None)
    assert len(told) == 3
    assert told[0].startswith("PostgreSQL at h has not answered for")


def test_nothing_is_said_of_calls_that_end(told: list[str]) -> None:
    dog = Watchdog("c", "PostgreSQL at h", timeout=1000)
    for second in range(0, 140):
        with dog.call():
            dog.look(time.monotonic() + min(second, 9), stopping=None)
    assert not told


def test_a_client_that_bounds_its_own_requests_is_only_spoken_of(told: list[str]) -> None:
    with waiting("Delta table t"):
        (dog,) = [d for d in watchdog._watcher.watchdogs() if d._where == "Delta table t"]
        dog.look(time.monotonic() + 3600, stopping=time.monotonic())
    assert [line.rpartition(" for ")[0] for line in told] == ["waiting for Delta table t"]
    assert not dog.ended


def test_a_call_whose_connection_moves_bytes_is_never_silent() -> None:
    near, far = tcp_pair()
    dog = Watchdog("c", "h", timeout=10, end=lambda: pytest.fail("it was not silent"))
    dog.attach(near)
    with dog.call():
        now = time.monotonic()
        for second in range(0, 60, 5):
            far.sendall(b"x")
            near.recv(1)
            dog.look(now + second, stopping=None)
    assert not dog.ended
    dog.detach()


def test_a_silent_call_is_left_unless_the_store_works_on_it(told: list[str]) -> None:
    answers = ["an index is built", ""]
    near, _far = tcp_pair()
    dog = Watchdog("c", "h", timeout=10, end=lambda: answers.pop(0))
    dog.attach(near)
    with dog.call():
        look(dog, until=lambda: bool(dog.ended))
        assert near.recv(1) == b""  # it was shut down
    assert not answers
    assert any("is working: an index is built" in line for line in told)
    assert "semel dropped the connection" in dog.ended
    dog.detach()


def test_a_process_ends_itself_if_a_call_does_not_even_fail_then(told: list[str]) -> None:
    dog = Watchdog("c", "h", timeout=1)
    with dog.call():
        look(dog, until=lambda: "gave up" in told)


def test_a_call_that_never_fails_is_spoken_of_where_the_process_cannot_end(
    told: list[str],
) -> None:
    dog = Watchdog("c", "h", timeout=1)
    with watchdog.in_task(told.append, lambda: None), dog.call():
        look(dog, until=lambda: " ".join(told).count("the call does not return") >= 2)


def test_a_process_that_stood_still_gives_an_ended_call_its_time_to_fail(told: list[str]) -> None:
    dog = Watchdog("c", "h", timeout=1)
    with dog.call():
        now = look(dog, until=lambda: bool(dog.ended))
        dog.freeze(3600)
        dog.look(now + 3600, stopping=None)
    assert "gave up" not in told


def test_a_silent_call_gets_two_seconds_once_its_connector_is_to_stop() -> None:
    dog = Watchdog("c", "h", timeout=1000)
    with dog.call():
        now = time.monotonic()
        then = look(dog, until=lambda: bool(dog.ended), stopping=now)
    assert 2 <= then - now < 1000


def test_records_that_wait_for_a_commit_are_spoken_of_after_thirty_seconds() -> None:
    told: list[str] = []
    late = OverdueWarning(told.append, lambda: "the task converts them")
    now = time.monotonic()
    late.begin()
    for second in range(0, 100):
        late._look(now + second)
    assert [line.rpartition(": ")[2] for line in told] == ["the task converts them"] * 2
    assert told[0].startswith("no commit for 3")
    late.end()
    late._look(now + 1000)
    assert len(told) == 2


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


class Looking:
    """Something that is looked at twice a second."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.looks = 0

    def look(self, _now: float) -> bool:
        self.looks += 1
        if self.fails:
            raise OSError("the driver has hung up")
        return True


def test_a_look_that_fails_does_not_end_the_others() -> None:
    failing, other = Looking(fails=True), Looking()
    watchdog.watch(failing.look)
    watchdog.watch(other.look)
    seen = other.looks
    assert comes_true(lambda: failing.looks > 1 and other.looks > seen + 1, PATIENCE)


def test_the_watchdog_sleeps_while_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = watchdog._Watcher()  # others' calls may be under way in the one of the process
    monkeypatch.setattr(watchdog, "_watcher", watcher)
    watcher.wake()
    assert comes_true(lambda: watcher._sleeps, PATIENCE)
    looks: list[float] = []

    class Looked(Watchdog):
        def look(self, now: float, stopping: float | None) -> None:
            looks.append(now)
            super().look(now, stopping)

    with Looked("c", "PostgreSQL at h", timeout=1000).call():
        seen = len(looks)
        assert comes_true(lambda: len(looks) > seen + 3, PATIENCE)
    assert comes_true(lambda: watcher._sleeps, PATIENCE)
    late = OverdueWarning(lambda _line: None, lambda: "converting")
    late.begin()
    assert comes_true(lambda: not watcher._sleeps, PATIENCE)
    late.end()
    assert comes_true(lambda: watcher._sleeps, PATIENCE)
