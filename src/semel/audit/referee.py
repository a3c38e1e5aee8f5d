"""The referee: compares Kafka's records with the store's rows at some offsets of a partition. Both
are arrays of offsets, which the functions of this module make, compare and explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.audit.holes import FORMER, extent, unreadable
from semel.core.ledger import (
    DAMAGED,
    NOT_HERE,
    RECREATED,
    SET_BACK,
    TRUNCATED,
    UNREAD,
    Hole,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
)
from semel.core.records import OFFSET, PARTITION, Records
from semel.sinks.base import Snapshot

NONE = np.array([], dtype=np.int64)
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
    other, foreign = _mismatched(rows, times, kafka, interval.stamps, without)
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
    if blind := unreadable(interval.unreadable, interval.holes, interval.start, interval.position):
        known_there = within(np.union1d(distinct, interval.dead), blind)
        unknown += extent(blind) - int(known_there.sum())
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


def _mismatched(
    rows: np.ndarray,
    times: np.ndarray | None,
    kafka: np.ndarray,
    stamps: np.ndarray,
    without: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows have another time than the record at their offset, and which cannot come from the
    present log if it has replaced another one. ``without`` holds the offsets of records that have
    no row, because they failed or were replaced.
    """
    other = mistimed(rows, times, kafka, stamps)
    if times is None:
        return other, copies(rows, kafka, without)
    return other, other | ~np.isin(rows, kafka)


def mistimed(
    rows: np.ndarray, times: np.ndarray | None, kafka: np.ndarray, stamps: np.ndarray
) -> np.ndarray:
    """Which rows are at the offset of a record with another timestamp."""
    mask = np.zeros(len(rows), dtype=bool)
    if times is None or len(stamps) != len(kafka) or not len(kafka):
        return mask
    order = np.argsort(kafka)
    at = np.minimum(np.searchsorted(kafka[order], rows), len(kafka) - 1)
    matches = kafka[order][at] == rows
    mask[matches] = stamps[order][at][matches] != times[matches]
    return mask & (times >= 0)


def copies(rows: np.ndarray, kafka: np.ndarray, without: np.ndarray) -> np.ndarray:
    """Which rows exceed the one row that each record in Kafka accounts for; those in ``without``
    account for none."""
    firsts = np.zeros(len(rows), dtype=bool)
    firsts[np.unique(rows, return_index=True)[1]] = True
    extra: np.ndarray = ~(firsts & np.isin(rows, kafka) & ~np.isin(rows, without))
    return extra


def beyond_kafka(rows: np.ndarray, kafka: np.ndarray) -> int:
    """The number of rows at offsets where Kafka has no record. ``rows`` may contain repetitions."""
    return int((~np.isin(rows, kafka)).sum())


def within(offsets: np.ndarray, ranges: Sequence[Hole | OffsetRange]) -> np.ndarray:
    """Which offsets are in one of the ranges."""
    mask = np.zeros(len(offsets), dtype=bool)
    for r in ranges:
        mask |= (offsets >= r.from_offset) & (offsets < r.until_offset)
    return mask


def given_up(
    offsets: np.ndarray,
    rows: np.ndarray,
    holes: Sequence[Hole],
    reasons: Collection[str] = NOT_HERE,
) -> np.ndarray:
    """Which offsets of a partition have no row, and need none by its holes. Records that were
    removed before they were read may be back: a broker that dies can forget that it has removed
    some."""
    mask: np.ndarray = within(offsets, [h for h in holes if h.reason in reasons])
    return mask & ~np.isin(offsets, rows)


def overwritten(missing: np.ndarray, holes: Sequence[Hole]) -> int:
    """How many missing rows may have been replaced or deleted by records that were cut off the log
    later, or will be read again: at most one for each of them."""
    count = 0
    later = [h for h in holes if h.reason in (TRUNCATED, SET_BACK)]
    for hole in sorted(later, key=lambda h: h.from_offset):
        before = int((missing < hole.from_offset).sum())
        count = min(count + hole.until_offset - hole.from_offset, before)
    return count


class RecordOffsets:
    """The offsets of Kafka's records in one partition below the position."""

    def __init__(self) -> None:
        self.offsets: list[np.ndarray] = []
        self.times: list[np.ndarray] = []
        self.replaced = NONE
        self.unsure = NONE
        self.unmade: list[np.ndarray] = []
        """The offsets of records that converter or transform leave out now, poll by poll."""

    def all(self) -> np.ndarray:
        return np.concatenate([NONE, *self.offsets])

    def left_out(self) -> np.ndarray:
        """The offsets of :attr:`unmade`."""
        return np.concatenate([NONE, *self.unmade])

    def all_times(self) -> np.ndarray:
        """The timestamps of these records in milliseconds; empty if they were not read."""
        return np.concatenate([NONE, *self.times])


def placed(snapshot: Snapshot) -> Snapshot:
    """The snapshot, with rows that lack a partition or an offset, as another program may leave
    them, counted as rows without provenance."""
    records, untraced = dict(snapshot.records), Counter(snapshot.untraced)
    for topic, rows in snapshot.records.items():
        partitions, offsets = rows.column("partition"), rows.column("offset")
        if partitions.null_count or offsets.null_count:  # filtering copies the rows
            whole = rows.filter(pc.and_(partitions.is_valid(), offsets.is_valid()))
            untraced[snapshot.targets.get(topic, "")] += rows.num_rows - whole.num_rows
            records[topic] = whole
    return replace(snapshot, records=records, untraced=untraced)


def offsets_of(table: pa.Table | None, partition: int) -> np.ndarray:
    if table is None or not table.num_rows:
        return NONE
    partitions = table.column("partition").to_numpy()
    offsets: np.ndarray = table.column("offset").to_numpy()[partitions == partition]
    return offsets


def times_of(table: pa.Table | None, partition: int) -> np.ndarray | None:
    """The timestamps of a partition's rows in milliseconds, -1 for a row without one; None if the
    store does not keep them."""
    if table is None or "timestamp" not in table.column_names:
        return None
    mask = table.column("partition").to_numpy() == partition
    times: np.ndarray = table.column("timestamp").fill_null(-1).to_numpy()[mask]
    return times


def wants_times(snapshot: Snapshot, records: Mapping[str, pa.Table]) -> bool:
    """Whether the timestamps of Kafka's records tell more about these rows or the dead letters."""
    tables = (*records.values(), *(dead for dead in snapshot.dead.values() if dead.num_rows))
    return any("timestamp" in t.column_names for t in tables)


def unmade(raw: pa.Table, parts: Sequence[Records], partition: int) -> np.ndarray:
    """The offsets of a partition's raw records that are not among the converted ones."""
    tables = [raw.select(["partition", "offset"])]
    for rows in (table for part in parts for table in (part.rows, part.tombstones)):
        if rows is not None:
            places = rows.select([PARTITION, OFFSET])
            tables.append(places.rename_columns(["partition", "offset"]))
    read, *converted = (offsets_of(table, partition) for table in tables)
    missing: np.ndarray = np.setdiff1d(read, np.concatenate([read[:0], *converted]))
    return missing


def letters(
    snapshot: Snapshot, tp: TopicPartition, kafka: np.ndarray, stamps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The offsets of a partition's dead letters, and those of letters from a log that the ledger
    knows to be gone. Their times show it: another record is at their offset, or none. Rows do not,
    because rows of the former log may be there, too.

    Letters in a hole that was never read are left out, because its records are lost and have not
    failed; of letters from a former log, only those that stand for a damaged batch are. Where a log
    is gone, the hole may be in that log. Then a letter with the time of the record that is there
    now shows that the record was read.

    Stores that commit letters before rows and position may have letters of a former log beyond its
    hole. They are left out, too, because no position counts their records.
    """
    dead = offsets_of(snapshot.dead.get(tp.topic), tp.partition)
    holes = [h for h in snapshot.holes if h.topic_partition == tp]
    gone = within(dead, [h for h in holes if h.reason in (RECREATED, TRUNCATED)])
    times = times_of(snapshot.dead.get(tp.topic), tp.partition)
    former, left_out, present = np.zeros((3, len(dead)), dtype=bool)
    if times is not None and len(stamps) == len(kafka):
        timed = stamps > 0 if snapshot.restamps else np.ones(len(kafka), dtype=bool)
        other = mistimed(dead, times, kafka[timed], stamps[timed])
        former = gone & (other | ~np.isin(dead, kafka))
        present = gone & ~former & (times >= 0) & np.isin(dead, kafka[timed])
        # Only a damaged batch has a letter without a time, unless records have none either.
        left_out = gone & (times < 0) & ~np.isin(dead, kafka[stamps <= 0])
        left_out |= other & ~gone
    unread = [h for h in holes if h.reason in UNREAD]
    left_out |= np.isin(dead, [h.from_offset for h in unread if h.reason == DAMAGED])
    left_out |= within(dead, unread) & ~former
    left_out &= ~present
    return dead[~former & ~left_out], dead[former & ~left_out]


def unnamed_failures(snapshot: Snapshot, topic: str, entries: Sequence[LedgerEntry]) -> int:
    """The number of records that failed without a dead letter that names them."""
    dead = snapshot.dead.get(topic)
    named = sum(int((offsets_of(dead, e.partition) < e.position).sum()) for e in entries)
    return max(0, sum(e.records_failed for e in entries) - named)
