"""The keys that sink and source connectors share."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.config.definition import HIGH, LOW, REQUIRED, Type, key
from semel.config.reading import reduced

STRING = "org.apache.kafka.connect.storage.StringConverter"
TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""What Kafka takes as a topic's name."""


def is_topic(text: str) -> None:
    """Raises ValueError: no topic can have this name."""
    if not TOPIC_NAME.fullmatch(text):
        raise ValueError("is not the name of a topic")


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
