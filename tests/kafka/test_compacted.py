"""Compacted topics, without Kafka. The hashes are those of Kafka's own test of its hash,
``UtilsTest.testMurmur2``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.core.errors import ServiceError
from semel.kafka.compacted import CompactedTopic, FollowedTopic, murmur2


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def refuse(*_topic: Any) -> None:
    raise ServiceError("3 replicas wanted, 1 broker")


REFUSES: Any = SimpleNamespace(config={}, create_topic=refuse)


def test_a_table_that_cannot_be_created_names_the_key_of_its_replication() -> None:
    topic = CompactedTopic("orders", "offsets topic", "offsets", REFUSES, {})
    with pytest.raises(ServiceError) as refused:
        topic.prepare(25, 3)
    assert str(refused.value) == (
        "connector orders: offsets topic offsets: 3 replicas wanted, 1 broker. Create it with "
        "cleanup.policy=compact and 25 partitions, or set offset.storage.replication.factor to at "
        "most the number of brokers"
    )


def test_a_followed_topic_that_cannot_be_created_names_the_key_of_its_replication() -> None:
    topic = FollowedTopic("config.storage.topic", "configs", REFUSES, lambda _key, _value: None)
    with pytest.raises(ServiceError) as refused:
        topic.prepare(1, 3, exactly=True)
    assert str(refused.value) == (
        "config.storage.topic=configs: 3 replicas wanted, 1 broker. Create it with "
        "cleanup.policy=compact and 1 partition, or set config.storage.replication.factor to at "
        "most the number of brokers"
    )
