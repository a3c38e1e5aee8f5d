"""Calls functions in processes of their own, which may die.

What comes from outside may take gigabytes of memory or minutes of time, or make a library abort. A
process that dies of that takes nothing along: neither the connectors of a worker nor their tasks.

Each call is answered by a process that is forked from one which has imported everything. The daemon
on standby forks it (:mod:`semel.spark.standby`), and without one this module starts its own.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import math
import os
import pickle
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from semel.core.context import search_path
from semel.core.errors import Failure, SemelError
from semel.spark import launch
from semel.tasks import memory

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SERVES = "import socket, sys; from semel.tasks import expendable; "
_SERVES += "expendable.serve(socket.socket(fileno=int(sys.argv[1])))"
_ENDS_IN = 20.0
_NICE = 5
_LENGTH = struct.Struct(">I")
_FORKED = b"forked"
"""What a process says first."""
_TRIES = 3
_own: list[str] = []
_imported: set[str] = set()
"""What calls have imported: it is imported before the next one is forked."""
_lock = threading.Lock()


class Died(Exception):
    """The process ended without an answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use.

    Args:
        memory: bytes, beside what the process has when it begins.
        patience: seconds to wait for the answer.
        seconds: CPU time; without limit if 0.
    """

    memory: int
    patience: float
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    limits: Limits
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: str = field(default_factory=lambda: str(Path.cwd()))


@dataclass(frozen=True, slots=True)
class _Answer:
    result: Any
    imported: set[str]
    failure: Failure | None = None


def call(limits: Limits, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a module's function in a process of its own, and return its result. In a task it is
    called directly: a task may die, too.

    Raises:
        Died: the process has died, or a limit has ended it.
        TimeoutError: it has not answered in time.
        SemelError: what the function raises.
    """
    if memory.is_guarded():
        return function(*arguments)
    request = pickle.dumps(_Request(function, arguments, limits))
    with _lock:
        modules = "\n".join([function.__module__, *sorted(_imported)]).encode()
    for _ in range(_TRIES):
        reply = b""
        with _connected() as line, contextlib.suppress(ConnectionError):
            line.settimeout(limits.patience)
            line.sendall(_LENGTH.pack(len(modules)) + modules + request)
            line.shutdown(socket.SHUT_WR)
            with line.makefile("rb") as sent:
                reply = sent.read()
        if reply:  # else the process that should have forked has ended, as its own run has
            break
    if not reply.removeprefix(_FORKED):
        raise Died
    answer: _Answer = pickle.loads(reply.removeprefix(_FORKED))
    with _lock:
        _imported.update(answer.imported)
    if answer.failure is not None:
        raise answer.failure.error()
    return answer.result  # type: ignore[no-any-return]


def _connected() -> socket.socket:
    """A connection to a process that forks others."""
    if (line := _to(launch.Standby.forks)) is not None:
        return line
    with _lock:
        if (line := _to(*_own[-1:])) is None:  # there is none, or it has died
            _own.append(_started())
            line = _to(_own[-1])
    if line is None:
        raise Died
    return line


def _to(path: str = "") -> socket.socket | None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(path)
    except OSError:
        line.close()
        return None
    return line


def _started() -> str:
    """Start a process that forks others; returns where it listens."""
    folder = tempfile.mkdtemp(prefix="semel-")
    path = f"{folder}/forks"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(launch.AT_ONCE)
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVES, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in a terminal is for this process
            pass_fds=[listener.fileno()],
            env={**os.environ, **search_path()},
        )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_ENDS_IN)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return path


def serve(listener: socket.socket) -> None:
    """Answer each request in a process of its own, until whoever holds the other end of standard
    input ends.

    The process for the next request is forked ahead, since a fork of a large process takes longer
    than most requests.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    spare: socket.socket | None = None
    while True:
        if spare is None:
            with contextlib.suppress(OSError):  # too many processes: the call gets no answer
                spare = _forked(listener)
        either: list[Any] = [0, listener]
        ready, _, _ = select.select(either, [], [])
        if 0 in ready:
            return
        line, _ = listener.accept()
        with line, contextlib.suppress(OSError, struct.error):
            (length,) = _LENGTH.unpack(line.recv(_LENGTH.size, socket.MSG_WAITALL))
            names = line.recv(length, socket.MSG_WAITALL).decode().split("\n")
            if _imported_now(names) and spare is not None:
                spare.close()
                spare = None
            process, spare = spare or _forked(listener), None
            with process:
                socket.send_fds(process, [b" "], [line.fileno()])


def _imported_now(names: list[str]) -> bool:
    """Import the modules that are not imported yet; False if there are none."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(Exception):  # the call says what is missing
            importlib.import_module(name)
    return bool(missing)


def _forked(listener: socket.socket) -> socket.socket:
    """Fork a process that answers one request; returns where to hand it over."""
    here, there = socket.socketpair()
    with there:
        if os.fork():
            return here
        here.close()
        listener.close()
        try:
            _, files, _, _ = socket.recv_fds(there, 1, 1)
            there.close()
            if files:  # else the process that forked this one has ended
                with socket.socket(fileno=files[0]) as line:
                    _answer(line)
        finally:
            os._exit(0)


def _answer(line: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # it waits for the programs that it starts
    before = {*sys.modules}
    line.sendall(_FORKED)
    with line.makefile("rb") as sent:
        request: _Request = pickle.loads(sent.read())
    os.environ.update(request.environment)
    os.chdir(request.folder)
    limits = request.limits
    signal.alarm(math.ceil(limits.patience))  # nobody waits for it any longer
    if limits.seconds:
        os.nice(_NICE)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, most))
    memory.limit_caches()
    memory.limit(limits.memory)
    result, failure = None, None
    try:
        result = request.call(*request.arguments)
    except SemelError as error:
        failure = Failure.of(error)
    except (MemoryError, SystemError):  # a C library may hide the one in the other
        return
    except Exception as error:
        failure = Failure.of(SemelError(f"{type(error).__name__}: {error}"))
    imported = {name for name in {*sys.modules} - before if not name.startswith("_")}
    line.sendall(pickle.dumps(_Answer(result, imported, failure)))
    line.shutdown(socket.SHUT_WR)  # so that nobody waits until this process is gone
