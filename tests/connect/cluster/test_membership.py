"""A worker's place in its group."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.config import read
from semel.config.cluster import ClusterConfig
from semel.connect.cluster import membership as module
from semel.connect.cluster.membership import Membership
from semel.lab.drill.cluster.reached import Reached
from semel.lab.embedded.process import LOOPBACK
from tests.engine.harness import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long]  # a broker of its own


def test_a_worker_that_was_cut_off_from_kafka_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question to the coordinator that has timed out takes librdkafka down when the coordinator
    is back."""
    monkeypatch.setattr(module, "_ASKED_IN", 1.0)
    kafka = Reached(tmp_path / "kafka", 1, session=3)
    try:
        kafka.start()
        kafka.create_topic("configs", 1)
        way = kafka.ways[0]
        config = read(
            ClusterConfig,
            {
                "bootstrap.servers": f"{LOOPBACK}:{way.port}",
                "listeners": f"http://{LOOPBACK}:8083",
                "group.id": "workers",
                "session.timeout.ms": "3000",
                "heartbeat.interval.ms": "500",
                "config.storage.topic": "configs",
                "status.storage.topic": "statuses",
                "offset.storage.topic": "offsets",
                "key.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            },
        )
        client = {"bootstrap.servers": config.bootstrap_servers, "reconnect.backoff.max.ms": 1000}
        membership = Membership(config, client, lambda: None)
        membership.start()
        try:
            for cut in (lambda: way.silence(new=True), way.refuse) * 2:
                wait_until(lambda: config.url in membership.group.members)
                cut()
                wait_until(lambda: not membership.group.members)
                way.cut()
                way.accept()
            wait_until(lambda: config.url in membership.group.members)
            assert membership.absences > 1  # the first join counts, too
        finally:
            membership.leave()
    finally:
        kafka.close()
