"""Compacted topics, read as a table (the last committed value of each key) or followed in a thread.

A key may be in several partitions, because the topic was given more of them or writers had
different partitioners. In a table, the record with the latest timestamp is the last one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import ConfigError, SemelError, ServiceError, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka.answers import GONE, failure
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import close
from semel.kafka.topics import check_replicas, is_there

log = logging.getLogger(__name__)

_BATCH, _POLL = 10_000, 0.02
"""How many records a table takes at once, and how many seconds it waits for them."""
_SILENT = 10.0
"""Seconds after which a broker that sends neither records nor the end is asked again."""
_PIECE, _WAIT = 1000, 0.1
"""How many records a follower takes at once, and how many seconds it waits for them."""
_AGAIN = 1.0
_LOOK = 3.0
"""Seconds between two checks that a follower still receives new records."""
_ANSWERS_IN = 5.0

_CONFIG = {
    "cleanup.policy": "compact",
    # The whole topic is read at each start. Kafka compacts closed segments only, and would close
    # them at 1 GB.
    "segment.bytes": str(8 * 1024 * 1024),
}
"""The configuration of a table's topic when semel creates it."""

RecordsByKey = dict[bytes, dict[int, tuple[int, bytes | None]]]
"""The last record of each key in each partition: its timestamp, and its value."""
Apply = Callable[[bytes, bytes | None], object]
"""Takes in the key and the value of a record."""


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
        # A fetch that finds nothing marks the end.
        self._client = _client_config(client, f"{connector}-ledger", wait_ms=10)
        if not committed:
            self._client["isolation.level"] = "read_uncommitted"
        self._consumer: Consumer | None = None
        self._is_prepared = False

    def prepare(
        self, partitions: int, replication: int, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create the topic with these ``settings`` if it is missing, and refuse one that deletes
        old records.

        Raises:
            ConfigError: its cleanup.policy is not compact.
            ServiceError: it cannot be created.
        """
        try:
            made = {**_CONFIG, **(settings or {})}
            self._cluster.create_topic(self.name, partitions, replication, made)
        except ServiceError as error:
            factor = "offset.storage.replication.factor"
            raise _not_created(self._where, error, partitions, factor, settings) from None
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


class FollowedTopic:
    """Reads the topic ``name`` from its beginning and then follows it, in a thread. ``key`` is the
    configuration key that names it.

    ``apply`` is called with each committed record that has a key, in the order of its partition and
    by one thread; ``applied`` is called after each batch of them.
    """

    def __init__(
        self,
        key: str,
        name: str,
        cluster: Cluster,
        apply: Apply,
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._key = key
        self._where = f"{key}={name}"
        self._cluster = cluster
        self._apply = apply
        self._applied = applied
        self._client = _client_config(cluster.config, f"{name}-followers", wait_ms=100)
        self._positions: dict[int, int] = {}
        self._moved = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name=f"semel-{name}")

    def prepare(
        self,
        partitions: int,
        replication: int,
        settings: Mapping[str, str] | None = None,
        *,
        exactly: bool = False,
    ) -> None:
        """Create the topic with these ``settings`` if it is missing; refuse one that deletes old
        records and, with ``exactly``, one with a different number of partitions.

        Raises:
            ConfigError: says what to change.
            ServiceError: it cannot be created.
        """
        made = {**(settings or {}), "cleanup.policy": "compact"}
        try:
            self._cluster.create_topic(self.name, partitions, replication, made)
        except ServiceError as error:
            factor = f"{self._key.removesuffix('.topic')}.replication.factor"
            raise _not_created(self._where, error, partitions, factor, settings) from None
        config = self._cluster.topic_config(self.name)
        if config is not None and config["cleanup.policy"] != "compact":
            raise ConfigError(
                f"{self._where} has cleanup.policy={config['cleanup.policy']}: Kafka would delete "
                "connectors and their states after a while. Set it to compact, or name another "
                "topic"
            )
        count = self._cluster.topics().get(self.name, partitions)
        if exactly and count != partitions:
            raise ConfigError(
                f"{self._where} has {count} partitions, and must have {partitions}: the order of "
                "its records matters. Name another topic"
            )

    def start(self, timeout: float = 60.0) -> None:
        """Read what is there, and keep following in the background.

        Raises:
            TransientError: it could not be read within ``timeout`` seconds.
        """
        self._thread.start()
        self.catch_up(timeout)

    def catch_up(self, timeout: float = 30.0, *, committed: bool = True) -> None:
        """Wait until all that is committed now has been taken in. Without ``committed``, wait for
        the end of open transactions, too: it reaches a partition some time after the producer was
        told of it.

        Raises:
            TransientError: that took longer than ``timeout`` seconds.
        """
        count = self._cluster.topics().get(self.name, 0)
        places = [TopicPartition(self.name, partition) for partition in range(count)]
        latest = self._cluster.latest(places, committed=committed)
        ends = {tp.partition: at for tp, at in latest.items() if at}
        with self._moved:
            done = self._moved.wait_for(
                lambda: all(self._positions.get(p, 0) >= at for p, at in ends.items()), timeout
            )
        if not done or not count:
            raise TransientError(f"{self._where}: could not be read to its end in {timeout:.0f} s")

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._read()
            except KafkaException as error:
                log.warning("%s: %s; reading it again", self._where, error.args[0].str())
                self._stop.wait(_AGAIN)
            except SemelError as error:
                log.warning("%s: %s; reading it again", self._where, error)
                self._stop.wait(_AGAIN)

    def _read(self) -> None:
        """Read on from where the last consumer stopped, until closed or an error."""
        count = self._cluster.topics().get(self.name, 0)
        consumer = Consumer(self._client, logger=log)
        looked, expected = time.monotonic(), dict[int, tuple[int, int]]()
        try:
            consumer.assign(
                [
                    KafkaPartition(self.name, p, self._positions.get(p, OFFSET_BEGINNING))
                    for p in range(count)
                ]
            )
            while not self._stop.is_set() and count:
                messages = consumer.consume(_PIECE, _WAIT)
                if messages:
                    self._take(messages)
                if time.monotonic() - looked > _LOOK:
                    expected = self._expected(count, expected)
                    looked = time.monotonic()
            if not count:
                self._stop.wait(_AGAIN)
        finally:
            close(consumer)

    def _expected(
        self, count: int, before: Mapping[int, tuple[int, int]]
    ) -> dict[int, tuple[int, int]]:
        """How far each partition has been read, and its end: there must be progress by the next
        check.

        Raises:
            TransientError: there was none since the look ``before``. A consumer may fall silent
                after the leaders of its partitions have changed; a new one does not.
        """
        reached = dict(self._positions)
        silent = sorted(p for p, (at, end) in before.items() if reached.get(p, 0) == at < end)
        if silent:
            raise TransientError(f"none of the records that wait in partition {silent[0]} arrive")
        places = [TopicPartition(self.name, partition) for partition in range(count)]
        try:
            latest = self._cluster.latest(places, timeout=_ANSWERS_IN)
        except SemelError as error:  # if Kafka is really gone, the consumer reports it
            log.debug("%s: %s", self._where, error)
            return {}
        return {tp.partition: (reached.get(tp.partition, 0), end) for tp, end in latest.items()}

    def _take(self, messages: list[Message]) -> None:
        reached: dict[int, int] = {}
        for message in messages:
            partition, offset = int(message.partition() or 0), int(message.offset() or 0)
            error = message.error()
            if error is None:
                key = message.key()
                if key is not None:
                    self._apply(_bytes(key), _value(message))
                offset += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            reached[partition] = max(offset, reached.get(partition, 0))
        self._applied()
        with self._moved:
            self._positions |= reached
            self._moved.notify_all()


def _client_config(client: Mapping[str, Any], group: str, *, wait_ms: int) -> dict[str, Any]:
    """The configuration of a consumer that reads a whole topic, up to what is committed."""
    return {
        **client,
        "group.id": group,  # librdkafka wants one; it is never joined
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": wait_ms,
        "log_level": 0,
    }


def _not_created(
    where: str,
    error: ServiceError,
    partitions: int,
    factor: str,
    settings: Mapping[str, str] | None,
) -> ServiceError:
    """The error for a topic that could not be created with these ``settings``; ``factor`` is the
    key of its replication factor."""
    given = ", ".join(factor.removesuffix("replication.factor") + name for name in settings or ())
    correct = f", or correct {given}" if given else ""
    count = "" if partitions < 0 else f" and {partitions} partition{'s' if partitions > 1 else ''}"
    return ServiceError(
        f"{where}: {error}. Create it with cleanup.policy=compact{count}, or set {factor} to at "
        f"most the number of brokers{correct}"
    )


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


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _value(message: Message) -> bytes | None:
    value: Any = message.value()
    return None if value is None else _bytes(value)


_SEED, _MULTIPLIER, _SHIFT = 0x9747B28C, 0x5BD1E995, 24
_BITS, _POSITIVE = 0xFFFFFFFF, 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with this key, out of this many."""
    return (murmur2(key) & _POSITIVE) % partitions


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
