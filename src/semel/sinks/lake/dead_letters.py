"""Dead letters in a separate table of a lake, each exactly once.

Two tables share no commit, so this table has positions of its own: those after the last dead letter
of each topic-partition. It is written before the results. After a crash in between, the same
records fail again, and those that are here already are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import pyarrow as pa

from semel.core.ledger import TopicPartition
from semel.core.records import DeadLetter
from semel.sinks.lake.tables import LakeTable
from semel.sinks.letters import PLACES, SHOWN, Place, places_of, rows, some_of
from semel.sinks.staging import CommitConflict

T = TypeVar("T", bound=LakeTable)


class LetterTable(ABC, Generic[T]):
    """The dead letters of one connector. A format says how its table is opened and written."""

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
                self._commit(table, rows(self._connector, [x for _, x in new]), behind)
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
