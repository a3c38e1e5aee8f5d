"""The Kafka sink's keys: Confluent Replicator's and MirrorMaker's names where they have one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from semel.config import HIGH, LOW, Type, key
from semel.config.connector import not_zero
from semel.core.errors import Problem
from semel.core.problems import refuse
from semel.sinks.config import RoutedConfig

CLASSES = ("kafka",)

IGNORED = {
    "topic.config.sync": "a created topic takes its source's retention once",
    "sync.topic.configs.enabled": "a created topic takes its source's retention once",
    "offset.translator.tasks.max": "consumers' offsets are not translated",
    "provenance.header.enable": "see provenance",
}

KEEP = "keep"


@dataclass(frozen=True)
class KafkaConfig(RoutedConfig):
    """Which topics the records go to, and how."""

    topic_format: str = key(
        "topic.rename.format",
        "${topic}",
        "The target topic of a topic.",
        aliases=("topic.name.format", "topic"),
        importance=HIGH,
        group="Destination Topics",
    )
    target_servers: str = key(
        "dest.kafka.bootstrap.servers",
        "",
        "Brokers of the target cluster; those of bootstrap.servers if empty.",
        aliases=("target.cluster.bootstrap.servers", "producer.override.bootstrap.servers"),
        importance=HIGH,
        group="Destination Kafka",
    )
    partitioner: str = key(
        "partitioner",
        "murmur2_random",
        "murmur2_random: by key, as Java's producer does; keep: the partition number stays the "
        "same.",
        choices=("murmur2_random", KEEP),
        group="Destination Topics",
    )
    auto_create: bool = key(
        "auto.create",
        False,
        "Create missing target topics, with the source's number of partitions and retention.",
        aliases=("topic.auto.create",),
    )
    replication: int = key(
        "dest.topic.replication.factor",
        -1,
        "Replication of created topics; -1 is the brokers' default.",
        aliases=("replication.factor",),
        at_least=-1,
        type=Type.SHORT,
        validator=not_zero,
    )
    nonempty: str = key(
        "dest.topic.nonempty",
        "refuse",
        "If a target already has records, but no position of its topic is known: refuse to "
        "copy, or append.",
        choices=("refuse", "append"),
    )
    ledger_topic: str = key(
        "offset.storage.topic",
        "",
        "The ledger topic in the target cluster; connect-<name>-offsets if empty.",
        aliases=("offsets.storage.topic",),
        importance=LOW,
        group="Positions",
    )
    ledger_replication: int = key(
        "offset.storage.replication.factor",
        -1,
        "Replication of the ledger topic, when it is created; -1 is the brokers' default.",
        at_least=-1,
        type=Type.SHORT,
        importance=LOW,
        validator=not_zero,
    )
    topic_header: str = key(
        "provenance.topic.header",
        "__connect.topic",
        "Header that holds the topic.",
        importance=LOW,
        group="Provenance",
    )
    partition_header: str = key(
        "provenance.partition.header",
        "__connect.partition",
        "Header that holds the partition.",
        importance=LOW,
    )
    offset_header: str = key(
        "provenance.offset.header",
        "__connect.offset",
        "Header that holds the offset.",
        importance=LOW,
    )

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if "${" in self.topic_format.replace("${topic}", ""):
            yield Problem(
                "topic.rename.format",
                f"topic.rename.format={self.topic_format!r}: only ${{topic}} can be filled in",
            )
        names = (self.topic_header, self.partition_header, self.offset_header)
        if len(set(names)) < len(names):
            yield Problem(
                "provenance.topic.header",
                f"provenance headers need three names, not {', '.join(names)}",
            )

    def topic(self, source: str) -> str:
        """The target of a topic."""
        return self.topic_format.replace("${topic}", self.routed(source))
