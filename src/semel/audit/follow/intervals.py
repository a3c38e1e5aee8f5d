"""How far a partition is judged, and what continues from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semel.audit.holes import FORMER
from semel.audit.offsets import within
from semel.core.ledger import SET_BACK, Hole, LedgerEntry, LogId


def too_early(ahead: np.ndarray, holes: Sequence[Hole]) -> np.ndarray:
    """Which rows at or above the position are there too early. Rows of a log that no longer exists
    may be there, however far the new one has been read, and rows that will be written again."""
    before = [h for h in holes if h.reason in (*FORMER, SET_BACK)]
    early: np.ndarray = ahead[~within(ahead, before)]
    return early


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a topic-partition is judged with nothing left open. A restart begins here.

    ``start`` is the ledger's first position, and ``offset`` is where judging continues. ``read``
    records were read up to there by the ledger's count, and ``rowless`` of them have no row.
    ``cluster_id`` and ``topic_id`` name the log.
    """

    start: int
    offset: int
    read: int = 0
    rowless: int = 0
    cluster_id: str = ""
    topic_id: str = ""

    @property
    def log(self) -> LogId:
        return LogId(self.cluster_id, self.topic_id)


def begun(entry: LedgerEntry) -> Mark:
    """The mark where judging begins if nothing was judged before."""
    return Mark(entry.start_position, entry.start_position, 0, 0, *entry.log)


def rowless(entry: LedgerEntry, elsewhere: int = 0) -> int:
    """The number of records without a row here among those that the ledger counts as read."""
    return entry.records_filtered + entry.records_failed + elsewhere


def broken_off(entry: LedgerEntry, mark: Mark, at: int) -> str:
    """Why judging cannot continue from ``at`` with this entry of the ledger; empty if it can."""
    cluster, topic = entry.log
    if mark.cluster_id and cluster and mark.cluster_id != cluster:
        return f"its Kafka cluster is {cluster}, but {mark.cluster_id} was judged before"
    if mark.topic_id and topic and mark.topic_id != topic:
        return "the topic was created again"
    if entry.position < at:
        return f"it is at {entry.position}, but {at} was judged. Was it moved back or restored?"
    if entry.start_position != mark.start:
        return f"it begins at {entry.start_position} instead of {mark.start}. Was it set by hand?"
    if entry.records_read < mark.read:
        return "its counts are lower than before. Was it moved back or restored?"
    return ""


def owing(missing: int, budget: int) -> int:
    """The number of missing rows that nothing accounts for."""
    return max(0, missing - max(0, budget))


def spelled(offsets: Sequence[int] | np.ndarray, most: int = 5) -> str:
    """The first offsets as ranges: ``3, 7-9 and 4 more``."""
    numbers = np.unique(np.asarray(offsets, dtype=np.int64))
    if not len(numbers):
        return ""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    runs = [(int(r[0]), int(r[-1])) for r in np.split(numbers, breaks)]
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:most]]
    left = sum(b - a + 1 for a, b in runs[most:])
    return ", ".join(shown) + (f" and {left:,} more" if left else "")
