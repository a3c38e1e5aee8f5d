"""What one interval of offsets shows: Kafka's records of it against the store's rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from semel.audit.offsets import beyond_kafka, copies, strangers, within
from semel.ledger import (
    DAMAGED,
    RECREATED,
    RETENTION,
    TRUNCATED,
    Hole,
    LedgerEntry,
    LogId,
    OffsetRange,
)

NONE = np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Interval:
    """Some offsets of one topic-partition, on both sides.

    ``kafka`` holds the offsets of Kafka's records and ``stamps`` their times, if rows have
    ``times``; ``replaced`` and ``unsure`` are as :meth:`semel.audit.replacing.Replacing.gone` finds
    them; ``dead`` are the offsets of dead letters. ``budget`` records left no row for reasons that
    the ledger counts but does not name.
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
    """What an interval shows: the offsets of records without a row, and of rows that are too many,
    repeated as often as they are. ``ghosts`` of these come from no record that Kafka has."""

    missing: np.ndarray
    surplus: np.ndarray
    ghosts: int = 0
    unknown: int = 0


def judge(interval: Interval) -> Findings:
    """Judge an interval of which the store shows all rows, below its position at that instant."""
    rows, times, kafka = interval.rows, interval.times, interval.kafka
    other = strangers(rows, times, kafka, interval.stamps)
    beyond = other | ~np.isin(rows, kafka) if times is not None else copies(rows, kafka)
    known = within(rows, former(interval.holes)) & beyond
    odd = other & ~known
    strange, rows = rows[odd], rows[~known & ~odd]

    unread = [h for h in interval.holes if h.reason in (RETENTION, DAMAGED)]
    dead = interval.dead[~within(interval.dead, unread)]
    distinct, counts = np.unique(rows, return_counts=True)
    judged = np.setdiff1d(distinct, interval.unsure)
    gone = np.concatenate([interval.replaced, interval.unsure, dead])
    expected = np.setdiff1d(kafka, gone)
    stray = np.setdiff1d(judged, expected)
    unknown = len(interval.unsure)

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
    """The offsets whose rows may come from a log that is gone."""
    return [h for h in holes if h.reason in (RECREATED, TRUNCATED)]


def too_early(ahead: np.ndarray, holes: Sequence[Hole]) -> np.ndarray:
    """Which of the rows at or above the position may not be there yet. Those of a log that is gone
    stay, however far the new one has been read."""
    early: np.ndarray = ahead[~within(ahead, former(holes))]
    return early


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a topic-partition is judged, with nothing left open; what a restart begins from.

    ``start`` is the ledger's first position; ``offset`` where judging goes on; ``read`` how many
    records the ledger says were read up to there, and ``rowless`` how many of them have no row.
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
    """Where judging begins if nothing was judged before."""
    return Mark(entry.start_position, entry.start_position, 0, 0, *entry.log)


def rowless(entry: LedgerEntry, elsewhere: int = 0) -> int:
    """How many of the records that the ledger says were read have no row here."""
    return entry.records_filtered + entry.records_failed + elsewhere


def broken_off(entry: LedgerEntry, mark: Mark, at: int) -> str:
    """Why judging cannot go on from ``at`` with this entry of the ledger; empty if it can."""
    cluster, topic = entry.log
    if mark.cluster_id and cluster and mark.cluster_id != cluster:
        return f"it belongs to Kafka cluster {cluster}, and what was judged to {mark.cluster_id}"
    if mark.topic_id and topic and mark.topic_id != topic:
        return "the topic was created again"
    if entry.position < at:
        return f"it stands at {entry.position}, but {at} was judged: was it moved back or restored?"
    if entry.start_position != mark.start:
        return f"it begins at {entry.start_position} instead of {mark.start}: was it set by hand?"
    if entry.records_read < mark.read:
        return "its counts are lower than they were: was it moved back or restored?"
    return ""


def owing(missing: int, budget: int) -> int:
    """How many of the missing rows nothing accounts for."""
    return max(0, missing - max(0, budget))


def spelled(offsets: Sequence[int] | np.ndarray, most: int = 5) -> str:
    """Offsets as ranges, the first few of them: ``3, 7-9 and 4 more``."""
    numbers = np.unique(np.asarray(offsets, dtype=np.int64))
    if not len(numbers):
        return ""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    runs = [(int(r[0]), int(r[-1])) for r in np.split(numbers, breaks)]
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:most]]
    left = sum(b - a + 1 for a, b in runs[most:])
    return ", ".join(shown) + (f" and {left:,} more" if left else "")
