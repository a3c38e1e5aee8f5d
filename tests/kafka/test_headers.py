"""Headers whose names no Java client could have written, as Kafka's client for Python has them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition, cimpl

from semel.kafka.consumer import headers_of
from semel.proxy.bodies import headers_shown
from semel.tasks.poll import by_topic, copied
from tests.patience import PATIENCE

_PRODUCER, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADERS, _END = 0, 1, 3, 4, 7, 10, 0
"""Of librdkafka: a kind of client, and what ``rd_kafka_producev`` takes."""
_COPY = 2
_HELD = [("a", b"1"), ("\ufffd", None), ("z", b"2")]


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """A broker inside of librdkafka."""
    client = Consumer({"test.mock.num.brokers": 1, "group.id": "g", "log_level": 0})
    broker = client.list_topics(timeout=PATIENCE).brokers[1]
    yield f"{broker.host}:{broker.port}"
    client.close()


def produce(brokers: str, names: list[bytes], values: list[bytes | None], size: int) -> None:
    """Produce a record of so many bytes. The client for Python takes no names that are no text."""
    library = ctypes.CDLL(cimpl.__file__)
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, name).restype = ctypes.c_void_p
    reason, pointer = ctypes.create_string_buffer(500), ctypes.c_void_p
    conf = pointer(library.rd_kafka_conf_new())
    for key, setting in ((b"bootstrap.servers", brokers.encode()), (b"log_level", b"0")):
        library.rd_kafka_conf_set(conf, key, setting, reason, 500)
    client = pointer(library.rd_kafka_new(_PRODUCER, conf, reason, ctypes.c_size_t(500)))
    headers = pointer(library.rd_kafka_headers_new(ctypes.c_size_t(3)))
    for name, value in zip(names, values, strict=True):
        length = ctypes.c_ssize_t(len(value or b""))
        library.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(-1), value, length)
    parts: list[Any] = [_TOPIC, b"t", _PARTITION, 0, _FLAGS, _COPY, _HEADERS, headers]
    parts += [_VALUE, bytes(size), ctypes.c_size_t(size), _END]
    assert library.rd_kafka_producev(client, *parts) == 0
    assert library.rd_kafka_flush(client, int(PATIENCE * 1000)) == 0
    library.rd_kafka_destroy(client)


def sent(brokers: str, size: int) -> Message:
    """A record with such a header, as a consumer gets it."""
    produce(brokers, [b"a", b"b\xff", b"z"], [b"1", None, b"2"], size)
    reader = Consumer({"bootstrap.servers": brokers, "group.id": "g", "log_level": 0})
    partition = TopicPartition("t", 0)
    _, end = reader.get_watermark_offsets(partition, PATIENCE)
    reader.assign([TopicPartition("t", 0, end - 1)])
    (message,) = reader.consume(1, PATIENCE)
    reader.close()
    assert isinstance(message, Message)
    return message


def test_the_rest_proxy_shows_such_a_header(brokers: str) -> None:
    assert [h["name"] for h in headers_shown(sent(brokers, 1))] == [name for name, _ in _HELD]


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_header_whose_name_is_no_utf_8_is_no_obstacle(brokers: str, size: int) -> None:
    """Small records are converted from messages, large ones from copies."""
    message = sent(brokers, size)
    (poll,) = copied(by_topic([message]))
    (held,) = poll.raw(key=True, timestamp=True, headers=True).column("headers").to_pylist()
    assert [(h["key"], h["value"]) for h in held] == _HELD
    assert list(poll.letter(0, "TASK_PUT", "E", "bad").headers) == _HELD
    assert headers_of(message) == _HELD
