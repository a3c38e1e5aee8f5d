"""Produces records while faults happen: in bursts, with and without keys, in transactions."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException, Producer

from semel import converters
from semel.config import ConnectorConfig, under
from semel.converters import Converter
from semel.converters.registry.converter import RegistryConverter
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import TopicPartition
from semel_lab.drill.bursts import BURSTS, Bursts

_log = logging.getLogger("semel_lab.drill.kafka")
_log.addHandler(logging.NullHandler())
_log.propagate = False

_CLIENT = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2000,  # notices new partitions
    "log_level": 0,
}
_PATIENCE = 60.0
"""Seconds within which :meth:`Traffic.fill` must deliver its records."""
_TRANSACTIONAL = {
    # A transaction that a killed broker interrupts holds up read_committed consumers this long.
    "transaction.timeout.ms": 4000,
    "socket.timeout.ms": 3000,
}
_ABORTED = 0.3
_KEYS = 100
"""The number of keys in one partition."""
_JSON = ("JsonConverter", "json")
_STRING = ("StringConverter", "string")
_ANY = ("ByteArrayConverter", "bytearray")
_DAMAGED = 0.02
"""The share of records that nothing can read, if the connector has a table for them."""
_EVOLVED = 0.5
"""The share of records with one more field, if their schemas are registered and may change."""


class Shape:
    """Makes records as the connector's configuration wants them.

    Raises:
        ConfigError: the drill cannot make such records.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        replaces: bool,
        *,
        tombstones: bool = False,
    ) -> None:
        raw = connector.originals
        self._replaces = replaces
        mode = raw.get("pk.mode", raw.get("primary.key.mode", "none")).lower()
        fields = raw.get("pk.fields", raw.get("primary.key.fields", ""))
        self._fields = [f.strip() for f in fields.split(",") if f.strip()]
        self._mode = mode
        self._envelope = _envelope(raw, "value.converter")
        self._deletes = tombstones or raw.get("delete.enabled", "false").lower() == "true"
        self._values = _registered(connector.value_converter, raw, "value.converter")
        if connector.value_converter.endswith(_ANY):
            self._envelope = False
        elif self._values is None and not connector.value_converter.endswith(_JSON):
            raise ConfigError(
                f"connector {connector.name}: the drill produces JSON or values with a schema "
                "registry, so value.converter must be the JsonConverter or one of those, not "
                f"{connector.value_converter}"
            )
        self._keys = _registered(connector.key_converter, raw, "key.converter")
        self._plain_key = connector.key_converter.endswith((*_STRING, *_ANY))
        if not (self._plain_key or self._keys or connector.key_converter.endswith(_JSON)):
            raise ConfigError(
                f"connector {connector.name}: the drill produces string or JSON keys, or keys with "
                f"a schema registry, so key.converter cannot be {connector.key_converter}"
            )
        self._key_envelope = _envelope(raw, "key.converter")
        self.damages = bool(connector.dead_letter_table) and connector.errors_tolerance == "all"
        self._evolves = self._values is not None and (
            raw.get("auto.evolve", "false").lower() == "true"
        )

    def record(
        self, number: int, partition: int, dice: random.Random
    ) -> tuple[str | bytes | None, str | bytes | None]:
        """Key and value of one record. Records that replace each other share a key, which stays in
        one partition even if partitions are added."""
        identity = partition * _KEYS + number // 7 % _KEYS if self._replaces else number
        keyed = self._replaces or self._mode == "record_key" or dice.random() < 0.5
        key = self._key(identity) if keyed else None
        if self._deletes and dice.random() < 0.1:
            return key, None
        value: dict[str, Any] = {
            "id": number,
            "amount": round(dice.uniform(-1000, 1000), 2),
            "note": "x" * dice.randrange(60),
        }
        if self.damages and dice.random() < _DAMAGED:
            return key, b"\0damaged"
        if self._mode == "record_value":
            value |= dict.fromkeys(self._fields, identity)
        if self._values is not None:
            if self._evolves and dice.random() < _EVOLVED:
                value["tag"] = f"tag-{number % 10}"
            return key, _encoded(self._values, value)
        return key, self._wrapped(value) if self._envelope else json.dumps(value)

    def _key(self, identity: int) -> str | bytes:
        if self._plain_key:
            return f"key-{identity}"
        key = dict.fromkeys(self._fields or ["id"], identity)
        if self._keys is not None:
            return _encoded(self._keys, key)
        return self._wrapped(key) if self._key_envelope else json.dumps(key)

    @staticmethod
    def _wrapped(value: Mapping[str, Any]) -> str:
        names = {int: "int64", float: "double", str: "string"}
        fields = [{"field": n, "type": names[type(v)], "optional": False} for n, v in value.items()]
        schema = {"type": "struct", "optional": False, "fields": fields}
        return json.dumps({"schema": schema, "payload": value})


def _registered(name: str, raw: Mapping[str, str], where: str) -> Converter | None:
    """The converter, if a schema registry holds its schemas: it writes what it will read."""
    below = under(raw, f"{where}.")
    converter = converters.create(name, below, is_key=where == "key.converter", where=where)
    return converter.for_topic("drill") if isinstance(converter, RegistryConverter) else None


def _encoded(converter: Converter, record: Mapping[str, Any]) -> bytes:
    written: bytes = converter.encode(pa.array([record]))[0].as_py()
    return written


def _envelope(raw: Mapping[str, str], where: str) -> bool:
    return under(raw, f"{where}.").get("schemas.enable", "true").lower() != "false"


class Traffic(Bursts):
    """Two producers in threads of their own, one of them transactional, until stopped."""

    may_raise = (KafkaException,)  # a dying broker may leave a producer unusable

    def __init__(
        self,
        servers: str,
        topics: Mapping[str, int],
        shape: Shape,
        seed: int,
        *,
        rate: float = 400.0,
    ) -> None:
        self._servers = servers
        self._topics = topics
        self._shape = shape
        works = {"plain": self._plain, "transactions": self._transactions}
        super().__init__(works, seed, rate)

    def _plain(self, dice: random.Random) -> None:
        producer = Producer({"bootstrap.servers": self._servers, **_CLIENT}, logger=_log)
        bursts: tuple[int, ...] = BURSTS
        while not self._stop.is_set():
            self._burst(producer, dice, dice.choice(bursts))
            producer.poll(0)
            bursts = self._pause(dice)
        if producer.flush(20):
            self.trouble = "records were not delivered"

    def _transactions(self, dice: random.Random) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": "semel-drill",
                **_CLIENT,
                **_TRANSACTIONAL,
            },
            logger=_log,
        )
        producer.init_transactions(20)
        bursts: tuple[int, ...] = BURSTS
        while not self._stop.is_set():
            producer.begin_transaction()
            self._burst(producer, dice, dice.choice(bursts))
            producer.flush(3)  # so that records of aborted transactions reach the log, too
            if dice.random() < 0.2:
                self._stop.wait(dice.uniform(0.05, 0.3))
            try:
                if dice.random() < _ABORTED:
                    producer.abort_transaction(10)
                else:
                    producer.commit_transaction(10)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(10)
            bursts = self._pause(dice)

    def _burst(self, producer: Producer, dice: random.Random, count: int) -> None:
        with self._lock:
            first, self._number = self._number, self._number + count
        topics: Sequence[tuple[str, int]] = list(self._topics.items())
        for number in range(first, first + count):
            topic, partitions = topics[number % len(topics)]
            tp = TopicPartition(topic, number // len(topics) % partitions)
            self._send(producer, tp, number, dice)

    def _send(
        self, producer: Producer, tp: TopicPartition, number: int, dice: random.Random
    ) -> None:
        key, value = self._shape.record(number, tp.partition, dice)
        while True:
            try:
                producer.produce(tp.topic, value=value, key=key, partition=tp.partition)
                return
            except BufferError:
                producer.poll(0.1)

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Send no damaged records."""
        damages, self._shape.damages = self._shape.damages, False
        try:
            yield
        finally:
            self._shape.damages = damages

    def fill(self, tp: TopicPartition, records: int) -> None:
        """Send records to one partition from the calling thread, and wait until Kafka has them."""
        dice = random.Random(f"{tp} {self._number}")
        producer = Producer({"bootstrap.servers": self._servers, **_CLIENT}, logger=_log)
        with self._lock:
            first, self._number = self._number, self._number + records
        for number in range(first, first + records):
            self._send(producer, tp, number, dice)
        if producer.flush(_PATIENCE):
            raise ServiceError(f"records for {tp} were not delivered in {_PATIENCE:.0f} s")
