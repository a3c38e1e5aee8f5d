"""The ledger in a Delta table: transaction identifiers, moved by the commit that adds the files.

A ``txn`` action holds a name and a number. It is part of the table's state: checkpoints carry it,
log cleanup keeps it, and every Delta writer does so, which holds neither for what a commit says of
itself (``commitInfo`` goes with the log) nor for anything that would be written beside it. So the
position is the version of ``semel:<connector>:<topic>:<partition>``, and each running count is the
version of that name with the count's name behind it. ``semel:<connector>::version`` is the table's
version that the connector has committed last, and ``semel:<connector>::table:<id>`` says in which
table: no topic has an empty name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from semel.ledger import Advance, Hole, LedgerEntry, Outcome, TopicPartition, judge
from semel.sinks.delta.restores import Setback, setback
from semel.sinks.delta.table import Table

_FORGOTTEN = -1
_COUNTS = ("read", "written", "filtered", "failed", "lost")


class DeltaLedger:
    """What one connector's ledger holds in one table. It is read again when the table has moved."""

    def __init__(self, table: Table, connector: str) -> None:
        self._table = table
        self._connector = connector
        self._version = -1
        self._numbers: dict[str, int | None] = {}
        self._checked = -1

    def _name(self, *parts: object) -> str:
        return ":".join(["semel", self._connector, *map(str, parts)])

    def _number(self, name: str) -> int | None:
        if self._version != self._table.version:
            self._numbers, self._version = {}, self._table.version
        if name not in self._numbers:
            self._numbers[name] = self._table.transaction(name)
        return self._numbers[name]

    def _count(self, name: str) -> int:
        return self._number(name) or 0

    def position(self, tp: TopicPartition) -> int | None:
        """The stored position, or None."""
        found = self._number(self._name(*tp))
        return None if found == _FORGOTTEN else found

    def entries(self, topic: str) -> list[LedgerEntry]:
        """The entries of a topic, by partition."""
        found = []
        for partition in range(self._count(self._name(topic))):
            position = self.position(TopicPartition(topic, partition))
            if position is None:
                continue
            name = self._name(topic, partition)
            start, *counts = (self._count(f"{name}:{n}") for n in ("start", *_COUNTS))
            read, written, filtered, failed, lost = counts
            at = datetime.fromtimestamp(self._count(f"{name}:time") / 1000, UTC)
            text = at.strftime("%Y-%m-%dT%H:%M:%SZ")
            entry = LedgerEntry(
                topic, partition, position, start, read, written, filtered, failed, lost, text
            )
            found.append(entry)
        return found

    def holes(self, topic: str) -> list[Hole]:
        """The ranges that retention removed before they were read."""
        found = []
        for partition in range(self._count(self._name(topic))):
            if self.position(TopicPartition(topic, partition)) is None:
                continue
            name = self._name(topic, partition)
            for n in range(self._count(f"{name}:holes")):
                begins, ends = (self._count(f"{name}:hole:{n}:{at}") for at in ("from", "until"))
                found.append(Hole(topic, partition, begins, ends))
        return found

    @property
    def committed(self) -> int | None:
        """The table's version that the connector has committed last, if it stored that."""
        return self._number(self._name("", "version"))

    def setback(self) -> Setback | None:
        """What has taken the connector's last commit out of the table, if anything has."""
        committed = self.committed
        if committed is None or self._checked == self._table.version:
            return None  # no commit yet, or only those of a version that stored none
        if self._number(self._name("", "table", self._table.id)) is None:
            return Setback("the table was replaced: it has another id than the one it was when")
        found = setback(committed, self._table.version, self._table.operations(committed))
        if found is None:
            self._checked = self._table.version
        return found

    def entries_at(self, version: int, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """The positions in an older version, as far as that can be read."""
        names = {self._name(*e.topic_partition): e for t in topics for e in self.entries(t)}
        found = self._table.transactions_at(version, names)
        return {names[n].topic_partition: at for n, at in found.items() if at != _FORGOTTEN}

    def marked(self, moved: Mapping[str, int]) -> dict[str, int]:
        """The identifiers to commit, with those that name the commit itself."""
        table = self._name("", "table", self._table.id)
        own = {self._name("", "version"): self._table.version + 1}
        if self._number(table) is None:
            own[table] = 1
        return {**moved, **own}

    def judge(self, advances: Sequence[Advance]) -> Outcome:
        """Apply the ledger rule to the table as it stands.

        Raises:
            LedgerConflict: see :func:`semel.ledger.judge`.
        """
        stored = {a.range.topic_partition: self.position(a.range.topic_partition) for a in advances}
        known = {tp: at for tp, at in stored.items() if at is not None}
        return judge(self._connector, known, [a.range for a in advances])

    def commit(self, actions: Sequence[Any], moved: Mapping[str, int]) -> None:
        """Add files and move identifiers, by one commit of the table.

        Raises:
            Conflict, TransientError: see :meth:`Table.append`.
        """
        before, moved = self._table.version, self.marked(moved)
        self._table.append(actions, moved)
        if self._version == before and self._table.version == before + 1:
            self._numbers |= moved  # the new version is this commit: nothing to read again
            self._version = self._checked = before + 1

    def moved(self, advances: Sequence[Advance]) -> dict[str, int]:
        """The identifiers to commit with the results of ``advances``."""
        found = {}
        for a in advances:
            name = self._name(a.range.topic, a.range.partition)
            found[name] = a.range.until_offset
            found[f"{name}:time"] = _now()
            for count in _COUNTS:
                more = getattr(a, count)
                if more:
                    found[f"{name}:{count}"] = self._count(f"{name}:{count}") + more
            if a.lost:
                n = self._count(f"{name}:holes")
                found[f"{name}:holes"] = n + 1
                found[f"{name}:hole:{n}:from"] = a.range.from_offset
                found[f"{name}:hole:{n}:until"] = a.range.until_offset
        return found

    def started(self, positions: Mapping[TopicPartition, int]) -> dict[str, int]:
        """The identifiers that enter first positions where there are none."""
        return self.set({tp: at for tp, at in positions.items() if self.position(tp) is None})

    def adopted(self, entries: Iterable[LedgerEntry]) -> dict[str, int]:
        """The identifiers that enter what was kept elsewhere while the table did not exist."""
        new = [e for e in entries if self.position(e.topic_partition) is None]
        found = self.set({e.topic_partition: e.start_position for e in new})
        for e in new:
            name = self._name(e.topic, e.partition)
            failed, lost = e.records_failed, e.records_lost
            counts = (e.records_read, e.rows_written, e.records_filtered, failed, lost)
            found[name] = e.position
            found |= {f"{name}:{n}": c for n, c in zip(_COUNTS, counts, strict=True) if c}
        return found

    def set(self, positions: Mapping[TopicPartition, int]) -> dict[str, int]:
        """The identifiers that overwrite positions; counts and holes start anew."""
        found: dict[str, int] = {}
        for tp, at in positions.items():
            name = self._name(*tp)
            found |= {name: at, f"{name}:start": at, f"{name}:time": _now()}
            stale = [f"{name}:{n}" for n in (*_COUNTS, "holes")]
            found |= {n: 0 for n in stale if self._count(n)}
            known = found.get(self._name(tp.topic), self._count(self._name(tp.topic)))
            if tp.partition >= known:
                found[self._name(tp.topic)] = tp.partition + 1
        return found

    def forget(self, topics: Iterable[str]) -> dict[str, int]:
        """The identifiers that remove the connector's entries."""
        return {
            self._name(e.topic, e.partition): _FORGOTTEN for t in topics for e in self.entries(t)
        }


def _now() -> int:
    return int(time.time() * 1000)
