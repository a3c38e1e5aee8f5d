"""Logs what holds up a commit for which records have waited long."""

from __future__ import annotations

import time
from collections.abc import Callable

from semel.core import watchdog

FIRST_WORD = 30.0
_EVERY = 60.0


class Overdue:
    """Logs that records have waited for a commit for 30 s; ``tell`` writes the line.

    ``work`` says what is being done when no call to the store is in progress.
    """

    def __init__(self, tell: Callable[[str], None], work: Callable[[], str]) -> None:
        self._tell = tell
        self._work = work
        self._since: float | None = None
        self._told = 0.0
        watchdog.watch(self._look)

    def begin(self) -> None:
        """Note that records have come, or are known to wait."""
        if self._since is None:
            self._since = self._told = time.monotonic()
            watchdog.wake()

    def end(self) -> None:
        """Note that the records are committed, or belong to another process now."""
        self._since = None

    def _look(self, now: float) -> bool:
        since = self._since
        if since is None:
            return False
        if now - self._told >= (FIRST_WORD if self._told == since else _EVERY):
            self._told = now
            waits = "; ".join(watchdog.waits()) or self._work()
            self._tell(f"no commit for {now - since:.0f} s although records wait: {waits}")
        return True
