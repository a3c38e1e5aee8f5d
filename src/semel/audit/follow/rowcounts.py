"""Compares the number of rows with the number that the ledger counts as written.

If it changes by itself, rows of intervals that were judged before have come or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semel.audit.follow.look import Look
from semel.audit.follow.report import Judged
from semel.audit.holes import by_number
from semel.core.ledger import LedgerEntry, TopicPartition


class RowCounts:
    """Remembers the ``surplus`` of each topic: how many more rows it has than the ledger counts, as
    far as it is known why. ``tell`` gets lines for the user."""

    def __init__(self, surplus: Mapping[str, int], tell: Callable[[str], None]) -> None:
        self.surplus = dict(surplus)
        self._tell = tell
        self._again: dict[str, int] = {}
        """Topics that are judged again because their number of rows changed, with the surplus that
        they had then."""

    def clear(self) -> None:
        """Forget everything: the ledger was restored, or set by hand."""
        self.surplus.clear()
        self._again.clear()

    def changed(self, seen: Look) -> list[str]:
        """The topics whose number of rows changed by itself. They must be judged again."""
        found = []
        for topic, by in seen.surplus(by_target=False).items():
            known = self.surplus.setdefault(topic, by)
            if by != known and topic not in self._again and of_topic(topic, seen.entries):
                self._tell(f"{topic}: {_described(by - known)}: judging all of it again")
                self._again[topic] = by
                found.append(topic)
        return found

    def unexplained(
        self, seen: Look, is_behind: Callable[[Mapping[TopicPartition, LedgerEntry]], bool]
    ) -> list[str]:
        """What judging topics again has left unexplained."""
        found = []
        known = {tp.topic for tp in seen.entries}
        for topic in [t for t in self._again if t in known]:
            if not is_behind(of_topic(topic, seen.entries)):
                now = self._again.pop(topic)
                change = _described(now - self.surplus.get(topic, now))
                self.surplus[topic] = now
                found.append(
                    f"{topic}: {change}, and none of them belong to records that Kafka has below "
                    "the position; semel audit without --follow can tell more"
                )
        return found

    def odd(self, seen: Look) -> list[Judged]:
        """The targets whose number of rows is not the ledger's, each with its first partition."""
        found = []
        for target, by in sorted(seen.surplus(by_target=True).items()):
            topics = {t for t, name in seen.snapshot.targets.items() if name == target}
            mine = sorted(tp for tp in seen.entries if tp.topic in topics)
            if by and mine:
                at = seen.entries[mine[0]].position
                entries = [seen.entries[tp] for tp in mine]
                lost, duplicated, _ = by_number(entries, seen.snapshot.holes, by)
                found.append(Judged(*mine[0], at, at, at, 0, 0, lost=lost, duplicated=duplicated))
        return found


def of_topic(
    topic: str, entries: Mapping[TopicPartition, LedgerEntry]
) -> dict[TopicPartition, LedgerEntry]:
    """The ledger's entries of one topic."""
    return {tp: e for tp, e in entries.items() if tp.topic == topic}


def _described(by: int) -> str:
    rows = f"{abs(by):,} row{'s' if abs(by) > 1 else ''}"
    return f"{rows} more than the ledger accounts for" if by > 0 else f"{rows} fewer than before"
