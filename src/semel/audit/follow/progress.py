"""Tracks how far one topic-partition is judged and which rows are still missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from semel.audit.follow.intervals import Mark, owing, rowless
from semel.audit.offsets import NONE
from semel.core.ledger import LedgerEntry, TopicPartition


@dataclass(frozen=True, slots=True)
class Missing:
    """Records without a row. Once the partitions in ``until`` are read up to these offsets, no
    other record can have replaced the row."""

    offsets: np.ndarray
    until: Mapping[TopicPartition, int]


@dataclass(slots=True)
class PartitionProgress:
    """Everything below ``at`` is compared, and below ``mark`` nothing is left open.

    ``records`` counts Kafka's records between the two. ``open`` holds missing rows that a later
    record may have replaced, and ``due`` those that none has.
    """

    mark: Mark
    at: int
    records: int = 0
    gaps: int = 0
    open: list[Missing] = field(default_factory=list)
    due: np.ndarray = field(default_factory=NONE.copy)

    @classmethod
    def after(cls, mark: Mark) -> PartitionProgress:
        return cls(mark, mark.offset)

    def owed(self) -> np.ndarray:
        """The offsets of all missing rows."""
        return np.concatenate([*(m.offsets for m in self.open), self.due])

    def drop_replaced(self, replaced: np.ndarray, unsure: np.ndarray) -> int:
        """Drop the missing rows that later records have replaced or may have replaced. Returns the
        number of the latter."""
        unknown = 0
        left = []
        for missing in self.open:
            doubtful = np.isin(missing.offsets, unsure)
            unknown += int(doubtful.sum())
            kept = missing.offsets[~doubtful & ~np.isin(missing.offsets, replaced)]
            if len(kept):
                left.append(replace(missing, offsets=kept))
        self.open = left
        doubtful = np.isin(self.due, unsure)
        self.due = self.due[~doubtful & ~np.isin(self.due, replaced)]
        return unknown + int(doubtful.sum())

    def ripen(self, at: Mapping[TopicPartition, int]) -> None:
        """Make missing rows due once everything that may have replaced them is read."""
        left = []
        for missing in self.open:
            if all(at.get(tp, end) >= end for tp, end in missing.until.items()):
                self.due = np.concatenate([self.due, missing.offsets])
            else:
                left.append(missing)
        self.open = left

    def budget(self, entry: LedgerEntry, dead: np.ndarray, elsewhere: int = 0) -> int:
        """The number of records between the mark and the ledger's position that may have no row.
        ``dead`` holds the offsets of dead letters, which do not count because they are known."""
        named = int(((dead >= self.mark.offset) & (dead < entry.position)).sum())
        return max(0, rowless(entry, elsewhere) - self.mark.rowless - named)

    def settle(
        self, entry: LedgerEntry, dead: np.ndarray, elsewhere: int = 0
    ) -> tuple[int, np.ndarray]:
        """Returns how many missing rows are lost, and among which offsets. Moves the mark if
        nothing is open. Below the ledger's position, the number of records without a row is known
        only if it is zero."""
        budget = self.budget(entry, dead, elsewhere)
        lost = owing(len(self.due), budget)
        if lost:
            return lost, self.due
        if self.open:
            return 0, NONE
        if self.at == entry.position:
            read, without = entry.records_read, rowless(entry, elsewhere)
        elif not budget:
            named = int(((dead >= self.mark.offset) & (dead < self.at)).sum())
            read, without = self.mark.read, self.mark.rowless + named
        else:
            return 0, NONE
        log = entry.log.completed(self.mark.log)  # a ledger may learn it later
        self.mark = Mark(self.mark.start, self.at, read, without, *log)
        self.records, self.gaps, self.due = 0, 0, NONE.copy()
        return 0, NONE
