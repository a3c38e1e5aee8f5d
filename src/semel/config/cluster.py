"""The keys of a worker that shares its connectors with others, by Kafka Connect's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.config.common import is_topic
from semel.config.definition import HIGH, LOW, Type, key
from semel.config.source_connector import offsets_on_one_machine
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError, Problem

_CLUSTER = "Cluster"
_REQUIRED = {
    "config.storage.topic": "a topic for the configurations of its cluster's connectors",
    "status.storage.topic": "a topic for the states of its cluster's connectors",
    "offset.storage.topic": "a topic for source offsets",
}


@dataclass(frozen=True)
class ClusterConfig(WorkerConfig):
    """A worker of a cluster, as ``connect-distributed`` starts them."""

    group_id: str = key(
        "group.id",
        "",
        "The cluster's name: workers with the same name share their connectors.",
        importance=HIGH,
        group=_CLUSTER,
    )
    config_topic: str = key(
        "config.storage.topic",
        "",
        "The topic that holds the configurations and target states of connectors, and which "
        "worker runs what. It has one partition.",
        validator=is_topic,
        importance=HIGH,
    )
    config_replication: int = key(
        "config.storage.replication.factor",
        3,
        "Replication of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        type=Type.SHORT,
        importance=LOW,
    )
    status_topic: str = key(
        "status.storage.topic",
        "",
        "The topic that holds the states of connectors and tasks.",
        validator=is_topic,
        importance=HIGH,
    )
    status_partitions: int = key(
        "status.storage.partitions",
        5,
        "Partitions of the topic when it is created.",
        at_least=1,
        type=Type.INT,
        importance=LOW,
    )
    status_replication: int = key(
        "status.storage.replication.factor",
        3,
        "Replication of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        type=Type.SHORT,
        importance=LOW,
    )
    offset_topic: str = key(
        "offset.storage.topic",
        "",
        "The topic that holds the source offsets of connectors that name none.",
        validator=is_topic,
        importance=HIGH,
    )
    offset_partitions: int = key(
        "offset.storage.partitions",
        25,
        "Partitions of the topic when it is created.",
        at_least=1,
        type=Type.INT,
        importance=LOW,
    )
    offset_replication: int = key(
        "offset.storage.replication.factor",
        3,
        "Replication of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        type=Type.SHORT,
        importance=LOW,
    )
    session_timeout_ms: int = key(
        "session.timeout.ms",
        10_000,
        "A worker that gives no sign of life for this long loses its connectors to others.",
        at_least=1000,
        type=Type.INT,
        importance=HIGH,
    )
    heartbeat_interval_ms: int = key(
        "heartbeat.interval.ms",
        1000,
        "Time between two heartbeats, and the longest time until a worker hears that another "
        "one has joined or left; at most a third of session.timeout.ms.",
        at_least=100,
        type=Type.INT,
        importance=HIGH,
    )
    rebalance_timeout_ms: int = key(
        "rebalance.timeout.ms",
        60_000,
        "How long a worker waits for the previous worker of a connector to release it.",
        at_least=1000,
        type=Type.INT,
        importance=HIGH,
    )
    rebalance_delay_ms: int = key(
        "scheduled.rebalance.max.delay.ms",
        300_000,
        "How long the connectors of a worker that was shut down cleanly wait for it to come back. "
        "Those of a worker that died do not wait.",
        at_least=0,
        type=Type.INT,
        importance=LOW,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [name for name in _REQUIRED if not self.originals.get(name, "").strip()]
        if missing:
            raise ConfigError(
                *(
                    Problem(name, f"{name} is missing: a worker with group.id needs {what}")
                    for name, what in _REQUIRED.items()
                    if name in missing
                )
            )

    @property
    def url(self) -> str:
        """The URL of this worker's REST API for other workers; also its name among them."""
        return f"{self.scheme}://{self.id}"

    def forbidden(self, connector: Mapping[str, str]) -> list[Problem]:
        problems = super().forbidden(connector)
        for name, value in offsets_on_one_machine(connector).items():
            message = (
                f"{name}={value} is on one machine, and workers of a cluster may be on several. "
                f"Remove {name}: the cluster keeps source offsets in its offset.storage.topic"
            )
            problems.append(Problem(name, message, value))
        return problems

    def inherited(self, connector: Mapping[str, str]) -> dict[str, str]:
        """Sources keep their offsets in the cluster's topic, and their producers carry its name."""
        own = {
            "offsets.storage.topic": self.offset_topic,
            "offset.storage.partitions": str(self.offset_partitions),
            "offset.storage.replication.factor": str(self.offset_replication),
            "group.id": self.group_id,
        }
        return super().inherited({**own, **connector})
