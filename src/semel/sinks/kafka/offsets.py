"""The consumer group's offsets: they fence, and lag tools read them, but they may expire.

In the cluster that the connector reads from, the group is ``connect-<name>`` itself: an offset goes
into the transaction that holds the results, and the broker accepts a task's only from a member of
the group's current generation (KIP-447). Another cluster has no such members, and accepts offsets
only of topics that it has: there an offset is stored under the target's topic and the source's
partition. Its metadata names the source's topic, and the largest number of tasks that the connector
has ever had: any of them may be frozen somewhere.

An offset's metadata holds the same facts as the entry in the ledger topic. The group also says
which tasks are alive, and how old an offset may become tells partitions from which nothing was
copied yet from those whose offset has expired.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupState, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConfigResource, MemberDescription, OffsetSpec

from semel.core.context import BY, RUN
from semel.core.errors import ConfigError, LedgerConflict, NotAssigned
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.kafka.answers import answers_of
from semel.kafka.clients import QUIET
from semel.kafka.cluster import Cluster, admin_client
from semel.kafka.groups import Groups, assigned_to
from semel.sinks.ledger_json import dumped, entry_of, facts_of, loaded
from semel.sinks.protocols import Membership


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
        offsets, _ = self._groups.offsets(self.group, places)
        entries = [self._entry(tp, at, text) for tp, (at, text) in sorted(offsets.items())]
        return {e.topic_partition: e for e in entries if e}

    def stable(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, LedgerEntry], set[TopicPartition]]:
        """The entries of some partitions; none, and all of these, if a transaction is pending."""
        return self._read(partitions, stable=True)

    def present(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LedgerEntry]:
        """The entries of some partitions, whatever open transactions may still change."""
        return self._read(partitions, stable=False)[0]

    def _read(
        self, partitions: Iterable[TopicPartition], *, stable: bool
    ) -> tuple[dict[TopicPartition, LedgerEntry], set[TopicPartition]]:
        places = {self._place(tp): tp for tp in partitions}
        offsets, pending = self._groups.offsets(self.group, places, stable=stable)
        entries = {places[p]: self._entry(p, at, text) for p, (at, text) in offsets.items()}
        return {tp: e for tp, e in entries.items() if e}, {places[p] for p in pending}

    def committed(self, entries: Iterable[LedgerEntry]) -> list[KafkaPartition]:
        """Entries as a client commits them."""
        partitions = []
        for entry in entries:
            place = self._place(entry.topic_partition)
            facts = facts_of(entry)
            if self._target is not None:
                facts |= {"topic": entry.topic, "tasks": self.tasks}
            elif run := os.environ.get(RUN):
                facts[BY] = run
            partitions.append(
                KafkaPartition(place.topic, place.partition, entry.position, dumped(facts))
            )
        return partitions

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
        if not isinstance(topic, str):
            return None
        try:
            self.recorded = max(self.recorded, int(facts.get("tasks", 0)))
            return entry_of(topic, place.partition, position, facts)
        except (TypeError, ValueError):  # another program has written these facts
            return entry_of(topic, place.partition, position, {})


def nonmember(client: Mapping[str, Any], group: str) -> Any:
    """The group metadata of a client that is not a member of the group."""
    consumer = Consumer({**client, "group.id": group, "log_level": 0}, logger=QUIET)
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


class Group:
    """The group ``connect-<name>``, whose members' instance ids end with the task's number."""

    def __init__(self, connector: str, name: str, groups: Groups) -> None:
        self._connector = connector
        self._name = name
        self._groups = groups

    def instance(self, task: int | None) -> str:
        """A task's name in the group, and the ``transactional.id`` of its producer."""
        return f"{self._name}-{'driver' if task is None else task}"

    def absent(self, member: Membership, tasks: int) -> list[str]:
        """The tasks that are not in the group: one may be frozen with a transaction open on the
        member's partitions.

        Raises:
            NotAssigned: the partitions may not be the member's any more.
        """
        present = {m.group_instance_id for m in self._members(member)}
        return [i for i in map(self.instance, range(tasks)) if i not in present]

    def confirm(self, member: Membership) -> None:
        """Check that a task may still move its positions in another cluster.

        That cluster does not know the group's generations, and a task may have lost partitions
        without knowing it: librdkafka may join before the task has given up what it had. So the
        task asks before each commit there, with its offsets pending: whoever gets the partitions
        waits for pending offsets. This assumes that no task joins twice without being polled,
        because it could then lose partitions and get them back unnoticed.

        Raises:
            NotAssigned: the group is between two generations, or in a newer one.
        """
        self._members(member)

    def is_idle(self) -> bool:
        """Whether no task is in the group; one that has died is in it until its session ends."""
        return self._groups.is_idle(self._name)

    def refuse_running(self) -> None:
        """Raises ConfigError if a task is in the group."""
        if not self.is_idle():
            raise ConfigError(
                f"connector {self._connector} is running, or has ended less than "
                "consumer.override.session.timeout.ms ago (10 s by default): stop it before its "
                "offsets are changed"
            )

    def conflict(self) -> LedgerConflict:
        """The error if a driver is not the only one."""
        return LedgerConflict(
            f"connector {self._connector}: another run is or was at work; nothing was moved"
        )

    def _members(self, member: Membership) -> list[MemberDescription]:
        """The group's members, if the partitions belong to this one now."""
        group = self._groups.describe(self._name)
        members = group.members if group and group.state is ConsumerGroupState.STABLE else []
        own = [m for m in members if m.member_id == member.member_id and m.assignment]
        if not own or not member.partitions <= assigned_to(own):
            raise NotAssigned(
                f"connector {self._connector}: consumer group {self._name} has moved on and may "
                "have given this task's partitions to another one"
            )
        return list(members)


_TIMEOUT = 20.0
_RETENTION = "offsets.retention.minutes"
_CLOCKS = 600.0
"""Seconds by which this machine's clock and the brokers' may differ."""
_ANY = 2**62
"""A limit of this many milliseconds is no limit: before Kafka 4.0 it is 2^63 - 1 unless set."""


def never_copied(
    source: Cluster, group_client: Mapping[str, Any], partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Those of the partitions that certainly lack an offset because nothing was copied from them.

    An offset expires once it is older than ``offsets.retention.minutes``. A partition whose first
    record still exists and is younger than that cannot have had an offset that has expired by now,
    unless the offset was before that record. The record's timestamp tells when it was appended if
    the broker sets it or limits how far ahead it may be; otherwise it is whatever a producer set.

    Args:
        source: the cluster of the partitions.
        group_client: client settings for the cluster that holds the group's offsets.
        partitions: those without an offset.
    """
    earliest = source.earliest(partitions)
    ends = source.latest(partitions, committed=False)
    whole = {tp for tp in partitions if earliest[tp] == 0}
    empty = {tp for tp in whole if ends[tp] == 0}
    written = whole - empty
    retention = _retention(group_client) if written else None
    if retention is None:
        return empty
    oldest = int((time.time() - retention + _CLOCKS) * 1000)
    ahead = {topic: _ahead(source.topic_config(topic)) for topic in {tp.topic for tp in written}}
    request = {
        KafkaPartition(*tp): OffsetSpec.for_timestamp(oldest + most)
        for tp in written
        if (most := ahead[tp.topic]) is not None
    }
    if not request:
        return empty
    admin = admin_client(source.config)
    try:
        answers = admin.list_offsets(request, request_timeout=_TIMEOUT)
        first = {
            TopicPartition(p.topic, p.partition): result.offset
            for p, result in answers_of(admin, answers, _TIMEOUT).items()
        }
    except KafkaException:
        return empty
    return empty | {tp for tp in written if first.get(tp) == 0}


def _ahead(config: Mapping[str, str] | None) -> int | None:
    """Milliseconds by which a topic's timestamps may be later than their records were appended;
    None if the broker takes any."""
    if config is None:
        return None
    if config.get("message.timestamp.type") == "LogAppendTime":
        return 0
    most = int(config.get("message.timestamp.after.max.ms", _ANY))
    return most if most < _ANY else None


def _retention(client: Mapping[str, Any]) -> float | None:
    """The shortest time for which a broker keeps offsets, in seconds; None if unknown."""
    admin = admin_client(client)
    try:
        ids = admin.list_topics(timeout=_TIMEOUT).brokers
        brokers = [ConfigResource(ConfigResource.Type.BROKER, str(n)) for n in ids]
        # One request each: it must go to the broker that it asks about.
        asked = {b: admin.describe_configs([b], request_timeout=_TIMEOUT)[b] for b in brokers}
        configs = answers_of(admin, asked, _TIMEOUT).values()
        return min(float(str(config[_RETENTION].value)) for config in configs) * 60
    except (KafkaException, KeyError, ValueError):
        return None
