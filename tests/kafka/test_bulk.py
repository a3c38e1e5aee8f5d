"""Columns that are handed over to librdkafka in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, Producer

from semel.core.errors import ServiceError, TransientError
from semel.kafka.messages import Messages, handle, library, send_columns
from semel.kafka.transactions import RecordsRefused, Transactions
from semel_lab.embedded.kafka import Kafka
from tests.patience import PATIENCE

KEYS = [b"a", None, b"", b"key"]
VALUES = [b"one", b"", None, b"x" * 300_000]


def binary(*chunks: list[bytes | None]) -> pa.ChunkedArray:
    return pa.chunked_array(list(chunks), pa.binary())


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"bulk-{uuid4().hex[:8]}"
    kafka.create_topic(name)
    return name


@pytest.fixture
def transactions(kafka: Kafka) -> Iterator[Transactions]:
    found = Transactions("a test", {"bootstrap.servers": kafka.bootstrap_servers})
    found.open(f"id-{uuid4().hex[:8]}")
    yield found
    found.drop()


def committed(kafka: Kafka, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
        }
    )
    consumer.subscribe([topic])
    found = []
    try:
        while len(found) < count:
            message = consumer.poll(PATIENCE)
            assert message is not None
            assert message.error() is None
            assert message.timestamp()[0] == TIMESTAMP_CREATE_TIME
            found.append((message.partition(), message.key(), message.value()))
    finally:
        consumer.close()
    return found


def test_this_release_of_the_client_is_known():
    assert library() is not None


def test_the_handle_is_librdkafkas():
    producer = Producer({"client.id": "here", "log_level": 0})
    name = library().rd_kafka_name
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    assert name(handle(producer)).startswith(b"here#producer-")


def test_nulls_empty_values_and_slices_arrive_as_they_are(
    kafka: Kafka, topic: str, transactions: Transactions
):
    around: list[bytes | None] = [b"before", *VALUES, b"after"]
    messages = Messages(
        topic,
        "",
        binary(KEYS[:1], [], KEYS[1:]),
        binary(around).slice(1, len(VALUES)),
    )
    transactions.run(messages.send_in_transaction, [], None)
    assert committed(kafka, topic, 4) == [(0, k, v) for k, v in zip(KEYS, VALUES, strict=True)]


def test_nothing_but_nulls_and_nothing_but_empty_values(
    kafka: Kafka, topic: str, transactions: Transactions
):
    keys = pa.chunked_array([pa.nulls(2, pa.binary())])
    messages = Messages(topic, "", keys, binary([b"", b""]))
    transactions.run(messages.send_in_transaction, [], None)
    assert committed(kafka, topic, 2) == [(0, None, b""), (0, None, b"")]


def test_keys_go_where_the_client_alone_would_send_them(
    kafka: Kafka, topic: str, transactions: Transactions
):
    kafka.create_topic(topic := f"{topic}-wide", 3)  # librdkafka does not know it yet
    keys = [b"%d" % n for n in range(50)]
    messages = Messages(topic, "", binary(keys), binary(keys))
    transactions.run(messages.send_in_transaction, [], None)
    transactions.run(messages.send, [], None)
    found = committed(kafka, topic, 100)
    assert len({partition for partition, _, _ in found}) == 3
    assert len(set(found)) == 50  # each key in one partition


def test_a_record_that_the_broker_refuses_is_reported(
    kafka: Kafka, topic: str, transactions: Transactions
):
    kafka.create_topic(f"{topic}-small", config={"max.message.bytes": "1000"})
    large = Messages(f"{topic}-small", "", binary([b"k"]), binary([b"x" * 2000]))
    fine = Messages(topic, "", binary([b"k"]), binary([b"v"]))

    def both(producer: Producer, failed: object) -> None:
        large.send_in_transaction(producer, failed)
        producer.flush(PATIENCE)  # the refusal is known before the next records
        fine.send_in_transaction(producer, failed)

    for send in (large.send_in_transaction, both):
        with pytest.raises(RecordsRefused):
            transactions.run(send, [], None)
        transactions.open("another")
    transactions.run(fine.send_in_transaction, [], None)
    assert committed(kafka, topic, 1) == [(0, b"k", b"v")]


def test_a_record_that_is_left_out_with_a_refused_one_does_not_hide_it(
    kafka: Kafka, topic: str, transactions: Transactions
):
    kafka.create_topic(f"{topic}-compacted", config={"cleanup.policy": "compact"})
    messages = Messages(f"{topic}-compacted", "", binary([b"k", None]), binary([b"v", b"v"]))
    with pytest.raises(RecordsRefused):
        transactions.run(messages.send_in_transaction, [], None)


def test_a_topic_that_does_not_exist_is_named(kafka: Kafka, topic: str):
    client = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "topic.metadata.propagation.max.ms": 100,
    }
    transactions = Transactions("a test", client)
    transactions.open(f"id-{uuid4().hex[:8]}")
    messages = Messages(f"{topic}-gone", "", binary(KEYS), binary(VALUES))
    with pytest.raises(TransientError, match="Unknown topic"):
        transactions.run(messages.send_in_transaction, [], None)
    assert not transactions.is_open


def test_columns_of_another_type_are_cast(kafka: Kafka, topic: str, transactions: Transactions):
    large = pa.chunked_array([pa.array([b"1", b"2"], pa.large_binary())])
    transactions.run(Messages(topic, "", large, large).send_in_transaction, [], None)
    assert committed(kafka, topic, 2) == [(0, b"1", b"1"), (0, b"2", b"2")]


def test_a_name_that_no_topic_can_have_is_an_error(topic: str, transactions: Transactions):
    messages = Messages("t" * 600, "", binary(KEYS), binary(VALUES))
    with pytest.raises((ServiceError, TransientError), match=r"[Ii]nvalid"):
        transactions.run(messages.send_in_transaction, [], None)


def test_records_with_partitions_of_their_own_go_one_by_one(
    kafka: Kafka, topic: str, transactions: Transactions
):
    kafka.create_topic(topic := f"{topic}-wide", 3)  # librdkafka does not know it yet
    messages = Messages(topic, "", binary([b"k"]), binary([b"v"]), targets=[0])
    transactions.run(messages.send_in_transaction, [], None)
    assert committed(kafka, topic, 1) == [(0, b"k", b"v")]


def test_a_closed_producer_is_an_error(topic: str):
    producer = Producer({"log_level": 0})
    producer.close()
    with pytest.raises(KafkaException) as error:
        send_columns(producer, topic, binary([b"k"]), binary([b"v"]))
    assert error.value.args[0].code() == KafkaError._STATE
