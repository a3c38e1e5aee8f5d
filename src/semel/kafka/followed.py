"""A topic that is read from its beginning and then followed, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import ConfigError, SemelError, ServiceError, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import close

log = logging.getLogger(__name__)

_BATCH = 1000
_POLL = 0.1
_AGAIN = 1.0
_LOOK = 3.0
"""Seconds between two checks that the consumer still receives new records."""
_ANSWERS_IN = 5.0

Apply = Callable[[bytes, bytes | None], object]
"""Takes in the key and the value of a record."""


class FollowedTopic:
    """Reads the committed records of ``name``; ``key`` is the configuration key that names it.

    ``apply`` is called with each record that has a key, in the order of its partition and by one
    thread; ``applied`` is called after each batch of them.
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
        self._where = f"{key}={name}"
        self._cluster = cluster
        self._apply = apply
        self._applied = applied
        self._client = {
            **cluster.config,
            "group.id": f"{name}-followers",  # librdkafka wants one; it is never joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
        self._reached: dict[int, int] = {}
        self._moved = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name=f"semel-{name}")

    def prepare(self, partitions: int, replication: int, *, exactly: bool = False) -> None:
        """Create the topic if it is missing; refuse one that deletes old records and, with
        ``exactly``, one with a different number of partitions.

        Raises:
            ConfigError: says what to change.
            ServiceError: it cannot be created.
        """
        try:
            self._cluster.create_topic(
                self.name, partitions, replication, {"cleanup.policy": "compact"}
            )
        except ServiceError as error:
            setting = f"{self._where.split('=')[0].removesuffix('.topic')}.replication.factor"
            raise ServiceError(
                f"{self._where}: {error}. Create it with cleanup.policy=compact and {partitions} "
                f"partition{'s' if partitions > 1 else ''}, or set {setting} to at most the number "
                "of brokers"
            ) from None
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
                lambda: all(self._reached.get(p, 0) >= at for p, at in ends.items()), timeout
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
                    KafkaPartition(self.name, p, self._reached.get(p, OFFSET_BEGINNING))
                    for p in range(count)
                ]
            )
            while not self._stop.is_set() and count:
                messages = consumer.consume(_BATCH, _POLL)
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
        reached = dict(self._reached)
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
            self._reached |= reached
            self._moved.notify_all()


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _value(message: Message) -> bytes | None:
    value: Any = message.value()
    return None if value is None else _bytes(value)
