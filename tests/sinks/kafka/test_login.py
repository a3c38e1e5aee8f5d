"""Which login the Kafka sink's clients use, with each cluster."""

from __future__ import annotations

import pytest

from semel.config import ConnectorConfig, read
from semel.sinks.kafka import Clusters
from semel.sinks.kafka.config import KafkaConfig

CONFIG = {
    "name": "c",
    "connector.class": "kafka",
    "topics": "t",
    "bootstrap.servers": "source:1",
    "consumer.override.security.protocol": "SASL_SSL",
    "consumer.override.sasl.username": "reader",
    "consumer.override.sasl.password": "for the source",
}
TARGETS = (
    "dest.kafka.bootstrap.servers",
    "target.cluster.bootstrap.servers",
    "producer.override.bootstrap.servers",
)


@pytest.mark.parametrize("key", TARGETS)
@pytest.mark.parametrize("own", [{}, {"producer.override.sasl.username": "writer"}])
def test_the_login_of_the_source_is_not_sent_to_another_target(
    key: str, own: dict[str, str]
) -> None:
    raw = {**CONFIG, key: "target:1", **own}
    clusters = Clusters.of(read(ConnectorConfig, raw), read(KafkaConfig, raw))
    for client in (clusters.producer, clusters.consumer, clusters.target.config):
        assert client["bootstrap.servers"] == "target:1"
        assert client.get("sasl.username") == ("writer" if own else None)
        assert "sasl.password" not in client and "security.protocol" not in client
    assert clusters.source.config["sasl.username"] == "reader"


def test_one_login_is_enough_for_one_cluster() -> None:
    clusters = Clusters.of(read(ConnectorConfig, CONFIG), read(KafkaConfig, CONFIG))
    for client in (clusters.producer, clusters.consumer, clusters.target.config):
        assert client["sasl.username"] == "reader"
