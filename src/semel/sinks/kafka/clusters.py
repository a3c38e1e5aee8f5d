"""The source and the target cluster, and the client settings for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semel.config import ConnectorConfig
from semel.config.worker import SECURITY
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.sinks.kafka.config import KafkaConfig


@dataclass(frozen=True, slots=True)
class Clusters:
    """``producer`` and ``consumer`` are clients' settings for the target, which is the source's
    cluster unless records go ``elsewhere``."""

    source: Cluster
    target: Cluster
    servers: str
    elsewhere: bool
    producer: Mapping[str, Any]
    consumer: Mapping[str, Any]

    @classmethod
    def of(cls, connector: ConnectorConfig, config: KafkaConfig) -> Clusters:
        """Another cluster is reached with the producer's security settings, and with each client's
        other settings."""
        servers = config.target_servers or connector.bootstrap_servers
        elsewhere = servers != connector.bootstrap_servers
        there = {"bootstrap.servers": servers}
        admin = client_config(connector, "admin")
        producer = client_config(connector, "producer", elsewhere=elsewhere) | there
        consumer = client_config(connector, "consumer")
        source = target = Cluster(admin)
        if elsewhere:
            given = {k: v for k, v in producer.items() if k.startswith(SECURITY)}
            target = Cluster(_without_login(admin) | given | there)
            consumer = {**_without_login(consumer), **target.config}
        return cls(source, target, servers, elsewhere, producer, consumer)


def _without_login(client: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in client.items() if not k.startswith(SECURITY)}
