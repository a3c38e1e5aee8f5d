"""The connection between the driver and its tasks: progress one way, "stop", "pause", "resume" the
other.

It carries nothing that the guarantee depends on. A task that loses its connection fails: its driver
is gone, or Spark starts it again. Connections are authenticated with a random key that travels in
the task's closure, and so is each message: nothing that somebody on the way has added, changed or
repeated is unpickled. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import pickle
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import TYPE_CHECKING, Any

from semel.core.context import kept
from semel.core.errors import Failure, SemelError
from semel.core.ledger import TopicPartition

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

_HANDSHAKE = 10
_NONCE = _MAC = 32
_TAKES = 10
"""Seconds within which the other side must take what it is sent."""
STOP_DELAY = 2.0
"""Seconds until a task that wakes up has received the driver's "stop"."""
_BEAT = 20.0
"""Seconds between two signs of life of a task."""
FROZEN = 120.0
"""Seconds without a report after which a task's process is ended: a native client that keeps
Python's lock freezes all of its threads, including those that watch it."""
STANDS_STILL = 11.0
"""A driver that has not checked for more than this many seconds was itself frozen."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds, in seconds, of the buckets that commits are counted in."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the driver listens."""

    host: str
    port: int
    key: bytes = field(repr=False)


class Line:
    """One end of a connection whose messages are signed. ``line`` is authenticated; each end says
    a number that was never used before, so that no message of another connection is valid here.

    Raises:
        OSError, EOFError: the other end has gone, or hangs.
    """

    def __init__(self, line: Connection[Any, Any], key: bytes, *, is_driver: bool) -> None:
        self._line = line
        mine = secrets.token_bytes(_NONCE)
        line.send_bytes(mine)
        theirs = line.recv_bytes(_NONCE)
        numbers = mine + theirs if is_driver else theirs + mine
        self._out, self._in = ((key, numbers, end) for end in (is_driver, not is_driver))
        self._sent = self._received = 0

    def send(self, content: object) -> None:
        """Send a message. Callers take turns."""
        message = pickle.dumps(content)
        signature = _signature(*self._out, self._sent, message)
        self._sent += 1
        self._line.send_bytes(signature + message)

    def recv(self) -> Any:
        """The next message.

        Raises:
            EOFError: it does not come from the other end.
        """
        content = memoryview(self._line.recv_bytes())
        message = content[_MAC:]
        if not hmac.compare_digest(content[:_MAC], _signature(*self._in, self._received, message)):
            log.warning("a message between driver and task was not signed by either: hanging up")
            raise EOFError
        self._received += 1
        return pickle.loads(message)

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()


def _signature(
    key: bytes, numbers: bytes, from_driver: bool, count: int, message: bytes | memoryview
) -> bytes:
    mac = hmac.new(key, numbers + struct.pack("!?Q", from_driver, count), "sha256")
    mac.update(message)
    return mac.digest()


Process = tuple[str, int]
"""A host's name and the process's id there."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The outcomes of commits, for metrics: totals since a task started; where the driver commits,
    since the run started.

    ``by_time`` counts commits by the bucket that their seconds fall into, the last one being for
    all that took longer. ``largest`` is the number of records of the largest commit.
    """

    by_time: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    seconds: float = 0.0
    slowest: float = 0.0
    largest: int = 0
    replays: int = 0
    conflicts: int = 0
    failures: int = 0

    @property
    def commits(self) -> int:
        """The number that succeeded."""
        return sum(self.by_time)

    def __add__(self, other: Deliveries) -> Deliveries:
        return Deliveries(
            tuple(a + b for a, b in zip(self.by_time, other.by_time, strict=True)),
            self.seconds + other.seconds,
            max(self.slowest, other.slowest),
            max(self.largest, other.largest),
            self.replays + other.replays,
            self.conflicts + other.conflicts,
            self.failures + other.failures,
        )

    def committed(self, seconds: float, records: int) -> Deliveries:
        """The totals with one more commit."""
        bucket = sum(seconds > bound for bound in BUCKETS)
        counts = tuple(n + (i == bucket) for i, n in enumerate(self.by_time))
        return replace(
            self,
            by_time=counts,
            seconds=self.seconds + seconds,
            slowest=max(self.slowest, seconds),
            largest=max(self.largest, records),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """A task's report.

    ``kind`` is ``started``, ``alive``, ``assigned``, ``progress``, ``paused``, ``log``,
    ``waiting``, ``fenced``, ``failed`` or ``stopped``; ``awake`` comes from the driver. The workers
    of engines whose driver commits send ``alive``, ``working``, ``idle`` and ``log``. Counts are
    totals since the task started; ``sent`` counts a source's records by topic, ``unplaced`` a
    sink's values that reached no column, by topic and field. ``caught_up``: there was nothing left
    to read; ``failure`` is the error that ended the task.
    """

    kind: str
    task: int
    attempt: int
    pid: int = 0
    host: str = ""
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    records: int = 0
    rows: int = 0
    failed: int = 0
    commits: int = 0
    unplaced: Mapping[tuple[str, str], int] = field(default_factory=dict)
    deliveries: Deliveries = field(default_factory=Deliveries)
    caught_up: bool = False
    message: str = ""
    failure: Failure | None = None


def rebuild(report: Report) -> SemelError:
    """The error that a task reported, as it was raised there."""
    return report.failure.error() if report.failure else SemelError(report.message)


class ControlServer:
    """The driver's end. ``hear`` is called with each report, in a thread per connected task; by
    default it fills ``reports``. ``disconnected`` is called there when a connection has ended.
    ``reached`` says whether a task has ever connected."""

    def __init__(self, host: str) -> None:
        self._key = secrets.token_bytes(32)
        self._listener = Listener((host, 0), family="AF_INET", backlog=64)
        self._host, self._port = self._listener.address
        self.reports: queue.Queue[Report] = queue.Queue()
        self.hear: Callable[[Report], None] = self.reports.put
        self.disconnected: Callable[[], None] = lambda: None
        self._lines: set[Line] = set()
        self._attempts: dict[Line, tuple[int, int]] = {}
        self._processes: dict[Line, Process] = {}
        self._lock = threading.Lock()
        self.reached = False
        self._open = 0
        self._command = "resume"
        self._plan: _Plan | None = None
        self._unwanted: set[int] = set()
        self._closed = False
        threading.Thread(target=kept(self._accept), daemon=True, name="semel-control").start()

    def address(self, host: str) -> Address:
        """The address to give to tasks, under the name by which they reach this host."""
        return Address(host, self._port, self._key)

    def stop_tasks(self) -> None:
        """Ask every task, including those that have not connected yet, to finish its current
        work."""
        self._broadcast("stop")

    def pause_tasks(self) -> None:
        """Ask every task, including those that have not connected yet, to read nothing until it is
        resumed."""
        self._broadcast("pause")

    def resume_tasks(self) -> None:
        """Resume paused tasks."""
        self._broadcast("resume")

    def wake(self) -> None:
        """End the wait for reports: there is something else to look at."""
        self.reports.put(Report("awake", task=-1, attempt=-1))

    def want_task(self, task: int) -> None:
        """Let a task run, if it was stopped before."""
        with self._lock:
            self._unwanted.discard(task)

    def stop_task(self, task: int, *, for_good: bool = False) -> None:
        """Ask one task to finish its current work. Its next attempt is not affected, unless this is
        ``for_good``: then the next attempt gets no plan."""
        with self._lock:
            if for_good:
                self._unwanted.add(task)
            for line, (index, _) in self._attempts.items():
                if index == task:
                    _send(line, "stop")

    def is_connected(self, task: int) -> bool:
        """Whether an attempt of the task may still be connected, so that more reports may
        arrive."""
        with self._lock:
            unknown = self._open > len(self._attempts)
            return unknown or any(index == task for index, _ in self._attempts.values())

    def processes(self) -> set[Process]:
        """The connected processes that have said who they are."""
        with self._lock:
            return set(self._processes.values())

    def announce(self, plan: object) -> None:
        """Give every task that may run, including those that have not connected yet, the plan that
        it waits for."""
        with self._lock:
            self._plan = _Plan(plan)
            for line, (task, _) in self._attempts.items():
                self._give(line, task)

    def _give(self, line: Line, task: int) -> None:
        if task in self._unwanted:
            _send(line, "stop")
        elif self._plan is not None:
            _send(line, self._plan)

    def _broadcast(self, command: str) -> None:
        with self._lock:
            self._command = command
            for line in self._lines:
                _send(line, command)

    def close(self) -> None:
        """Close all connections; tasks that are still running stop."""
        with self._lock:
            self._closed = True
            for line in self._lines:
                _hang_up(line)
        host = "127.0.0.1" if self._host == "0.0.0.0" else self._host
        with contextlib.suppress(OSError):  # wakes up the thread that accepts
            socket.create_connection((host, self._port)).close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception as error:
                log.debug("a connection was refused: %s", error)
                time.sleep(0.01)
                continue
            with self._lock:
                self._open += 1
            threading.Thread(target=kept(partial(self._serve, connection)), daemon=True).start()
        self._listener.close()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        line = self._authenticated(connection)
        try:
            if line is not None:
                self._listen(line)
        finally:
            with self._lock:
                if line is not None:
                    self._lines.discard(line)
                    self._attempts.pop(line, None)
                    self._processes.pop(line, None)
                self._open -= 1
            connection.close()
            self.disconnected()

    def _listen(self, line: Line) -> None:
        with self._lock:
            self._lines.add(line)
            self.reached = True
            if self._command != "resume":
                _send(line, self._command)
            if self._closed:
                _hang_up(line)
        with contextlib.suppress(OSError, EOFError):
            while True:
                report = line.recv()
                with self._lock:
                    is_new = line not in self._attempts
                    self._attempts[line] = (report.task, report.attempt)
                    if report.pid:
                        self._processes[line] = report.host, report.pid
                    if is_new:
                        self._give(line, report.task)
                    if report.kind == "started":
                        self._relieve(report.task)
                self.hear(report)

    def _relieve(self, task: int) -> None:
        """Stop the older attempts of a task that has started again.

        Spark may have replaced a task that was only frozen. When it wakes up, it is told to stop.
        It must not join the group again, because that would fence its successor.
        """
        same = {k: attempt for k, (index, attempt) in self._attempts.items() if index == task}
        for old in [k for k, attempt in same.items() if attempt < max(same.values())]:
            _send(old, "stop")

    def _authenticated(self, connection: Connection[Any, Any]) -> Line | None:
        """The line to the other side, if that knows the key. Nothing is unpickled before that. A
        silent client blocks only its own thread."""
        _receive_within(connection, _HANDSHAKE)
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            line = Line(connection, self._key, is_driver=True)
        except Exception as error:
            log.debug("a connection was refused: %s", error)
            return None
        _receive_within(connection, 0)
        _set_timeout(connection, socket.SO_SNDTIMEO, _TAKES)
        return line


def connected(address: Address) -> Line:
    """A task's line to the driver.

    Raises:
        OSError, EOFError: the driver cannot be reached.
    """
    connection = Client((address.host, address.port), family="AF_INET", authkey=address.key)
    return Line(connection, address.key, is_driver=False)


def _receive_within(line: Connection[Any, Any], seconds: int) -> None:
    """Set the timeout of reads; 0 means none."""
    _set_timeout(line, socket.SO_RCVTIMEO, seconds)


def _set_timeout(line: Connection[Any, Any], option: int, seconds: int) -> None:
    with socket.socket(fileno=os.dup(line.fileno())) as handle:
        handle.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What tasks that were started early wait for."""

    content: object


class ControlLine:
    """The task's end of the connection. ``stop`` is set when the driver says so or is gone,
    ``paused`` while the task must not read."""

    def __init__(self, address: Address) -> None:
        self._line = connected(address)
        self.stop = threading.Event()
        self.paused = threading.Event()
        self._plan: _Plan | None = None
        self._has_plan = threading.Event()
        self.orphaned = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True, name="semel-control").start()

    def send(self, report: Report) -> None:
        """Report to the driver; the report is lost if the driver has gone."""
        with self._lock:
            try:
                self._line.send(report)
            except OSError:
                self.orphaned = True

    def beat(self, report: Report) -> None:
        """Send this now, so that the driver knows who is there, and then from time to time, so that
        it notices when all threads of this process are blocked."""
        self.send(report)

        def send() -> None:
            while not self._closed.wait(_BEAT) and not self.orphaned:
                self.send(report)

        threading.Thread(target=send, daemon=True, name="semel-alive").start()

    def plan(self) -> Any | None:
        """The driver's plan, once it is ready; None if the task is to stop before that. Waits as
        long as the driver is there."""
        self._has_plan.wait()
        return self._plan.content if self._plan is not None else None

    def ends_within(self, seconds: float) -> bool:
        """Wait for so many seconds, or until the task must stop; returns whether it must."""
        return self.stop.wait(seconds) or self.orphaned

    @property
    def has_order(self) -> bool:
        """Whether the task must stop, or must not read."""
        return self.stop.is_set() or self.paused.is_set()

    def close(self) -> None:
        self._closed.set()
        _hang_up(self._line)

    def _listen(self) -> None:
        try:
            while (command := self._line.recv()) != "stop":
                if isinstance(command, _Plan):
                    self._plan = command
                    self._has_plan.set()
                elif command == "pause":
                    self.paused.set()
                else:
                    self.paused.clear()
        except (OSError, EOFError):
            self.orphaned = True
        self.stop.set()
        self._has_plan.set()


def _send(line: Line, command: str | _Plan) -> None:
    try:
        line.send(command)
    except OSError:  # it takes nothing: frozen, perhaps, with part of a plan unread
        _hang_up(line)


def _hang_up(line: Line) -> None:
    """Shut the connection down. Closing the descriptor alone would not wake up a thread that waits
    on it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as open_:
        open_.shutdown(socket.SHUT_RDWR)


def serving(context: SparkContext) -> tuple[ControlServer, Address]:
    """A server on this driver, and the address that the tasks of this Spark reach it by."""
    if str(context.master).startswith("local"):
        server = ControlServer("127.0.0.1")
        return server, server.address("127.0.0.1")
    conf = context.getConf()
    host = conf.get("spark.driver.host", "") or "127.0.0.1"
    server = ControlServer(conf.get("spark.driver.bindAddress", "") or host)
    return server, server.address(host)


class Lines:
    """The driver's end of the lines to the worker processes of one run, where the driver commits.

    Workers write to the driver's log, for example which store does not answer, give signs of life,
    and learn that the run must stop. Nothing else is exchanged. It listens once the first job needs
    it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ControlServer | None = None
        self._address: Address | None = None
        self._stopping = False
        self._context = copy_context()
        self._silence: dict[Process, float] = {}
        """For how many seconds each process that is at work has not reported."""
        self._looked = 0.0

    def address(self, context: SparkContext) -> Address:
        """Where this run's workers find the driver."""
        with self._lock:
            if self._address is None:
                self._server, self._address = serving(context)
                self._server.hear = self._hear
                if self._stopping:
                    self._server.stop_tasks()
            return self._address

    def stop(self) -> None:
        """The run was asked to stop: calls to a store that does not answer end soon."""
        with self._lock:
            if self._server is not None and not self._stopping:
                self._server.stop_tasks()
            self._stopping = True

    def frozen(self) -> str | None:
        """Name a process that is at work and has not reported for 2 minutes; None if there is
        none. To be called several times a second while a job runs. Time in which the driver itself
        stood still does not count."""
        now = time.monotonic()
        with self._lock:
            passed, self._looked = min(now - self._looked, STANDS_STILL), now
            there = self._server.processes() if self._server is not None else set()
            before = {process: s for process, s in self._silence.items() if process in there}
            self._silence = {process: seconds + passed for process, seconds in before.items()}
            silent = [process for process, seconds in self._silence.items() if seconds > FROZEN]
            self._silence |= dict.fromkeys(silent, 0.0)
        return f"process {silent[0][1]} on {silent[0][0]}" if silent else None

    def begin(self) -> None:
        """A job begins: no process is at work yet."""
        with self._lock:
            self._silence, self._looked = {}, time.monotonic()

    def close(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.close()

    def _hear(self, report: Report) -> None:
        """Called in a thread for each worker; sets the thread's connector."""
        process = report.host, report.pid
        with self._lock:
            if report.kind == "working" or process in self._silence:
                self._silence[process] = 0.0
            if report.kind == "idle":
                self._silence.pop(process, None)
        if report.kind != "log":
            return
        about = {"task": report.task}
        line = ("task %d: %s", report.task, report.message)
        self._context.copy().run(lambda: log.warning(*line, extra=about))
