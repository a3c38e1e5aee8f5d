"""Whether the leaders of partitions can be reached."""

from __future__ import annotations

import socket
from collections.abc import Collection

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

_METADATA, _CONNECTS = 2.0, 1.0


def listen(admin: AdminClient, partitions: Collection[KafkaPartition]) -> bool:
    """Whether every leader takes connections, or nobody knows.

    While a question about offsets waits for a leader that refuses connections, librdkafka's (2.16)
    admin client connects again without a pause: some thousand times a second, for a whole core.
    """
    found: set[tuple[str, int]] = set()
    try:
        for topic in {p.topic for p in partitions}:
            metadata = admin.list_topics(topic, timeout=_METADATA)
            known = metadata.topics[topic].partitions
            asked = {p.partition for p in partitions if p.topic == topic}
            leaders = {known[p].leader for p in asked if p in known}
            reached = {n: b for n, b in metadata.brokers.items() if n in leaders}
            found |= {(str(b.host), int(b.port)) for b in reached.values()}
            if not leaders <= metadata.brokers.keys():
                return False
    except (KafkaException, KeyError):
        return True
    return all(map(_takes_connections, found))


def _takes_connections(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _CONNECTS).close()
    except OSError:
        return False
    return True
