"""Topics under test: connectors from topic to topic, and what a careful consumer sees of them."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.audit import AuditReport, audit
from tests.patience import PATIENCE


@dataclass(frozen=True, slots=True)
class Seen:
    """One record as a consumer sees it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, message: Message) -> Seen:
        headers: Any = message.headers() or []
        return cls(
            int(message.partition() or 0),
            message.key(),  # type: ignore[arg-type]
            message.value(),  # type: ignore[arg-type]
            message.timestamp()[1],
            tuple(headers),
        )


def consume(servers: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
    """All of a topic, by partition and offset, as a consumer of this isolation level sees it.

    An open transaction holds it up, as it does any consumer; so does one that is complete for its
    producer, until its markers are written.
    """
    ends = _ends(servers, topic)
    consumer = _consumer(servers, isolation)
    try:
        open_ = {p for p, end in ends.items() if end}
        consumer.assign([KafkaPartition(topic, p, 0) for p in open_])
        found: list[Message] = []
        while open_:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    found.append(message)
                elif int(message.offset() or 0) >= ends[int(message.partition() or 0)]:
                    open_.discard(int(message.partition() or 0))
    finally:
        consumer.close()
    found.sort(key=lambda m: (m.partition(), m.offset()))
    return [Seen.of(m) for m in found]


def _ends(servers: str, topic: str) -> dict[int, int]:
    """Where each partition ends, open transactions and all."""
    consumer = _consumer(servers, "read_uncommitted")
    try:
        partitions = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        found = (KafkaPartition(topic, p) for p in partitions)
        return {p.partition: consumer.get_watermark_offsets(p, timeout=PATIENCE)[1] for p in found}
    finally:
        consumer.close()


def _consumer(servers: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,  # the end is known once a fetch finds nothing
        }
    )


def ids(config: Mapping[str, Any], *, servers: str = "", topic: str = "") -> list[int]:
    """The ``id`` of each record in the target topic, tombstones left out."""
    servers = servers or config.get("dest.kafka.bootstrap.servers") or config["bootstrap.servers"]
    seen = consume(servers, topic or target(config))
    return sorted(json.loads(s.value)["id"] for s in seen if s.value is not None)


def target(config: Mapping[str, Any]) -> str:
    """The target of a connector that reads one topic."""
    return str(config["topic.rename.format"]).replace("${topic}", config["topics"])


def assert_each_once(config: Mapping[str, Any], expected: Iterable[int]) -> AuditReport:
    """Each record is there once, for a consumer of committed records and for the audit."""
    wanted, seen = collections.Counter(expected), collections.Counter(ids(config))
    lost, twice = wanted - seen, seen - wanted
    assert not lost, f"{lost.total()} lost, such as {sorted(lost)[:5]}"
    assert not twice, f"{twice.total()} twice or strange, such as {sorted(twice)[:5]}"
    report = audit(config)
    assert (report.lost, report.duplicated, report.unknown, report.kept) == (0, 0, 0, True), report
    return report
