"""The records: a topic of JSON objects whose every position can be computed.

Record ``i`` has the key ``i % keys`` and is in partition ``i % partitions``. With fewer keys
than records, the rest of the records update existing rows. ``ts`` rises with ``i``, so the row of a
key tells which of its records it came from. With ``apart``, the keys of each partition rise within
a range of their own: the order in which partitions are read then does not affect the index.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Producer

from benchmarks.rig import Rig

FIRST_TS = 1_700_000_000_000

PAYLOAD = (
    '{"id":%d,"account":%d,"name":"user-%d","amount":%d.25,"active":true,'
    '"note":"abcdefghijkl","ts":%d}'
)

CONNECT_SCHEMA = (
    '{"type":"struct","name":"event","optional":false,"fields":['
    '{"field":"id","type":"int64","optional":false},'
    '{"field":"account","type":"int64","optional":false},'
    '{"field":"name","type":"string","optional":false},'
    '{"field":"amount","type":"double","optional":false},'
    '{"field":"active","type":"boolean","optional":false},'
    '{"field":"note","type":"string","optional":false},'
    '{"field":"ts","type":"int64","optional":false}]}'
)

TABLE = """CREATE TABLE {name} (
    id bigint PRIMARY KEY,
    account bigint NOT NULL,
    name text NOT NULL,
    amount double precision NOT NULL,
    active boolean NOT NULL,
    note text NOT NULL,
    ts bigint NOT NULL
)"""


def template(*, envelope: bool) -> str:
    """A record's text, to be filled with id, account, name, amount and ts."""
    if not envelope:
        return PAYLOAD
    return '{"schema":' + CONNECT_SCHEMA + ',"payload":' + PAYLOAD + "}"


@dataclass(frozen=True)
class Workload:
    """A topic's content. With fewer ``keys`` than ``records``, the other records are updates."""

    records: int
    keys: int
    partitions: int
    envelope: bool
    apart: bool = False

    @classmethod
    def of(
        cls, records: int, partitions: int, *, updates: bool, envelope: bool, apart: bool = False
    ) -> Workload:
        """With ``updates`` every key is written twice. Rounds the number of records."""
        records = max(2, round(records / (2 * partitions))) * partitions * 2
        return cls(records, records // 2 if updates else records, partitions, envelope, apart)

    def key(self, i: int) -> int:
        """The key of record ``i``."""
        if self.apart:
            return i % self.partitions * (self.records // self.partitions) + i // self.partitions
        return i % self.keys

    def record(self, partition: int, index: int) -> tuple[int, int]:
        """Key and ts of a partition's record."""
        i = index * self.partitions + partition
        return self.key(i), FIRST_TS + i

    def bytes_each(self) -> int:
        """The size of a record in the middle of the topic."""
        i = self.records // 2
        return len(template(envelope=self.envelope) % (i, i % 1000, i, i % 100, FIRST_TS))


def produce(rig: Rig, workload: Workload) -> str:
    """Write the topic and return its name: lz4, idempotent producer, acks=all."""
    topic = rig.unique("events")
    rig.kafka.create_topic(topic, workload.partitions)
    producer = Producer(
        {
            "bootstrap.servers": rig.kafka.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "log_level": 0,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    form = template(envelope=workload.envelope)
    key_of, partitions = workload.key, workload.partitions
    for i in range(workload.records):
        key = key_of(i)
        value = form % (key, i % 1000, key, i % 100, FIRST_TS + i)
        while True:
            try:
                producer.produce(topic, value, partition=i % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if i % 2000 == 0:
            producer.poll(0)
    if undelivered := producer.flush(120):
        raise RuntimeError(f"{undelivered} records of {topic} were not delivered")
    return topic
