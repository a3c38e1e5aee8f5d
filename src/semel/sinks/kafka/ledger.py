"""The ledger in Kafka: a compacted topic, and the consumer group's offsets beside it.

Each transaction writes both. The topic is the truth, because it does not expire; the offsets fence
a task whose partitions have moved (KIP-447). A task that is assigned partitions reads them in this
order:

1. The group's *stable* offsets. The broker withholds the answer while an open transaction holds
   offsets of these partitions, and accepts none from older generations afterwards.
2. The topic, up to its end at that time.

In the other order, a predecessor that has sent its offsets, but not yet its record in the topic,
would be missed: no ``transactional.id`` fences one live task from another.

=============  =================  ==================================================================
in the topic   the group          the position
=============  =================  ==================================================================
known          the same           is that
known          nothing            is the topic's: offsets expire, or somebody has deleted the group
nothing        known              is the group's: the ledger topic was deleted, or another program
                                  has committed it; it goes into the topic
known          another one        is unclear: the connector stops
nothing        nothing            has never been entered, or is lost; see ``KafkaSink.start``
=============  =================  ==================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from semel.core.errors import OffsetOutOfRange, TransientError
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.core.quoting import named
from semel.sinks.kafka.offsets import GroupOffsets
from semel.sinks.kafka.storage import LedgerTopic, Stored

_PENDING = 0.02
_FENCE_AFTER = 0.5
"""Seconds after which a pending transaction is assumed to be one that nobody will end."""
_GLANCE = 1.0
"""Seconds to wait for the open transactions of a connector that may be running."""


class Ledger:
    """Topic and offsets together. ``stored`` is what the topic held when it was read last."""

    def __init__(self, connector: str, topic: LedgerTopic, offsets: GroupOffsets) -> None:
        self._connector = connector
        self.topic = topic
        self.offsets = offsets
        self.stored = Stored()
        self._committed: dict[TopicPartition, LedgerEntry | None] = {}
        self._differed: dict[TopicPartition, tuple[int, int]] = {}

    def entries(
        self, topics: Iterable[str], there: Mapping[str, int]
    ) -> dict[TopicPartition, LedgerEntry]:
        """The present entries, whatever open transactions may still change. While the connector
        runs, the two are read at different times: where both have a position, the topic's wins."""
        self.stored = self.topic.read(_GLANCE)
        known = {*topics, *(tp.topic for tp in self.stored.entries)}
        return {**self.offsets.entries(known, there), **self.stored.entries}

    def stable(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, LedgerEntry], set[TopicPartition]]:
        """The entries of partitions that nobody else moves any more, and the partitions that an
        open transaction may still move. An open transaction of another task hides what
        follows it in the topic; that does not matter where topic and offsets agree anyway.

        Raises:
            OffsetOutOfRange: topic and offsets contradict each other.
        """
        committed, pending = self.offsets.stable(partitions)
        if pending:
            return {}, pending
        self._committed |= {tp: committed.get(tp) for tp in partitions}
        self.stored = self.topic.read(0.0, expected=True)
        entries = self.stored.entries
        agreed = {
            tp: entries[tp]
            for tp, offset in committed.items()
            if tp in entries and entries[tp].position == offset.position
        }
        if not self.stored.is_complete:
            return agreed, set(partitions) - agreed.keys()
        found = {**committed, **{tp: entries[tp] for tp in partitions if tp in entries}}
        differ = {
            tp: (entries[tp].position, committed[tp].position)
            for tp in committed.keys() & entries.keys() - agreed.keys()
        }
        before, self._differed = self._differed, differ
        if not differ:
            return found, set()
        if differ != before:  # a run that has just ended may have moved both in between
            return agreed, set(partitions) - agreed.keys()
        raise self._contradiction(differ)

    def settled(
        self, partitions: Collection[TopicPartition], fence: Callable[[], None], longest: float
    ) -> dict[TopicPartition, LedgerEntry]:
        """The entries of partitions once nobody else moves them any more. ``fence`` ends the
        transactions of absent tasks; ``longest`` is the maximum duration of a transaction in
        seconds.

        Raises:
            OffsetOutOfRange: topic and offsets contradict each other.
            TransientError: a transaction does not end.
        """
        asked = time.monotonic()
        found: dict[TopicPartition, LedgerEntry] = {}
        left, fence_at = set(partitions), asked + _FENCE_AFTER
        while left:
            stable, left = self.stable(left)
            found |= stable
            at = time.monotonic()
            if left and at > fence_at:
                fence()
                fence_at = time.monotonic() + _FENCE_AFTER  # such a task may still be in the group
            if left and at - asked > longest:
                raise TransientError(
                    f"connector {self._connector}: a transaction is pending on the position "
                    f"of {' or '.join(map(str, sorted(left)))} and does not end. If it never does, "
                    "the brokers have lost track of it: kafka-transactions.sh find-hanging names "
                    "it, abort ends it"
                )
            if left:
                time.sleep(_PENDING)
        return found

    def has_moved(self, partitions: set[TopicPartition]) -> bool:
        """Whether the offset of one of these partitions has changed since :meth:`stable` read it.
        Open transactions, such as the caller's own, may hide records of the topic, but they do not
        hide committed offsets."""
        asked = partitions & self._committed.keys()
        found = self.offsets.present(asked)
        return any(entry != self._committed[tp] for tp, entry in found.items())

    def forget(self) -> None:
        """Forget the offsets that :meth:`stable` has read: positions that are set by hand replace
        whatever is there."""
        self._committed.clear()

    def is_uneven(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether :meth:`stable` found one of these partitions only in the topic, or only in the
        offsets."""
        return any(
            (tp in self.stored.entries) != bool(self._committed.get(tp)) for tp in partitions
        )

    def _contradiction(self, differ: Mapping[TopicPartition, tuple[int, int]]) -> OffsetOutOfRange:
        facts = "; ".join(
            f"{tp}: {ours} in topic {named(self.topic.name)}, {theirs} in the group"
            for tp, (ours, theirs) in sorted(differ.items())
        )
        wanted = " ".join(f"{tp}=OFFSET" for tp in sorted(differ))
        return OffsetOutOfRange(
            f"connector {self._connector}: the ledger topic and consumer group "
            f"{self.offsets.group} know different positions, although each commit writes both "
            f"in one transaction. {facts}. Somebody has set the group's offsets by other means, "
            "or the ledger topic has lost records. Find out which is right (semel audit compares "
            "source and target), and set it for both: stop the connector and run semel offsets set "
            f"with its file and {wanted}"
        )
