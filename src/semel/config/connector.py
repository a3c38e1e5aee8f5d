"""The keys that every sink connector has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from semel.config.definition import key
from semel.delivery import Delivery, Mechanism
from semel.errors import ConfigError

_MOST_RECORDS = 1_000_000

GROUPS = "connect-"
"""What the names of connectors' consumer groups begin with, as Kafka Connect's do."""


@dataclass(frozen=True)
class ConnectorConfig:
    """The keys every sink connector has, whatever its sink."""

    name: str = key("name", doc="Unique name; the consumer group is connect-<name>.")
    connector_class: str = key("connector.class", doc="The connector, by class or short name.")
    tasks_max: int = key("tasks.max", 1, "Most tasks to run at once.", at_least=1)
    topics: tuple[str, ...] = key("topics", (), "Topics to read, separated by commas.")
    topics_regex: str = key("topics.regex", "", "Regular expression of the topics to read.")
    bootstrap_servers: str = key(
        "bootstrap.servers",
        doc="Kafka brokers, host:port separated by commas.",
        aliases=("kafka.bootstrap.servers", "consumer.override.bootstrap.servers"),
    )
    key_converter: str = key(
        "key.converter", "org.apache.kafka.connect.storage.StringConverter", "Decodes keys."
    )
    value_converter: str = key(
        "value.converter", "org.apache.kafka.connect.json.JsonConverter", "Decodes values."
    )
    delivery: Delivery | None = key(
        "delivery",
        None,
        "The guarantee: at-most-once, at-least-once or exactly-once. Default: the strongest one "
        "that sink and configuration can keep.",
    )
    delivery_mechanism: Mechanism | None = key(
        "delivery.mechanism", None, "How exactly-once is kept: auto, transactional or idempotent."
    )
    engine: str = key(
        "engine",
        "auto",
        "auto, direct, or micro-batch (Structured Streaming, for DataFrame transforms).",
        choices=("auto", "direct", "micro-batch"),
    )
    offset_reset: str = key(
        "auto.offset.reset",
        "earliest",
        "Where a topic that the ledger has never seen starts.",
        choices=("earliest", "latest"),
        aliases=("consumer.override.auto.offset.reset",),
    )
    offset_out_of_range: str = key(
        "offset.out.of.range",
        "stop",
        "When retention removed the stored position: stop, or earliest (record the hole, go on).",
        choices=("stop", "earliest"),
    )
    topic_recreated: str = key(
        "topic.recreated",
        "stop",
        "When a topic was deleted and created again, or is another cluster's: stop, or earliest "
        "(record it, read the new topic from its beginning).",
        choices=("stop", "earliest"),
    )
    log_truncated: str = key(
        "log.truncated",
        "stop",
        "When a partition's log lost records that were read, as after an unclean leader election: "
        "stop, or continue (record it, go on from where the logs part).",
        choices=("stop", "continue"),
    )
    target_changed: str = key(
        "target.changed",
        "stop",
        "When a topic's results went to another target so far: stop, or continue (record it, go on "
        "in the new target without the older results).",
        choices=("stop", "continue"),
    )
    first_position: str = key(
        "first.position",
        "stop",
        "Where a topic that the ledger has never seen starts if consumer group connect-<name> has "
        "offsets: group (there), reset (by auto.offset.reset), or stop if the offsets may be those "
        "of a semel that has lost its ledger.",
        choices=("stop", "group", "reset"),
    )
    max_poll_records: int = key(
        "max.poll.records",
        50_000,
        "Most records of one commit.",
        aliases=("consumer.override.max.poll.records",),
        at_least=1,
    )
    max_poll_bytes: int = key(
        "max.poll.bytes",
        64 * 1024 * 1024,
        "Bounds what a task holds: a commit has at most a quarter of it, or one record.",
        at_least=1024,
    )
    linger_ms: int = key(
        "poll.linger.ms", 0, "How long a poll waits for more records once it has one.", at_least=0
    )
    max_retries: int = key(
        "max.retries",
        10,
        "Retries of a commit after a transient failure. A store that is away is waited for without "
        "end unless this is set.",
        at_least=0,
    )
    store_timeout_ms: int = key(
        "store.timeout.ms",
        60_000,
        "A call to the store that has had no answer for so long is ended, unless bytes move or the "
        "store works on it.",
        at_least=100,
    )
    retry_backoff_ms: int = key("retry.backoff.ms", 3000, "Pause between two retries.", at_least=0)
    errors_tolerance: str = key(
        "errors.tolerance",
        "none",
        "none: stop at a bad record; all: go on.",
        choices=("none", "all"),
    )
    errors_log: bool = key("errors.log.enable", False, "Log each bad record.")
    errors_log_messages: bool = key(
        "errors.log.include.messages", False, "Log the record's content too."
    )
    dead_letter_topic: str = key(
        "errors.deadletterqueue.topic.name", "", "Topic that receives bad records, raw."
    )
    dead_letter_headers: bool = key(
        "errors.deadletterqueue.context.headers.enable",
        True,
        "Add Connect's __connect.errors.* headers to dead letters.",
    )
    dead_letter_replication: int = key(
        "errors.deadletterqueue.topic.replication.factor",
        3,
        "Replication of the dead letter topic when it is created.",
        at_least=1,
    )
    dead_letter_table: str = key(
        "errors.deadletterqueue.table",
        "",
        "Table that receives bad records in the same transaction, exactly once.",
    )
    provenance: bool = key(
        "provenance",
        False,
        "Store topic, partition, offset and timestamp with each row: the audit is then exact.",
    )
    provenance_topic: str = key("provenance.topic.column", "__connect_topic", "Column name.")
    provenance_partition: str = key(
        "provenance.partition.column", "__connect_partition", "Column name."
    )
    provenance_offset: str = key("provenance.offset.column", "__connect_offset", "Column name.")
    provenance_timestamp: str = key(
        "provenance.timestamp.column", "__connect_timestamp", "Column name."
    )
    max_offsets_per_trigger: int = key(
        "maxOffsetsPerTrigger",
        1_000_000,
        "Micro-batch and bounded: most records of one batch.",
        at_least=1,
    )
    fail_on_data_loss: bool = key(
        "failOnDataLoss", True, "Micro-batch: stop when records are gone before they were read."
    )
    processing_time: str = key(
        "processingTime",
        "0 seconds",
        "Micro-batch and bounded: interval between two batches; bounded: 10 seconds unless set.",
    )

    def __post_init__(self) -> None:
        problems = []
        if bool(self.topics) == bool(self.topics_regex):
            problems.append(
                "set one of topics (a list) and topics.regex (a pattern)"
                + (", not both" if self.topics else "; neither is set")
            )
        if self.topics_regex:
            try:
                re.compile(self.topics_regex)
            except re.error as error:
                problems.append(f"topics.regex={self.topics_regex!r} is not a pattern: {error}")
        if self.max_poll_records > _MOST_RECORDS:
            problems.append(
                f"max.poll.records={self.max_poll_records} must be at most {_MOST_RECORDS}, which "
                "is what the client hands over at once"
            )
        if self.dead_letter_topic and self.dead_letter_table:
            problems.append(
                "errors.deadletterqueue.topic.name and errors.deadletterqueue.table exclude each "
                "other: set the one that dead letters go to"
            )
        columns = list(self.provenance_columns.values())
        if len({c.lower() for c in columns}) < len(columns):
            problems.append(
                f"provenance.*.column: {', '.join(columns)}: provenance needs a column of its own "
                "for each of topic, partition, offset and timestamp, in lower case too"
            )
        if problems:
            raise ConfigError(*problems)

    @property
    def group_id(self) -> str:
        """The consumer group."""
        return group_of(self.name)

    @property
    def provenance_columns(self) -> dict[str, str]:
        """Metadata column -> column of the target table; empty without provenance."""
        if not self.provenance:
            return {}
        return {
            "__connect_topic": self.provenance_topic,
            "__connect_partition": self.provenance_partition,
            "__connect_offset": self.provenance_offset,
            "__connect_timestamp": self.provenance_timestamp,
        }


def group_of(connector: str) -> str:
    """A connector's consumer group."""
    return GROUPS + connector


def connector_of(group: str) -> str:
    """The connector of a consumer group."""
    return group.removeprefix(GROUPS)
