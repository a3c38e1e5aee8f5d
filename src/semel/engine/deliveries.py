"""The outcomes of a task's commits, for metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from semel.errors import LedgerConflict, TransientError

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds, in seconds, of the buckets that commits are counted in."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Totals since a task started; where the driver commits, since the run started.

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

    def committed(self, seconds: float, records: int, *, replay: bool) -> Deliveries:
        """The totals with one more commit."""
        bucket = sum(seconds > bound for bound in BUCKETS)
        counts = tuple(n + (i == bucket) for i, n in enumerate(self.by_time))
        return replace(
            self,
            by_time=counts,
            seconds=self.seconds + seconds,
            slowest=max(self.slowest, seconds),
            largest=max(self.largest, records),
            replays=self.replays + replay,
        )


class Counter:
    """Counts commits; ``found`` may be read from any thread."""

    def __init__(self) -> None:
        self.found = Deliveries()

    @contextmanager
    def counting(self, records: int) -> Iterator[Attempt]:
        """Count an attempt to commit a number of records."""
        attempt, began = Attempt(), time.monotonic()
        try:
            yield attempt
        except LedgerConflict:
            self.found = replace(self.found, conflicts=self.found.conflicts + 1)
            raise
        except TransientError:
            self.found = replace(self.found, failures=self.found.failures + 1)
            raise
        seconds = time.monotonic() - began
        self.found = self.found.committed(seconds, records, replay=attempt.was_replay)


@dataclass(slots=True)
class Attempt:
    """One attempt to commit; it was a replay if the ledger had the commit already."""

    was_replay: bool = False
