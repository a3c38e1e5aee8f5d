"""What a sink may offer besides the contract in :mod:`semel.sinks.base`.

A sink opts in by deriving from a protocol, or just by having all of its methods. Where several
callers ask for the same thing, a function below asks for them, and says what it does with a sink
that has not opted in.
:class:`~semel.sinks.rereading.Viewable`, for the audit of values, is one more such protocol.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from semel.core.errors import ConfigError, TransientError
from semel.core.ledger import TAKEN_OVER, Advance, LedgerEntry, Outcome, Rebase, TopicPartition
from semel.core.records import Commit
from semel.sinks.base import Sink, Snapshot


@runtime_checkable
class Transactional(Protocol):
    """A store that commits results and positions in one transaction. A sink whose
    :meth:`~semel.sinks.base.Sink.support` offers ``Mechanism.TRANSACTIONAL`` must have it."""

    @abstractmethod
    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        """Commit rows, dead letters and positions in one transaction, under the ledger rule.

        The engine calls it for each batch, and again with the same arguments after a
        TransientError. Check the ledger before writing rows: a replay or a conflict then costs
        nothing.

        Raises:
            LedgerConflict: nothing was written.
            TargetChanged: nothing was written; another task has created the target meanwhile.
            RowsRejected: nothing was written; names the records that do not fit.
        """


def transactional(sink: Sink) -> Transactional:
    """The sink of a connector that commits results and positions in one transaction.

    Raises:
        ConfigError: the sink offers transactions but has no ``commit``. Its author must add it.
    """
    if not isinstance(sink, Transactional):
        raise ConfigError(
            f"{type(sink).__name__}.support() offers Mechanism.TRANSACTIONAL, but the class has no "
            "method commit. Add it (see semel.sinks.protocols.Transactional), or offer another "
            "mechanism"
        )
    return sink


@runtime_checkable
class Connecting(Protocol):
    """A store whose connection takes a while to open."""

    @abstractmethod
    def connect_early(self) -> None:
        """Open the connection. The driver calls it in another thread, while it asks Kafka, and
        tasks call it while the driver prepares the run: so it must change nothing and hold
        nothing, not even what :meth:`~semel.sinks.base.Sink.claim` holds."""


def connect_early(sink: Sink) -> None:
    """See :meth:`Connecting.connect_early`. Other sinks connect when they are first used."""
    if isinstance(sink, Connecting):
        sink.connect_early()


@runtime_checkable
class Adopting(Protocol):
    """A store where the results of another program cannot be told from what a killed commit has
    left, such as the lines of a file beyond its ledger."""

    @abstractmethod
    def adopt(self, reached: Sequence[Rebase]) -> None:
        """Enter the positions that another program has reached, with the holes that this leaves,
        and keep its results, in one step."""


def adopt(sink: Sink, reached: Sequence[Rebase]) -> None:
    """Enter the positions that another program has reached. Sinks that are not :class:`Adopting`
    only move their entries, or set them where they cannot be moved, as with several tables."""
    entries = [r.new for r in reached]
    if isinstance(sink, Adopting):
        sink.adopt(reached)
        return
    if moves_entries(sink):
        sink.rebase(reached)
    stand = {e.topic_partition: e.position for e in sink.entries()}
    if any(stand.get(e.topic_partition) != e.position for e in entries):
        sink.set_positions(entries, reason=TAKEN_OVER)


def moves_entries(sink: Sink) -> bool:
    """Whether the sink has its own :meth:`~semel.sinks.base.Sink.rebase`."""
    return type(sink).rebase is not Sink.rebase


@dataclass(frozen=True, slots=True)
class Membership:
    """A task's place in the consumer group, as it was assigned. ``generation`` is what Kafka's
    clients call the group metadata."""

    member_id: str
    partitions: frozenset[TopicPartition]
    generation: Any


@runtime_checkable
class FencesByGroup(Protocol):
    """A store in which a task fences its predecessor by its place in the consumer group. Only tasks
    join an empty group then: the direct engine starts no placeholder member."""

    @abstractmethod
    def joining(self, task: int) -> None:
        """Fence the predecessor that had this task's number. The direct engine calls it once per
        task, before the task joins the consumer group.

        Raises:
            TransientError: the store cannot be reached; the engine calls again.
        """

    @abstractmethod
    def assigned(self, member: Membership) -> None:
        """Note the partitions that the group has assigned to the task. The direct engine calls it
        before it reads their positions, and again when it reads them again after a conflict.

        Raises:
            NotAssigned: the group no longer assigns these partitions to the task.
        """


def joining(sink: Sink, task: int) -> None:
    """See :meth:`FencesByGroup.joining`. Does nothing for other sinks."""
    if isinstance(sink, FencesByGroup):
        sink.joining(task)


def assigned(sink: Sink, member: Membership) -> None:
    """See :meth:`FencesByGroup.assigned`. Does nothing for other sinks."""
    if isinstance(sink, FencesByGroup):
        sink.assigned(member)


@runtime_checkable
class SeveralLedgers(Protocol):
    """A store in which the records of one topic go to several targets, each with its own ledger."""

    @abstractmethod
    def known_topics(self) -> set[str]:
        """The topics that any of the ledgers knows. The driver calls it at start, to tell a new
        topic from a new partition of a known one."""

    @abstractmethod
    def uneven(self, among: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Those of the topic-partitions for which some targets hold more than others, each with
        the position that the next range must not pass.

        A crash between the commits to two targets leaves them uneven. The bounded engine calls this
        before each trigger, after :meth:`~semel.sinks.base.Sink.entries`. It then reads these
        partitions alone until all targets hold the same, because each target must contain all
        ranges of a commit or none. Partitions that are not read may stay uneven.
        """

    @abstractmethod
    def snapshots(self, topics: Collection[str]) -> Sequence[Snapshot]:
        """One snapshot per target; raises as :meth:`~semel.sinks.base.Sink.snapshot` does. The
        audit calls it."""


def known_topics(sink: Sink) -> set[str]:
    """The topics that the connector has read before."""
    if isinstance(sink, SeveralLedgers):
        return sink.known_topics()
    return {entry.topic for entry in sink.entries()}


def uneven(sink: Sink, among: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """See :meth:`SeveralLedgers.uneven`. Empty for other sinks."""
    return sink.uneven(among) if isinstance(sink, SeveralLedgers) else {}


def snapshots(sink: Sink, topics: Collection[str]) -> Sequence[Snapshot]:
    """One snapshot per ledger."""
    return sink.snapshots(topics) if isinstance(sink, SeveralLedgers) else [sink.snapshot(topics)]


Named = Callable[[Sequence[LedgerEntry]], Collection[str]]
"""The topics to which the records up to these positions go."""


@runtime_checkable
class Gathering(Protocol):
    """A store whose audit finds the rows of a topic in all targets that its records name."""

    @abstractmethod
    def gathered(self, topics: Collection[str], named: Named) -> Snapshot:
        """Like :meth:`~semel.sinks.base.Sink.snapshot`, but of all targets together. The audit
        calls it if transforms decide for each record where it goes."""


def settled(
    take: Callable[[Collection[str]], Snapshot], named: Named, target: Callable[[str], str]
) -> Snapshot:
    """A snapshot of all targets that the records up to its positions name. ``target`` gives
    the target of a topic; ``take`` takes a snapshot of the given targets.

    Raises:
        TransientError: records name new targets faster than snapshots are taken.
    """
    targets: dict[str, str] = {}
    for _ in range(_TRIES):
        snapshot = take(frozenset(targets.values()))
        more = set(named(snapshot.entries)) - targets.keys()
        if not more:
            return replace(snapshot, named=targets)
        targets |= {topic: target(topic) for topic in more}
    raise TransientError("records name new targets faster than the audit looks at them")


_TRIES = 20


@runtime_checkable
class Drillable(Protocol):
    """A store that ``semel drill`` can create for itself."""

    @classmethod
    @abstractmethod
    def drilled(cls, directory: Path) -> Mapping[str, str]:
        """The keys that put the results into a directory instead of the user's own store. The drill
        calls it once, before it starts the connector; it must not contact any service."""


def drilled(kind: type[Sink], directory: Path) -> Mapping[str, str] | None:
    """See :meth:`Drillable.drilled`. None for other sinks: the drill then asks the user for an
    empty store."""
    return kind.drilled(directory) if issubclass(kind, Drillable) else None
