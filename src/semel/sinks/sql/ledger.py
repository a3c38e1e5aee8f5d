"""The ledger beside the results, in SQL that all dialects share.

The tables are those of docs/ledger.md. Positions are read under a lock, judged, and moved: where
the database has no lock for rows, whoever writes is alone from the start of the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from semel.ledger import (
    Advance,
    Hole,
    LedgerEntry,
    OffsetRange,
    Outcome,
    Rebase,
    TopicPartition,
    judge,
    pending,
)
from semel.sinks.sql.dialect import Dialect, listed
from semel.sinks.sql.names import Name, quote

OFFSETS, HOLES = Name(None, "semel_offsets"), Name(None, "semel_holes")
_KEY = ("connector", "topic", "partition")
_COUNTS = ("records_read", "rows_written", "records_filtered", "records_failed", "records_lost")


_ADDED = [
    pa.field("cluster_id", pa.string()),
    pa.field("topic_id", pa.string()),
    pa.field("leader_epoch", pa.int64()),
    pa.field("epoch_offset", pa.int64()),
    pa.field("epoch_position", pa.int64()),
    pa.field("target", pa.string()),
]
"""Columns that tables of semel 0.1 lack; null where nothing is known. ``epoch_position`` is the
position that the two before it were written with: a semel that does not know them moves the
position alone."""
_KNOWN = [field.name for field in _ADDED]


def _fields(*numbers: str, text: Sequence[str] = (), time: str) -> list[pa.Field]:
    return [
        pa.field("connector", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(pa.field(n, pa.int64(), nullable=False) for n in numbers),
        *(pa.field(n, pa.string(), nullable=False) for n in text),
        pa.field(time, pa.timestamp("us", "UTC"), nullable=False),
    ]


class SqlLedger:
    """The ledger of one connector, in transactions that the caller opens."""

    def __init__(self, dialect: Dialect, connector: str) -> None:
        self._dialect = dialect
        self.connector = connector
        self.upgrade = ""
        self._complete = False

    def create(self) -> None:
        """Create both tables if they are missing, and columns that older tables lack; if that
        fails, ``upgrade`` says what their owner can do."""
        if not self.exists():  # CREATE IF NOT EXISTS would still ask for the right to create
            columns = _fields("position", "start_position", *_COUNTS, time="updated_at")
            self._dialect.create(OFFSETS, [*columns, *_ADDED], _KEY)
            holes = _fields("from_offset", "until_offset", text=("reason",), time="recorded_at")
            self._dialect.create(HOLES, holes, (*_KEY, "from_offset"))
        if self._lacks():
            added = ", ".join(map(self._dialect.definition, _ADDED))
            self.upgrade = f"ALTER TABLE {OFFSETS.quoted}, adding {added}"
            self._dialect.add_columns(OFFSETS, _ADDED)
            self.upgrade = ""

    def exists(self) -> bool:
        return all(self._dialect.find(name) is not None for name in (OFFSETS, HOLES))

    def _lacks(self) -> bool:
        """Whether the table is an older semel's."""
        if not self._complete:
            table = self._dialect.find(OFFSETS)
            self._complete = table is not None and all(n in table.columns for n in _KNOWN)
        return not self._complete

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        """The compare-and-set."""
        outcome = self.guard(advances)
        if outcome is Outcome.REPLAYED:
            return outcome
        for a in advances:
            counts = zip(_COUNTS, (a.read, a.written, a.filtered, a.failed, a.lost), strict=True)
            sets = ", ".join(f"{name} = {name} + {count}" for name, count in counts if count)
            if a.keeps_epoch:  # it goes by the old position, which MySQL has not after its own SET
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
            if a.lost:
                self._record_hole(a.range, a.cause)
        return outcome

    def guard(self, advances: Sequence[Advance]) -> Outcome:
        """Judge without moving, and hold the rows still until the transaction ends."""
        ranges = [a.range for a in advances]
        stored = self._positions([r.topic_partition for r in ranges])
        return judge(self.connector, stored, ranges)

    def _replace_hole(self, hole: Hole) -> None:
        """Of two that begin at the same offset the longer one's end, and the later one's reason."""
        same = [h for h in self.holes() if h.topic_partition == hole.topic_partition]
        ends = [h.until_offset for h in same if h.from_offset == hole.from_offset]
        where = f"{self._at(hole.topic_partition)} AND from_offset = {hole.from_offset}"
        self._dialect.execute(f"DELETE FROM {HOLES.quoted} WHERE {where}")
        until = max([hole.until_offset, *ends])
        self._record_hole(OffsetRange(*hole.topic_partition, hole.from_offset, until), hole.reason)

    def _record_hole(self, hole: OffsetRange, cause: str) -> None:
        columns = (*_KEY, "from_offset", "until_offset", "reason", "recorded_at")
        self._dialect.execute(
            f"INSERT INTO {HOLES.quoted} ({listed(columns)}) VALUES "
            f"({self._literal(self.connector)}, {self._literal(hole.topic)}, {hole.partition}, "
            f"{hole.from_offset}, {hole.until_offset}, {self._literal(cause)}, "
            f"{self._dialect.now})"
        )

    def _positions(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        only = " OR ".join(
            f"(topic = {self._literal(tp.topic)} AND {quote('partition')} = {tp.partition})"
            for tp in sorted(wanted)
        )
        names = ("topic", "partition", "position")
        where = f"{self._mine} AND ({only or '1 = 0'})"
        rows = self._dialect.query(self._dialect.held(names, OFFSETS, where))
        return {TopicPartition(r["topic"], r["partition"]): r["position"] for r in rows.to_pylist()}

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        """Insert first entries where there are none; return the positions stored for all."""
        there = self._positions(e.topic_partition for e in entries)
        new = [e for e in entries if e.topic_partition not in there]
        if new:
            names = ("position", "start_position", *_COUNTS, *_KNOWN, "updated_at")
            rows = ", ".join(
                f"({', '.join([*self._key(e.topic_partition), *self._values(e)])})" for e in new
            )
            columns = listed((*_KEY, *names))
            self._dialect.execute(f"INSERT INTO {OFFSETS.quoted} ({columns}) VALUES {rows}")
        return {**{e.topic_partition: e.position for e in new}, **there}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries and record holes, under a compare-and-set; see :func:`pending`."""
        self._positions(r.old.topic_partition for r in rebases)  # held until the transaction ends
        stored = {e.topic_partition: e for e in self.entries()}
        names = ("position", "start_position", *_COUNTS, *_KNOWN, "updated_at")
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
        counts = [getattr(e, name) for name in _COUNTS]
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

    def entries(self) -> list[LedgerEntry]:
        """Every entry of the connector; empty when the ledger does not exist yet."""
        if not self.exists():
            return []
        names = ["topic", "partition", "position", "start_position", *_COUNTS, "updated_at"]
        rows = self._dialect.query(
            f"SELECT {listed(names if self._lacks() else [*names, *_KNOWN])} FROM {OFFSETS.quoted} "
            f"WHERE {self._mine} ORDER BY topic, {quote('partition')}"
        )
        return [_entry(row) for row in rows.to_pylist()]

    def holes(self) -> list[Hole]:
        """Offsets that the present log says nothing of."""
        if not self.exists():
            return []
        names = ("topic", "partition", "from_offset", "until_offset", "reason")
        rows = self._dialect.query(
            f"SELECT {listed(names)} FROM {HOLES.quoted} WHERE {self._mine} ORDER BY 1, 2, 3"
        )
        return [Hole(**row) for row in rows.to_pylist()]

    def set(self, entries: Collection[LedgerEntry]) -> None:
        """Overwrite entries by hand; holes start anew from there."""
        if entries:
            self.forget([entry.topic_partition for entry in entries])
            self.start(entries)

    def forget(self, only: Iterable[TopicPartition] | None = None) -> None:
        """Remove the given topic-partitions, or all of the connector."""
        wanted = [self._mine] if only is None else [self._at(tp) for tp in only]
        for name in (OFFSETS, HOLES):
            for where in wanted:
                self._dialect.execute(f"DELETE FROM {name.quoted} WHERE {where}")

    def _literal(self, text: str) -> str:
        return self._dialect.literal(text)

    @property
    def _mine(self) -> str:
        return f"connector = {self._literal(self.connector)}"

    def _at(self, tp: TopicPartition) -> str:
        topic, partition = self._literal(tp.topic), tp.partition
        return f"{self._mine} AND topic = {topic} AND {quote('partition')} = {partition}"


def _entry(row: Mapping[str, Any]) -> LedgerEntry:
    known = {n: row[n] for n in ("cluster_id", "topic_id", "target") if row.get(n) is not None}
    if row.get("epoch_position") == row["position"]:
        known |= {n: row[n] for n in ("leader_epoch", "epoch_offset")}
    others = ("topic", "partition", "position", "start_position", *_COUNTS)
    at = _iso(row["updated_at"])
    return LedgerEntry(**{n: row[n] for n in others}, updated_at=at, **known)


def _iso(time: object) -> str:
    """A time of the database's, in UTC, to the second."""
    return f"{time}"[:19].replace(" ", "T") + "Z"
