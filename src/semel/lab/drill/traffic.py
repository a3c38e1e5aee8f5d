"""Records that keep coming while faults happen: bursts, keys and none, transactions and aborts."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from semel.config import ConnectorConfig, under
from semel.errors import ConfigError, ServiceError
from semel.ledger import TopicPartition

_log = logging.getLogger("semel.lab.drill.kafka")
_log.addHandler(logging.NullHandler())
_log.propagate = False

_CLIENT = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2000,  # topics get partitions
    "log_level": 0,
}
_PATIENCE = 60.0
"""Seconds until records that are sent by hand must be there."""
_TRANSACTIONAL = {
    # A transaction that a killed broker interrupts holds up read_committed consumers this long.
    "transaction.timeout.ms": 4000,
    "socket.timeout.ms": 3000,
}
_BURSTS = (10, 40, 100, 200)
_SHORT = (5, 20, 40)
_ABORTED = 0.3
_KEYS = 100
"""Of one partition."""
_JSON = ("JsonConverter", "json")
_STRING = ("StringConverter", "string")
_ANY = ("ByteArrayConverter", "bytearray")


class Shape:
    """What the connector's records must look like, from its configuration.

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
        if connector.value_converter.endswith(_ANY):
            self._envelope = False
        elif not connector.value_converter.endswith(_JSON):
            raise ConfigError(
                f"connector {connector.name}: the drill produces JSON, so value.converter must be "
                f"the JsonConverter, not {connector.value_converter}"
            )
        self._plain_key = connector.key_converter.endswith((*_STRING, *_ANY))
        if not self._plain_key and not connector.key_converter.endswith(_JSON):
            raise ConfigError(
                f"connector {connector.name}: the drill produces string or JSON keys, so "
                f"key.converter cannot be {connector.key_converter}"
            )
        self._key_envelope = _envelope(raw, "key.converter")

    def record(
        self, number: int, partition: int, dice: random.Random
    ) -> tuple[str | None, str | None]:
        """Key and value of one record. Records that replace each other share a key, which belongs
        to one partition, however many there come to be."""
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
        if self._mode == "record_value":
            value |= dict.fromkeys(self._fields, identity)
        return key, self._wrapped(value) if self._envelope else json.dumps(value)

    def _key(self, identity: int) -> str:
        if self._plain_key:
            return f"key-{identity}"
        key = dict.fromkeys(self._fields or ["id"], identity)
        return self._wrapped(key) if self._key_envelope else json.dumps(key)

    @staticmethod
    def _wrapped(value: Mapping[str, Any]) -> str:
        names = {int: "int64", float: "double", str: "string"}
        fields = [{"field": n, "type": names[type(v)], "optional": False} for n, v in value.items()]
        schema = {"type": "struct", "optional": False, "fields": fields}
        return json.dumps({"schema": schema, "payload": value})


def _envelope(raw: Mapping[str, str], where: str) -> bool:
    return under(raw, f"{where}.").get("schemas.enable", "true").lower() != "false"


class Traffic:
    """Two producers in threads of their own, one of them transactional, until stopped.

    What :meth:`allow` grants is sent at full pace, more only slowly: a connector always has
    something to do, and an audit never too much.
    """

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
        self._budget = 0
        self._rate = rate
        self._stop = threading.Event()
        self._more = threading.Condition()
        self._kicks = 0
        self._held = False
        self._lock = threading.Lock()
        self._number = 0
        self.trouble = ""
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(work, random.Random(f"{seed} {name}")), name=name
            )
            for name, work in (("plain", self._plain), ("transactions", self._transactions))
        ]

    @property
    def sent(self) -> int:
        """Records sent, aborted ones included."""
        return self._number

    def start(self) -> None:
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def allow(self, records: int) -> None:
        """Grant some more records at full pace."""
        self._budget = self._number + records

    def kick(self) -> None:
        """Send a few records now."""
        with self._more:
            self._kicks += 1
            self._more.notify_all()

    def hold(self, held: bool) -> None:
        """Send nothing for a while; what is under way is finished."""
        with self._more:
            self._held = held
            self._more.notify_all()

    def stop(self, timeout: float = 300.0) -> bool:
        """Finish what is under way; False if that takes too long."""
        self._stop.set()
        self.kick()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        return not any(t.is_alive() for t in self._threads)

    def _guarded(self, work: Any, dice: random.Random) -> None:
        while not self._stop.is_set():
            try:
                work(dice)
            except KafkaException as error:  # a broker that dies may leave a producer useless
                self.trouble = str(error)
                self._stop.wait(0.2)

    def _plain(self, dice: random.Random) -> None:
        producer = Producer({"bootstrap.servers": self._servers, **_CLIENT}, logger=_log)
        bursts: tuple[int, ...] = _BURSTS
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
        bursts: tuple[int, ...] = _BURSTS
        while not self._stop.is_set():
            producer.begin_transaction()
            self._burst(producer, dice, dice.choice(bursts))
            producer.flush(3)  # records of a transaction that is aborted later are in the log, too
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

    def fill(self, tp: TopicPartition, records: int) -> None:
        """Send records to one partition, from the calling thread; returns when Kafka has them."""
        dice = random.Random(f"{tp} {self._number}")
        producer = Producer({"bootstrap.servers": self._servers, **_CLIENT}, logger=_log)
        with self._lock:
            first, self._number = self._number, self._number + records
        for number in range(first, first + records):
            self._send(producer, tp, number, dice)
        if producer.flush(_PATIENCE):
            raise ServiceError(f"records for {tp} were not delivered in {_PATIENCE:.0f} s")

    def _pause(self, dice: random.Random) -> tuple[int, ...]:
        """Keep the pace; returns what to choose the next burst from."""
        rate = self._rate if self._number < self._budget else self._rate / 10
        with self._more:
            seen = self._kicks
            mean = 2 * sum(_BURSTS) / len(_BURSTS) / rate  # two producers share the pace
            kicked = self._more.wait_for(
                lambda: self._stop.is_set() or self._kicks > seen, dice.uniform(0, 2 * mean)
            )
            self._more.wait_for(lambda: self._stop.is_set() or not self._held)
        return _SHORT if kicked else _BURSTS
