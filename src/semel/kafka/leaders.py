"""Whether the leaders of partitions can be reached."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

_METADATA, _CONNECTS = 2.0, 1.0
"""The longest that metadata, and a connection, may take, in seconds."""
_LEAST = 0.1


def unreachable(admin: AdminClient, partitions: Collection[KafkaPartition], until: float) -> str:
    """A leader that takes no connections; empty if all of them do, or that is not known. Ends by
    ``until``, or a moment later.

    While a question about offsets waits for a leader that refuses connections, librdkafka's (2.16)
    admin client connects again without a pause, hundreds of times a second: it uses up a CPU core.
    """
    try:
        # For all topics: asking for one that is gone would create it.
        metadata = admin.list_topics(timeout=_left(until, _METADATA))
    except KafkaException:
        return ""
    leaders: dict[int, str] = {}
    for p in partitions:
        topic = metadata.topics.get(p.topic)
        known = topic.partitions.get(p.partition) if topic is not None else None
        if known is not None:
            leaders.setdefault(known.leader, f"{p.topic}-{p.partition}")
    for number, partition in leaders.items():
        broker = metadata.brokers.get(number)
        if broker is None:
            return f"{partition} has no leader"
        try:
            address = str(broker.host), int(broker.port)
            socket.create_connection(address, _left(until, _CONNECTS)).close()
        except OSError as error:
            where = f"{broker.host}:{broker.port}"
            return f"the leader of {partition} at {where} cannot be reached: {error}"
    return ""


def _left(until: float, most: float) -> float:
    return max(_LEAST, min(most, until - time.monotonic()))
