"""A topic that is followed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from semel.kafka import compacted
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import FollowedTopic
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


class Deaf(Consumer):
    """A consumer that fetches nothing any more, as some do after their leaders have changed."""

    def assign(self, partitions: Any) -> None:
        super().assign(partitions)
        self.pause(partitions)


def test_a_consumer_that_falls_silent_is_replaced(
    kafka: Kafka,
    topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = iter([Deaf])

    def consumer(*settings: Any, **more: Any) -> Consumer:
        return next(kinds, Consumer)(*settings, **more)

    monkeypatch.setattr(compacted, "Consumer", consumer)
    monkeypatch.setattr(compacted, "_LOOK", 0.5)
    name, heard = topic(partitions=1), dict[bytes, bytes | None]()
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    following = FollowedTopic("config.storage.topic", name, Cluster(client), heard.__setitem__)
    with caplog.at_level(logging.WARNING):
        following.start(PATIENCE)
        try:
            producer = Producer({**client, "log_level": 0})
            producer.produce(name, b"value", b"key")
            assert not producer.flush(PATIENCE)
            wait_until(lambda: heard == {b"key": b"value"})
        finally:
            following.close()
    silent = f"config.storage.topic={name}: none of the records that wait in partition 0 arrive"
    assert silent in caplog.text
