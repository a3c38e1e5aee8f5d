"""Failpoints: a process that froze continues when it is thawed, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from semel.core import failpoints
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

PLACE = "task.after_poll"
FREEZES = f"from semel.core import failpoints; failpoints.hit({PLACE!r}); print('awake')"


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to freeze."""
    failpoints.arm(tmp_path, PLACE, "freeze")
    process = subprocess.Popen(
        [sys.executable, "-c", FREEZES],
        env={**os.environ, failpoints.DIRECTORY: str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: bool(failpoints.fired(tmp_path)))
    yield process
    process.kill()
    process.communicate(timeout=PATIENCE)


def test_a_frozen_process_goes_on_when_it_is_thawed_however_soon(
    tmp_path: Path, frozen: subprocess.Popen[str]
) -> None:
    assert failpoints.fired(tmp_path) == [(PLACE, "freeze", frozen.pid)]
    failpoints.thaw(tmp_path, frozen.pid)
    assert frozen.communicate(timeout=PATIENCE)[0] == "awake\n"


def test_a_frozen_process_is_not_woken_up_by_a_signal_and_its_death_is_reported(
    tmp_path: Path, frozen: subprocess.Popen[str]
) -> None:
    process = psutil.Process(frozen.pid)
    for _ in range(5):
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        process.resume()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    frozen.kill()
    with pytest.raises(psutil.NoSuchProcess):
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
        failpoints.thaw(tmp_path, frozen.pid)


def test_a_process_that_was_stopped_by_hand_goes_on_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "input(); print('awake')"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        stopped = psutil.Process(process.pid)
        stopped.suspend()
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED)
        failpoints.thaw(tmp_path, process.pid)
        assert process.communicate("\n", timeout=PATIENCE)[0] == "awake\n"
