"""A compacted topic as a table: the last committed value of each key.

A key may be in several partitions, because the topic was given more of them or writers had
different partitioners. Then the record with the latest timestamp is the last one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka.cluster import Cluster
from semel.kafka.errors import GONE, failure
from semel.kafka.topics import check_replicas, is_there

log = logging.getLogger(__name__)

_POLL = 0.02
_BATCH = 10_000
_SILENT = 10.0
"""Seconds after which a broker that sends neither records nor the end is asked again."""

_CONFIG = {
    "cleanup.policy": "compact",
    # The whole topic is read at each start. Kafka compacts closed segments only, and would close
    # them at 1 GB.
    "segment.bytes": str(8 * 1024 * 1024),
}
"""The configuration of a topic that semel creates."""

RecordsByKey = dict[bytes, dict[int, tuple[int, bytes | None]]]
"""The last record of each key in each partition: its timestamp, and its value."""
_SEED, _MULTIPLIER, _SHIFT = 0x9747B28C, 0x5BD1E995, 24
_BITS, _POSITIVE = 0xFFFFFFFF, 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Values:
    """The last record of each key, the latest at the end; None is a tombstone. ``places`` are the
    partitions that hold each key, that of its last record first. ``newest`` is the latest timestamp
    of all, in milliseconds. ``partitions`` is how many there are. ``is_complete``: no open
    transaction hides a record that was there when the topic was read."""

    records: Mapping[bytes, bytes | None] = field(default_factory=dict)
    places: Mapping[bytes, Sequence[int]] = field(default_factory=dict)
    newest: int = 0
    partitions: int = 0
    is_complete: bool = True

    @property
    def values(self) -> dict[bytes, bytes]:
        """The records that are not tombstones."""
        return {key: value for key, value in self.records.items() if value is not None}

    @classmethod
    def of(cls, records_by_key: RecordsByKey, partitions: int, *, is_complete: bool) -> Values:
        """What was found in a topic with this many partitions."""
        last: dict[bytes, tuple[int, bytes | None]] = {}
        places = {}
        for key, records in records_by_key.items():
            # If timestamps are equal, the partition where the key belongs comes first.
            own = partition_of(key, partitions) if len(records) > 1 else -1
            places[key] = sorted(records, key=lambda p: (records[p][0], p == own), reverse=True)
            last[key] = records[places[key][0]]
        in_order = {key: last[key][1] for key in sorted(last, key=lambda key: last[key][0])}
        newest = max((timestamp for timestamp, _ in last.values()), default=0)
        return cls(in_order, places, newest, partitions, is_complete)


class CompactedTopic:
    """Reads the topic ``name``, which messages call ``what``. ``client`` configures a consumer in
    its cluster; with ``committed`` false, it sees what open and aborted transactions wrote, too."""

    def __init__(
        self,
        connector: str,
        what: str,
        name: str,
        cluster: Cluster,
        client: Mapping[str, Any],
        *,
        committed: bool = True,
    ) -> None:
        self.name = name
        self._where = f"connector {connector}: {what} {name}"
        self._what = what
        self._cluster = cluster
        self._client = {
            **client,
            "group.id": f"{connector}-ledger",  # librdkafka wants one; it is never joined
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 10,  # a fetch that finds nothing marks the end
            "log_level": 0,
        }
        self._consumer: Consumer | None = None
        self._is_prepared = False

    def prepare(self, partitions: int, replication: int) -> None:
        """Create the topic if it is missing, and refuse one that deletes old records.

        Raises:
            ConfigError: its cleanup.policy is not compact.
            ServiceError: it cannot be created.
        """
        try:
            self._cluster.create_topic(self.name, partitions, replication, _CONFIG)
        except ServiceError as error:
            raise ServiceError(
                f"{self._where}: {error}. Create it with cleanup.policy=compact and "
                f"{partitions} partition{'s' if partitions > 1 else ''}, or set "
                "offset.storage.replication.factor to at most the number of brokers"
            ) from None
        config = self._cluster.topic_config(self.name)
        if config is None:
            log.warning(
                "%s: this user may not describe it; make sure that it has cleanup.policy=compact",
                self._where,
            )
        elif config["cleanup.policy"] != "compact":
            raise ConfigError(
                f"{self._where} has cleanup.policy={config['cleanup.policy']}: Kafka would delete "
                "positions after a while, and records would be written again. Set it to compact "
                f"(kafka-configs.sh --alter --entity-type topics --entity-name {self.name} "
                "--add-config cleanup.policy=compact), or name another topic in "
                "offset.storage.topic"
            )
        check_replicas(self._where, self._cluster, self.name)
        self._is_prepared = True

    def read(
        self,
        wants: Callable[[bytes], bool],
        partitions: Collection[int] | None,
        timeout: float,
        *,
        expected: bool = False,
    ) -> Values:
        """All committed records up to the topic's current end. Open transactions below the end are
        waited for, but not longer than ``timeout`` seconds.

        If there is no topic, nothing is stored. That must be certain: if a broker had merely not
        heard of the topic yet, records would be written again.

        Args:
            wants: whether a key is wanted.
            partitions: those to read, or all with None.
            timeout: how long to wait for open transactions.
            expected: the topic has been prepared, and must be there.

        Raises:
            ServiceError: the topic may not be described, or is expected and gone.
            TransientError: no answer has come.
        """
        count = self._cluster.topics().get(self.name, 0)
        if not count:
            expected = expected or self._is_prepared
            if not is_there(self._cluster.config, self.name, expected=expected):
                return Values()
            count = self._cluster.topics().get(self.name, 1)
        places = [TopicPartition(self.name, p) for p in partitions or range(count)]
        ends = self._cluster.latest(places, committed=False)
        open_ = {tp.partition: end for tp, end in ends.items() if end}
        records_by_key: RecordsByKey = {}
        is_complete = not open_ or self._collect(open_, timeout, wants, records_by_key)
        return Values.of(records_by_key, count, is_complete=is_complete)

    def _collect(
        self,
        open_: dict[int, int],
        timeout: float,
        wants: Callable[[bytes], bool],
        records_by_key: RecordsByKey,
    ) -> bool:
        """Fill ``records_by_key``. Returns whether everything below the ends was read."""
        if self._consumer is None:
            self._consumer = Consumer(self._client, logger=log)
        consumer, asked = self._consumer, time.monotonic()
        heard, waiting = asked, set[int]()
        try:
            # Not OFFSET_BEGINNING: a new consumer takes half a second to ask where the log begins.
            consumer.assign([KafkaPartition(self.name, p, 0) for p in open_])
            while open_:
                messages = [m for m in consumer.consume(_BATCH, _POLL) if not _of_group(m)]
                now = time.monotonic()
                for message in messages:
                    heard, partition = now, int(message.partition() or 0)
                    stands = int(message.offset() or 0)
                    if (error := message.error()) is None:
                        stands += 1
                        waiting.discard(partition)
                        _keep(records_by_key, message, wants)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        waiting.add(partition)  # by an open transaction, unless this is the end
                    else:
                        raise KafkaException(error)
                    if stands >= open_.get(partition, stands + 1):
                        del open_[partition]
                if open_ and open_.keys() <= waiting and now - asked > timeout:
                    return False
                if open_ and now - heard > _SILENT + timeout:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return True
        except KafkaException as error:
            self._consumer = None
            raise self._failed(error) from None
        finally:
            if self._consumer is not None:
                consumer.unassign()

    def _failed(self, error: KafkaException) -> Exception:
        cause = error.args[0]
        if cause.code() in GONE:
            return TransientError(f"{self._where}: {cause.str()}")
        if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return ServiceError(f"{self._where}: this user may not read it. Grant READ on it")
        return failure(str(self._client["bootstrap.servers"]), error)


def _of_group(message: Message) -> bool:
    """Whether it only says that this user may not use the group, which is never joined."""
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _keep(records_by_key: RecordsByKey, message: Message, wants: Callable[[bytes], bool]) -> None:
    key: Any = message.key()
    value: Any = message.value()
    if key is not None and wants(key):
        record = message.timestamp()[1], value
        records_by_key.setdefault(key, {})[int(message.partition() or 0)] = record


def murmur2(key: bytes) -> int:
    """Kafka's variant of MurmurHash 2, 32 bits without a sign: the hash by which Java's producer,
    and so Kafka Connect, spreads keys over partitions."""
    digest = _SEED ^ len(key)
    whole = len(key) & ~3
    for place in range(0, whole, 4):
        mixed = int.from_bytes(key[place : place + 4], "little") * _MULTIPLIER & _BITS
        mixed = (mixed ^ mixed >> _SHIFT) * _MULTIPLIER & _BITS
        digest = (digest * _MULTIPLIER & _BITS) ^ mixed
    if rest := key[whole:]:
        digest = (digest ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _BITS
    digest = (digest ^ digest >> 13) * _MULTIPLIER & _BITS
    return digest ^ digest >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with this key, out of this many."""
    return (murmur2(key) & _POSITIVE) % partitions
