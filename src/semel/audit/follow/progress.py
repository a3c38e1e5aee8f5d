"""How far one topic-partition is judged, and which rows are still missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from semel.audit.follow.intervals import NONE, Mark, owing, rowless
from semel.ledger import LedgerEntry, TopicPartition


@dataclass(frozen=True, slots=True)
class Missing:
    """Records without a row. ``until`` says how far which partitions must be read before nothing
    can have replaced the row any more."""

    offsets: np.ndarray
    until: Mapping[TopicPartition, int]


@dataclass(slots=True)
class Progress:
    """Everything below ``at`` was compared; below ``mark`` nothing is open either.

    ``records`` counts Kafka's records between the two. ``open`` are missing rows that a later
    record may have replaced, ``due`` those that nothing has.
    """

    mark: Mark
    at: int
    records: int = 0
    gaps: int = 0
    open: list[Missing] = field(default_factory=list)
    due: np.ndarray = field(default_factory=NONE.copy)

    @classmethod
    def after(cls, mark: Mark) -> Progress:
        return cls(mark, mark.offset)

    def owed(self) -> np.ndarray:
        """The offsets of all missing rows."""
        return np.concatenate([*(m.offsets for m in self.open), self.due])

    def excuse(self, replaced: np.ndarray, unsure: np.ndarray) -> int:
        """Later records have replaced some of the missing rows, and may have replaced others; how
        many are only the latter."""
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
        """Missing rows become due once all that may have replaced them is read."""
        left = []
        for missing in self.open:
            if all(at.get(tp, end) >= end for tp, end in missing.until.items()):
                self.due = np.concatenate([self.due, missing.offsets])
            else:
                left.append(missing)
        self.open = left

    def budget(self, entry: LedgerEntry, dead: np.ndarray, elsewhere: int = 0) -> int:
        """How many records from the mark to the ledger's position may have no row. ``dead`` are
        the offsets of dead letters; those are known by name."""
        named = int(((dead >= self.mark.offset) & (dead < entry.position)).sum())
        return max(0, rowless(entry, elsewhere) - self.mark.rowless - named)

    def settle(
        self, entry: LedgerEntry, dead: np.ndarray, elsewhere: int = 0
    ) -> tuple[int, np.ndarray]:
        """How many of the missing rows are lost, and among which offsets; move the mark if nothing
        is open. Short of the ledger's position it is not known how many records there have no row,
        unless none has."""
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
        log = entry.log.completed(self.mark.log)  # ledgers of older versions learn it later
        self.mark = Mark(self.mark.start, self.at, read, without, *log)
        self.records, self.gaps, self.due = 0, 0, NONE.copy()
        return 0, NONE
