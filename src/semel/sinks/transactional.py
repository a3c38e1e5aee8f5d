"""The base class of sinks for stores that can commit rows and ledger in one transaction.

A sink implements how the store begins and ends a transaction, stores ledger entries and takes rows.
This class has the ledger rule, the order of results and positions, replays, and the failpoints at
which tests kill a process. :mod:`semel.sinks.sql.base` does the same for databases, where the
compare-and-set is a statement, and retries depend on what the database refuses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Generic, TypeVar

from semel.config import ConnectorConfig
from semel.core.delivery import Mechanism, Support
from semel.core.errors import misconfigured
from semel.core.failpoints import hit
from semel.core.ledger import (
    SKIPPED,
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    forgotten,
    holes_of,
    judge,
    now,
    pending,
    rebased,
    set_by_hand,
)
from semel.core.records import Commit
from semel.sinks.base import Sink
from semel.sinks.protocols import Transactional

Transaction = TypeVar("Transaction")


class TransactionalSink(Sink, Transactional, Generic[Transaction]):
    """Rows and positions in one transaction of the store; see :class:`~semel.sinks.base.Sink`.

    Implement :meth:`transaction`, :meth:`read_entries`, :meth:`write_entries`,
    :meth:`forget_entries`, :meth:`put`, and :meth:`snapshot` for the audit.
    """

    keeps_dead_letters: ClassVar[bool] = False
    """Whether :meth:`put` writes the commit's dead letters, too."""

    def __init__(self, connector: ConnectorConfig) -> None:
        self._connector = connector
        if connector.dead_letter_table and not self.keeps_dead_letters:
            raise misconfigured(
                "errors.deadletterqueue.table",
                f"connector {connector.name}: errors.deadletterqueue.table="
                f"{connector.dead_letter_table}: the {connector.connector_class} sink keeps no "
                "dead letters. Set errors.deadletterqueue.topic.name",
            )

    @abstractmethod
    def transaction(self, *, writing: bool) -> AbstractContextManager[Transaction]:
        """A transaction that commits when the block ends, and rolls back when it raises.

        If two writing transactions read the same entry, one must wait for the other or fail with a
        TransientError; otherwise both would find that it is their turn. The commit must be durable:
        once it has returned, the positions are published.
        """

    @abstractmethod
    def read_entries(self, transaction: Transaction) -> Mapping[TopicPartition, LedgerEntry]:
        """All entries of this connector, and of no other; none if there is no ledger yet."""

    @abstractmethod
    def write_entries(self, transaction: Transaction, entries: Collection[LedgerEntry]) -> None:
        """Insert entries, or replace those of the same topic-partition."""

    @abstractmethod
    def forget_entries(self, transaction: Transaction) -> None:
        """Remove all entries of this connector, and of no other."""

    def read_holes(self, transaction: Transaction) -> Collection[Hole]:
        """All holes of this connector."""
        return ()

    def write_holes(self, transaction: Transaction, holes: Collection[Hole]) -> None:
        """Replace the holes of this connector, and of no other. A store that keeps no holes
        mentions them only in the log of the run: its audit counts their records as lost, and knows
        nothing of what was written before positions were reset."""

    @abstractmethod
    def put(self, transaction: Transaction, commit: Commit) -> None:
        """Write rows and tombstones.

        Raises:
            RowsRejected: names the records that do not fit; the transaction rolls back.
        """

    def support(self) -> Mapping[Mechanism, Support]:
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                "rows and positions are committed in one transaction of the store, under a "
                "compare-and-set on the old position",
            ),
            Mechanism.IDEMPOTENT: Support(
                self.capabilities.replaces,
                "a replay writes the same rows again, by key; positions follow in a transaction "
                "of their own"
                if self.capabilities.replaces
                else "rows without a key would be written twice by a replay. Set "
                "delivery.mechanism=transactional",
            ),
        }

    # The ledger

    def entries(self) -> list[LedgerEntry]:
        with self.transaction(writing=False) as transaction:
            entries = self.read_entries(transaction)
        return [entries[tp] for tp in sorted(entries)]

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        with self.transaction(writing=True) as transaction:
            stored = dict(self.read_entries(transaction))
            new = [entry for entry in entries if entry.topic_partition not in stored]
            if new:
                self.write_entries(transaction, new)
        stored |= {entry.topic_partition: entry for entry in new}
        return {e.topic_partition: stored[e.topic_partition].position for e in entries}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        with self.transaction(writing=True) as transaction:
            remaining = pending(self._connector.name, self.read_entries(transaction), rebases)
            if remaining:
                self.write_entries(transaction, rebased(remaining, now()))
            self._record(transaction, holes_of(remaining))

    def _record(self, transaction: Transaction, holes: Collection[Hole]) -> None:
        if holes:
            self.write_holes(transaction, [*self.read_holes(transaction), *holes])

    def holes(self) -> list[Hole]:
        with self.transaction(writing=False) as transaction:
            return list(self.read_holes(transaction))

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        with self.transaction(writing=True) as transaction:
            stored = self.read_entries(transaction)
            holes = self.read_holes(transaction)
            if entries is None:
                remaining = forgotten(stored, holes, by)
                self.forget_entries(transaction)
            else:
                moved, remaining = set_by_hand(stored, holes, entries, by, reason)
                self.write_entries(transaction, moved)
            self.write_holes(transaction, remaining)

    # Committing

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        return self._transact(advances, commit, moves=True)

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        return self._transact(guard, commit, moves=False)

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        with self.transaction(writing=True) as transaction:
            return self._settle(transaction, advances, moves=True)

    def _transact(
        self, advances: Sequence[Advance] | None, commit: Commit, *, moves: bool
    ) -> Outcome:
        with self.transaction(writing=True) as transaction:
            if advances is not None:
                outcome = self._settle(transaction, advances, moves=moves)
                if outcome is Outcome.REPLAYED:
                    return outcome
            hit("sink.after_positions")
            self.put(transaction, commit)
            hit("sink.before_commit")
        hit("sink.after_commit")
        return Outcome.APPLIED

    def _settle(
        self, transaction: Transaction, advances: Sequence[Advance], *, moves: bool
    ) -> Outcome:
        """Judge, and move the positions if they are to move."""
        stored = self.read_entries(transaction)
        outcome = judge(self._connector.name, stored, advances)
        if moves and outcome is Outcome.APPLIED:
            at = now()
            moved = [stored[a.range.topic_partition].after(a, at) for a in advances]
            self.write_entries(transaction, moved)
            self._record(transaction, holes_of(advances))
        return outcome
