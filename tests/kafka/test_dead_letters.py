"""What a dead letter's copy in a topic holds, as Kafka Connect writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from semel.config import ConnectorConfig, read
from semel.core.errors import ServiceError, TransientError
from semel.core.records import DeadLetter
from semel.kafka import dead_letters
from semel.kafka.dead_letters import error_headers

NEEDED = {
    "name": "orders",
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "topics": "orders",
    "bootstrap.servers": "kafka:9092",
    "key.converter": "ByteArrayConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "errors.deadletterqueue.topic.name": "dead",
}


Send = Callable[..., list[dict[str, Any]]]


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


class Recorder:
    """A producer; ``refusals`` are raised, one a call, before it takes a message. ``answer`` is the
    broker's to each message."""

    refusals: list[Exception]
    answer: KafkaError | None = None

    def __init__(self, _config: object, **_more: object) -> None:
        self.sent: list[dict[str, Any]] = []

    def produce(self, _topic: str, **message: Any) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(message)
        message["on_delivery"](self.answer, None)

    def poll(self, _timeout: float) -> int:
        return 0

    def flush(self, _timeout: float) -> int:
        return 0


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Send:
    monkeypatch.setattr(dead_letters, "Producer", Recorder)
    Recorder.refusals = []

    def sent(*letters: DeadLetter) -> list[dict[str, Any]]:
        producer = dead_letters.DeadLetterProducer(read(ConnectorConfig, NEEDED), {}, 0)
        producer.send(letters)
        return producer._producer.sent  # type: ignore[attr-defined,no-any-return]

    return sent


def test_a_copy_keeps_the_records_timestamp(send: Send) -> None:
    sent = send(letter("TASK_PUT", 1234), letter("TASK_PUT"), letter("TASK_PUT", -1))
    assert [m["timestamp"] for m in sent] == [1234, 0, 0]


def test_more_letters_than_the_queue_holds_wait_for_room(send: Send) -> None:
    Recorder.refusals += [BufferError("Local: Queue full")] * 2
    assert len(send(letter("TASK_PUT"), letter("TASK_PUT"))) == 2


def test_a_queue_that_stays_full_may_be_empty_later(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_TIMEOUT", -1.0)
    Recorder.refusals += [BufferError("Local: Queue full")]
    with pytest.raises(TransientError, match=r"could not be written to topic dead: .*Queue full"):
        send(letter("TASK_PUT"))


def test_a_producer_that_is_at_its_end_says_nothing_of_the_letter(send: Send) -> None:
    Recorder.refusals += [KafkaException(KafkaError(KafkaError._FATAL, "out of order"))]
    with pytest.raises(TransientError, match="could not be written to topic dead: out of order"):
        send(letter("TASK_PUT"))


@pytest.mark.parametrize("of_broker", [False, True])
def test_a_letter_that_is_too_large_ends_the_connector(
    of_broker: bool, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
    if of_broker:
        monkeypatch.setattr(Recorder, "answer", error)
    else:
        Recorder.refusals += [KafkaException(error)]
    with pytest.raises(ServiceError, match=r"too large\. Set producer\.override\.max"):
        send(letter("TASK_PUT"))
