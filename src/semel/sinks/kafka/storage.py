"""The ledger topic: a compacted topic in the target cluster with one record for each entry.

A record's key is Kafka Connect's way to name a source partition,
``["orders-copy",{"kafka_topic":"orders","kafka_partition":0}]``; its value holds the position and
what else an entry knows. Holes have keys of their own. All records go to partition 0, so the last
one of a key is the valid one, however many partitions the topic has.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.errors import ConfigError, ServiceError, TransientError
from semel.kafka.cluster import Cluster
from semel.kafka.errors import failure
from semel.ledger import Hole, LedgerEntry, TopicPartition, now
from semel.sinks.kafka.entries import dumped, entry_of, facts_of, loaded
from semel.sinks.kafka.presence import check_replicas, is_there

log = logging.getLogger(__name__)

PARTITION = 0
_POLL = 0.02
_BATCH = 10_000
_TIMEOUT = 10.0
_SILENT = 10.0
"""Seconds after which a broker that sends neither records nor the end is asked anew."""

_CONFIG = {
    "cleanup.policy": "compact",
    # A task reads the whole topic when it gets partitions. Kafka compacts closed segments only,
    # and would close them at 1 GB.
    "segment.bytes": str(8 * 1024 * 1024),
}
"""Of a ledger topic that semel creates."""

Record = tuple[bytes, bytes | None]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a ledger topic holds of one connector. ``is_reset``: its user has made it forget all.
    ``is_complete``: no open transaction hides a record that was there when it was read."""

    entries: Mapping[TopicPartition, LedgerEntry] = field(default_factory=dict)
    holes: tuple[Hole, ...] = ()
    keys: frozenset[bytes] = frozenset()
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
        self._cluster = cluster
        self._client = {
            **client,
            "group.id": f"{connector}-ledger",  # librdkafka wants one; it is never joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 10,  # the end is told by a fetch that finds nothing
            "log_level": 0,
        }
        self._prefix = dumped([connector])[:-1].encode() + b","
        self._reset = dumped([connector, {"reset": True}]).encode()
        self._consumer: Consumer | None = None
        self._is_prepared = False

    def prepare(self) -> None:
        """Create the topic if it is missing, and refuse one that forgets.

        Raises:
            ConfigError: its cleanup.policy is not compact.
            ServiceError: it cannot be created.
        """
        where = f"connector {self._connector}: ledger topic {self.name}"
        try:
            self._cluster.create_topic(self.name, 1, self._replication, _CONFIG)
        except ServiceError as error:
            raise ServiceError(
                f"{where}: {error}. Create it with one partition and cleanup.policy=compact, or "
                "set offset.storage.replication.factor to at most the number of brokers"
            ) from None
        config = self._cluster.topic_config(self.name)
        if config is None:
            log.warning("%s: may not be described; it must have cleanup.policy=compact", where)
        elif config["cleanup.policy"] != "compact":
            raise ConfigError(
                f"{where} has cleanup.policy={config['cleanup.policy']}: Kafka would delete "
                "positions after a while, and records would be copied again. Set it to compact "
                f"(kafka-configs.sh --alter --entity-type topics --entity-name {self.name} "
                "--add-config cleanup.policy=compact), or name another topic in "
                "offset.storage.topic"
            )
        check_replicas(where, self._cluster, self.name)
        self._is_prepared = True

    def read(self, patience: float, *, expected: bool = False) -> Stored:
        """All committed records up to the topic's present end. Open transactions below the end are
        waited for, but not longer than ``patience`` seconds.

        Nothing is stored if there is no topic. That must be certain: records would be copied again
        if a broker had only not heard of the topic yet.

        Args:
            patience: how long to wait for open transactions.
            expected: the topic has been prepared, and must be there.

        Raises:
            ServiceError: the topic may not be described, or is expected and gone; or a record in it
                is not semel's.
            TransientError: no answer has come.
        """
        if self.name not in self._cluster.topics():
            expected = expected or self._is_prepared
            if not is_there(self._cluster.config, self.name, expected=expected):
                return Stored()
        place = TopicPartition(self.name, PARTITION)
        end = self._cluster.latest([place], committed=False)[place]
        found: dict[bytes, bytes] = {}
        is_complete = not end or self._collect(end, patience, found)
        return self._parsed(found, is_complete)

    def _collect(self, end: int, patience: float, found: dict[bytes, bytes]) -> bool:
        """The last value of each key of the connector; whether all below ``end`` was read."""
        if self._consumer is None:
            self._consumer = Consumer(self._client, logger=log)
        consumer, asked = self._consumer, time.monotonic()
        heard = asked
        try:
            consumer.assign([KafkaPartition(self.name, PARTITION, OFFSET_BEGINNING)])
            stands, is_held = 0, False
            while True:
                messages = consumer.consume(_BATCH, _POLL)
                now_ = time.monotonic()
                for message in messages:
                    heard, offset = now_, int(message.offset() or 0)
                    if (error := message.error()) is None:
                        stands, is_held = offset + 1, False
                        self._keep(found, message.key(), message.value())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        stands, is_held = offset, offset < end  # by an open transaction
                    else:
                        raise KafkaException(error)
                if stands >= end:
                    return True
                if is_held and now_ - asked > patience:
                    return False
                if now_ - heard > _SILENT + patience:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        except KafkaException as error:
            self._consumer = None
            raise self._failed(error) from None
        finally:
            if self._consumer is not None:
                consumer.unassign()

    def _failed(self, error: KafkaException) -> Exception:
        cause = error.args[0]
        if cause.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            return TransientError(
                f"connector {self._connector}: ledger topic {self.name}: {cause.str()}"
            )
        return failure(str(self._client["bootstrap.servers"]), error)

    def _keep(self, found: dict[bytes, bytes], key: Any, value: Any) -> None:
        if key is None or not key.startswith(self._prefix):
            return
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value

    def _parsed(self, found: dict[bytes, bytes], is_complete: bool) -> Stored:
        entries, holes = {}, []
        is_reset = found.pop(self._reset, None) is not None
        for key, value in found.items():
            place = _place(key)
            if place is None:
                continue
            tp, facts = (
                TopicPartition(place["kafka_topic"], place["kafka_partition"]),
                loaded(value),
            )
            try:
                if "hole" in place:
                    first, end = place["hole"]
                    holes.append(Hole(*tp, first, end, facts["reason"]))
                else:
                    entries[tp] = entry_of(*tp, int(facts["position"]), facts)
            except (KeyError, TypeError, ValueError):
                raise ServiceError(
                    f"connector {self._connector}: ledger topic {self.name}: the record with key "
                    f"{key.decode(errors='replace')} is not semel's: "
                    f"{value.decode(errors='replace')[:200]}. Does another program write to the "
                    "topic? Stop it, and set the position with semel offsets set"
                ) from None
        holes.sort(key=lambda h: (h.topic, h.partition, h.from_offset))
        keys = frozenset(key for key in found if _place(key) is not None)
        return Stored(entries, tuple(holes), keys, is_reset, is_complete)

    def send(
        self, producer: Producer, records: Iterable[Record], failed: Callable[..., None]
    ) -> None:
        """Queue records; ``failed`` hears of those that are not delivered.

        Raises:
            KafkaException: one of them cannot be sent.
        """
        for key, value in records:
            producer.produce(self.name, value, key, PARTITION, failed)

    def records(self, entries: Iterable[LedgerEntry], holes: Iterable[Hole] = ()) -> list[Record]:
        """What stores entries and holes, once it is committed."""
        found: list[Record] = [
            (self._key(e.topic_partition), _value({"position": e.position, **facts_of(e)}))
            for e in entries
        ]
        at = now()
        for hole in holes:
            key = self._key(hole.topic_partition, hole=[hole.from_offset, hole.until_offset])
            found.append((key, _value({"reason": hole.reason, "at": at})))
        return found

    def forgetting(self, stored: Stored) -> list[Record]:
        """What forgets all, and notes that it was wanted."""
        gone: list[Record] = [(key, None) for key in sorted(stored.keys)]
        return [*gone, (self._reset, _value({"at": now()}))]

    def without_reset(self, stored: Stored) -> list[Record]:
        """What takes the note away, if it is there."""
        return [(self._reset, None)] if stored.is_reset else []

    def without_holes(self, stored: Stored, partitions: Iterable[TopicPartition]) -> list[Record]:
        """What forgets the holes of some partitions."""
        chosen = set(partitions)
        return [
            (self._key(h.topic_partition, hole=[h.from_offset, h.until_offset]), None)
            for h in stored.holes
            if h.topic_partition in chosen
        ]

    def _key(self, tp: TopicPartition, **more: Any) -> bytes:
        place = {"kafka_topic": tp.topic, "kafka_partition": tp.partition, **more}
        return dumped([self._connector, place]).encode()


def _place(key: bytes) -> dict[str, Any] | None:
    """What a key of this connector names; None for the keys of others, such as Kafka Connect's
    source connectors, which may have the same name."""
    try:
        place = json.loads(key)[1]
    except (ValueError, LookupError):
        return None
    named = isinstance(place, dict) and "kafka_topic" in place and "kafka_partition" in place
    return place if named else None


def _value(facts: Mapping[str, Any]) -> bytes:
    return dumped(facts).encode()
