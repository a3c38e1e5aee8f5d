"""Compares Kafka's records with the store's rows in one interval of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from semel.audit.holes import FORMER
from semel.audit.offsets import beyond_kafka, mismatched, within
from semel.ledger import SET_BACK, Hole, LedgerEntry, LogId, OffsetRange

NONE = np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Interval:
    """Some offsets of one topic-partition, in Kafka and in the store.

    ``kafka`` holds the offsets of Kafka's records, and ``stamps`` their timestamps where rows have
    ``times`` or dead letters need them. ``replaced`` and ``unsure`` are as
    :meth:`semel.audit.replacing.Replacing.gone` finds them. ``dead`` holds the offsets of dead
    letters. ``budget`` is the number of records without a row that the ledger counts but does not
    name.
    """

    kafka: np.ndarray
    rows: np.ndarray
    stamps: np.ndarray = field(default_factory=NONE.copy)
    times: np.ndarray | None = None
    replaced: np.ndarray = field(default_factory=NONE.copy)
    unsure: np.ndarray = field(default_factory=NONE.copy)
    dead: np.ndarray = field(default_factory=NONE.copy)
    holes: Sequence[Hole] = ()
    unreadable: Sequence[OffsetRange] = ()
    compacted: bool = False
    replaces: bool = False
    budget: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of an interval: the offsets of records without a row, and those of surplus rows,
    once per row. ``ghosts`` of the surplus rows come from no record in Kafka."""

    missing: np.ndarray
    surplus: np.ndarray
    ghosts: int = 0
    unknown: int = 0


def judge(interval: Interval) -> Findings:
    """Judge an interval below the position, for which the store shows all rows."""
    rows, times, kafka = interval.rows, interval.times, interval.kafka
    without = np.concatenate([interval.dead, interval.replaced])
    other, foreign = mismatched(rows, times, kafka, interval.stamps, without)
    known = foreign & within(rows, former(interval.holes))
    odd = other & ~known
    strange, former_rows, rows = rows[odd], rows[known], rows[~known & ~odd]

    distinct, counts = np.unique(rows, return_counts=True)
    judged = np.setdiff1d(distinct, interval.unsure)
    gone = np.concatenate([interval.replaced, interval.unsure, interval.dead])
    expected = np.setdiff1d(kafka, gone)
    stray = np.setdiff1d(judged, expected)
    unknown = len(interval.unsure)
    if times is None:
        unknown += int(np.isin(former_rows, interval.replaced).sum())

    if interval.compacted:
        unknown += int((~np.isin(stray, kafka)).sum())
        stray = stray[np.isin(stray, kafka)]
    damaged = within(stray, interval.unreadable)
    unknown += int(damaged.sum())
    stray = stray[~damaged]
    if interval.replaces and interval.budget:
        # A record that failed or was filtered out has not replaced the row before it.
        excused = stray[np.isin(stray, interval.replaced)][: interval.budget]
        unknown += len(excused)
        stray = np.setdiff1d(stray, excused)
    twice = np.repeat(distinct, counts - 1)
    surplus = np.concatenate([stray, twice, strange])
    ghosts = 0 if interval.compacted else beyond_kafka(rows[np.isin(rows, stray)], kafka)
    return Findings(
        np.setdiff1d(expected, judged),
        np.sort(surplus),
        min(ghosts, len(stray) + len(twice)) + len(strange),
        unknown,
    )


def former(holes: Sequence[Hole]) -> list[Hole]:
    """The offsets whose rows may come from a log that no longer exists."""
    return [h for h in holes if h.reason in FORMER]


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
