"""The keys of connectors: those that sinks and sources share, and those that every sink has."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.config.definition import HIGH, LOW, REQUIRED, Type, key
from semel.config.reading import reduced
from semel.core.delivery import Delivery, Mechanism
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.ledger import QUERY
from semel.core.patterns import check, compiled

STRING = "org.apache.kafka.connect.storage.StringConverter"
TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""What Kafka takes as a topic's name."""
GROUPS = "connect-"
"""The prefix of connectors' consumer groups, as in Kafka Connect."""
MOST_TASKS = 10_000
"""The most tasks of a connector: each is counted, assigned and fenced."""
_MOST_RECORDS = 1_000_000
"""The most records that the client hands over at once."""
_MOST_BYTES = 4 * 1024**3
"""A quarter of it must fit into librdkafka's queue and into an array of Arrow's."""

_UNITS = {
    "microsecond": 1e-6,
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_TERM = rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})s?"


def is_topic(text: str) -> None:
    """Raises ValueError: no topic can have this name."""
    if not TOPIC_NAME.fullmatch(text):
        raise ValueError("is not the name of a topic")


def not_zero(number: int) -> None:
    """Raises ValueError: a number is neither -1, which leaves it to the broker, nor at least 1."""
    if number == 0:
        raise ValueError("must be -1, or at least 1")


def _no_control(name: str) -> None:
    code_points = [str(ord(c)) for c in name if unicodedata.category(c) == "Cc"]
    if code_points:
        raise ValueError(f"has control characters, number {', '.join(code_points)}")


def connector_class_key(default: Any = REQUIRED) -> Any:
    """``connector.class``."""
    return key(
        "connector.class",
        default,
        "The connector, by class or short name.",
        importance=HIGH,
        group="Common",
        display="Connector class",
    )


@dataclass(frozen=True)
class ErrorHandlingConfig:
    """Whether a bad record stops the connector, and what is logged about it."""

    errors_tolerance: str = key(
        "errors.tolerance",
        "none",
        "none: stop at a bad record; all: continue.",
        choices=("none", "all"),
        group="Error Handling",
        display="Error Tolerance",
    )
    errors_log: bool = key("errors.log.enable", False, "Log each bad record.", display="Log Errors")
    errors_log_messages: bool = key(
        "errors.log.include.messages",
        False,
        "Log the record's content too.",
        display="Log Error Details",
    )


@dataclass(frozen=True)
class DeadLetterConfig(ErrorHandlingConfig):
    """Where bad records of a sink connector go."""

    dead_letter_topic: str = key(
        "errors.deadletterqueue.topic.name",
        "",
        "Topic that receives bad records, raw.",
        group="Error Handling",
        display="Dead Letter Queue Topic Name",
    )
    dead_letter_headers: bool = key(
        "errors.deadletterqueue.context.headers.enable",
        True,
        "Add Connect's __connect.errors.* headers to dead letters.",
        display="Enable Error Context Headers",
    )
    dead_letter_replication: int = key(
        "errors.deadletterqueue.topic.replication.factor",
        3,
        "Replication of the dead letter topic when it is created.",
        at_least=1,
        type=Type.SHORT,
        display="Dead Letter Queue Topic Replication Factor",
    )
    dead_letter_table: str = key(
        "errors.deadletterqueue.table",
        "",
        "Table that receives bad records, exactly once. In a database, they are committed in the "
        "same transaction as the results.",
    )


@dataclass(frozen=True)
class CommonConfig:
    """A connector's name, class, converters, transforms and retries."""

    originals: Mapping[str, str] = field(
        default_factory=dict, kw_only=True, repr=False, compare=False
    )
    """What this was read from: the user's strings, and the connector class's for keys that the user
    has not set. Keys of clients, converters and sinks are read from here, as from the
    ``originals()`` of Kafka's AbstractConfig."""

    @property
    def task_memory(self) -> int:
        """The most bytes that a task may use beyond what it starts with."""
        return self.max_memory or 2 << 30

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    name: str = key(
        "name",
        doc="Unique name; a sink's consumer group is connect-<name>.",
        group="Common",
        display="Connector name",
        validator=_no_control,
    )
    connector_class: str = connector_class_key()
    tasks_max: int = key(
        "tasks.max",
        1,
        "Maximum number of tasks to run at once.",
        at_least=1,
        at_most=MOST_TASKS,
        type=Type.INT,
        importance=HIGH,
        display="Tasks max",
    )
    bootstrap_servers: str = key(
        "bootstrap.servers",
        doc="Kafka brokers, host:port separated by commas. Name them here, with "
        "--bootstrap-server, or in SEMEL_BOOTSTRAP_SERVERS.",
        aliases=("kafka.bootstrap.servers", "consumer.override.bootstrap.servers"),
    )
    key_converter: str = key(
        "key.converter",
        STRING,
        "Decodes the keys of a sink connector, encodes those of a source connector.",
        type=Type.CLASS,
        importance=LOW,
        display="Key converter class",
    )
    value_converter: str = key(
        "value.converter",
        "org.apache.kafka.connect.json.JsonConverter",
        "Decodes the values of a sink connector, encodes those of a source connector.",
        type=Type.CLASS,
        importance=LOW,
        display="Value converter class",
    )
    transforms: tuple[str, ...] = key(
        "transforms",
        (),
        "Names of the transforms that records pass through, in this order.",
        importance=LOW,
        group="Transforms",
    )
    predicates: tuple[str, ...] = key(
        "predicates",
        (),
        "Names of the predicates that transforms may refer to.",
        importance=LOW,
        group="Predicates",
    )
    max_retries: int = key(
        "max.retries",
        10,
        "Retries of a commit after a transient failure. Unless this is set, semel waits without "
        "limit for an unavailable store.",
        at_least=0,
        type=Type.INT,
        group="Retries",
        display="Maximum Retries",
    )
    retry_backoff_ms: int = key(
        "retry.backoff.ms",
        3000,
        "Pause between two retries.",
        at_least=0,
        type=Type.INT,
        display="Retry Backoff (millis)",
    )
    max_memory: int | None = key(
        "task.max.memory.bytes",
        None,
        "The memory that a task may use beyond what it starts with; by default 32 times "
        "max.poll.bytes, at least 1 GiB; 2 GiB for a source. A task that needs more ends and is "
        "started again.",
        at_least=64 * 1024 * 1024,
        importance=LOW,
        group="Engine",
    )
    store_timeout_ms: int = key(
        "store.timeout.ms",
        60_000,
        "A call to the store that has had no response for this long is ended, unless bytes move "
        "or the store is working on it.",
        at_least=100,
        importance=LOW,
        group="Retries",
    )


@dataclass(frozen=True)
class ConnectorConfig(DeadLetterConfig, CommonConfig):
    """The keys every sink connector has, whatever its sink."""

    topics: tuple[str, ...] = key(
        "topics",
        (),
        "Topics to read, separated by commas.",
        importance=HIGH,
        group="Common",
    )
    topics_regex: str = key(
        "topics.regex",
        "",
        "Regular expression of the topics to read.",
        importance=HIGH,
        display="Topics regex",
        validator=check,
    )
    delivery: Delivery | None = key(
        "delivery",
        None,
        "The guarantee: at-most-once, at-least-once or exactly-once. Default, or auto: the "
        "strongest one that sink and configuration can keep.",
        importance=HIGH,
        group="Delivery",
    )
    delivery_mechanism: Mechanism | None = key(
        "delivery.mechanism",
        None,
        "How exactly-once is kept: auto, transactional or idempotent.",
        importance=LOW,
    )
    engine: str = key(
        "engine",
        "auto",
        "auto, direct, or micro-batch (Structured Streaming, for DataFrame transforms).",
        choices=("auto", "direct", "micro-batch"),
        importance=LOW,
        group="Engine",
    )
    offset_reset: str = key(
        "auto.offset.reset",
        "earliest",
        "Where a topic that the ledger has never seen starts: earliest or latest.",
        choices=("earliest", "latest"),
        aliases=("consumer.override.auto.offset.reset",),
        group="Positions",
    )
    offset_out_of_range: str = key(
        "offset.out.of.range",
        "stop",
        "When retention removed the stored position: stop, or earliest (record the hole, "
        "continue).",
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
        "stop, or continue (record it, continue from where the logs diverge).",
        choices=("stop", "continue"),
    )
    target_changed: str = key(
        "target.changed",
        "stop",
        "When a topic's results went to another target before: stop, or continue (record it, "
        "continue in the new target without the older results).",
        choices=("stop", "continue"),
    )
    fields_unknown: str | None = key(
        "fields.unknown",
        None,
        "When the target has no column for a field of values: stop, warn (count its values, and "
        "leave them out), or ignore (leave them out). Default: stop where values have a schema, "
        "else warn.",
        choices=("stop", "warn", "ignore"),
        group="Error Handling",
    )
    first_position: str = key(
        "first.position",
        "stop",
        "Where a topic that the ledger has never seen starts if consumer group connect-<name> has "
        "offsets: group (there), reset (by auto.offset.reset), or stop if the offsets may be "
        "copies of a ledger that was lost. Also what happens if another program has moved the "
        "group beyond the ledger: continue there, ignore it, or stop.",
        choices=("stop", "group", "reset"),
        group="Positions",
    )
    max_poll_records: int = key(
        "max.poll.records",
        50_000,
        "Maximum number of records in one commit.",
        aliases=("consumer.override.max.poll.records",),
        at_least=1,
        type=Type.INT,
        group="Engine",
        at_most=_MOST_RECORDS,
    )
    max_poll_bytes: int = key(
        "max.poll.bytes",
        64 * 1024 * 1024,
        "Bounds the memory of a task: a commit has at most a quarter of it, or one record. At "
        "most 4 GiB.",
        at_least=1024,
        at_most=_MOST_BYTES,
        importance=LOW,
    )
    linger_ms: int = key(
        "poll.linger.ms",
        0,
        "How long a poll waits for more records once it has one.",
        at_least=0,
        importance=LOW,
    )
    provenance: bool = key(
        "provenance",
        False,
        "Store topic, partition, offset and timestamp with each row: the audit is then exact.",
        group="Provenance",
    )
    provenance_topic: str = key(
        "provenance.topic.column", "__connect_topic", "Column that holds the topic.", importance=LOW
    )
    provenance_partition: str = key(
        "provenance.partition.column",
        "__connect_partition",
        "Column that holds the partition.",
        importance=LOW,
    )
    provenance_offset: str = key(
        "provenance.offset.column",
        "__connect_offset",
        "Column that holds the offset.",
        importance=LOW,
    )
    provenance_timestamp: str = key(
        "provenance.timestamp.column",
        "__connect_timestamp",
        "Column that holds the timestamp.",
        importance=LOW,
    )
    max_offsets_per_trigger: int = key(
        "maxOffsetsPerTrigger",
        1_000_000,
        "Micro-batch and bounded: maximum number of records in one batch.",
        at_least=1,
        group="Engine",
    )
    fail_on_data_loss: bool = key(
        "failOnDataLoss", True, "Micro-batch: stop if records were removed before they were read."
    )
    processing_time: str = key(
        "processingTime",
        "0 seconds",
        "Micro-batch and bounded: interval between two batches; bounded: 10 seconds unless set.",
    )

    query: str = key(
        "query",
        "",
        "Micro-batch: a query over time, in Spark's SQL, with a view for each topic. Its rows are "
        "the results.",
        importance=HIGH,
        group="Query",
    )
    checkpoint_location: str = key(
        "checkpoint.location",
        "",
        "The directory, of any file system that Spark can write, that keeps the state of a query.",
        importance=HIGH,
    )
    output_mode: str = key(
        "query.output.mode",
        "auto",
        "append (each row once, when it is final), update (a row again whenever it has changed; "
        "the sink must replace rows by key), or auto: update where sink and query allow it.",
        choices=("auto", "append", "update"),
    )
    event_time: tuple[str, ...] = key(
        "event.time.field",
        (),
        "The field that says when something happened, or topic:field pairs. Default: the timestamp "
        "that Kafka has, in __connect_timestamp.",
    )
    watermark: tuple[str, ...] = key(
        "watermark",
        ("10 minutes",),
        "How much later than others records may come: a query forgets state that is older. An "
        "interval, or topic:interval pairs.",
    )
    query_changed: str = key(
        "query.changed",
        "stop",
        "When a query is no longer the one that has made the state: stop, or continue with the "
        "state as it is, as far as Spark can read it.",
        choices=("stop", "continue"),
        importance=LOW,
    )

    topology: str = key(
        "topology",
        "",
        "Streams: the topology that makes results of the topics, as module:name. It is a "
        "semel.streams.Streams, or a function that returns one.",
        group="Streams",
    )
    topology_changed: str = key(
        "topology.changed",
        "stop",
        "Streams: if another topology made the state, stop, or continue with the state as it is.",
        choices=("stop", "continue"),
    )
    state_dir: str = key(
        "state.dir",
        "",
        "Streams: the folder of local state. Default: semel-streams in the folder for temporary "
        "files.",
        importance=LOW,
    )
    max_task_idle_ms: int = key(
        "max.task.idle.ms",
        0,
        "Streams: how long a partition without records holds up those that are read along with "
        "it, so that records are processed in the order of time. 0: as long as Kafka is known to "
        "have records of it; -1: never.",
        at_least=-1,
        importance=LOW,
    )

    def reads(self, topic: str) -> bool:
        """Whether a topic is among those that it reads."""
        if self.topics:
            return topic in self.topics
        return bool(self.topics_regex) and compiled(self.topics_regex).fullmatch(topic)

    def __post_init__(self) -> None:
        problems = []
        if bool(self.topics) == bool(self.topics_regex):
            problems.append(
                Problem(
                    "topics",
                    "set one of topics (a list) and topics.regex (a pattern)"
                    + (", not both" if self.topics else "; neither is set"),
                )
            )
        if self.dead_letter_topic and self.dead_letter_table:
            problems.append(
                Problem(
                    "errors.deadletterqueue.topic.name",
                    "errors.deadletterqueue.topic.name and errors.deadletterqueue.table "
                    "exclude each other: set the one that dead letters go to",
                )
            )
        columns = list(self.provenance_columns.values())
        if len({c.lower() for c in columns}) < len(columns):
            problems.append(
                Problem(
                    "provenance.topic.column",
                    f"provenance.*.column: {', '.join(columns)}: provenance needs a column of "
                    "its own for each of topic, partition, offset and timestamp, in lower "
                    "case too",
                )
            )
        if problems:
            raise ConfigError(*problems)

    @property
    def ledger_topics(self) -> set[str]:
        """The topics that a ledger may have entries of, as far as they are configured."""
        return {*self.topics, *([QUERY.topic] if self.checkpoint_location else [])}

    @property
    def task_memory(self) -> int:
        """The most bytes that a task may use beyond what it starts with."""
        return self.max_memory or max(1 << 30, 32 * self.max_poll_bytes)

    @property
    def group_id(self) -> str:
        """The consumer group."""
        return group_of(self.name)

    @property
    def assumes_keys(self) -> bool:
        """Whether the key converter was chosen to suit the sink, because none is configured."""
        return "key.converter" not in self.originals and self.key_converter != STRING

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


def seconds(interval: str) -> float:
    """An interval as Spark writes it, such as ``10 seconds`` or ``1 minute 30 seconds``.

    Raises:
        ConfigError: it is not an interval.
    """
    text = interval.strip().lower().removeprefix("interval ").strip()
    if re.fullmatch(rf"{_TERM}(?:\s+{_TERM})*", text) is None:
        raise misconfigured(
            "processingTime",
            f"processingTime={interval!r} is not an interval, such as '10 seconds' or '1 minute'",
        )
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(_TERM, text))


def group_of(connector: str) -> str:
    """A connector's consumer group."""
    return GROUPS + connector


def connector_of(group: str) -> str:
    """The connector of a consumer group."""
    return group.removeprefix(GROUPS)
