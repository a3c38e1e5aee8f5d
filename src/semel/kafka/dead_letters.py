"""The headers of a dead letter in a topic, as Kafka Connect writes them."""

from __future__ import annotations

from semel import converters
from semel.config import ConnectorConfig
from semel.records import DeadLetter

Header = tuple[str, bytes | None]
Headers = list[Header]

ERRORS = "__connect.errors."
"""The prefix of a dead letter's context headers."""


def error_headers(connector: ConnectorConfig, letter: DeadLetter, task: int) -> Headers:
    """The headers that Kafka Connect gives to a dead letter (KIP-298), if they are wanted."""
    if not connector.dead_letter_headers:
        return []
    context = {
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "connector.name": connector.name,
        "task.id": str(task),
        "stage": letter.stage,
        "class.name": _executing_class(connector, letter.stage),
        "exception.class.name": letter.exception,
        "exception.message": letter.message,
    }
    return [(f"{ERRORS}{k}", v.encode()) for k, v in context.items()]


def _executing_class(connector: ConnectorConfig, stage: str) -> str:
    """The class that failed, as Kafka Connect names it; for a sink's refusals that is the
    SinkTask's."""
    return {
        "KEY_CONVERTER": converters.full_name(connector.key_converter),
        "VALUE_CONVERTER": converters.full_name(connector.value_converter),
        "TRANSFORMATION": "transform",
    }.get(stage, "org.apache.kafka.connect.sink.SinkTask")
