"""The referee: compares Kafka's records with the store's rows at some offsets of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from semel.audit.holes import FORMER
from semel.audit.offsets import NONE, beyond_kafka, given_up, mismatched, within
from semel.core.ledger import SET_BACK, Hole, OffsetRange

_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Some offsets of one topic-partition, in Kafka and in the store.

    ``kafka`` holds the offsets of Kafka's records, and ``stamps`` their timestamps where rows have
    ``times`` or dead letters need them. ``replaced`` and ``unsure`` are as
    :meth:`semel.audit.replacing.Replacements.gone` finds them. ``dead`` holds the offsets of dead
    letters. ``budget`` is the number of records without a row that the ledger counts but does not
    name. Rows below ``start`` can no longer be compared, those from ``position`` on are not
    expected yet, and Kafka's log ends at ``latest``.
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
    budget: int = 0
    start: int = 0
    position: int = _END
    latest: int = _END


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of an interval: the offsets of records without a row, and those of surplus rows,
    once per row. ``ghosts`` of the surplus rows come from no record in Kafka. ``former`` counts
    rows of a log that the ledger knows to be gone, and ``rows`` those that have their record's
    time, as far as it is known."""

    missing: np.ndarray
    surplus: np.ndarray
    ghosts: int
    unknown: int
    rows: int
    former: int


def judge(interval: Interval) -> Findings:
    """Judge an interval for which the store shows all rows."""
    rows, times, kafka = interval.rows, interval.times, interval.kafka
    without = np.concatenate([interval.dead, interval.replaced])
    other, foreign = mismatched(rows, times, kafka, interval.stamps, without)
    known = foreign & within(rows, [h for h in interval.holes if h.reason in FORMER])
    odd = other & ~known
    strange, former, rows = rows[odd], rows[known], rows[~known & ~odd]

    distinct, counts = np.unique(rows, return_counts=True)
    judged = np.setdiff1d(distinct[distinct >= interval.start], interval.unsure)
    expected = np.setdiff1d(kafka, np.concatenate([without, interval.unsure]))
    expected = expected[~given_up(expected, interval.rows, interval.holes)]
    stray = np.setdiff1d(judged, expected)
    unknown = len(interval.unsure)
    if times is None:  # these may be rows that should have been replaced
        unknown += int(np.isin(former, interval.replaced).sum())

    again = within(stray, [h for h in interval.holes if h.reason == SET_BACK])
    stray = stray[~(again & (stray >= interval.position))]
    # Their records were there when they were written.
    removed = within(stray, interval.unreadable)
    if interval.compacted:
        removed |= ~np.isin(stray, kafka)
    removed &= stray < interval.position
    stray, unknown = stray[~removed], unknown + int(removed.sum())
    # A record that failed or was filtered out has not replaced the row before it.
    excused = stray[np.isin(stray, interval.replaced)][: max(0, interval.budget)]
    stray, unknown = np.setdiff1d(stray, excused), unknown + len(excused)

    twice = np.repeat(distinct, counts - 1)
    ahead = (stray >= interval.position) & (stray < interval.latest)
    ghosts = 0 if interval.compacted else beyond_kafka(rows[np.isin(rows, stray[~ahead])], kafka)
    return Findings(
        missing=np.setdiff1d(expected, judged),
        surplus=np.sort(np.concatenate([stray, twice, strange])),
        ghosts=min(ghosts, len(stray) + len(twice)) + len(strange),
        unknown=unknown,
        rows=len(rows),
        former=len(former),
    )
