"""The files that tasks have staged, by table, and how many records went to each table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from semel.core.ledger import Advance, OffsetRange, TopicPartition
from semel.sinks.iceberg.files import StagedFile
from semel.sinks.iceberg.routing import Counts, StagedRows


@dataclass(frozen=True, slots=True)
class Parts:
    """What was staged, by table; ``ranges`` are those that it comes from, if they are known."""

    files: Mapping[str, list[StagedFile]] = field(default_factory=dict)
    shares: Mapping[str, Counts] = field(default_factory=dict)
    ranges: Sequence[OffsetRange] = ()

    @staticmethod
    def of(staged: Sequence[Any]) -> Parts:
        files: dict[str, list[StagedFile]] = {}
        shares: dict[str, Counts] = {}
        for part in staged:
            if isinstance(part, StagedRows):
                shares.setdefault(part.table, Counter()).update(part.counts)
            else:
                files.setdefault(part.table, []).append(part)
        return Parts(files, shares)

    @property
    def tables(self) -> set[str]:
        """The tables that got rows."""
        return {*self.files, *(name for name, counts in self.shares.items() if name and counts)}

    def share(self, table: str | None, advance: Advance) -> Advance:
        """The counts of a range for one table, or for all of them together."""
        if not self.shares:
            return advance
        tp = advance.range.topic_partition
        nowhere = self._count("", tp)
        mine = advance.written - nowhere if table is None else self._count(table, tp)
        return replace(advance, written=mine, filtered=advance.filtered + nowhere)

    def elsewhere(self, table: str, advances: Sequence[Advance]) -> Counts:
        """The number of records of each range that belong only to other tables."""
        if not self.shares:
            return Counter()
        found: Counts = Counter()
        for a in advances:
            tp = a.range.topic_partition
            found[tp] = a.written - self._count(table, tp) - self._count("", tp)
        return found

    def _count(self, table: str, tp: TopicPartition) -> int:
        return self.shares.get(table, Counter())[tp]
