"""Calls that do not end are left behind in a thread. They are counted, for each keeps its memory.

Native clients may wait for ever in spite of their own timeouts. A thread cannot be ended, only its
process can: a task does that when there are too many of them, and Spark starts it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

MOST = 3
"""Calls left behind with which a task starts again in a new process."""

T = TypeVar("T")

_left: dict[threading.Thread, str] = {}
_lock = threading.Lock()


class Left(Exception):
    """The call has not ended in time."""


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Make a call in a thread of its own, for at most so long.

    Raises:
        Left: it has not ended; ``what`` says in the log what was left behind.
    """
    ended: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def made() -> None:
        try:
            ended.put((call(), None))
        except BaseException as error:
            ended.put((None, error))

    thread = threading.Thread(target=made, name=f"semel: {what}", daemon=True)
    thread.start()
    try:
        found, failure = ended.get(timeout=seconds)
    except Empty:
        with _lock:
            _left[thread] = what
        raise Left(f"{what} has not ended within {seconds:.0f} s") from None
    if failure is not None:
        raise failure
    return found  # type: ignore[return-value]


def left() -> list[str]:
    """What was left behind in this process and has not ended since."""
    with _lock:
        for thread in [thread for thread in _left if not thread.is_alive()]:
            del _left[thread]
        return list(_left.values())
