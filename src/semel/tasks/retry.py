"""What goes on although something fails: failures of a batch itself are counted, an unreachable
service is waited for, and the log says what holds up a commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from semel.config import CommonConfig
from semel.core import watchdog
from semel.core.errors import GaveUp, TargetChanged, TransientError, Unavailable

T = TypeVar("T")

LONGEST = 30.0
"""The longest pause, in seconds, between two attempts to reach a store."""
_SHORTEST = 0.1
_EVERY = 60.0
"""Seconds between two lines in the log about the same trouble."""
_FIRST_WORD = 30.0


class Retries:
    """The failures of one action since it last succeeded. ``tell`` writes a line to the log;
    ``waits`` is called with each reason to wait, and with an empty one once the action succeeds.

    An outage (:class:`~semel.core.errors.Unavailable`) has no limit unless ``max.retries`` is set.
    """

    def __init__(
        self,
        connector: CommonConfig,
        tell: Callable[[str], None],
        waits: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._connector = connector
        self._waits = waits
        self._patient = "max.retries" not in connector.originals
        self._tell = tell
        self._failures = 0
        self._pause = 0.0
        self._since: float | None = None
        self._outage = ""
        self._told = 0.0
        self.trouble: str | None = None
        """The last failure of what :meth:`run` repeats; None if nothing is repeated."""

    def run(self, action: Callable[[], T], pause: Callable[[float], bool]) -> T:
        """Run ``action``, and repeat it after transient failures; the ledger tells whether it took
        place.

        ``pause`` waits for some seconds, and says whether to stop trying.

        Raises:
            GaveUp: all ``max.retries`` retries have failed.
            TargetChanged: it would fail again.
            TransientError: ``pause`` has said to stop.
        """
        while True:
            try:
                result = action()
            except TargetChanged:
                raise
            except TransientError as error:
                self.trouble = str(error)
                if pause(0.0) or pause(self.failed(error)):
                    raise
            else:
                self.succeeded()
                return result

    def failed(self, error: Exception) -> float:
        """Note a failure, log it, and return the seconds to wait before the next attempt.

        Raises:
            GaveUp: ``max.retries`` is used up.
        """
        if self._patient and isinstance(error, Unavailable):
            self._waits(str(error))
            return self._wait(error)
        if self._failures >= self._connector.max_retries:
            raise GaveUp(gave_up(self._connector, self._failures, error)) from None
        self._waits(str(error))
        self._failures += 1
        self._tell(f"{error}; trying again ({self._failures} of {self._connector.max_retries})")
        return self._connector.retry_backoff_ms / 1000

    def _wait(self, outage: Unavailable) -> float:
        now = time.monotonic()
        backoff = max(self._connector.retry_backoff_ms / 1000, _SHORTEST)
        if self._since is None:
            self._since, self._pause, self._told = now, backoff, now
            self._outage = str(outage)
            self._tell(f"{outage}; waiting for it to recover")
        else:
            self._pause = min(2 * self._pause, max(LONGEST, backoff))
            if now - self._told >= _EVERY:
                self._told = now
                self._tell(f"{outage}; waited {now - self._since:.0f} s so far")
        return self._pause

    def succeeded(self) -> None:
        """Forget all failures."""
        if self._failures or self._since is not None:
            self._waits("")
        if self._since is not None:
            self._tell(f"recovered after {time.monotonic() - self._since:.0f} s: {self._outage}")
        self._since = None
        self._failures = 0
        self.trouble = None


class Backoff:
    """Pauses before restarts of something that ends early: each twice as long as the last one,
    unless it ran for a long time in between."""

    def __init__(self, shortest: float = 1.0, longest: float = 60.0) -> None:
        self._shortest, self._longest = shortest, longest
        self._next = shortest

    def after(self, lasted: float) -> float:
        """The seconds to pause after it ran for ``lasted`` seconds."""
        pause = self._shortest if lasted > self._longest else self._next
        self._next = min(2 * pause, self._longest)
        return pause


def gave_up(connector: CommonConfig, retries: int, why: object) -> str:
    """The error when ``max.retries`` is used up."""
    return f"connector {connector.name}: gave up after {retries} retries (max.retries): {why}"


class OverdueWarning:
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
        if now - self._told >= (_FIRST_WORD if self._told == since else _EVERY):
            self._told = now
            waits = "; ".join(watchdog.waits()) or self._work()
            self._tell(f"no commit for {now - since:.0f} s although records wait: {waits}")
        return True
