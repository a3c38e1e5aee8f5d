"""The ledger beside the results: two tables, described for users in docs/ledger.md.

``semel_offsets`` holds a row for each topic-partition: the position and running counts.
``semel_holes`` holds the ranges of offsets at which a position did not just advance, and why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

import pyarrow as pa

from semel.core.ledger import (
    LEDGER_FORMAT,
    SKIPPED,
    Advance,
    Hole,
    LedgerEntry,
    LogId,
    Outcome,
    Rebase,
    TopicPartition,
    check_format,
    first,
    forgotten,
    holes_of,
    judge,
    pending,
    set_by_hand,
)
from semel.core.quoting import named
from semel.databases.base import Database
from semel.databases.names import Name, listed, quote
from semel.sinks.sql.database import Dialect

OFFSETS, HOLES = Name(None, "semel_offsets"), Name(None, "semel_holes")
KEY = ("connector", "topic", "partition")
COUNTS = ("records_read", "rows_written", "records_filtered", "records_failed", "records_lost")
FACTS = tuple(f.name for f in fields(LedgerEntry) if f.name not in (*KEY, "updated_at"))
"""The columns of an entry that follow its key, besides the time."""
FORMAT = "format"
"""The version of the format that a row was written in, as LEDGER_FORMAT counts them."""


class Ledger(ABC):
    """The ledger of one connector, in transactions that the caller opens."""

    def __init__(self, database: Database, connector: str) -> None:
        self._database = database
        self.connector = connector

    @abstractmethod
    def create(self) -> None:
        """Create both tables if they are missing."""

    @abstractmethod
    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        """Insert first entries where there are none; return the positions stored for all."""

    @abstractmethod
    def rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries and record holes, under a compare-and-set; see
        :func:`semel.core.ledger.pending`."""

    @abstractmethod
    def advance(self, advances: Sequence[Advance]) -> Outcome:
        """The compare-and-set."""

    @abstractmethod
    def guard(self, advances: Sequence[Advance]) -> Outcome:
        """Judge without moving, and hold the rows still until the transaction ends."""

    def exists(self) -> bool:
        return all(map(self._database.exists, (OFFSETS, HOLES)))

    def entries(self, *, lock: str = "") -> list[LedgerEntry]:
        """Every entry of the connector; empty when the ledger does not exist yet. ``lock`` is what
        the query ends with."""
        names = ("topic", "partition", *FACTS, "updated_at")
        return [
            LedgerEntry(**{**row, "updated_at": _iso(row["updated_at"])})
            for row in self._rows(OFFSETS, names, lock)
        ]

    def holes(self) -> list[Hole]:
        """Every hole of the connector."""
        names = ("topic", "partition", "from_offset", "until_offset", "reason")
        return [
            Hole(**{n: row[n] for n in names}, by=row["recorded_by"], at=_iso(row["recorded_at"]))
            for row in self._rows(HOLES, (*names, "recorded_by", "recorded_at"))
        ]

    def _rows(self, table: Name, names: Iterable[str], end: str = "") -> list[dict[str, Any]]:
        """The connector's rows.

        Raises:
            ServiceError: a later version of semel has written one.
        """
        if not self.exists():
            return []
        rows: list[dict[str, Any]] = self._database.query(
            f"SELECT {listed((*names, FORMAT))} FROM {table.quoted} "
            f"WHERE {self._own_rows} ORDER BY 1, 2, 3, 4 {end}"
        ).to_pylist()
        for row in rows:
            what = f"connector {self.connector}: the ledger in table {named(table)}"
            check_format(what, row.pop(FORMAT), LEDGER_FORMAT)
        return rows

    @abstractmethod
    def record(self, holes: Collection[Hole]) -> None:
        """Insert holes, as of now."""

    def set(self, entries: Collection[LedgerEntry], by: str = "", reason: str = SKIPPED) -> None:
        """Set positions by hand, see :func:`semel.core.ledger.set_by_hand`."""
        if entries:
            stored = {e.topic_partition: e for e in self.entries()}
            before = self.holes()
            moved, after = set_by_hand(stored, before, entries, by, reason)
            for tp in sorted({e.topic_partition for e in moved}):
                self._database.execute(f"DELETE FROM {OFFSETS.quoted} WHERE {self._at(tp)}")
            self.start(moved)
            self._replace(before, after)

    def forget(self, by: str = "") -> None:
        """Remove all positions, see :func:`semel.core.ledger.forgotten`."""
        before = self.holes()
        after = forgotten({e.topic_partition: e for e in self.entries()}, before, by)
        self._database.execute(f"DELETE FROM {OFFSETS.quoted} WHERE {self._own_rows}")
        self._replace(before, after)

    def _replace(self, before: Collection[Hole], after: Collection[Hole]) -> None:
        """Replace all holes; those that are in both keep the time of their recording."""
        kept = {astuple(h) for h in before} & {astuple(h) for h in after}
        for h in (h for h in before if astuple(h) not in kept):
            reason = self._literal(h.reason)
            self._database.execute(
                f"DELETE FROM {HOLES.quoted} WHERE {self._at(h.topic_partition)} "
                f"AND from_offset = {h.from_offset} AND until_offset = {h.until_offset} "
                f"AND reason = {reason}"
            )
        self.record([h for h in after if astuple(h) not in kept])

    def _literal(self, text: str) -> str:
        return self._database.literal(text)

    @property
    def _own_rows(self) -> str:
        return f"connector = {self._literal(self.connector)}"

    def _at(self, tp: TopicPartition) -> str:
        topic, partition = self._literal(tp.topic), tp.partition
        return f"{self._own_rows} AND topic = {topic} AND {quote('partition')} = {partition}"


def placed(row: Mapping[str, Any]) -> LedgerEntry:
    """An entry of which only the position and its log have been read."""
    log = LogId(row["cluster_id"], row["topic_id"])
    return first(TopicPartition(row["topic"], row["partition"]), row["position"], log)


def _iso(time: object) -> str:
    """A time of the database's, in UTC, to the second."""
    return f"{time}"[:19].replace(" ", "T") + "Z"


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
    """The ledger in statements that all dialects understand.

    Positions are read under a lock, judged, and moved: where the database has no row locks, a
    writer is alone from the start of its transaction.
    """

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

    def _held(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LedgerEntry]:
        """Positions and their logs; nobody else changes them until the transaction ends."""
        only = " OR ".join(
            f"(topic = {self._literal(tp.topic)} AND {quote('partition')} = {tp.partition})"
            for tp in sorted(partitions)
        )
        names = ("topic", "partition", "cluster_id", "topic_id", "position")
        where = f"{self._own_rows} AND ({only or '1 = 0'})"
        rows = self._dialect.query(self._dialect.locking_query(names, OFFSETS, where)).to_pylist()
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
        return self._dialect.now, str(LEDGER_FORMAT)
