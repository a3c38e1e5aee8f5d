"""Calls that do not end are left behind in a thread. They are counted, for each keeps its memory.

Native clients may wait for ever in spite of their own timeouts. A thread cannot be ended, only its
process can: a task does that when there are too many of them, and Spark starts it again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

MOST = 3
"""Calls left behind with which a task starts again in a new process."""

T = TypeVar("T")

_left: dict[threading.Thread, str] = {}
_lock = threading.Lock()


class Left(Exception):
    """The call has not ended in time."""


class TooManyLeft(Exception):
    """As many calls do not end as one process may leave behind."""

    def __init__(self, what: Sequence[str]) -> None:
        super().__init__(f"{len(what)} calls have not returned ({', '.join(sorted(set(what)))})")


class Started(Generic[T]):
    """A call in a thread of its own; ``what`` says in the log what it is."""

    def __init__(self, what: str, call: Callable[[], T]) -> None:
        self._what = what
        self._call = call
        self._ended = threading.Event()
        self._found: T | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._make, name=f"semel: {what}", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        try:
            self._found = self._call()
        except BaseException as error:
            self._failure = error
        self._ended.set()

    def ended(self, seconds: float) -> bool:
        """Wait for its end for so long; whether it has come."""
        return self._ended.wait(seconds)

    def result(self) -> T:
        """What it has returned; raises what it has raised."""
        if self._failure is not None:
            raise self._failure
        return self._found  # type: ignore[return-value]

    def leave(self) -> None:
        """Wait for it no longer."""
        with _lock:
            _left[self._thread] = self._what


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Make a call in a thread of its own, for at most so long.

    Raises:
        Left: it has not ended; ``what`` says in the log what was left behind.
    """
    started = Started(what, call)
    if not started.ended(seconds):
        started.leave()
        raise Left(f"{what} has not ended within {seconds:.0f} s")
    return started.result()


def left() -> list[str]:
    """What was left behind in this process and has not ended since."""
    with _lock:
        for thread in [thread for thread in _left if not thread.is_alive()]:
            del _left[thread]
        return list(_left.values())


def check() -> list[str]:
    """What was left behind, as long as this process may go on with it.

    Raises:
        TooManyLeft: the process has to be replaced by a new one (:func:`end_process`); this one
            would only grow.
    """
    found = left()
    if len(found) >= MOST:
        raise TooManyLeft(found)
    return found


def end_process() -> None:
    """Kill this process. Spark runs its task again in a new one."""
    os.kill(os.getpid(), signal.SIGKILL)
