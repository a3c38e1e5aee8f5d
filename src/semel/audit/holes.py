"""What the ledger's holes mean for the audit: records that have no row here, rows that nothing can
be compared with, and counts that say less than they seem to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from semel.core.ledger import (
    MOVED,
    NOT_HERE,
    RECREATED,
    RESET,
    SET_BACK,
    TAKEN_OVER,
    TRUNCATED,
    UNKNOWN,
    Hole,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
    outside,
)
from semel.kafka.damage import Damage

FORMER = (RECREATED, TRUNCATED)
COUNTED_TWICE = (*FORMER, MOVED, SET_BACK)
"""Holes with records that the ledger counts, too, although they are not, or not only, among those
that are compared."""

_WHY = {
    MOVED: "have their rows in another target",
    TAKEN_OVER: "were read before this ledger began, by another program or into another target",
    UNKNOWN: "lie before the first position, which was set by hand",
    RESET: "were read before the positions were reset",
    SET_BACK: "were read before the position was set back, and not again since",
    RECREATED: "were read from a former topic of this name",
    TRUNCATED: "were read from a part of the log that was cut off",
}


def of(holes: Iterable[Hole], tp: TopicPartition, *reasons: str) -> list[Hole]:
    """A partition's holes; those with one of the reasons, if some are given."""
    own = [h for h in holes if h.topic_partition == tp]
    return [h for h in own if h.reason in reasons] if reasons else own


def damaged(damage: Iterable[Damage], tp: TopicPartition) -> list[OffsetRange]:
    """The offsets of a partition that cannot be read."""
    return [d.range for d in damage if d.topic_partition == tp]


def extent(holes: Iterable[Hole | OffsetRange]) -> int:
    """The number of offsets in holes."""
    return sum(h.until_offset - h.from_offset for h in holes)


def ahead(entry: LedgerEntry, holes: Iterable[Hole]) -> list[Hole]:
    """What will be read again, from the position on."""
    return [
        replace(h, from_offset=max(h.from_offset, entry.position))
        for h in of(holes, entry.topic_partition, SET_BACK)
        if h.until_offset > entry.position
    ]


def unreadable(
    damaged: Iterable[OffsetRange], own: Iterable[Hole], start: int, until: int
) -> list[OffsetRange]:
    """The parts of ``[start, until)`` that cannot be read in Kafka any more. ``own`` holds the
    partition's holes: what was never read, or has its rows elsewhere, is left out."""
    absent = [h for h in own if h.reason in NOT_HERE]
    return [
        OffsetRange(*r.topic_partition, *span)
        for r in damaged
        for span in outside(max(r.from_offset, start), min(r.until_offset, until), absent)
    ]


def unjudged(entry: LedgerEntry, holes: Collection[Hole], *, former: bool) -> list[Hole]:
    """The parts of a partition's holes whose rows cannot be judged. ``former`` says whether rows of
    logs that are gone may be missing."""
    own = of(holes, entry.topic_partition)
    absent = [h for h in own if h.reason in NOT_HERE]
    read = [
        Hole(*entry.topic_partition, *span)
        for span in outside(entry.start_position, entry.position, absent)
    ]
    chosen = [h for h in own if h.reason in (MOVED, TAKEN_OVER, UNKNOWN)]
    chosen += [h for h in own if former and h.reason in FORMER]
    for h in (h for h in own if h.reason in (RESET, SET_BACK)):
        parts = outside(h.from_offset, h.until_offset, read)
        chosen += [replace(h, from_offset=start, until_offset=until) for start, until in parts]
    return sorted(chosen, key=lambda h: h.from_offset)


def orphaned(
    entries: Collection[TopicPartition], holes: Iterable[Hole], topics: Collection[str]
) -> list[Hole]:
    """The holes of partitions whose positions were reset and not entered again."""
    return [
        h
        for h in holes
        if h.reason == RESET and h.topic in topics and h.topic_partition not in entries
    ]


def named(holes: Iterable[Hole]) -> list[str]:
    """Holes in words, one per line."""
    return [
        f"{h.topic_partition}: offsets {h.from_offset} to {h.until_offset - 1} "
        f"{_WHY[h.reason]}{said(h)}"
        for h in holes
    ]


def gaps(
    entries: Mapping[TopicPartition, LedgerEntry],
    holes: Collection[Hole],
    topics: Collection[str],
    former: Collection[str],
    doubtful: Mapping[TopicPartition, int],
) -> list[str]:
    """What nothing can be compared with, in words. Rows of logs that are gone may be missing in the
    topics ``former``. ``doubtful`` is how many rows may be missing because of :func:`doubts`."""
    lines = named(orphaned(entries, holes, topics))
    for tp, entry in sorted(entries.items()):
        lines += named(unjudged(entry, holes, former=tp.topic in former))
        if doubtful.get(tp):
            lines.append(
                f"{tp}: as many as {doubtful[tp]} missing rows, because the ledger may count that "
                "many records without a row twice"
            )
    return lines


def said(hole: Hole) -> str:
    """Who has made a hole, and when, in brackets; empty if that is not known."""
    facts = [*([f"by {hole.by}"] if hole.by else []), *([hole.at] if hole.at else [])]
    return f" ({', '.join(facts)})" if facts else ""


def by_number(
    entries: Iterable[LedgerEntry], holes: Collection[Hole], surplus: int
) -> tuple[int, int, int]:
    """The rows of a target that are lost, duplicated and not judged, by how many more it has than
    the ledger counts. Some may be from before the ledger began to count, and some in another
    target."""
    open_ = [h for e in entries for h in unjudged(e, holes, former=False)]
    before = extent(h for h in open_ if h.reason in (TAKEN_OVER, UNKNOWN, RESET))
    elsewhere = extent(h for h in open_ if h.reason == MOVED)
    odd = min(surplus, before) if surplus > 0 else min(-surplus, elsewhere)
    return max(0, -surplus - odd), max(0, surplus - odd), odd


def by_reading(
    entry: LedgerEntry,
    holes: Collection[Hole],
    kafka: int,
    read: int,
    *,
    expired: int = 0,
    compacted: bool = False,
    replaces: bool = False,
) -> tuple[int, int, int]:
    """The records of a partition that are lost, read twice and not judged, by how many Kafka has
    and how many the ledger counts as read. Any number of the ``expired`` offsets, which Kafka no
    longer shows, may have held records. Where rows replace each other, reading again makes no row
    twice."""
    own = of(holes, entry.topic_partition)
    unread = max(0, kafka - read)
    twice = max(0, read - kafka - expired)
    unknown = max(0, kafka + expired - read - unread)
    if replaces:
        twice = max(0, twice - extent(h for h in own if h.reason == SET_BACK))
    # Records of logs that are gone count as read, too, and hide others that were not.
    former = extent(h for h in own if h.reason in FORMER)
    unbounded = compacted or any(h.reason == RECREATED for h in own)
    doubtful = twice if unbounded else min(twice, former + extent(ahead(entry, own)))
    return unread, twice - doubtful, max(unknown + doubtful, min(former, kafka))


def doubts(entry: LedgerEntry, holes: Collection[Hole], without: int) -> int:
    """How many of ``without``, the records without a row that the ledger counts, may not be among
    those that are compared."""
    counted: Sequence[Hole] = of(holes, entry.topic_partition, *COUNTED_TWICE)
    return min(max(0, without), extent(counted))
