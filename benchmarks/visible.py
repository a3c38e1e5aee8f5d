"""What a ``read_committed`` consumer may see of a topic while it fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from benchmarks.measure import WARM
from semel.core.ledger import TopicPartition
from semel.kafka.cluster import Cluster


def visible(cluster: Cluster, topic: str, partitions: int) -> int:
    """Offsets below the last stable ones; a transaction's marker counts as one."""
    return sum(cluster.latest([TopicPartition(topic, p) for p in range(partitions)]).values())


@dataclass(frozen=True)
class Warm:
    """The window between the warm shares of what was visible at the end. A system that
    reads ahead has read uncommitted records at both ends of it."""

    since: float
    until: float

    @classmethod
    def of(cls, times: Sequence[float], counts: Sequence[int]) -> Warm:
        whole = counts[-1]
        since, until = (float(np.interp(share * whole, counts, times)) for share in WARM)
        if until <= since:
            raise RuntimeError("all committed at once: take more --records")
        return cls(since, until)

    def records(self, whole: int) -> float:
        """How many of ``whole`` records became visible in the window."""
        return (WARM[1] - WARM[0]) * whole

    def rate(self, whole: int) -> float:
        """Records a second."""
        return self.records(whole) / (self.until - self.since)


def records_of(servers: str, topic: str, partitions: int) -> int:
    """How many records a read_committed consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "count",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([KafkaPartition(topic, p, 0) for p in range(partitions)])
    seen, ended = 0, set[int | None]()
    while len(ended) < partitions:
        for message in consumer.consume(50_000, 1):
            if message.error() is None:
                seen += 1
            else:
                ended.add(message.partition())
    consumer.close()
    return seen
