"""The ledger beside the results, in SQL that all dialects share.

The tables are those of docs/ledger.md. Positions are read under a lock, judged, and moved: where
the database has no lock for rows, whoever writes is alone from the start of the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from semel.ledger import Advance, Hole, LedgerEntry, OffsetRange, Outcome, TopicPartition, judge
from semel.sinks.postgresql.connection import quote
from semel.sinks.postgresql.tables import Name
from semel.sinks.sql.dialect import Dialect, listed

OFFSETS, HOLES = Name(None, "semel_offsets"), Name(None, "semel_holes")
_KEY = ("connector", "topic", "partition")
_COUNTS = ("records_read", "rows_written", "records_filtered", "records_failed", "records_lost")


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

    def create(self) -> None:
        """Create both tables if they are missing."""
        if self.exists():
            return  # CREATE IF NOT EXISTS would still ask for the right to create
        columns = _fields("position", "start_position", *_COUNTS, time="updated_at")
        self._dialect.create(OFFSETS, columns, _KEY)
        holes = _fields("from_offset", "until_offset", text=("reason",), time="recorded_at")
        self._dialect.create(HOLES, holes, (*_KEY, "from_offset"))

    def exists(self) -> bool:
        return all(self._dialect.find(name) is not None for name in (OFFSETS, HOLES))

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        """The compare-and-set."""
        outcome = self.guard(advances)
        if outcome is Outcome.REPLAYED:
            return outcome
        for a in advances:
            counts = zip(_COUNTS, (a.read, a.written, a.filtered, a.failed, a.lost), strict=True)
            sets = ", ".join(f"{name} = {name} + {count}" for name, count in counts if count)
            self._dialect.execute(
                f"UPDATE {OFFSETS.quoted} SET {quote('position')} = {a.range.until_offset}, "
                f"{f'{sets}, ' if sets else ''}updated_at = {self._dialect.now} "
                f"WHERE {self._at(a.range.topic_partition)}"
            )
            if a.lost:
                self._record_hole(a.range, a.cause)
        return outcome

    def guard(self, advances: Sequence[Advance]) -> Outcome:
        """Judge without moving, and hold the rows still until the transaction ends."""
        ranges = [a.range for a in advances]
        stored = self._positions([r.topic_partition for r in ranges])
        return judge(self.connector, stored, ranges)

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
        positions = {e.topic_partition: e.position for e in entries}
        there = self._positions(positions)
        new = [(tp, position) for tp, position in positions.items() if tp not in there]
        if new:
            columns = (*_KEY, "position", "start_position", *_COUNTS, "updated_at")
            zeros = "0, " * len(_COUNTS)
            rows = ", ".join(
                f"({self._literal(self.connector)}, {self._literal(tp.topic)}, {tp.partition}, "
                f"{position}, {position}, {zeros}{self._dialect.now})"
                for tp, position in new
            )
            self._dialect.execute(f"INSERT INTO {OFFSETS.quoted} ({listed(columns)}) VALUES {rows}")
        return {**dict(new), **there}

    def entries(self) -> list[LedgerEntry]:
        """Every entry of the connector; empty when the ledger does not exist yet."""
        if not self.exists():
            return []
        names = ("topic", "partition", "position", "start_position", *_COUNTS, "updated_at")
        rows = self._dialect.query(
            f"SELECT {listed(names)} FROM {OFFSETS.quoted} WHERE {self._mine} "
            f"ORDER BY topic, {quote('partition')}"
        )
        return [
            LedgerEntry(**{**row, "updated_at": _iso(row["updated_at"])})
            for row in rows.to_pylist()
        ]

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


def _iso(time: object) -> str:
    """A time of the database's, in UTC, to the second."""
    return f"{time}"[:19].replace(" ", "T") + "Z"
