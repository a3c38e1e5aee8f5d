"""Positions, offset ranges and the one rule that every commit obeys.

For each offset range, inside the transaction that holds the results::

    stored == from    -> set stored = until     applied
    stored == until   -> change nothing         replay: these results are already there
    anything else     -> LedgerConflict         a gap, an overlap or another writer

A batch is all applied or all replayed; a mixture is a conflict. This is Cody Koeninger's "store
offsets with results in one transaction, and check that they are increasing without gaps"
(kafka-exactly-once), with the replay told apart from the conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from semel.errors import LedgerConflict
from semel.failpoints import ledger_check_disabled


class TopicPartition(NamedTuple):
    """One partition of one Kafka topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


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


RETENTION, DAMAGED = "removed by retention", "damaged in Kafka"
"""Why offsets could not be read."""


@dataclass(frozen=True, slots=True)
class Advance:
    """One range and what became of the records in it: the unit a ledger stores.

    ``written`` counts rows handed to the sink, tombstones included; ``filtered`` records that a
    transform left out; ``failed`` records that went to the dead letters. While one record makes
    one row, ``read == written + filtered + failed``. ``lost`` counts offsets that could not be
    read, for the reason that ``cause`` gives; the range is recorded as a hole then.
    """

    range: OffsetRange
    read: int = 0
    written: int = 0
    filtered: int = 0
    failed: int = 0
    lost: int = 0
    cause: str = RETENTION


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a ledger holds for one topic-partition: the position and running counts."""

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

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def after(self, advance: Advance, at: str) -> LedgerEntry:
        """The entry once ``advance`` has been applied."""
        return replace(
            self,
            position=advance.range.until_offset,
            records_read=self.records_read + advance.read,
            rows_written=self.rows_written + advance.written,
            records_filtered=self.records_filtered + advance.filtered,
            records_failed=self.records_failed + advance.failed,
            records_lost=self.records_lost + advance.lost,
            updated_at=at,
        )


def first(tp: TopicPartition, position: int) -> LedgerEntry:
    """The entry of a topic-partition that the ledger has never seen."""
    return LedgerEntry(tp.topic, tp.partition, position, position)


def now() -> str:
    """The time as entries hold it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Outcome(Enum):
    """How a commit ended."""

    APPLIED = "applied"
    REPLAYED = "replayed"


def judge(
    connector: str, stored: Mapping[TopicPartition, int], ranges: Iterable[OffsetRange]
) -> Outcome:
    """Apply the ledger rule to a batch of ranges.

    ``stored`` holds the current positions; a topic-partition without one is a conflict, because
    first positions are inserted before anything is read. Stores apply the rule by this function, or
    by statements that say the same.

    Raises:
        LedgerConflict: a gap, an overlap, a mixture, or a missing position.
    """
    if ledger_check_disabled():
        return Outcome.APPLIED
    verdicts: set[Outcome] = set()
    for wanted in ranges:
        position = stored.get(wanted.topic_partition)
        if position == wanted.from_offset:
            verdicts.add(Outcome.APPLIED)
        elif position == wanted.until_offset:
            verdicts.add(Outcome.REPLAYED)
        else:
            raise LedgerConflict(
                f"connector {connector}: the ledger stands at {position} for "
                f"{wanted.topic_partition}, but this commit holds offsets "
                f"[{wanted.from_offset}, {wanted.until_offset}). Nothing was written. Was a "
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
