"""What a sink may do besides its contract. It opts in by having the methods of a protocol.

The functions are the places where the rest of semel asks; each says what holds without the methods.
:class:`~semel.sinks.rereading.ShowsRows` is one more, for the audit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from semel.ledger import Advance, Outcome, TopicPartition
from semel.records import Commit
from semel.sinks.base import Sink, Snapshot


@runtime_checkable
class Transactional(Protocol):
    """Results and positions in one transaction; a sink whose
    :meth:`~semel.sinks.base.Sink.support` offers that has it."""

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        """Rows, dead letters and positions in one transaction, under the ledger rule.

        Check the ledger before writing rows: a replay or a conflict then costs nothing.

        Raises:
            LedgerConflict: nothing was written.
            TargetChanged: nothing was written; another task has made the target meanwhile.
            RowsRejected: nothing was written; names the records that do not fit.
        """


def transactional(sink: Sink) -> Transactional:
    """The sink of a connector whose guarantee rests on transactions."""
    if not isinstance(sink, Transactional):
        raise TypeError(
            f"support() of {type(sink).__name__} offers a transaction: it lacks commit()"
        )
    return sink


@dataclass(frozen=True, slots=True)
class Membership:
    """A task's place in the consumer group, as it was assigned: ``generation`` is what Kafka's
    clients call the group's metadata."""

    member_id: str
    partitions: frozenset[TopicPartition]
    generation: Any


@runtime_checkable
class FencesByGroup(Protocol):
    """For a store in which a task's place in the consumer group fences others."""

    def joining(self, task: int) -> None:
        """The task of this number is about to join the consumer group. Fence the one that had the
        number before."""

    def assigned(self, member: Membership) -> None:
        """The group has given the task these partitions; called before their positions are read,
        also when they are read again after a conflict.

        Raises:
            NotAssigned: the group knows otherwise.
        """


def joining(sink: Sink, task: int) -> None:
    """See :meth:`FencesByGroup.joining`."""
    if isinstance(sink, FencesByGroup):
        sink.joining(task)


def assigned(sink: Sink, member: Membership) -> None:
    """See :meth:`FencesByGroup.assigned`."""
    if isinstance(sink, FencesByGroup):
        sink.assigned(member)


@runtime_checkable
class Routes(Protocol):
    """The records of a topic go to several targets, each with a ledger of its own."""

    def known_topics(self) -> set[str]:
        """Topics that the connector has read before, as any of the ledgers knows."""

    def uneven(self, among: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Those of the topic-partitions ``among`` that some of their targets hold more of than
        others, as a crash between two targets' commits leaves them, and the position that their
        next range must not pass; as :meth:`~semel.sinks.base.Sink.entries` has found them. They are
        read alone until all targets hold the same, for of one commit each target must have all
        ranges or none. What is not read may stay uneven."""

    def snapshots(self, topics: Collection[str]) -> Sequence[Snapshot]:
        """One for each target."""


def known_topics(sink: Sink) -> set[str]:
    """Topics that the connector has read before, wherever its ledger is."""
    if isinstance(sink, Routes):
        return sink.known_topics()
    return {entry.topic for entry in sink.entries()}


def uneven(sink: Sink, among: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """See :meth:`Routes.uneven`; none where a topic has one target."""
    return sink.uneven(among) if isinstance(sink, Routes) else {}


def snapshots(sink: Sink, topics: Collection[str]) -> Sequence[Snapshot]:
    """One snapshot for each ledger."""
    return sink.snapshots(topics) if isinstance(sink, Routes) else [sink.snapshot(topics)]


@runtime_checkable
class Drillable(Protocol):
    """A sink for whose results ``semel drill`` can make a store of its own."""

    @classmethod
    def drilled(cls, directory: Path) -> Mapping[str, str]:
        """Keys that put the results into a directory, in the place of the user's own store."""


def drilled(kind: type[Sink], directory: Path) -> Mapping[str, str] | None:
    """See :meth:`Drillable.drilled`; None if the sink does not say."""
    return kind.drilled(directory) if isinstance(kind, Drillable) else None
