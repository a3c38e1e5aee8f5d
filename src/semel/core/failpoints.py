"""Failpoints: named places where a test makes a process die, freeze or fail.

They are off unless ``SEMEL_FAILPOINTS`` names a directory. A file there arms the place that it is
named after; it holds ``action`` or ``action:skip`` (let it pass ``skip`` times first). The process
that reaches an armed place removes the file, so each fires once, wherever the place is reached.

Actions: ``kill-worker`` (SIGKILL this process), ``kill-driver`` (SIGKILL the driver, then this
process), ``kill-executor`` (SIGKILL the executor that runs this Python worker), ``freeze``
(SIGSTOP this process until :func:`thaw`), ``raise`` (a transient error).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from semel.core.errors import TransientError

DIRECTORY = "SEMEL_FAILPOINTS"
DRIVER = "SEMEL_DRIVER_PID"

PLACES = (
    "task.after_poll",
    "task.after_convert",
    "deliver.between",
    "sink.after_positions",
    "sink.before_commit",
    "sink.after_commit",
    "task.before_publish",
)
"""The common places, in the order in which a commit reaches them. ``deliver.between`` lies between
results and positions, if the guarantee commits one after the other."""

OF_STAGING = ("staging.mid_file",)
"""Where tasks write files for a later commit: one is half written."""
OF_FILES = (*OF_STAGING, "files.between_renames")
"""Additional places of the files sink: half of the files have their final names."""
OF_FILE_STREAM = ("filestream.appended",)
"""The file has the lines of a commit, but the ledger does not know of them yet."""
OF_HIVE = ("hive.before_alter",)
"""Where a commit to an Iceberg table holds a lock of the Hive metastore."""
OF_SOURCES = (
    *("task.after_poll", "task.after_convert", "source.after_records"),
    *("sink.after_positions", "sink.before_commit", "deliver.between", "sink.after_commit"),
)
"""The places of source connectors. At ``source.after_records`` a transaction has its records, but
not their offsets."""
OF_STREAMS = (
    "streams.after_changes",
    "streams.before_kafka",
    "streams.after_kafka",
    "streams.after_state",
)
"""Additional places of topologies, between the steps of a commit: the changes are in an open Kafka
transaction; the target has committed; so has Kafka; the local state has followed."""

_ALL = (*PLACES, *OF_SOURCES, *OF_FILES, *OF_FILE_STREAM, *OF_HIVE, *OF_STREAMS)

_LOG = "fired.log"

_directory = os.environ.get(DIRECTORY)
_alone = threading.Lock()


def hit(place: str) -> None:
    """Do what the place is armed with. Costs one comparison when failpoints are off."""
    if _directory is not None:
        _fire(Path(_directory), place)


def arm(directory: Path, place: str, action: str, skip: int = 0) -> None:
    """Arm a place for the processes started with ``SEMEL_FAILPOINTS=directory``."""
    if place not in _ALL:
        raise ValueError(f"no failpoint {place}; there are {', '.join(_ALL)}")
    scratch = directory / f".{place}.tmp"
    scratch.write_text(f"{action}:{skip}")
    scratch.rename(directory / place)


def disarm(directory: Path) -> None:
    """Disarm what was armed and not reached."""
    for place in _ALL:
        (directory / place).unlink(missing_ok=True)


class FiredFailpoint(NamedTuple):
    """A failpoint that has fired: where, what it did, and in which process."""

    place: str
    action: str
    pid: int


def fired(directory: Path) -> list[FiredFailpoint]:
    """The failpoints of a directory that have fired, in order."""
    try:
        lines = (directory / _LOG).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [FiredFailpoint(place, action, int(pid)) for place, action, pid in map(str.split, lines)]


def forget(directory: Path) -> None:
    """Forget which failpoints have fired."""
    (directory / _LOG).unlink(missing_ok=True)


def thaw(directory: Path, pid: int) -> None:
    """Thaw a process that was frozen, at a failpoint or by hand; returns once it runs.

    Raises:
        psutil.NoSuchProcess: it has died meanwhile.
    """
    process = psutil.Process(pid)
    if process.status() == psutil.STATUS_ZOMBIE:
        raise psutil.ZombieProcess(pid)
    waking = directory / f"waking.{pid}"
    with contextlib.suppress(FileNotFoundError):  # it was not frozen by a failpoint
        (directory / f"frozen.{pid}").rename(waking)
    with contextlib.suppress(psutil.NoSuchProcess):  # it woke up and has exited
        while (status := process.status()) == psutil.STATUS_STOPPED or waking.exists():
            if status == psutil.STATUS_ZOMBIE:
                return
            process.resume()
            time.sleep(0.01)


def environment() -> dict[str, str]:
    """The variables that executors need so that their failpoints work like the driver's."""
    if DIRECTORY not in os.environ:
        return {}
    return {DIRECTORY: os.environ[DIRECTORY], DRIVER: str(os.getpid())}


def _fire(directory: Path, place: str) -> None:
    with _alone:  # other threads run for a moment after SIGKILL is sent
        _take(directory, place)


def _take(directory: Path, place: str) -> None:
    taken = directory / f".{place}.{os.getpid()}"
    try:
        (directory / place).rename(taken)
    except FileNotFoundError:
        return
    action, _, skip = taken.read_text().partition(":")
    taken.unlink()
    if int(skip or 0) > 0:
        arm(directory, place, action, int(skip) - 1)
        return
    if action == "freeze":  # first: a reader of the log may thaw it at once
        (directory / f"frozen.{os.getpid()}").touch()
    with (directory / _LOG).open("a") as log:
        log.write(f"{place} {action} {os.getpid()}\n")
    _act(directory, action, place)


def _act(directory: Path, action: str, place: str) -> None:
    me = os.getpid()
    if action == "raise":
        raise TransientError(f"failpoint {place}")
    if action == "freeze":
        _freeze(directory / f"frozen.{me}")
        (directory / f"waking.{me}").unlink(missing_ok=True)
        return
    if action == "kill-driver":
        os.kill(int(os.environ.get(DRIVER, me)), signal.SIGKILL)
    elif action == "kill-executor":
        java = next((p for p in psutil.Process(me).parents() if "java" in p.name()), None)
        if java is not None:
            java.kill()
    os.kill(me, signal.SIGKILL)


def _freeze(mark: Path) -> None:
    """Stay stopped as long as the mark exists.

    When an executor dies, the kernel sends SIGHUP and SIGCONT to the stopped workers it leaves
    behind; a zombie must survive the former and not be woken by the latter.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)  # Python's: main thread only
    libc.signal(signal.SIGHUP, int(signal.SIG_IGN))
    while mark.exists():
        os.kill(os.getpid(), signal.SIGSTOP)
    # A SIGSTOP that is still pending would stop the process with nobody left to resume it.
    os.kill(os.getpid(), signal.SIGCONT)
