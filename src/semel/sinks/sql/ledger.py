"""The ledger in SQL that all dialects share.

Positions are read under a lock, judged, and moved: where the database has no row locks, a writer is
alone from the start of its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields

import pyarrow as pa

from semel.core import formats
from semel.core.ledger import (
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    holes_of,
    judge,
    pending,
)
from semel.sinks.sql.dialect import Dialect, listed
from semel.sinks.sql.ledger_tables import COUNTS, FACTS, FORMAT, HOLES, KEY, OFFSETS, Ledger, placed
from semel.sinks.sql.names import Name, quote

_TYPES = {"int": pa.int64(), "str": pa.string()}
_KEY = [
    pa.field("connector", pa.string(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
]
_TIME = pa.timestamp("us", "UTC")
_ENTRY = [
    *_KEY,
    *(
        pa.field(f.name, _TYPES[str(f.type)], nullable=False)
        for f in fields(LedgerEntry)
        if f.name in FACTS
    ),
    pa.field("updated_at", _TIME, nullable=False),
    pa.field(FORMAT, pa.int32(), nullable=False),
]
_HOLE = [
    *_KEY,
    pa.field("number", pa.int64(), nullable=False),  # tells those of a topic-partition apart
    pa.field("from_offset", pa.int64(), nullable=False),
    pa.field("until_offset", pa.int64(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("recorded_by", pa.string(), nullable=False),
    pa.field("recorded_at", _TIME, nullable=False),
    pa.field(FORMAT, pa.int32(), nullable=False),
]


class SqlLedger(Ledger):
    """The ledger in statements that all dialects understand."""

    def __init__(self, dialect: Dialect, connector: str) -> None:
        super().__init__(dialect, connector)
        self._dialect = dialect

    def create(self) -> None:
        if not self.exists():  # CREATE IF NOT EXISTS would still ask for the right to create
            self._dialect.create(OFFSETS, _ENTRY, KEY)
            self._dialect.create(HOLES, _HOLE, (*KEY, "number"))

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        outcome = self.guard(advances)
        if outcome is Outcome.REPLAYED:
            return outcome
        for a in advances:
            counts = zip(COUNTS, (a.read, a.written, a.filtered, a.failed, a.lost), strict=True)
            sets = [f"{quote('position')} = {a.range.until_offset}"]
            sets += [f"{name} = {name} + {count}" for name, count in counts if count]
            if not a.keeps_epoch:
                sets += [f"leader_epoch = {a.leader_epoch}", f"epoch_offset = {a.epoch_offset}"]
            self._dialect.execute(
                f"UPDATE {OFFSETS.quoted} SET {', '.join(sets)}, "
                f"updated_at = {self._dialect.now} WHERE {self._at(a.range.topic_partition)}"
            )
        self.record(holes_of(advances))
        return outcome

    def guard(self, advances: Sequence[Advance]) -> Outcome:
        stored = self._held(a.range.topic_partition for a in advances)
        return judge(self.connector, stored, advances)

    def record(self, holes: Collection[Hole]) -> None:
        for hole in holes:
            where = f"{HOLES.quoted} WHERE {self._at(hole.topic_partition)}"
            last = self._dialect.query(f"SELECT max(number) AS last FROM {where}").to_pylist()
            number = 0 if last[0]["last"] is None else int(last[0]["last"]) + 1
            self._insert(
                HOLES,
                _HOLE,
                [
                    [
                        *self._key(hole.topic_partition),
                        *map(str, (number, hole.from_offset, hole.until_offset)),
                        *map(self._literal, (hole.reason, hole.by)),
                        *self._stamp,
                    ]
                ],
            )

    def _insert(
        self, table: Name, columns: Iterable[pa.Field], rows: Iterable[Sequence[str]]
    ) -> None:
        self._dialect.execute(
            f"INSERT INTO {table.quoted} ({listed([c.name for c in columns])}) VALUES "
            + ", ".join(f"({', '.join(row)})" for row in rows)
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
            rows = [[*self._key(e.topic_partition), *self._values(e)] for e in new]
            self._insert(OFFSETS, _ENTRY, rows)
        return {**{e.topic_partition: e.position for e in new}, **there}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        self._held(r.old.topic_partition for r in rebases)
        stored = {e.topic_partition: e for e in self.entries()}
        for r in pending(self.connector, stored, rebases):
            values = zip((*FACTS, "updated_at", FORMAT), self._values(r.new), strict=True)
            self._dialect.execute(
                f"UPDATE {OFFSETS.quoted} SET "
                f"{', '.join(f'{quote(n)} = {v}' for n, v in values)} "
                f"WHERE {self._at(r.new.topic_partition)}"
            )
            self.record(holes_of([r]))

    def _key(self, tp: TopicPartition) -> list[str]:
        return [self._literal(self.connector), self._literal(tp.topic), str(tp.partition)]

    def _values(self, e: LedgerEntry) -> list[str]:
        """All that follows the key, as literals."""
        facts = (getattr(e, name) for name in FACTS)
        return [*(self._literal(f) if isinstance(f, str) else str(f) for f in facts), *self._stamp]

    @property
    def _stamp(self) -> tuple[str, str]:
        """What each row ends with: the time and the format."""
        return self._dialect.now, str(formats.LEDGER)
