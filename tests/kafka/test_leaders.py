"""Whether the leaders of partitions can be reached."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from semel.kafka.cluster import unreachable
from tests.patience import PATIENCE


class Admin:
    """Knows topic t, whose partition 0 a broker leads; the leader of partition 1 is another. Asked
    for a single topic, it would create that."""

    def __init__(self, port: int, other: int = -1) -> None:
        broker = SimpleNamespace(host="127.0.0.1", port=port)
        partitions = {0: SimpleNamespace(leader=1), 1: SimpleNamespace(leader=other)}
        topic = SimpleNamespace(partitions=partitions)
        self.metadata = SimpleNamespace(brokers={1: broker}, topics={"t": topic})

    def list_topics(self, *, timeout: float) -> Any:
        return self.metadata


def asked(admin: Any, *partitions: int, topic: str = "t") -> str:
    them = [TopicPartition(topic, p) for p in partitions]
    return unreachable(admin, them, time.monotonic() + PATIENCE)


def test_a_leader_that_refuses_connections_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert asked(Admin(port), 0) is None
    assert f"the leader of t-0 at 127.0.0.1:{port} cannot be reached" in asked(Admin(port), 0)


@pytest.mark.parametrize("leader", [-1, 2], ids=["none", "a broker that is away"])
def test_a_partition_whose_leader_is_not_there_is_named(leader: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        admin = Admin(server.getsockname()[1], leader)
        assert asked(admin, 0) is None
        assert asked(admin, 0, 1) == "t-1 has no leader"


def test_an_unknown_leader_is_not_called_unreachable() -> None:
    def silent(*, timeout: float) -> Any:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    assert asked(SimpleNamespace(list_topics=silent), 0) is None
    assert asked(Admin(1), 7) is None
    assert asked(Admin(1), 0, topic="gone") is None
