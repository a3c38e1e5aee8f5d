"""The total findings. What is judged again, as upserts are each hour, counts once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from semel.audit.follow.report import Judged
from semel.core.ledger import TopicPartition

_Counts = tuple[int, int, int]
"""Records lost, rows duplicated and rows changed."""
_NOTHING: _Counts = (0, 0, 0)


@dataclass(slots=True)
class _Passes:
    """The findings in one topic-partition: in this pass over its offsets, and the most in any."""

    at: int = 0
    now: _Counts = _NOTHING
    most: _Counts = _NOTHING


@dataclass(slots=True)
class Totals:
    """The findings of all intervals so far."""

    _found: dict[TopicPartition, _Passes] = field(default_factory=dict)

    def add(self, judged: Judged) -> bool:
        """Add an interval; returns whether it holds more than was found before."""
        mine = self._found.setdefault(TopicPartition(judged.topic, judged.partition), _Passes())
        if judged.from_offset < mine.at:
            mine.now = _NOTHING
        mine.at = judged.until_offset
        here = (judged.lost, judged.duplicated, judged.changed)
        mine.now = _each(mine.now, here, sum)
        before, mine.most = mine.most, _each(mine.most, mine.now, max)
        return mine.most != before

    @property
    def lost(self) -> int:
        return sum(p.most[0] for p in self._found.values())

    @property
    def duplicated(self) -> int:
        return sum(p.most[1] for p in self._found.values())

    @property
    def changed(self) -> int:
        return sum(p.most[2] for p in self._found.values())


def _each(one: _Counts, other: _Counts, combined: Callable[[tuple[int, int]], int]) -> _Counts:
    lost, duplicated, changed = map(combined, zip(one, other, strict=True))
    return lost, duplicated, changed
