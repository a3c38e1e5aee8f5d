"""The consumer group's offsets: they fence, and lag tools read them, but they may expire.

In the cluster that the connector reads from, the group is ``connect-<name>`` itself: an offset goes
into the transaction that holds the results, and the broker accepts a task's only from a member of
the group's current generation (KIP-447). Another cluster has no such members, and accepts offsets
only of topics that it has: there an offset is stored under the target's topic and the source's
partition. Its metadata names the source's topic, and the largest number of tasks that the connector
has ever had: any of them may be frozen somewhere.

An offset's metadata holds the same facts as the entry in the ledger topic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.context import BY, RUN
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.kafka.clients import QUIET
from semel.kafka.groups import Groups
from semel.sinks.ledger_json import dumped, entry_of, facts_of, loaded


class GroupOffsets:
    """The offsets of one group. If the group is in another cluster, ``target`` gives the target
    topic of a topic."""

    def __init__(
        self, group: str, tasks: int, groups: Groups, target: Callable[[str], str] | None
    ) -> None:
        self.group = group
        self._tasks = tasks
        self._groups = groups
        self._target = target
        self.recorded = 0

    @property
    def tasks(self) -> int:
        """The largest number of tasks that the connector is known to have had."""
        return max(self._tasks, self.recorded)

    def entries(
        self, topics: Iterable[str], there: Mapping[str, int]
    ) -> dict[TopicPartition, LedgerEntry]:
        """The committed offsets of some topics, whatever open transactions may still change.

        ``there`` are the topics of the group's cluster with their numbers of partitions. A source
        elsewhere may have fewer now than when an entry was made.
        """
        names = dict.fromkeys(self._topic(t) for t in topics)
        places = [TopicPartition(t, p) for t in names for p in range(there.get(t, 0))]
        found, _ = self._groups.offsets(self.group, places)
        entries = [self._entry(tp, at, text) for tp, (at, text) in sorted(found.items())]
        return {e.topic_partition: e for e in entries if e}

    def stable(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, LedgerEntry], set[TopicPartition]]:
        """The entries of some partitions; none, and all of these, if a transaction is pending."""
        return self._found(partitions, stable=True)

    def present(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LedgerEntry]:
        """The entries of some partitions, whatever open transactions may still change."""
        return self._found(partitions, stable=False)[0]

    def _found(
        self, partitions: Iterable[TopicPartition], *, stable: bool
    ) -> tuple[dict[TopicPartition, LedgerEntry], set[TopicPartition]]:
        places = {self._place(tp): tp for tp in partitions}
        found, pending = self._groups.offsets(self.group, places, stable=stable)
        entries = {places[p]: self._entry(p, at, text) for p, (at, text) in found.items()}
        return {tp: e for tp, e in entries.items() if e}, {places[p] for p in pending}

    def committed(self, entries: Iterable[LedgerEntry]) -> list[KafkaPartition]:
        """Entries as a client commits them."""
        found = []
        for entry in entries:
            place = self._place(entry.topic_partition)
            facts = facts_of(entry)
            if self._target is not None:
                facts |= {"topic": entry.topic, "tasks": self.tasks}
            elif run := os.environ.get(RUN):
                facts[BY] = run
            found.append(
                KafkaPartition(place.topic, place.partition, entry.position, dumped(facts))
            )
        return found

    def forget(self) -> None:
        """Delete the group; its own cluster refuses that while it has members."""
        self._groups.delete(self.group)

    def _topic(self, topic: str) -> str:
        return topic if self._target is None else self._target(topic)

    def _place(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(self._topic(tp.topic), tp.partition)

    def _entry(self, place: TopicPartition, position: int, text: str) -> LedgerEntry | None:
        """The entry of an offset; counts of one that another program committed start there."""
        facts = loaded(text)
        topic = place.topic if self._target is None else facts.get("topic")
        if topic is None:
            return None
        self.recorded = max(self.recorded, facts.get("tasks", 0))
        return entry_of(topic, place.partition, position, facts)


def nonmember(client: Mapping[str, Any], group: str) -> Any:
    """The group metadata of a client that is not a member of the group."""
    consumer = Consumer({**client, "group.id": group, "log_level": 0}, logger=QUIET)
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()
