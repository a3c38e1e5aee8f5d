"""Logs that are cut and damaged, as their broker serves them afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.ledger import TopicPartition
from semel_lab.embedded import Kafka, logs
from semel_lab.embedded.process import comes_true
from tests.patience import PATIENCE

TP = TopicPartition("orders", 0)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    server = Kafka(tmp_path / "kafka")
    server.start()
    server.create_topic(TP.topic)
    yield server
    server.kill()


def produce_batches(kafka: Kafka, count: int) -> None:
    """Ten records each; the last but one is a transaction."""
    for number in range(count):
        within = number == count - 2
        keys = {"transactional.id": "test"} if within else {}
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 100, **keys}
        )
        if within:
            producer.init_transactions(PATIENCE)
            producer.begin_transaction()
        for record in range(10):
            producer.produce(TP.topic, f"{number}-{record}")
        if within:
            producer.commit_transaction(PATIENCE)
        assert producer.flush(PATIENCE) == 0


def seen(kafka: Kafka, at: KafkaPartition) -> list[Message]:
    """What a consumer gets from there: records until one event."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "test",
            "check.crcs": True,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    found: list[Message] = []

    def event() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            found.append(message)
        return bool(found) and found[-1].error() is not None

    try:
        consumer.assign([at])
        assert comes_true(event, PATIENCE)
    finally:
        consumer.close()
    return found


@pytest.mark.integration
@pytest.mark.long
class TestDamage:
    def test_a_cut_log_ends_where_it_was_cut_and_consumers_can_tell(self, kafka: Kafka) -> None:
        produce_batches(kafka, 5)
        kafka.stop()
        directory = logs.partition_directory(kafka.directory / "data", TP)
        found = list(logs.batches(directory))
        marker = next(b for b in found if b.is_control)  # written after the commit is answered
        assert [b.first_offset for b in found if b.is_transactional and not b.is_control] == [30]
        after = [b.first_offset for b in found if b.first_offset > marker.first_offset]
        assert logs.clean_cuts(directory) == [0, 10, 20, 30, *after]
        assert logs.truncate(directory, 20) == 51
        kafka.start()
        *records, end = seen(kafka, KafkaPartition(*TP, 0))
        assert (len(records), end.error().code()) == (20, KafkaError._PARTITION_EOF)
        produce_batches(kafka, 5)
        told = seen(kafka, KafkaPartition(*TP, 40, leader_epoch=0))[-1].error()
        assert "truncation detected at offset 40" in told.str()

    def test_a_bit_flips_and_flips_back(self, kafka: Kafka) -> None:
        produce_batches(kafka, 3)
        directory = logs.partition_directory(kafka.directory / "data", TP)
        damaged = list(logs.batches(directory))[1]
        kafka.stop()
        logs.flip(damaged)
        kafka.start()
        *records, error = seen(kafka, KafkaPartition(*TP, 0))
        assert (len(records), error.error().code()) == (10, KafkaError._BAD_MSG)
        kafka.stop()
        logs.flip(damaged)
        kafka.start()
        *records, _ = seen(kafka, KafkaPartition(*TP, 0))
        assert len(records) == 30
