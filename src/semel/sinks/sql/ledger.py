"""The ledger in SQL that all dialects share.

Positions are read under a lock, judged, and moved: where the database has no row locks, a writer is
alone from the start of its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from semel.ledger import (
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    judge,
    pending,
)
from semel.sinks.sql.dialect import Dialect, listed
from semel.sinks.sql.ledger_tables import ADDED, COUNTS, HOLES, KEY, OFFSETS, Ledger, placed
from semel.sinks.sql.names import quote

_ADDED = [
    pa.field("cluster_id", pa.string()),
    pa.field("topic_id", pa.string()),
    pa.field("leader_epoch", pa.int64()),
    pa.field("epoch_offset", pa.int64()),
    pa.field("epoch_position", pa.int64()),
    pa.field("target", pa.string()),
]
"""Null where nothing is known."""


def _fields(*numbers: str, text: Sequence[str] = (), time: str) -> list[pa.Field]:
    return [
        pa.field("connector", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(pa.field(n, pa.int64(), nullable=False) for n in numbers),
        *(pa.field(n, pa.string(), nullable=False) for n in text),
        pa.field(time, pa.timestamp("us", "UTC"), nullable=False),
    ]


class SqlLedger(Ledger):
    """The ledger in statements that all dialects understand."""

    def __init__(self, dialect: Dialect, connector: str) -> None:
        super().__init__(dialect, connector)
        self._dialect = dialect

    def create(self) -> None:
        if not self.exists():  # CREATE IF NOT EXISTS would still ask for the right to create
            columns = _fields("position", "start_position", *COUNTS, time="updated_at")
            self._dialect.create(OFFSETS, [*columns, *_ADDED], KEY)
            holes = _fields("from_offset", "until_offset", text=("reason",), time="recorded_at")
            self._dialect.create(HOLES, holes, (*KEY, "from_offset"))
        if self._lacks():
            added = ", ".join(map(self._dialect.definition, _ADDED))
            self.upgrade = f"ALTER TABLE {OFFSETS.quoted}, adding {added}"
            self._dialect.add_columns(OFFSETS, _ADDED)
            self.upgrade = ""

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        outcome = self.guard(advances)
        if outcome is Outcome.REPLAYED:
            return outcome
        for a in advances:
            counts = zip(COUNTS, (a.read, a.written, a.filtered, a.failed, a.lost), strict=True)
            sets = ", ".join(f"{name} = {name} + {count}" for name, count in counts if count)
            if a.keeps_epoch:  # it needs the old position, which MySQL loses in its own SET
                epoch = "epoch_position = CASE WHEN epoch_position = " + quote("position")
                epoch += f" THEN {a.range.until_offset} ELSE -1 END"
            else:
                epoch = f"leader_epoch = {a.leader_epoch}, epoch_offset = {a.epoch_offset}, "
                epoch += f"epoch_position = {a.range.until_offset}"
            self._dialect.execute(
                f"UPDATE {OFFSETS.quoted} SET {epoch}, {quote('position')} = "
                f"{a.range.until_offset}, {f'{sets}, ' if sets else ''}"
                f"updated_at = {self._dialect.now} WHERE {self._at(a.range.topic_partition)}"
            )
            # A hole of a former log may begin there: it stays.
            if a.hole is not None and not self._beginning_with(a.hole):
                self._record_hole(a.hole)
        return outcome

    def guard(self, advances: Sequence[Advance]) -> Outcome:
        stored = self._held(a.range.topic_partition for a in advances)
        return judge(self.connector, stored, advances)

    def _replace_hole(self, hole: Hole) -> None:
        """If two holes begin at the same offset, keep the end of the longer one and the reason of
        the later one."""
        ends = [h.until_offset for h in self._beginning_with(hole)]
        where = f"{self._at(hole.topic_partition)} AND from_offset = {hole.from_offset}"
        self._dialect.execute(f"DELETE FROM {HOLES.quoted} WHERE {where}")
        until = max([hole.until_offset, *ends])
        self._record_hole(replace(hole, until_offset=until))

    def _beginning_with(self, hole: Hole) -> list[Hole]:
        same = [h for h in self.holes() if h.topic_partition == hole.topic_partition]
        return [h for h in same if h.from_offset == hole.from_offset]

    def _record_hole(self, hole: Hole) -> None:
        columns = (*KEY, "from_offset", "until_offset", "reason", "recorded_at")
        self._dialect.execute(
            f"INSERT INTO {HOLES.quoted} ({listed(columns)}) VALUES "
            f"({self._literal(self.connector)}, {self._literal(hole.topic)}, {hole.partition}, "
            f"{hole.from_offset}, {hole.until_offset}, {self._literal(hole.reason)}, "
            f"{self._dialect.now})"
        )

    def _held(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, LedgerEntry]:
        """Positions and their logs; nobody else changes them until the transaction ends."""
        only = " OR ".join(
            f"(topic = {self._literal(tp.topic)} AND {quote('partition')} = {tp.partition})"
            for tp in sorted(wanted)
        )
        names = ("topic", "partition", "cluster_id", "topic_id", "position")
        where = f"{self._mine} AND ({only or '1 = 0'})"
        rows = self._dialect.query(self._dialect.held(names, OFFSETS, where)).to_pylist()
        return {e.topic_partition: e for e in map(placed, rows)}

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        there = {tp: e.position for tp, e in self._held(e.topic_partition for e in entries).items()}
        new = [e for e in entries if e.topic_partition not in there]
        if new:
            names = ("position", "start_position", *COUNTS, *ADDED, "updated_at")
            rows = ", ".join(
                f"({', '.join([*self._key(e.topic_partition), *self._values(e)])})" for e in new
            )
            columns = listed((*KEY, *names))
            self._dialect.execute(f"INSERT INTO {OFFSETS.quoted} ({columns}) VALUES {rows}")
        return {**{e.topic_partition: e.position for e in new}, **there}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        self._held(r.old.topic_partition for r in rebases)
        stored = {e.topic_partition: e for e in self.entries()}
        names = ("position", "start_position", *COUNTS, *ADDED, "updated_at")
        for r in pending(self.connector, stored, rebases):
            values = zip(names, self._values(r.new), strict=True)
            self._dialect.execute(
                f"UPDATE {OFFSETS.quoted} SET "
                f"{', '.join(f'{quote(n)} = {v}' for n, v in values)} "
                f"WHERE {self._at(r.new.topic_partition)}"
            )
            if r.hole is not None:
                self._replace_hole(r.hole)

    def _key(self, tp: TopicPartition) -> list[str]:
        return [self._literal(self.connector), self._literal(tp.topic), str(tp.partition)]

    def _values(self, e: LedgerEntry) -> list[str]:
        """All that follows the key, as literals."""
        counts = [getattr(e, name) for name in COUNTS]
        numbers = [e.position, e.start_position, *counts]
        epoch = [e.leader_epoch, e.epoch_offset, e.position]
        return [
            *map(str, numbers),
            self._literal(e.cluster_id),
            self._literal(e.topic_id),
            *map(str, epoch),
            self._literal(e.target),
            self._dialect.now,
        ]
