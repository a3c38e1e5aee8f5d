"""The ledger in SQL that all dialects share.

Positions are read under a lock, judged, and moved: where the database has no row locks, a writer is
alone from the start of its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from semel.ledger import (
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
            self._create_holes()
        if self._lacks_columns(OFFSETS):
            added = ", ".join(map(self._dialect.definition, _ADDED))
            self.upgrade = f"ALTER TABLE {OFFSETS.quoted}, adding {added}"
            self._dialect.add_columns(OFFSETS, _ADDED)
        if self._lacks_columns(HOLES):
            self._renew_holes()
        self.upgrade = ""

    def _create_holes(self) -> None:
        numbers, text = ("number", "from_offset", "until_offset"), ("reason",)
        fields = _fields(*numbers, text=text, time="recorded_at")
        fields.append(pa.field("recorded_by", pa.string()))
        self._dialect.create(HOLES, fields, (*KEY, "number"))

    def _renew_holes(self) -> None:
        """Make the table again: not every database can change a primary key."""
        self.upgrade = (
            f"ALTER TABLE {HOLES.quoted}, adding recorded_by and number, which is the last column "
            "of the primary key in place of from_offset"
        )
        names = (*KEY, "from_offset", "until_offset", "reason", "recorded_at")
        held = self._dialect.query(f"SELECT {listed(names)} FROM {HOLES.quoted} ORDER BY 1, 2, 3")
        self._dialect.execute(f"DROP TABLE {HOLES.quoted}")
        self._create_holes()
        for number, row in enumerate(held.to_pylist()):
            connector, at = self._literal(row["connector"]), f"'{str(row['recorded_at'])[:19]}'"
            hole = Hole(*(row[n] for n in names[1:-1]))
            self._insert_hole(connector, number, hole, at)

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
            self._insert_hole(self._literal(self.connector), number, hole, self._dialect.now)

    def _insert_hole(self, connector: str, number: int, hole: Hole, at: str) -> None:
        columns = (*KEY, "number", "from_offset", "until_offset", "reason", "recorded_at")
        self._dialect.execute(
            f"INSERT INTO {HOLES.quoted} ({listed((*columns, 'recorded_by'))}) VALUES "
            f"({connector}, {self._literal(hole.topic)}, {hole.partition}, {number}, "
            f"{hole.from_offset}, {hole.until_offset}, {self._literal(hole.reason)}, {at}, "
            f"{self._literal(hole.by)})"
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
            names = ("position", "start_position", *COUNTS, *ADDED[OFFSETS], "updated_at")
            rows = ", ".join(
                f"({', '.join([*self._key(e.topic_partition), *self._values(e)])})" for e in new
            )
            columns = listed((*KEY, *names))
            self._dialect.execute(f"INSERT INTO {OFFSETS.quoted} ({columns}) VALUES {rows}")
        return {**{e.topic_partition: e.position for e in new}, **there}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        self._held(r.old.topic_partition for r in rebases)
        stored = {e.topic_partition: e for e in self.entries()}
        names = ("position", "start_position", *COUNTS, *ADDED[OFFSETS], "updated_at")
        for r in pending(self.connector, stored, rebases):
            values = zip(names, self._values(r.new), strict=True)
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
