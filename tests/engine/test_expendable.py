"""What a process of its own does for its caller, and what its death does to it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.core.errors import ConfigError
from semel.spark import launch
from semel.tasks import expendable, memory
from tests.conftest import wait_gone
from tests.engine.harness import some
from tests.patience import PATIENCE

LIMITS = expendable.Limits(memory=64 * 1024 * 1024, patience=PATIENCE, seconds=1)


def answers(what: object) -> tuple[object, int]:
    return what, os.getpid()


def aborts() -> None:
    os.abort()


def swells() -> int:
    return len([bytearray(1024 * 1024) for _ in range(4096)])


def loops() -> None:
    sum(range(10**12))


def refuses() -> None:
    raise ConfigError("name: is wrong")


def never_answers() -> None:
    threading.Event().wait(PATIENCE)


def leaves_a_process() -> int:
    """It holds the line open, as a process does that takes its time to end."""
    process = os.fork()
    if process == 0:
        signal.alarm(int(PATIENCE))
        signal.pause()
    return process


def test_an_answer_is_there_before_the_process_has_gone() -> None:
    process = expendable.call(LIMITS, leaves_a_process)
    os.kill(process, signal.SIGKILL)  # it is still there


def test_a_call_is_answered_by_another_process() -> None:
    what, process = expendable.call(LIMITS, answers, "x")
    assert what == "x"
    assert process not in (os.getpid(), expendable.call(LIMITS, answers, "y")[1])


@pytest.mark.parametrize("dies", some([aborts, swells, loops], {aborts}))
def test_only_the_process_dies(dies: Callable[[], Any]) -> None:
    with pytest.raises(expendable.Died):
        expendable.call(LIMITS, dies)
    assert expendable.call(LIMITS, answers, "still there")[0] == "still there"


def test_an_error_arrives_as_what_it_is() -> None:
    with pytest.raises(ConfigError, match="name: is wrong"):
        expendable.call(LIMITS, refuses)


def test_a_process_that_does_not_answer_is_not_waited_for() -> None:
    with pytest.raises(TimeoutError):
        expendable.call(expendable.Limits(memory=LIMITS.memory, patience=0.2), never_answers)


def test_a_task_makes_the_call_itself() -> None:
    with memory.guarded(1 << 40, print):
        assert expendable.call(LIMITS, answers, "x") == ("x", os.getpid())


def who_forks() -> int:
    return os.getppid()


@pytest.mark.long
def test_a_process_that_forks_others_is_replaced_when_it_dies() -> None:
    died = expendable.call(LIMITS, who_forks)
    os.kill(died, signal.SIGKILL)
    assert wait_gone(died)
    assert expendable.call(LIMITS, who_forks) != died


def test_a_process_that_ends_before_it_forks_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ending:
        ending.bind(str(tmp_path / "forks"))
        ending.listen()
        monkeypatch.setattr(launch.Standby, "forks", str(tmp_path / "forks"))

        def end() -> None:
            line, _ = ending.accept()
            ending.close()
            line.close()

        thread = threading.Thread(target=end)
        thread.start()
        assert expendable.call(LIMITS, answers, "x")[0] == "x"
        thread.join(PATIENCE)
