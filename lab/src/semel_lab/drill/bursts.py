"""Gives a drilled connector something to do: records in bursts, at a rate."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

BURSTS = (10, 40, 100, 200)
_SHORT = (5, 20, 40)


class Bursts:
    """Threads that write bursts of records until stopped.

    They write the records that :meth:`allow` grants at full speed, and more only slowly: a
    connector always has something to do, and an audit never too much.
    """

    may_raise: ClassVar[tuple[type[Exception], ...]] = ()
    """The exceptions that a thread may meet; it then starts over."""

    def __init__(
        self, works: Mapping[str, Callable[[random.Random], None]], seed: int, rate: float = 400.0
    ) -> None:
        self._budget = 0
        self._rate = rate
        self._stop = threading.Event()
        self._more = threading.Condition()
        self._kicks = 0
        self._held = False
        self._lock = threading.Lock()
        self._number = 0
        self.trouble = ""
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(work, random.Random(f"{seed} {name}")), name=name
            )
            for name, work in works.items()
        ]

    @property
    def sent(self) -> int:
        """The number of records written, including aborted ones."""
        return self._number

    def start(self) -> None:
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def allow(self, records: int) -> None:
        """Grant more records at full speed."""
        self._budget = self._number + records

    def kick(self) -> None:
        """Write a few records now."""
        with self._more:
            self._kicks += 1
            self._more.notify_all()

    def hold(self, held: bool) -> None:
        """Stop or resume writing. Bursts in progress are finished."""
        with self._more:
            self._held = held
            self._more.notify_all()

    def stop(self, timeout: float = 300.0) -> bool:
        """Finish bursts in progress. Returns False if that takes too long."""
        self._stop.set()
        self.kick()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        return not any(t.is_alive() for t in self._threads)

    def _guarded(self, work: Callable[[random.Random], None], dice: random.Random) -> None:
        while not self._stop.is_set():
            try:
                work(dice)
            except self.may_raise as error:
                self.trouble = str(error)
                self._stop.wait(0.2)

    def _pause(self, dice: random.Random) -> tuple[int, ...]:
        """Keep the rate. Returns the choices for the size of the next burst."""
        rate = self._rate if self._number < self._budget else self._rate / 10
        with self._more:
            seen = self._kicks
            mean = len(self._threads) * sum(BURSTS) / len(BURSTS) / rate  # they share the rate
            kicked = self._more.wait_for(
                lambda: self._stop.is_set() or self._kicks > seen, dice.uniform(0, 2 * mean)
            )
            self._more.wait_for(lambda: self._stop.is_set() or not self._held)
        return _SHORT if kicked else BURSTS
