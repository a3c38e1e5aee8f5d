"""The connector's processes, as the drill sees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from semel_lab.drill.process import Process, handles
from tests.patience import PATIENCE

_CHILD = "import sys; print(flush=True); sys.stdin.read()"
_PARENT = f"""
import subprocess, sys
def child(*names):
    made = subprocess.Popen(
        [sys.executable, "-c", {_CHILD!r}, *names], stdin=sys.stdin, stdout=subprocess.PIPE
    )
    made.stdout.readline()
    return made.pid
print(child("a task"), child("semel.spark.warmup"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield made
    made.communicate(timeout=PATIENCE)


def test_a_killed_driver_is_not_waited_for_until_its_archive_is_made(
    parent: subprocess.Popen[bytes],
) -> None:
    assert parent.stdout is not None
    task, archive = map(int, parent.stdout.readline().split())
    process = Process.__new__(Process)
    process._popen = parent  # type: ignore[assignment]
    assert {p.pid for p in process.family()} == {task, archive}
    assert [p.pid for p in process.crew()] == [task]


def test_only_a_process_that_handles_a_signal_is_asked_for_its_stacks() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        assert not handles(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, lambda *_: None)
        assert handles(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
