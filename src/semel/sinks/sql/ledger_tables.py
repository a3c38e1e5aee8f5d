"""The ledger beside the results: two tables, described for users in docs/ledger.md.

``semel_offsets`` holds a row for each topic-partition: the position and running counts.
``semel_holes`` holds the ranges of offsets at which a position did not just advance, and why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from semel.ledger import (
    SKIPPED,
    Advance,
    Hole,
    LedgerEntry,
    LogId,
    Outcome,
    Rebase,
    TopicPartition,
    first,
    forgotten,
    set_by_hand,
)
from semel.sinks.sql.database import Database
from semel.sinks.sql.names import Name, quote

OFFSETS, HOLES = Name(None, "semel_offsets"), Name(None, "semel_holes")
KEY = ("connector", "topic", "partition")
COUNTS = ("records_read", "rows_written", "records_filtered", "records_failed", "records_lost")
ADDED = {
    OFFSETS: (
        "cluster_id",
        "topic_id",
        "leader_epoch",
        "epoch_offset",
        "epoch_position",
        "target",
    ),
    HOLES: ("number", "recorded_by"),
}
"""Columns that tables of the first version of semel lack. ``epoch_position`` is the position at
which the two before it were written: a semel that does not know these columns moves only the
position. ``number`` tells the holes of a topic-partition apart."""


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
        """Whether one of the tables was created by an older semel."""
        if not self._complete:
            self._complete = not self._lacks_columns(OFFSETS) and not self._lacks_columns(HOLES)
        return not self._complete

    def _lacks_columns(self, name: Name) -> bool:
        table = self._database.find(name)
        return table is None or any(n not in table.columns for n in ADDED[name])

    def entries(self, *, lock: str = "") -> list[LedgerEntry]:
        """Every entry of the connector; empty when the ledger does not exist yet. ``lock`` is what
        the query ends with."""
        if not self.exists():
            return []
        names = ["topic", "partition", "position", "start_position", *COUNTS, "updated_at"]
        if not self._lacks():
            names += ADDED[OFFSETS]
        elif (table := self._database.find(OFFSETS)) is not None:
            names += [n for n in ADDED[OFFSETS] if n in table.columns]
        rows = self._database.query(
            f"SELECT {_listed(names)} FROM {OFFSETS.quoted} "
            f"WHERE {self._mine} ORDER BY topic, {quote('partition')} {lock}"
        )
        return [_entry(row) for row in rows.to_pylist()]

    def holes(self) -> list[Hole]:
        """Every hole of the connector."""
        if not self.exists():
            return []
        names = ["topic", "partition", "from_offset", "until_offset", "reason", "recorded_at"]
        if not self._lacks():
            names += ["recorded_by"]
        rows = self._database.query(
            f"SELECT {_listed(names)} FROM {HOLES.quoted} WHERE {self._mine} ORDER BY 1, 2, 3, 4"
        )
        return [_hole(row) for row in rows.to_pylist()]

    @abstractmethod
    def record(self, holes: Collection[Hole]) -> None:
        """Insert holes, as of now."""

    def set(self, wanted: Collection[LedgerEntry], by: str = "", reason: str = SKIPPED) -> None:
        """Set positions by hand, see :func:`semel.ledger.set_by_hand`."""
        if wanted:
            stored = {e.topic_partition: e for e in self.entries()}
            before = self.holes()
            entries, after = set_by_hand(stored, before, wanted, by, reason)
            for tp in sorted({e.topic_partition for e in entries}):
                self._database.execute(f"DELETE FROM {OFFSETS.quoted} WHERE {self._at(tp)}")
            self.start(entries)
            self._replace(before, after)

    def forget(self, by: str = "") -> None:
        """Remove all positions, see :func:`semel.ledger.forgotten`."""
        before = self.holes()
        after = forgotten({e.topic_partition: e for e in self.entries()}, before, by)
        self._database.execute(f"DELETE FROM {OFFSETS.quoted} WHERE {self._mine}")
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


def _hole(row: Mapping[str, Any]) -> Hole:
    names = ("topic", "partition", "from_offset", "until_offset", "reason")
    by, at = row.get("recorded_by") or "", _iso(row["recorded_at"])
    return Hole(**{n: row[n] for n in names}, by=by, at=at)


def placed(row: Mapping[str, Any]) -> LedgerEntry:
    """An entry of which only the position and its log have been read."""
    log = LogId(row["cluster_id"] or "", row["topic_id"] or "")
    return first(TopicPartition(row["topic"], row["partition"]), row["position"], log)


def _iso(time: object) -> str:
    """A time of the database's, in UTC, to the second."""
    return f"{time}"[:19].replace(" ", "T") + "Z"
