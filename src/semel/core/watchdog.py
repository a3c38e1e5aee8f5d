"""Calls to a store that get no answer: the log says so, and after ``store.timeout.ms`` they end.

One thread of the process looks at all calls in progress, and sleeps while there are none. A call
may last as long as bytes move on its connection or the store says that it is working on it. Past
the timeout, the connection is shut down under the client, so that the call fails where it waits.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from semel.core.abandoned import within

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WORD = 10.0
"""Seconds without an answer after which the log says what the call is waiting for."""
_EVERY = 60.0
_TICK = 0.5
_FROZEN = 5.0
_QUESTION = 10.0
"""Seconds for the store to say what it is working on, and for an ended call to fail."""
_STOPPING = 2.0
"""Seconds that a silent call gets once its connector has been asked to stop."""
_COUNTERS = struct.Struct("@QQ")
_ACKED = 120
"""Where ``struct tcp_info`` holds the acknowledged bytes, followed by the received ones."""


class Watchdog:
    """Watches the calls on one connection after another.

    ``end`` is called, in a thread of its own, when a call has had no answer for ``timeout``
    seconds, or for two once the connector was asked to stop. It returns what the store says it is
    working on, or an empty string: the call then fails, and :attr:`ended` says why.
    """

    def __init__(
        self, connector: str, where: str, timeout: float, end: Callable[[], str] = lambda: ""
    ) -> None:
        self._connector = connector
        self._where = where
        self._timeout = timeout
        self._end = end
        self._line: socket.socket | None = None
        self._calls = 0
        self._begun: float | None = None
        self._heard = self._asked = self._told = 0.0
        self._moved = (0, 0)
        self._question: _Question | None = None
        self._ended_at: float | None = None
        self.ended = ""
        """Why the last connection was shut down; empty if it was not."""
        _watcher.add(self)

    def attach(self, line: socket.socket | int | None) -> None:
        """Watch this connection from now on; None if it is not known."""
        self.detach()
        self.ended = ""
        if line is not None:
            handle = line if isinstance(line, int) else line.fileno()
            self._line = socket.socket(fileno=os.dup(handle))

    def detach(self) -> None:
        """Stop watching the connection; call this when it is closed."""
        line, self._line = self._line, None
        self._ended_at = None
        if line is not None:
            line.close()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Watch a call to the store until it returns."""
        self._calls += 1
        self._heard = self._told = self._asked = self._begun = time.monotonic()
        _watcher.wake()
        try:
            yield
        finally:
            if self._told != self._begun and not self.ended:
                _watcher.waits("")
            self._begun = None

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """The items of an answer that arrives in pieces; waiting for each item is watched as a
        call."""
        while True:
            with self.call():
                item = next(items, None)
            if item is None:
                return
            yield item

    @property
    def waits(self) -> str:
        """What the call in progress waits for, and for how long; empty if there is none."""
        begun = self._begun
        if begun is None:
            return ""
        waited = f"{time.monotonic() - begun:.0f} s"
        if self._timeout == math.inf:
            return f"waiting for {self._where} for {waited}"
        return f"{self._where} has not answered for {waited}"

    @property
    def is_busy(self) -> bool:
        """Whether there is something to look at."""
        return self._begun is not None or self._question is not None

    def look(self, now: float, stopping: float | None) -> None:
        """Called twice a second while busy. ``stopping`` is when the connector was asked to
        stop."""
        begun, question = self._begun, self._question
        if question is not None:
            if question.answer is None:
                return
            self._question, self._asked = None, now
            if begun is not None and question.call == self._calls:
                self._decide(question.answer, now)
            return
        if begun is None:
            return
        if self._ended_at is not None:
            if now - self._ended_at > _QUESTION:
                self._remind(
                    now, f"{self.ended}, but the call does not return. Is the client stuck?"
                )
                _watcher.give_up()
            return
        moved = self._bytes()
        if moved != self._moved:
            self._moved, self._heard = moved, now
        self._remind(now, self.waits)
        silent, asked = now - self._heard, now - self._asked
        if self._timeout == math.inf:
            return
        hurried = stopping is not None and now - stopping >= _STOPPING and silent >= _STOPPING
        if (silent >= self._timeout and asked >= self._timeout) or (hurried and asked >= 1.0):
            self._question = _Question(self._end, self._calls)

    def _remind(self, now: float, message: str) -> None:
        if now - self._told >= (FIRST_WORD if self._told == self._begun else _EVERY):
            self._told = now
            tell(message)
            _watcher.waits(message)

    def _decide(self, working: str, now: float) -> None:
        if working:
            tell(f"{self.waits}, but is working: {working}")
            return
        self.ended, self._ended_at = f"{self.waits}; semel dropped the connection", now
        with contextlib.suppress(OSError):
            if self._line is not None:
                self._line.shutdown(socket.SHUT_RDWR)

    def freeze(self, gap: float) -> None:
        """Discount ``gap`` seconds in which the process, not the store, stood still."""
        self._heard += gap
        self._asked += gap
        if self._ended_at is not None:
            self._ended_at += gap

    def _bytes(self) -> tuple[int, int]:
        """The bytes acknowledged and received so far, if the kernel says."""
        try:
            if self._line is None or self._line.family == socket.AF_UNIX:
                return 0, 0
            size = _ACKED + _COUNTERS.size
            info = self._line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
            acked, received = _COUNTERS.unpack_from(info, _ACKED)
        except (OSError, AttributeError, struct.error):
            return 0, 0
        return acked, received


@contextmanager
def waiting(where: str) -> Iterator[None]:
    """Log if this takes long. The store's own client bounds each request."""
    with Watchdog("", where, math.inf).call():
        yield


class _Question:
    """Asks, in a thread, whether the store is working on a call, because the answer may never
    come."""

    def __init__(self, ask: Callable[[], str], call: int) -> None:
        self.call = call
        self.answer: str | None = None
        threading.Thread(target=self._put, args=(ask,), daemon=True).start()

    def _put(self, ask: Callable[[], str]) -> None:
        try:
            self.answer = within(_QUESTION, "asking a store what it is working on", ask)
        except Exception:
            log.debug("could not ask a store what it is working on", exc_info=True)
            self.answer = ""


def tell(message: str) -> None:
    """Write a line to the driver's log."""
    _watcher.tell(message)


@contextmanager
def in_task(
    tell: Callable[[str], None],
    give_up: Callable[[], None],
    waits: Callable[[str], None] = lambda _why: None,
) -> Iterator[None]:
    """Within a task, lines go to the driver through ``tell``, and ``give_up`` ends the process if a
    call does not fail even after its connection was shut down. ``waits`` is called with what a
    silent call waits for, and with an empty text once it is answered."""
    _watcher.tell, _watcher.give_up, _watcher.waits = tell, give_up, waits
    try:
        yield
    finally:
        _watcher.tell, _watcher.give_up, _watcher.waits = log.warning, _nothing, _nothing


def _nothing(*_: object) -> None: ...


def stops_with(connector: str, stop: threading.Event) -> None:
    """End silent calls of the connector soon after ``stop`` is set."""
    _watcher.stops[connector] = stop
    _watcher.stopping.pop(connector, None)


def waits() -> list[str]:
    """What the calls in progress wait for."""
    return [reason for dog in _watcher.watchdogs() if (reason := dog.waits)]


def silent(connector: str) -> tuple[str, float] | None:
    """What a call of this connector has waited for so long that the log says so, and since when, in
    seconds since 1970; None if there is no such call."""
    for dog in _watcher.watchdogs():
        begun, now = dog._begun, time.monotonic()
        if dog._connector == connector and begun is not None and now - begun >= FIRST_WORD:
            return dog.waits, time.time() - (now - begun)
    return None


def watch(look: Callable[[float], bool]) -> None:
    """Call a method twice a second, as long as its object lives. It returns whether there is more
    to look at; if not, it is called again after :func:`wake`."""
    _watcher.looks.append(weakref.WeakMethod(look))
    _watcher.wake()


def wake() -> None:
    """Wake the thread, because there is something to look at."""
    _watcher.wake()


def connections() -> dict[int, tuple[int, int]]:
    """The connected TCP sockets of this process: inode to descriptor and port of the other end."""
    sockets = {}
    for path in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError, ValueError):
            handle = int(path.name)
            status = os.fstat(handle)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(handle)) as line:
                if line.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                sockets[status.st_ino] = (handle, int(line.getpeername()[1]))
    return sockets


class _Watcher:
    """The thread, and what it looks at."""

    def __init__(self) -> None:
        self._dogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sleeps = False
        self._woken = threading.Event()
        self.looks: list[weakref.WeakMethod[Callable[[float], bool]]] = []
        self.stops: dict[str, threading.Event] = {}
        self.stopping: dict[str, float] = {}
        self.tell: Callable[[str], None] = log.warning
        self.give_up: Callable[[], None] = _nothing
        self.waits: Callable[[str], None] = _nothing

    def add(self, dog: Watchdog) -> None:
        with self._lock:
            self._dogs.add(dog)

    def watchdogs(self) -> list[Watchdog]:
        with self._lock:
            return list(self._dogs)

    def wake(self) -> None:
        """Look at what has just begun. This precedes each call, so it must cost little."""
        if self._sleeps:
            self._woken.set()
        if self._thread is None or not self._thread.is_alive():
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(
                        target=self._work, name="semel-watchdog", daemon=True
                    )
                    self._thread.start()

    def forget_thread(self) -> None:
        """A forked process has the memory of its parent, but not its threads."""
        self._lock = threading.Lock()
        self._thread = None
        self._sleeps = False
        self._woken = threading.Event()

    def _work(self) -> None:
        now = time.monotonic()
        while True:
            time.sleep(_TICK)
            gap, now = time.monotonic() - now, time.monotonic()
            if gap > _FROZEN:
                for dog in self.watchdogs():
                    dog.freeze(gap)
            if not self._look(now):
                self._sleep()
                now = time.monotonic()

    def _look(self, now: float) -> bool:
        """Look at everything; returns whether there is something to look at soon."""
        for connector, stop in list(self.stops.items()):
            if stop.is_set():
                self.stopping.setdefault(connector, now)
        for dog in self.watchdogs():
            _guarded(dog.look, now, self.stopping.get(dog._connector))
        more = any(dog.is_busy for dog in self.watchdogs())
        for reference in list(self.looks):
            look = reference()
            if look is None:
                self.looks.remove(reference)
            elif _guarded(look, now):
                more = True
        return more

    def _sleep(self) -> None:
        """Sleep until something begins: idle connectors should cost next to nothing. A call that
        begins from here on sees ``_sleeps``; an earlier one is found by one more look."""
        self._woken.clear()
        self._sleeps = True
        if not self._look(time.monotonic()):
            self._woken.wait()
        self._sleeps = False


def _guarded(look: Callable[..., bool | None], *arguments: object) -> bool:
    """Keep an error in one look, such as a driver that is gone, from ending the others. Returns
    whether there is more to look at, as after an error."""
    try:
        return bool(look(*arguments))
    except Exception:
        log.debug("could not check the calls in progress", exc_info=True)
        return True


_watcher = _Watcher()
os.register_at_fork(after_in_child=_watcher.forget_thread)
