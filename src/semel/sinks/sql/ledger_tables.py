"""The ledger beside the results: two tables, described for users in docs/ledger.md.

``semel_offsets`` holds a row for each topic-partition: the position and running counts.
``semel_holes`` holds the ranges of offsets at which a position did not just advance, and why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

from semel.core import formats
from semel.core.ledger import (
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
from semel.core.quoting import named
from semel.sinks.sql.database import Database
from semel.sinks.sql.names import Name, quote

OFFSETS, HOLES = Name(None, "semel_offsets"), Name(None, "semel_holes")
KEY = ("connector", "topic", "partition")
COUNTS = ("records_read", "rows_written", "records_filtered", "records_failed", "records_lost")
FACTS = tuple(f.name for f in fields(LedgerEntry) if f.name not in (*KEY, "updated_at"))
"""The columns of an entry that follow its key, besides the time."""
FORMAT = "format"
"""The version of the format that a row was written in, see :mod:`semel.core.formats`."""


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
        found: list[dict[str, Any]] = self._database.query(
            f"SELECT {_listed((*names, FORMAT))} FROM {table.quoted} "
            f"WHERE {self._mine} ORDER BY 1, 2, 3, 4 {end}"
        ).to_pylist()
        for row in found:
            what = f"connector {self.connector}: the ledger in table {named(table)}"
            formats.check(what, row.pop(FORMAT), formats.LEDGER)
        return found

    @abstractmethod
    def record(self, holes: Collection[Hole]) -> None:
        """Insert holes, as of now."""

    def set(self, wanted: Collection[LedgerEntry], by: str = "", reason: str = SKIPPED) -> None:
        """Set positions by hand, see :func:`semel.core.ledger.set_by_hand`."""
        if wanted:
            stored = {e.topic_partition: e for e in self.entries()}
            before = self.holes()
            entries, after = set_by_hand(stored, before, wanted, by, reason)
            for tp in sorted({e.topic_partition for e in entries}):
                self._database.execute(f"DELETE FROM {OFFSETS.quoted} WHERE {self._at(tp)}")
            self.start(entries)
            self._replace(before, after)

    def forget(self, by: str = "") -> None:
        """Remove all positions, see :func:`semel.core.ledger.forgotten`."""
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


def placed(row: Mapping[str, Any]) -> LedgerEntry:
    """An entry of which only the position and its log have been read."""
    log = LogId(row["cluster_id"], row["topic_id"])
    return first(TopicPartition(row["topic"], row["partition"]), row["position"], log)


def _iso(time: object) -> str:
    """A time of the database's, in UTC, to the second."""
    return f"{time}"[:19].replace(" ", "T") + "Z"
