"""The ledger beside the results: two tables, described for users in docs/ledger.md.

``semel_offsets`` holds a row for each topic-partition: the position and running counts.
``semel_holes`` holds the ranges of offsets that the audit cannot compare with the log, and why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from semel.ledger import (
    Advance,
    Hole,
    LedgerEntry,
    LogId,
    Outcome,
    Rebase,
    TopicPartition,
    first,
)
from semel.sinks.sql.database import Database
from semel.sinks.sql.names import Name, quote

OFFSETS, HOLES = Name(None, "semel_offsets"), Name(None, "semel_holes")
KEY = ("connector", "topic", "partition")
COUNTS = ("records_read", "rows_written", "records_filtered", "records_failed", "records_lost")
ADDED = ("cluster_id", "topic_id", "leader_epoch", "epoch_offset", "epoch_position", "target")
"""Columns that tables of the first version of semel lack. ``epoch_position`` is the position at
which the two before it were written: a semel that does not know these columns moves only the
position."""


class Ledger(ABC):
    """The ledger of one connector, in transactions that the caller opens."""

    def __init__(self, database: Database, connector: str) -> None:
        self._database = database
        self.connector = connector
        self.upgrade = ""
        """What the tables' owner can run, where :meth:`create` could not."""
        self._complete = False

    @abstractmethod
    def create(self) -> None:
        """Create both tables if they are missing, and columns that older tables lack. If that
        fails, ``upgrade`` says what the tables' owner can run."""

    @abstractmethod
    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        """Insert first entries where there are none; return the positions stored for all."""

    @abstractmethod
    def rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries and record holes, under a compare-and-set; see
        :func:`semel.ledger.pending`."""

    @abstractmethod
    def advance(self, advances: Sequence[Advance]) -> Outcome:
        """The compare-and-set."""

    @abstractmethod
    def guard(self, advances: Sequence[Advance]) -> Outcome:
        """Judge without moving, and hold the rows still until the transaction ends."""

    def exists(self) -> bool:
        return all(map(self._database.exists, (OFFSETS, HOLES)))

    def _lacks(self) -> bool:
        """Whether the table was created by an older semel."""
        if not self._complete:
            table = self._database.find(OFFSETS)
            self._complete = table is not None and all(n in table.columns for n in ADDED)
        return not self._complete

    def entries(self, *, lock: str = "") -> list[LedgerEntry]:
        """Every entry of the connector; empty when the ledger does not exist yet. ``lock`` is what
        the query ends with."""
        if not self.exists():
            return []
        names = ["topic", "partition", "position", "start_position", *COUNTS, "updated_at"]
        if not self._lacks():
            names += ADDED
        rows = self._database.query(
            f"SELECT {_listed(names)} FROM {OFFSETS.quoted} "
            f"WHERE {self._mine} ORDER BY topic, {quote('partition')} {lock}"
        )
        return [_entry(row) for row in rows.to_pylist()]

    def holes(self) -> list[Hole]:
        """Offsets that the audit cannot compare with the present log."""
        if not self.exists():
            return []
        names = ("topic", "partition", "from_offset", "until_offset", "reason")
        rows = self._database.query(
            f"SELECT {_listed(names)} FROM {HOLES.quoted} WHERE {self._mine} ORDER BY 1, 2, 3"
        )
        return [Hole(**row) for row in rows.to_pylist()]

    def set(self, entries: Collection[LedgerEntry]) -> None:
        """Overwrite entries by hand; holes are recorded from there on."""
        if entries:
            self.forget([entry.topic_partition for entry in entries])
            self.start(entries)

    def forget(self, only: Iterable[TopicPartition] | None = None) -> None:
        """Remove the given topic-partitions, or all of the connector."""
        wanted = [self._mine] if only is None else [self._at(tp) for tp in only]
        for name in (OFFSETS, HOLES):
            for where in wanted:
                self._database.execute(f"DELETE FROM {name.quoted} WHERE {where}")

    def _literal(self, text: str) -> str:
        return self._database.literal(text)

    @property
    def _mine(self) -> str:
        return f"connector = {self._literal(self.connector)}"

    def _at(self, tp: TopicPartition) -> str:
        topic, partition = self._literal(tp.topic), tp.partition
        return f"{self._mine} AND topic = {topic} AND {quote('partition')} = {partition}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quote, names))


def _entry(row: Mapping[str, Any]) -> LedgerEntry:
    known = {n: row[n] for n in ("cluster_id", "topic_id", "target") if row.get(n) is not None}
    if row.get("epoch_position") == row["position"]:
        known |= {n: row[n] for n in ("leader_epoch", "epoch_offset")}
    others = ("topic", "partition", "position", "start_position", *COUNTS)
    at = _iso(row["updated_at"])
    return LedgerEntry(**{n: row[n] for n in others}, updated_at=at, **known)


def placed(row: Mapping[str, Any]) -> LedgerEntry:
    """An entry of which only the position and its log have been read."""
    log = LogId(row["cluster_id"] or "", row["topic_id"] or "")
    return first(TopicPartition(row["topic"], row["partition"]), row["position"], log)


def _iso(time: object) -> str:
    """A time of the database's, in UTC, to the second."""
    return f"{time}"[:19].replace(" ", "T") + "Z"
