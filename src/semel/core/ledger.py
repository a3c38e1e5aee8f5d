"""Positions, offset ranges and the one rule that every commit obeys.

For each offset range, inside the transaction that holds the results::

    stored == from    -> set stored = until     applied
    stored == until   -> change nothing         replay: these results are already there
    anything else     -> LedgerConflict         a gap, an overlap or another writer
    another log       -> LedgerConflict         the topic was created again

A batch is all applied or all replayed; a mixture is a conflict. This is Cody Koeninger's "store
offsets with results in one transaction, and check that they are increasing without gaps"
(kafka-exactly-once), but it distinguishes a replay from a conflict.

At the end are the versions of the formats in which ledgers, and what lies beside them, are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from semel.core.errors import LedgerConflict, OtherLog, ServiceError
from semel.core.quoting import named

RETENTION = "removed by retention"
DAMAGED = "damaged in Kafka"
RECREATED = "topic created again"
TRUNCATED = "log truncated"
MOVED = "target changed"
TAKEN_OVER = "taken over"
SKIPPED = "skipped"
SET_BACK = "set back"
RESET = "reset"
UNKNOWN = "before the first position"
UNREAD = (RETENTION, DAMAGED, SKIPPED, TAKEN_OVER, UNKNOWN)
"""Why a connector has not read the records of these offsets."""
NOT_HERE = (*UNREAD, MOVED)
"""Why it has not written them to its present target."""


class TopicPartition(NamedTuple):
    """One partition of one Kafka topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


QUERY = TopicPartition("(query)", 0)
"""Stands for a query over streams in its connector's ledger. The position is the number of the next
batch, and the log is the checkpoint with the query's state: its id, and a digest of the query. No
topic of Kafka can have this name."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets ``[from_offset, until_offset)`` of one topic-partition; never empty.

    ``until_offset`` is the position after the range: the next offset to read. Offsets inside may
    be missing in Kafka (compaction, transaction markers).
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset < self.until_offset:
            raise ValueError(f"not a range of offsets: {self}")

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.from_offset}, {self.until_offset})"


class LogId(NamedTuple):
    """Distinguishes a topic's log from others that have, or had, the same name (KIP-516); empty if
    unknown."""

    cluster_id: str = ""
    topic_id: str = ""

    def __str__(self) -> str:
        return f"cluster {self.cluster_id or 'unknown'}, topic id {self.topic_id or 'unknown'}"

    def contradicts(self, other: LogId) -> bool:
        """Whether they are certainly different."""
        return any(mine and its and mine != its for mine, its in zip(self, other, strict=True))

    def completed(self, other: LogId) -> LogId:
        """This id, completed by the other one's parts where it has none."""
        return LogId(self.cluster_id or other.cluster_id, self.topic_id or other.topic_id)


UNKNOWN_LOG = LogId()


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets at which a position did not just advance, and why.

    :data:`RETENTION`, :data:`DAMAGED` and :data:`SKIPPED`: they were never read, the last because
    somebody set the position beyond them. :data:`RECREATED` and :data:`TRUNCATED`: they were read
    from a log that is gone; the target may hold rows of them, and rows of the records that have
    these offsets now. :data:`MOVED`: another target has their rows. :data:`TAKEN_OVER`: another
    program has read them. :data:`SET_BACK`: they were read before the position was set back, and
    are read again. :data:`RESET`: they were read before the ledger forgot its positions.
    :data:`UNKNOWN`: they lie before a position that was set where the ledger had none.

    ``by`` names who has set the position by hand; ``at`` is the time. Both may be empty.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    reason: str = RETENTION
    by: str = field(default="", compare=False)
    at: str = field(default="", compare=False)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Advance:
    """One range and what became of the records in it: the unit a ledger stores.

    ``written`` counts rows handed to the sink, tombstones included; ``filtered`` records that a
    transform left out; ``failed`` records that went to the dead letters. While one record makes
    one row, ``read == written + filtered + failed``. ``lost`` counts offsets that could not be
    read, for the reason that ``cause`` gives; the range is recorded as a hole then.
    ``leader_epoch`` and ``epoch_offset`` are as in :class:`LedgerEntry`, -1 if they are not known.
    ``log`` is the log of the offsets, as far as it is known. ``unplaced`` counts values that
    reached no column, by topic and field; no ledger stores it.
    """

    range: OffsetRange
    read: int = 0
    written: int = 0
    filtered: int = 0
    failed: int = 0
    lost: int = 0
    cause: str = RETENTION
    leader_epoch: int = -1
    epoch_offset: int = -1
    log: LogId = UNKNOWN_LOG
    unplaced: Mapping[tuple[str, str], int] = field(default_factory=dict, hash=False)

    @property
    def keeps_epoch(self) -> bool:
        """Whether the known epoch of the last record remains valid, because no record has
        followed."""
        return self.leader_epoch < 0 and not self.read and not self.lost

    @property
    def hole(self) -> Hole | None:
        """The hole that this leaves, if offsets could not be read."""
        r = self.range
        return (
            Hole(*r.topic_partition, r.from_offset, r.until_offset, self.cause)
            if self.lost
            else None
        )


def of_logs(advances: Iterable[Advance], logs: Mapping[str, LogId]) -> list[Advance]:
    """The advances with the logs of their topics."""
    return [replace(a, log=logs.get(a.range.topic, UNKNOWN_LOG)) for a in advances]


def holes_of(moves: Iterable[Advance | Rebase]) -> list[Hole]:
    """The holes that advances or rebases leave now."""
    at = now()
    return [replace(move.hole, at=at) for move in moves if move.hole is not None]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a ledger holds for one topic-partition: the position, what it points at, and counts.

    ``cluster_id`` and ``topic_id`` (KIP-516) name the log that the position belongs to; empty means
    not known. ``leader_epoch`` (KIP-320) belongs to the record before ``epoch_offset``, which is at
    most the position: offsets between the two hold no records, but may belong to later epochs. Both
    are -1 while they are not known. ``target`` names what holds this topic's results,
    see :class:`semel.core.ledger.Target`.
    """

    topic: str
    partition: int
    position: int
    start_position: int
    records_read: int = 0
    rows_written: int = 0
    records_filtered: int = 0
    records_failed: int = 0
    records_lost: int = 0
    updated_at: str = ""
    cluster_id: str = ""
    topic_id: str = ""
    leader_epoch: int = -1
    epoch_offset: int = -1
    target: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def log(self) -> LogId:
        return LogId(self.cluster_id, self.topic_id)

    def after(self, advance: Advance, at: str) -> LedgerEntry:
        """The entry once ``advance`` has been applied."""
        keeps = advance.keeps_epoch
        return replace(
            self,
            leader_epoch=self.leader_epoch if keeps else advance.leader_epoch,
            epoch_offset=self.epoch_offset if keeps else advance.epoch_offset,
            position=advance.range.until_offset,
            records_read=self.records_read + advance.read,
            rows_written=self.rows_written + advance.written,
            records_filtered=self.records_filtered + advance.filtered,
            records_failed=self.records_failed + advance.failed,
            records_lost=self.records_lost + advance.lost,
            updated_at=at,
        )


def first(
    tp: TopicPartition, position: int, log: LogId = UNKNOWN_LOG, target: str = ""
) -> LedgerEntry:
    """The first entry of a topic-partition."""
    return LedgerEntry(*tp, position, position, **log._asdict(), target=target)


def firsts(positions: Mapping[TopicPartition, int]) -> list[LedgerEntry]:
    """First entries at these positions, of unknown logs."""
    return [first(tp, at) for tp, at in positions.items()]


def now() -> str:
    """The current time in the format of entries."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Rebase:
    """An entry as it was read, what is to replace it, and the hole that this leaves.

    It adds unknown facts of the entry's log, or moves the entry to another log.
    """

    old: LedgerEntry
    new: LedgerEntry
    hole: Hole | None = None

    @property
    def goes_back(self) -> bool:
        """Whether offsets will be read a second time, with other records."""
        return self.new.position < self.old.position

    @property
    def renews(self) -> bool:
        """Whether offsets from the new position on may hold different records than before."""
        return self.goes_back or self.old.log.contradicts(self.new.log)


def pending(
    connector: str, stored: Mapping[TopicPartition, LedgerEntry], rebases: Iterable[Rebase]
) -> list[Rebase]:
    """The rebases that still have to be applied, each checked by compare-and-set.

    Raises:
        LedgerConflict: an entry is neither the old nor the new one.
    """
    remaining = []
    for rebase in rebases:
        entry = stored.get(rebase.old.topic_partition)
        if entry is not None and _points_at(entry) == _points_at(rebase.new):
            continue
        if entry is None or _points_at(entry) != _points_at(rebase.old):
            raise LedgerConflict(
                f"connector {connector}: the ledger's entry of {rebase.old.topic_partition} has "
                f"changed (position {rebase.old.position} before, now "
                f"{None if entry is None else entry.position}). Nothing was written. Does another "
                f"run of {connector} write too?"
            )
        remaining.append(rebase)
    return remaining


def rebased(rebases: Iterable[Rebase], at: str) -> list[LedgerEntry]:
    """The new entries, which replace the old ones."""
    return [replace(r.new, updated_at=at) for r in rebases]


# By hand


def set_by_hand(
    stored: Mapping[TopicPartition, LedgerEntry],
    holes: Iterable[Hole],
    wanted: Iterable[LedgerEntry],
    by: str = "",
    reason: str = SKIPPED,
) -> tuple[list[LedgerEntry], list[Hole]]:
    """The entries once somebody has set their positions, and all holes of the ledger then. What
    was read before stays known.

    Of ``wanted``, only the positions and their logs count and, where the ledger has no entry yet,
    ``start_position``: the first offset of the log. ``reason`` says why offsets that a position
    passes over are not read.
    """
    entries, all_holes = [], list(holes)
    for new in wanted:
        tp, old = new.topic_partition, stored.get(new.topic_partition)
        own_holes = [h for h in all_holes if h.topic_partition == tp]
        all_holes = [h for h in all_holes if h.topic_partition != tp]
        entry, spans, own_holes = _moved(old, own_holes, new)
        at = now()
        entries.append(replace(entry, updated_at=at))
        all_holes += own_holes
        all_holes += [Hole(*tp, a, b, why or reason, by, at) for a, b, why in spans]
    return entries, all_holes


_Spans = list[tuple[int, int, str]]
"""Offsets ``[from, until)``, and why they are a hole; empty where they are passed over."""


def _moved(
    old: LedgerEntry | None, holes: list[Hole], new: LedgerEntry
) -> tuple[LedgerEntry, _Spans, list[Hole]]:
    """An entry at its new position, the holes that this leaves, and what is left of others."""
    to = new.position
    if old is None:
        before = outside(new.start_position, to, ())
        return replace(new, start_position=to), [(*b, UNKNOWN) for b in before], holes
    entry = replace(old, position=to, **new.log._asdict())
    if new.log != old.log or to != old.position:
        entry = replace(entry, leader_epoch=-1, epoch_offset=-1)
    if old.log.contradicts(new.log) and to != old.position:
        former = outside(old.start_position, old.position, ())
        return replace(entry, start_position=to), [(*f, RECREATED) for f in former], holes
    if to >= old.position:
        again = [h for h in holes if h.reason == SET_BACK]
        skipped = outside(old.position, to, again)
        passed = Hole(*old.topic_partition, old.position, to) if to > old.position else None
        kept = [h for h in holes if h.reason != SET_BACK]
        for h in again:  # what is not read again after all was still read once
            kept += _parts(h, outside(h.from_offset, h.until_offset, [passed] if passed else []))
        return entry, [(*s, "") for s in skipped], kept
    unread = [h for h in holes if h.reason in UNREAD]
    again_ = outside(max(to, old.start_position), old.position, unread)
    kept = [h for h in holes if h.reason not in NOT_HERE or h.until_offset <= to]
    kept += [
        replace(h, until_offset=to)
        for h in holes
        if h.reason in NOT_HERE and h.from_offset < to < h.until_offset
    ]
    lost = _lost(holes) - _lost(kept)  # these are counted when they are read again
    entry = replace(
        entry,
        start_position=min(to, old.start_position),
        records_lost=max(0, old.records_lost - lost),
    )
    return entry, [(*a, SET_BACK) for a in again_], kept


def forgotten(
    stored: Mapping[TopicPartition, LedgerEntry], holes: Iterable[Hole], by: str = ""
) -> list[Hole]:
    """All holes of a ledger once somebody has reset its positions: one for each partition, with
    everything that may have left rows."""
    spans = {tp: [(e.start_position, e.position)] for tp, e in stored.items()}
    for h in holes:
        if h.reason not in (RETENTION, DAMAGED, SKIPPED):
            spans.setdefault(h.topic_partition, []).append((h.from_offset, h.until_offset))
    resets = []
    for tp, ranges in sorted(spans.items()):
        start, until = min(a for a, _ in ranges), max(b for _, b in ranges)
        if start < until:
            resets.append(Hole(*tp, start, until, RESET, by, now()))
    return resets


def outside(start: int, until: int, holes: Iterable[Hole]) -> list[tuple[int, int]]:
    """The parts of the offsets ``[start, until)`` that are in none of the holes."""
    parts = []
    for hole in sorted(holes, key=lambda h: h.from_offset):
        if start < (end := min(hole.from_offset, until)):
            parts.append((start, end))
        start = max(start, hole.until_offset)
    return [*parts, (start, until)] if start < until else parts


def _parts(hole: Hole, spans: Iterable[tuple[int, int]]) -> list[Hole]:
    return [replace(hole, from_offset=start, until_offset=until) for start, until in spans]


def _lost(holes: Iterable[Hole]) -> int:
    return sum(h.until_offset - h.from_offset for h in holes if h.reason in (RETENTION, DAMAGED))


def _points_at(entry: LedgerEntry) -> tuple[object, ...]:
    return entry.position, entry.cluster_id, entry.topic_id, entry.target


class Outcome(Enum):
    """How a commit ended."""

    APPLIED = "applied"
    REPLAYED = "replayed"


def judge(
    connector: str, stored: Mapping[TopicPartition, LedgerEntry], advances: Iterable[Advance]
) -> Outcome:
    """Apply the ledger rule to the advances of a commit.

    ``stored`` holds the current entries; a topic-partition without one is a conflict, because
    first positions are inserted before anything is read. Of an entry, only the position and the ids
    of its log count. Stores apply the rule with this function or with equivalent statements.

    Raises:
        LedgerConflict: a gap, an overlap, a mixture, a missing position, or another log.
    """
    verdicts: set[Outcome] = set()
    for advance in advances:
        span, entry = advance.range, stored.get(advance.range.topic_partition)
        position = None if entry is None else entry.position
        if entry is not None and entry.log.contradicts(advance.log):
            raise OtherLog(
                f"connector {connector}: the ledger is at {position} for {span.topic_partition} "
                f"in another log ({entry.log}) than that of this commit's offsets "
                f"[{span.from_offset}, {span.until_offset}) ({advance.log}): topic "
                f"{named(span.topic)} was created again, or is another cluster's. Nothing was "
                "written."
            )
        if position == span.from_offset:
            verdicts.add(Outcome.APPLIED)
        elif position == span.until_offset:
            verdicts.add(Outcome.REPLAYED)
        else:
            raise LedgerConflict(
                f"connector {connector}: the ledger is at {position} for "
                f"{span.topic_partition}, but this commit holds offsets "
                f"[{span.from_offset}, {span.until_offset}). Nothing was written. Was a "
                f"partition repeated after a failure, or does another run of {connector} write too?"
            )
    if len(verdicts) > 1:
        raise LedgerConflict(
            f"connector {connector}: some ranges of this batch are stored already and some are "
            "not. Nothing was written. Does another run of this connector write too?"
        )
    if not verdicts:
        raise ValueError("a commit needs at least one range")
    return verdicts.pop()


class Target(NamedTuple):
    """What holds a topic's results, as ledger entries remember it: a table, topic or index by its
    name in the store.

    ``id`` changes when it is dropped and created again, ``store`` when the whole store is copied
    or restored, which also changes ``id``. Both are empty if the store has no such ids.
    """

    name: str
    id: str = ""
    store: str = ""

    def __str__(self) -> str:
        """Its form in a ledger entry."""
        plain = not self.id and "#" not in self.name
        return self.name if plain else f"{self.name}#{self.id}@{self.store}"

    @classmethod
    def parse(cls, text: str) -> Target:
        name, mark, rest = text.rpartition("#")
        id_, at, store = rest.partition("@")
        return cls(name, id_, store) if mark and at else cls(text)

    def replaced_by(self, other: Target) -> str | None:
        """What has happened if the other target is a different one; None if it is the same."""
        if self.name != other.name:
            return f"results went to {self.name} so far, and would go to {other.name} now"
        if self.id and other.id and self.store == other.store and self.id != other.id:
            return f"{self.name} was dropped and created again since"
        return None


LEDGER_FORMAT = 1
"""The version in which entries and holes are stored, wherever they are.

Everything stored says in which version of its format it was written, and readers refuse a later
one, which may mean something else. A format that changes gets the next number here, what has an
earlier one is migrated, and tests/sinks/formats keeps one of each.
"""
LETTERS_FORMAT = 1
"""That of dead letters as rows or documents."""
OWNERS_FORMAT = 1
"""That of who runs a connector, in the offsets topic of sources and in a cluster's topics."""


def check_format(what: str, stored: int, known: int) -> None:
    """Raises ServiceError: a later semel has written it."""
    if stored > known:
        raise ServiceError(
            f"{what} was written by a later version of semel (format {stored}, this one knows "
            f"{known}). Run that version"
        )
