"""The ledger topic: a compacted topic in the target cluster with one record for each entry.

A record's key is Kafka Connect's way to name a source partition,
``["orders-copy",{"kafka_topic":"orders","kafka_partition":0}]``; its value holds the position and
the other facts of the entry. Holes have keys of their own. All records go to partition 0, so the
last one of a key is the valid one, however many partitions the topic has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from semel.core import formats
from semel.core.errors import ServiceError
from semel.core.ledger import Hole, LedgerEntry, TopicPartition, now
from semel.core.quoting import named
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import CompactedTopic
from semel.sinks.ledger_json import dumped, entry_of, facts_of, loaded

PARTITION = 0

Record = tuple[bytes, bytes | None]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a ledger topic holds for one connector. ``keys``: those of its records, each with its
    hole, if it is one. ``is_reset``: the user has reset the connector. ``is_complete``: no open
    transaction hides a record that was there when it was read."""

    entries: Mapping[TopicPartition, LedgerEntry] = field(default_factory=dict)
    holes: tuple[Hole, ...] = ()
    keys: Mapping[bytes, Hole | None] = field(default_factory=dict)
    is_reset: bool = False
    is_complete: bool = True


class LedgerTopic:
    """The ledger topic of one connector. ``client`` configures a consumer in its cluster."""

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

    def read(self, timeout: float, *, expected: bool = False) -> Stored:
        """The connector's committed records; see :meth:`CompactedTopic.read`.

        Raises:
            ServiceError: the topic may not be described, or is expected and gone; or a record in it
                is not semel's.
            TransientError: no answer has come.
        """
        found = self._topic.read(
            lambda key: key.startswith(self._prefix), [PARTITION], timeout, expected=expected
        )
        return self._parsed(found.values, found.is_complete)

    def _parsed(self, found: dict[bytes, bytes], is_complete: bool) -> Stored:
        entries: dict[TopicPartition, LedgerEntry] = {}
        keys: dict[bytes, Hole | None] = {}
        is_reset = found.pop(self._reset, None) is not None
        for key, value in found.items():
            place = _place(key)
            if place is None:
                continue
            tp = TopicPartition(place["kafka_topic"], place["kafka_partition"])
            facts, keys[key] = loaded(value), None
            try:
                if "hole" in place:
                    first, end, _ = place["hole"]
                    what = f"a hole of {tp} in ledger topic {named(self.name)}"
                    formats.check(what, facts["v"], formats.LEDGER)
                    by = facts.get("by", "")
                    keys[key] = Hole(*tp, first, end, facts["reason"], by, facts["at"])
                else:
                    entries[tp] = entry_of(*tp, int(facts["position"]), facts)
            except (KeyError, TypeError, ValueError):
                raise ServiceError(
                    f"connector {self._connector}: ledger topic {named(self.name)}: the record "
                    f"with key {key.decode(errors='replace')} is not semel's: "
                    f"{value.decode(errors='replace')[:200]}. Does another program write to the "
                    "topic? Stop it, and set the position with semel offsets set"
                ) from None
        holes = [hole for hole in keys.values() if hole is not None]
        holes.sort(key=lambda h: (h.topic, h.partition, h.from_offset))
        return Stored(entries, tuple(holes), keys, is_reset, is_complete)

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
        found: list[Record] = [
            (self._key(e.topic_partition), _value({"position": e.position, **facts_of(e)}))
            for e in entries
        ]
        for hole in holes:
            facts = {"v": formats.LEDGER, "reason": hole.reason, "at": hole.at}
            facts |= {"by": hole.by} if hole.by else {}
            place = [hole.from_offset, hole.until_offset, hole.reason]
            found.append((self._key(hole.topic_partition, hole=place), _value(facts)))
        return found

    def forgetting(self, stored: Stored) -> list[Record]:
        """The records that delete everything, and the note that the user wanted that."""
        gone: list[Record] = [(key, None) for key in sorted(stored.keys)]
        return [*gone, (self._reset, _value({"at": now()}))]

    def without_reset(self, stored: Stored) -> list[Record]:
        """The record that deletes the note, if there is one."""
        return [(self._reset, None)] if stored.is_reset else []

    def without(self, stored: Stored, holes: Collection[Hole]) -> list[Record]:
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
