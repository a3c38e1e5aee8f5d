"""The base classes of sinks whose tables are a lake's, and of what their tasks write."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.ledger import SKIPPED, LedgerEntry, Rebase
from semel.sinks.lake.dead_letters import LetterTable
from semel.sinks.letters import SHOWN, Place
from semel.sinks.parquet import RollingWriter
from semel.sinks.staging import Stager, StagingSink

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
