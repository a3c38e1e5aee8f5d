"""What a dead letter's copy in a topic holds, as Kafka Connect writes it."""

from __future__ import annotations

from typing import Any

import pytest

from semel.config import ConnectorConfig, read
from semel.engine import deadletters
from semel.kafka import error_headers
from semel.records import DeadLetter

NEEDED = {
    "name": "orders",
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "topics": "orders",
    "bootstrap.servers": "kafka:9092",
    "key.converter": "ByteArrayConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "errors.deadletterqueue.topic.name": "dead",
}


def letter(stage: str, timestamp: int | None = None) -> DeadLetter:
    return DeadLetter("orders", 1, 2, b"k", b"v", [("h", b"1")], timestamp, stage, "E", "why")


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("KEY_CONVERTER", "org.apache.kafka.connect.converters.ByteArrayConverter"),
        ("VALUE_CONVERTER", "org.apache.kafka.connect.json.JsonConverter"),
        ("TRANSFORMATION", "transform"),
        ("TASK_PUT", "org.apache.kafka.connect.sink.SinkTask"),
    ],
)
def test_the_class_is_the_one_that_failed(stage: str, name: str) -> None:
    headers = dict(error_headers(read(ConnectorConfig, NEEDED), letter(stage), 0))
    assert headers["__connect.errors.class.name"] == name.encode()


def test_a_copy_keeps_the_records_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    class Recorder:
        def __init__(self, _config: object) -> None: ...

        def produce(self, _topic: str, **message: Any) -> None:
            sent.append(message)

        def flush(self, _timeout: float) -> int:
            return 0

    monkeypatch.setattr(deadletters, "Producer", Recorder)
    producer = deadletters.DeadLetterProducer(read(ConnectorConfig, NEEDED), {}, 0)
    producer.send([letter("TASK_PUT", 1234), letter("TASK_PUT"), letter("TASK_PUT", -1)])
    assert [m["timestamp"] for m in sent] == [1234, 0, 0]
