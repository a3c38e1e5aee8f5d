"""The Kafka sink's keys: Confluent Replicator's and MirrorMaker's names where they have one."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import key
from semel.errors import ConfigError

CLASSES = ("kafka",)

IGNORED = {
    "topic.config.sync": "a created topic takes its source's retention once",
    "sync.topic.configs.enabled": "a created topic takes its source's retention once",
    "offset.translator.tasks.max": "consumers' offsets are not translated",
    "provenance.header.enable": "see provenance",
}

KEEP = "keep"


@dataclass(frozen=True)
class KafkaConfig:
    """Which topics the records go to, and how."""

    topic_format: str = key(
        "topic.rename.format",
        "${topic}",
        "The target topic of a topic.",
        aliases=("topic.name.format", "topic"),
    )
    target_servers: str = key(
        "dest.kafka.bootstrap.servers",
        "",
        "Brokers of the target cluster; those of bootstrap.servers if empty.",
        aliases=("target.cluster.bootstrap.servers", "producer.override.bootstrap.servers"),
    )
    partitioner: str = key(
        "partitioner",
        "murmur2_random",
        "murmur2_random: by key, as Java's producer does; keep: the partition's number stays.",
        choices=("murmur2_random", KEEP),
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
    )
    nonempty: str = key(
        "dest.topic.nonempty",
        "refuse",
        "Where a target has records already, but no position of its topic is known: refuse to "
        "copy, or append.",
        choices=("refuse", "append"),
    )
    ledger_topic: str = key(
        "offset.storage.topic",
        "",
        "The ledger topic in the target cluster; connect-<name>-offsets if empty.",
        aliases=("offsets.storage.topic",),
    )
    ledger_replication: int = key(
        "offset.storage.replication.factor",
        -1,
        "Replication of the ledger topic, when it is created; -1 is the brokers' default.",
        at_least=-1,
    )
    topic_header: str = key("provenance.topic.header", "__connect.topic", "Header's name.")
    partition_header: str = key(
        "provenance.partition.header", "__connect.partition", "Header's name."
    )
    offset_header: str = key("provenance.offset.header", "__connect.offset", "Header's name.")

    def __post_init__(self) -> None:
        problems = []
        if "${" in self.topic_format.replace("${topic}", ""):
            problems.append(
                f"topic.rename.format={self.topic_format!r}: only ${{topic}} can be filled in"
            )
        if self.replication == 0:
            problems.append("dest.topic.replication.factor=0 must be -1, or at least 1")
        if self.ledger_replication == 0:
            problems.append("offset.storage.replication.factor=0 must be -1, or at least 1")
        names = (self.topic_header, self.partition_header, self.offset_header)
        if len(set(names)) < len(names):
            problems.append(f"provenance headers need three names, not {', '.join(names)}")
        if problems:
            raise ConfigError(*problems)

    def topic(self, source: str) -> str:
        """The target of a topic."""
        return self.topic_format.replace("${topic}", source)
