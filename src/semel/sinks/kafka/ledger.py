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

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from semel.core.errors import OffsetOutOfRange, ServiceError, TransientError
from semel.core.ledger import LEDGER_FORMAT, Hole, LedgerEntry, TopicPartition, check_format, now
from semel.core.quoting import named
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import CompactedTopic
from semel.sinks.kafka.offsets import GroupOffsets
from semel.sinks.ledger_json import dumped, entry_of, facts_of, loaded

_PENDING = 0.02
_FENCE_AFTER = 0.5
"""Seconds after which a pending transaction is assumed to be one that nobody will end."""
_GLANCE = 1.0
"""Seconds to wait for the open transactions of a connector that may be running."""


PARTITION = 0

Record = tuple[bytes, bytes | None]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """What a ledger topic holds for one connector. ``keys``: those of its records, each with its
    hole, if it is one. ``is_reset``: the user has reset the connector. ``is_complete``: no open
    transaction hides a record that was there when it was read."""

    entries: Mapping[TopicPartition, LedgerEntry] = field(default_factory=dict)
    holes: tuple[Hole, ...] = ()
    keys: Mapping[bytes, Hole | None] = field(default_factory=dict)
    is_reset: bool = False
    is_complete: bool = True


class LedgerTopic:
    """The ledger topic of one connector: a compacted topic in the target cluster with one record
    for each entry.

    A record's key is Kafka Connect's way to name a source partition,
    ``["orders-copy",{"kafka_topic":"orders","kafka_partition":0}]``; its value holds the position
    and the other facts of the entry. Holes have keys of their own. All records go to partition 0,
    so the last one of a key is the valid one, however many partitions the topic has. ``client``
    configures a consumer in its cluster.
    """

    def __init__(
        self,
        connector: str,
        name: str,
        replication: int,
        cluster: Cluster,
        client: Mapping[str, Any],
    ) -> None:
        self._connector = connector
        self.name = name
        self._replication = replication
        self._topic = CompactedTopic(connector, "ledger topic", name, cluster, client)
        self._prefix = dumped([connector])[:-1].encode() + b","
        self._reset = dumped([connector, {"reset": True}]).encode()

    def prepare(self) -> None:
        """Create the topic if it is missing, and refuse one that deletes old records.

        Raises:
            ConfigError: its cleanup.policy is not compact.
            ServiceError: it cannot be created.
        """
        self._topic.prepare(1, self._replication)

    def read(self, timeout: float, *, expected: bool = False) -> StoredLedger:
        """The connector's committed records; see :meth:`CompactedTopic.read`.

        Raises:
            ServiceError: the topic may not be described, or is expected and gone; or a record in it
                is not semel's.
            TransientError: no answer has come.
        """
        content = self._topic.read(
            lambda key: key.startswith(self._prefix), [PARTITION], timeout, expected=expected
        )
        return self._parsed(content.values, content.is_complete)

    def _parsed(self, values: dict[bytes, bytes], is_complete: bool) -> StoredLedger:
        entries: dict[TopicPartition, LedgerEntry] = {}
        keys: dict[bytes, Hole | None] = {}
        is_reset = values.pop(self._reset, None) is not None
        for key, value in values.items():
            place = _place(key)
            if place is None:
                continue
            tp = TopicPartition(place["kafka_topic"], place["kafka_partition"])
            facts, keys[key] = loaded(value), None
            try:
                if "hole" in place:
                    first, end, _ = place["hole"]
                    what = f"a hole of {tp} in ledger topic {named(self.name)}"
                    check_format(what, facts["v"], LEDGER_FORMAT)
                    by = facts.get("by", "")
                    keys[key] = Hole(*tp, first, end, facts["reason"], by, facts["at"])
                else:
                    entries[tp] = entry_of(*tp, facts["position"], facts)
            except (KeyError, TypeError, ValueError):
                raise ServiceError(
                    f"connector {self._connector}: ledger topic {named(self.name)}: the record "
                    f"with key {key.decode(errors='replace')} is not semel's: "
                    f"{value.decode(errors='replace')[:200]}. Does another program write to the "
                    "topic? Stop it, and set the position with semel offsets set"
                ) from None
        holes = [hole for hole in keys.values() if hole is not None]
        holes.sort(key=lambda h: (h.topic, h.partition, h.from_offset))
        return StoredLedger(entries, tuple(holes), keys, is_reset, is_complete)

    def send(
        self, producer: Producer, records: Iterable[Record], failed: Callable[..., None]
    ) -> None:
        """Queue records; ``failed`` is called for those that are not delivered.

        Raises:
            KafkaException: one of them cannot be sent.
        """
        for key, value in records:
            producer.produce(self.name, value, key, PARTITION, failed)

    def records(self, entries: Iterable[LedgerEntry], holes: Iterable[Hole] = ()) -> list[Record]:
        """The records that store entries and holes."""
        records: list[Record] = [
            (self._key(e.topic_partition), _value({"position": e.position, **facts_of(e)}))
            for e in entries
        ]
        for hole in holes:
            facts = {"v": LEDGER_FORMAT, "reason": hole.reason, "at": hole.at}
            facts |= {"by": hole.by} if hole.by else {}
            place = [hole.from_offset, hole.until_offset, hole.reason]
            records.append((self._key(hole.topic_partition, hole=place), _value(facts)))
        return records

    def forgetting(self, stored: StoredLedger) -> list[Record]:
        """The records that delete everything, and the note that the user wanted that."""
        gone: list[Record] = [(key, None) for key in sorted(stored.keys)]
        return [*gone, (self._reset, _value({"at": now()}))]

    def without_reset(self, stored: StoredLedger) -> list[Record]:
        """The record that deletes the note, if there is one."""
        return [(self._reset, None)] if stored.is_reset else []

    def without(self, stored: StoredLedger, holes: Collection[Hole]) -> list[Record]:
        """The records that delete holes."""
        return [(key, None) for key, hole in stored.keys.items() if hole in holes]

    def _key(self, tp: TopicPartition, **more: Any) -> bytes:
        place = {"kafka_topic": tp.topic, "kafka_partition": tp.partition, **more}
        return dumped([self._connector, place]).encode()


def _place(key: bytes) -> dict[str, Any] | None:
    """The entry that a key of this connector names; None for the keys of others, such as Kafka
    Connect's source connectors, which may have the same name."""
    try:
        place = json.loads(key)[1]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    named = isinstance(place, dict) and "kafka_topic" in place and "kafka_partition" in place
    return place if named else None


def _value(facts: Mapping[str, Any]) -> bytes:
    return dumped(facts).encode()


class Ledger:
    """Topic and offsets together. ``stored`` is what the topic held when it was read last."""

    def __init__(self, connector: str, topic: LedgerTopic, offsets: GroupOffsets) -> None:
        self._connector = connector
        self.topic = topic
        self.offsets = offsets
        self.stored = StoredLedger()
        self._committed: dict[TopicPartition, LedgerEntry | None] = {}
        self._differed: dict[TopicPartition, tuple[int, int]] = {}

    def entries(
        self, topics: Iterable[str], there: Mapping[str, int]
    ) -> dict[TopicPartition, LedgerEntry]:
        """The present entries, whatever open transactions may still change. While the connector
        runs, the two are read at different times: where both have a position, the topic's wins."""
        self.stored = self.topic.read(_GLANCE)
        names = {*topics, *(tp.topic for tp in self.stored.entries)}
        return {**self.offsets.entries(names, there), **self.stored.entries}

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
        merged = {**committed, **{tp: entries[tp] for tp in partitions if tp in entries}}
        differ = {
            tp: (entries[tp].position, committed[tp].position)
            for tp in committed.keys() & entries.keys() - agreed.keys()
        }
        before, self._differed = self._differed, differ
        if not differ:
            return merged, set()
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
        entries: dict[TopicPartition, LedgerEntry] = {}
        remaining, fence_at = set(partitions), asked + _FENCE_AFTER
        while remaining:
            stable, remaining = self.stable(remaining)
            entries |= stable
            at = time.monotonic()
            if remaining and at > fence_at:
                fence()
                fence_at = time.monotonic() + _FENCE_AFTER  # such a task may still be in the group
            if remaining and at - asked > longest:
                raise TransientError(
                    f"connector {self._connector}: a transaction is pending on the position "
                    f"of {' or '.join(map(str, sorted(remaining)))} and does not end. If it never "
                    "does, the brokers have lost track of it: kafka-transactions.sh find-hanging "
                    "names it, abort ends it"
                )
            if remaining:
                time.sleep(_PENDING)
        return entries

    def has_moved(self, partitions: set[TopicPartition]) -> bool:
        """Whether the offset of one of these partitions has changed since :meth:`stable` read it.
        Open transactions, such as the caller's own, may hide records of the topic, but they do not
        hide committed offsets."""
        asked = partitions & self._committed.keys()
        present = self.offsets.present(asked)
        return any(entry != self._committed[tp] for tp, entry in present.items())

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
        arguments = " ".join(f"{tp}=OFFSET" for tp in sorted(differ))
        return OffsetOutOfRange(
            f"connector {self._connector}: the ledger topic and consumer group "
            f"{self.offsets.group} know different positions, although each commit writes both "
            f"in one transaction. {facts}. Somebody has set the group's offsets by other means, "
            "or the ledger topic has lost records. Find out which is right (semel audit compares "
            "source and target), and set it for both: stop the connector and run semel offsets set "
            f"with its file and {arguments}"
        )
