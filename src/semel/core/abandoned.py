"""Runs calls in threads of their own. A call that never returns is abandoned and counted, because
it keeps its memory.

Native clients may wait forever in spite of their own timeouts. A thread cannot be killed, only its
process can: a task that has abandoned too many calls kills its process, and Spark starts it again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from semel.core.context import kept

MOST = 3
"""With this many abandoned calls, a task starts again in a new process."""

T = TypeVar("T")

_abandoned: dict[threading.Thread, str] = {}
_lock = threading.Lock()


class Abandoned(Exception):
    """The call has not returned in time."""


class TooManyAbandoned(Exception):
    """A process has abandoned as many calls as it may."""

    def __init__(self, what: Sequence[str]) -> None:
        super().__init__(f"{len(what)} calls have not returned ({', '.join(sorted(set(what)))})")


class BackgroundCall(Generic[T]):
    """A call in a thread of its own; ``what`` names it in the log, ``then`` is called when it has
    ended."""

    def __init__(
        self, what: str, call: Callable[[], T], then: Callable[[], None] = lambda: None
    ) -> None:
        self._what = what
        self._call = kept(call)
        self._then = then
        self._ended = threading.Event()
        self._result: T | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._make, name=f"semel: {what}", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._failure = error
        self._ended.set()
        self._then()

    def ended(self, seconds: float) -> bool:
        """Whether it ends within ``seconds``."""
        return self._ended.wait(seconds)

    def wait(self) -> T:
        """Wait until it ends, however long that takes. Returns what it returned, and raises what it
        raised."""
        self._thread.join()
        return self.result()

    def result(self) -> T:
        """What it returned; raises what it raised."""
        if self._failure is not None:
            raise self._failure
        return self._result  # type: ignore[return-value]

    def abandon(self) -> None:
        """Stop waiting for it."""
        with _lock:
            _abandoned[self._thread] = self._what


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Make a call in a thread of its own, and wait for it ``seconds`` at most.

    Raises:
        Abandoned: it has not returned; ``what`` names it in the log.
    """
    started = BackgroundCall(what, call)
    if not started.ended(seconds):
        started.abandon()
        raise Abandoned(f"{what} has not ended within {seconds:.0f} s")
    return started.result()


def abandoned() -> list[str]:
    """The calls that this process has abandoned and that have not returned since."""
    with _lock:
        for thread in [thread for thread in _abandoned if not thread.is_alive()]:
            del _abandoned[thread]
        return list(_abandoned.values())


def check() -> list[str]:
    """The abandoned calls, if there are few enough for this process to continue.

    Raises:
        TooManyAbandoned: replace the process with a new one (:func:`end_process`); this
            one would use ever more memory.
    """
    calls = abandoned()
    if len(calls) >= MOST:
        raise TooManyAbandoned(calls)
    return calls


def end_process() -> None:
    """Kill this process. Spark runs its task again in a new one."""
    os.kill(os.getpid(), signal.SIGKILL)
