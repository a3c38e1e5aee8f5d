"""A sink whose tasks write files that become visible by one commit, made by one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semel.core.ledger import Advance, Outcome
from semel.core.records import Commit, DeadLetter, united
from semel.sinks.base import Sink
from semel.sinks.protocols import Transactional


class CommitConflict(Exception):
    """Another writer has committed since the table was read; nothing was written."""


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """What tasks have made of a :class:`~semel.core.records.Commit`: files that no reader sees yet,
    and the dead letters that belong to the same ranges.

    ``files`` are the sink's own, opaque to the engine. They travel from a task to the driver.
    """

    files: Sequence[Any] = ()
    dead_letters: Sequence[DeadLetter] = ()


class Stager(ABC):
    """Writes the files of one task, batch by batch. A crash leaves files that nothing refers to."""

    @abstractmethod
    def add(self, commit: Commit) -> None:
        """Take the rows of a batch. The driver commits its dead letters.

        Raises:
            RowsRejected: nothing of the batch was taken; names the records that do not fit.
        """

    @abstractmethod
    def finish(self) -> Sequence[Any]:
        """Complete the files; returns what :attr:`StagedCommit.files` holds."""

    @abstractmethod
    def discard(self) -> None:
        """Delete what was written, as far as that is possible; never raises."""


class StagingSink(Sink, Transactional):
    """A store in which a table's files become visible by one commit, made by one process.

    The bounded engine's tasks stage, and its driver commits what they staged with all ranges at
    once, under the ledger rule. Staged files that are never committed are garbage; their names
    begin with ``semel-``. The other engines commit batch by batch: :meth:`commit` and
    :meth:`write` stage a batch and commit it at once.

    Where tables have ledgers of their own, the rule holds for each table, see
    :class:`~semel.sinks.protocols.SeveralLedgers`.
    """

    @property
    def interval(self) -> float | None:
        """Seconds from one trigger to the next, if a key of the sink sets them."""
        return None

    @abstractmethod
    def stager(self, label: str) -> Stager:
        """Begin to stage; ``label`` becomes part of the names of files."""

    @abstractmethod
    def commit_staged(self, advances: Sequence[Advance], staged: StagedCommit) -> Outcome:
        """Commit staged files, dead letters and positions, as
        :meth:`~semel.sinks.protocols.Transactional.commit` does.

        Raises:
            LedgerConflict: nothing was committed.
            TargetChanged: the files cannot be committed as they are; the engine stages again.
        """

    @abstractmethod
    def write_staged(self, staged: StagedCommit, guard: Sequence[Advance] | None = None) -> Outcome:
        """Commit staged files and dead letters only, as :meth:`~semel.sinks.base.Sink.write`
        does."""

    @abstractmethod
    def discard(self, staged: StagedCommit) -> None:
        """Delete staged files that will not be committed, as far as that is possible."""

    def accommodate_all(self, commit: Commit) -> None:
        """Create or extend targets for all parts of a commit at once."""
        for records in united(commit.records):
            self.accommodate(records)

    def stage(self, commit: Commit) -> StagedCommit:
        """Stage one commit."""
        stager = self.stager("batch")
        try:
            self.accommodate_all(commit)
            stager.add(commit)
            return StagedCommit(stager.finish(), commit.dead_letters)
        except BaseException:
            stager.discard()
            raise

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        return self.commit_staged(advances, self.stage(commit))

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        return self.write_staged(self.stage(commit), guard)
