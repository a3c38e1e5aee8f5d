"""What sinks of lake tables share: tables that hold the ledger themselves, one version after the
other, each made by one commit. Delta Lake and Iceberg have a folder each."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError
from semel.core.ledger import SKIPPED, LedgerEntry, OffsetRange, Rebase, TopicPartition
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, TOPIC, DeadLetter, Records
from semel.sinks import rows as sink_rows
from semel.sinks.base import Snapshot, StoredKeys
from semel.sinks.layout import DeletionKeys
from semel.sinks.letters import PLACES, SHOWN, Place, places_of, some_of
from semel.sinks.letters import rows as letter_rows
from semel.sinks.parquet import RollingWriter
from semel.sinks.rereading import HeldRows, held_of, in_ranges, places
from semel.sinks.staging import CommitConflict, Stager, StagingSink

log = logging.getLogger(__name__)

CONFLICTS = 50
"""A commit fails after losing to this many commits of other writers."""


class LakeTable(Protocol):
    """A table as it was when it was opened or last renewed."""

    where: str
    columns: pa.Schema

    def renew(self) -> None:
        """Read what others have committed."""

    def scanned(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows."""

    def scan(self, columns: Sequence[str]) -> pa.Table:
        """The same, as one table."""


T = TypeVar("T", bound=LakeTable)
W = TypeVar("W", bound=RollingWriter[Any, Any, Any])


class LakeSink(StagingSink):
    """A sink that keeps dead letters in a table of their own; see
    :class:`~semel.sinks.staging.StagingSink`."""

    _connector: ConnectorConfig
    _letters: LetterTable[Any] | None = None

    def _staged(self, label: str) -> str:
        """What the names of staged files begin with."""
        safe = re.sub(r"[^\w.-]", "_", f"{self._connector.name}-{label}", flags=re.ASCII)
        return f"semel-{safe}-"

    def _dead(self) -> Mapping[str, pa.Table]:
        """The places of the connector's dead letters, by topic."""
        return {} if self._letters is None else self._letters.places()

    def letters(self, beyond: Place | None, most: int, *, backwards: bool = False) -> pa.Table:
        """See :class:`~semel.sinks.letters.LetterStore`."""
        if self._letters is None:
            return SHOWN.empty_table()
        return self._letters.some(beyond, most, backwards=backwards)

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        back = {r.new.topic_partition: r.new.position for r in rebases if r.renews}
        if back and self._letters is not None:
            self._letters.set(back)
        self._rebase(rebases)

    @abstractmethod
    def _rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries of the ledgers."""

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        affected = self.entries() if entries is None else entries
        letters = {e.topic_partition: 0 if entries is None else e.position for e in affected}
        self._set(entries, by, reason)
        if self._letters is not None:
            self._letters.set(letters)

    @abstractmethod
    def _set(self, entries: Collection[LedgerEntry] | None, by: str, reason: str) -> None:
        """Set or forget the positions of the ledgers."""


class LakeStager(Stager, Generic[W]):
    """Has one writer for each table, by its name."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._writers: dict[str, W] = {}
        self._renewed: set[str] = set()
        """What was read again: a worker process keeps tables from trigger to trigger."""

    def finish(self) -> Sequence[Any]:
        return [file for writer in self._writers.values() for file in writer.finish()]

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


class LetterTable(ABC, Generic[T]):
    """The dead letters of one connector in a separate table, each exactly once. A format says how
    its table is opened and written.

    Two tables share no commit, so this table has positions of its own: those after the last dead
    letter of each topic-partition. It is written before the results. After a crash in between, the
    same records fail again, and those that are here already are left out.
    """

    def __init__(self, where: str, connector: str) -> None:
        self._where = where
        self._connector = connector
        self._table: T | None = None

    @abstractmethod
    def _open(self) -> T | None:
        """The table, if it is there."""

    @abstractmethod
    def _create(self) -> T: ...

    @abstractmethod
    def _check(self, table: T) -> None:
        """Raises RolledBack: the table lacks, or may lack, letters that were committed to it."""

    @abstractmethod
    def _behind(self, table: T, name: str) -> int | None:
        """The position that a name has; None if it has none."""

    @abstractmethod
    def _commit(self, table: T, letters: pa.Table | None, behind: Mapping[str, int]) -> None:
        """Add letters and move positions, by one commit.

        Raises:
            CommitConflict: another writer was faster.
            TransientError: the store failed.
        """

    def open(self) -> T | None:
        if self._table is None:
            self._table = self._open()
        return self._table

    def check(self) -> None:
        """Raises RolledBack: the table lacks, or may lack, letters that were committed to it."""
        table = self.open()
        if table is not None:
            table.renew()
            self._check(table)

    def places(self) -> dict[str, pa.Table]:
        """Partition, offset and time of the letters, by topic."""
        table = self.open()
        if table is None:
            return {}
        table.renew()
        return places_of(self._connector, table.scan(PLACES)) if table.columns.names else {}

    def some(self, beyond: Place | None, most: int, *, backwards: bool) -> pa.Table:
        """See :class:`~semel.sinks.letters.LetterStore`."""
        table = self.open()
        if table is None:
            return SHOWN.empty_table()
        table.renew()
        if not table.columns.names:
            return SHOWN.empty_table()
        letters = table.scan(["connector", *SHOWN.names, "format"])
        return some_of(self._connector, letters, beyond, most, backwards=backwards)

    def _name(self, tp: TopicPartition) -> str:
        return f"semel:{self._connector}:{tp.topic}:{tp.partition}"

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Write the letters that are not there yet.

        Raises:
            TransientError: the store failed; call again with the same letters.
        """
        table = self.open()
        if table is None:
            table = self._table = self._create()
        while letters:
            table.renew()
            self._check(table)
            names = [self._name(TopicPartition(x.topic, x.partition)) for x in letters]
            stood = {name: self._behind(table, name) or 0 for name in set(names)}
            new = [(n, x) for n, x in zip(names, letters, strict=True) if x.offset >= stood[n]]
            if not new:
                return
            behind: dict[str, int] = {}
            for name, x in new:
                behind[name] = max(behind.get(name, 0), x.offset + 1)
            with suppress(CommitConflict):
                self._commit(table, letter_rows(self._connector, [x for _, x in new]), behind)
                return

    def set(self, positions: Mapping[TopicPartition, int]) -> None:
        """Accept letters again from these positions on, because their records are read again."""
        table = self.open()
        while table is not None:
            table.renew()
            by_name = {self._name(tp): at for tp, at in positions.items()}
            stored = {n: at for n, at in by_name.items() if self._behind(table, n) is not None}
            if not stored:
                return
            with suppress(CommitConflict):
                self._commit(table, None, stored)
                return


# What holds for tables of all formats


def lacked(table: LakeTable, fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Those of the fields for which the table has no column."""
    return [f for f in fields if f.name not in table.columns.names]


def same_but_for_case(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that many readers take for one column, if there are such names."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            return other, name
    return None


def delete(remove: Callable[[str], object], paths: Iterable[str]) -> None:
    """Delete files that no commit names; what cannot be deleted is left to the cleaning of the
    table, such as VACUUM or remove_orphan_files."""
    for path in paths:
        try:
            remove(path)
        except FileNotFoundError:
            continue
        except Exception as error:
            why = " ".join(str(error).split())[:500] or type(error).__name__
            log.info("staged file %s was not deleted: %s", path, why)


def positions_remain(entries: Iterable[LedgerEntry]) -> str:
    """The positions of a table that was set back, for its error."""
    return ", ".join(f"{e.topic_partition} at {e.position}" for e in entries)


def as_it_is(entries: Iterable[LedgerEntry], then: Iterable[str]) -> str:
    """How to continue with a table that was set back: ``then`` are the positions of the rows that
    it holds, as far as they are known."""
    positions = list(then)
    arguments = positions or [f"{e.topic_partition}=OFFSET" for e in entries]
    return (
        "To continue with the table as it is, set the positions to what it holds: semel offsets "
        f"set FILE {' '.join(arguments)}"
        + ("" if positions else "; or read everything again: semel offsets reset FILE")
    )


# For the audit


def places_in(
    connector: ConnectorConfig,
    table: LakeTable,
    topics: Collection[str],
    lacks: Callable[[str], str],
) -> tuple[dict[str, pa.Table], int]:
    """Where the rows of each topic were read, and how many rows do not say where.

    Raises:
        ConfigError: the table has no column for that; ``lacks`` says so.
    """
    provenance = connector.provenance_columns
    for name in provenance.values():
        if name not in table.columns.names:
            raise ConfigError(f"connector {connector.name}: {lacks(name)}")
    rows = table.scan([provenance[n] for n in (TOPIC, PARTITION, OFFSET, TIMESTAMP)])
    return {t: sink_rows.places(rows, t) for t in topics}, rows.column(0).null_count


def keys_in(table: LakeTable, columns: Sequence[str]) -> StoredKeys:
    """The keys of all rows."""
    return StoredKeys(table.scanned(columns))


class LakeView:
    """See :class:`~semel.sinks.rereading.View`; each table is read at one version, in parts."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: DeletionKeys,
        of: Callable[[str], LakeTable | None],
        name: Callable[[str], str],
        take: Callable[[Collection[str]], Snapshot],
    ) -> None:
        self._connector = connector
        self._config = config
        self._of = of
        self.target = name
        self.snapshot = take

    def rows(
        self, topic: str, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        table = self._of(topic)
        if table is None:
            return
        provenance = self._connector.provenance_columns
        for batch in table.scanned(list(dict.fromkeys([*columns, *provenance.values()]))):
            rows = sink_rows.shown(pa.Table.from_batches([batch]), topic, columns, provenance)
            yield from in_ranges(rows, ranges, topic).to_batches()

    def held(self, records: Records) -> HeldRows:
        table = self._of(records.topic)
        if table is None:
            return HeldRows(places(records.rows.slice(0, 0)), pa.table({}))
        provenance = self._connector.provenance_columns
        return held_of(records, partial(sink_rows.held, self._config, provenance, table.columns))
