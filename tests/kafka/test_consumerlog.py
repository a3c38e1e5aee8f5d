"""What a consumer says in its log: which topic it fetches, and that it was fenced."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Partition

from semel.config import ConnectorConfig, read
from semel.errors import Displaced
from semel.kafka.clients import QUIET
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import Poll, consumer_config
from semel.kafka.consumerlog import ConsumerLog, logged_consumer
from semel.lab.embedded import Kafka
from semel.ledger import LogId
from semel.sizes import Sizes
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import records, recreate, wait_until

KAFKA = "Topic orders changed id from AAAAAAAAAAAAAAAAAAAAAA to EOJwSrvqR/i9pyzNVT+IPA"


@pytest.mark.integration
def test_a_consumer_tells_the_new_id_before_the_first_record_of_a_topic_created_again(
    kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    source = topic()
    produce(source, records(50))
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": source,
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
    }
    consumer, ids = logged_consumer(config, logging.getLogger(__name__))
    try:
        consumer.assign([Partition(source, 0, 0)])
        came = []

        def have(upto: int) -> bool:
            came.extend(m.offset() for m in consumer.consume(100, 0.1) if m.error() is None)
            return len(came) >= upto

        wait_until(lambda: have(50))
        before = cluster.logs([source])[source]
        assert ids.fetched(source).topic_id == before.topic_id
        recreate(kafka, source)
        produce(source, records(100, 50))
        wait_until(lambda: have(51))
        after = cluster.logs([source])[source]
        # As if nothing had happened, or from the start if it asked before there were as many again.
        assert came[50] in (0, 50)
        assert ids.fetched(source).topic_id == after.topic_id != before.topic_id
    finally:
        consumer.close()


@pytest.mark.integration
def test_a_fenced_consumer_delivers_nothing_of_what_it_has_fetched(
    kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    """Its error comes after all of that. A task that committed it first would get ahead of its
    successor again and again, which would take that for a run that is there by right."""
    source = topic()
    produce(source, records(1000))
    config = {
        "name": source,
        "connector.class": "postgresql",
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "connection.url": "postgresql://localhost/none",
    }
    connector = read(ConnectorConfig, config)
    settings = {**consumer_config(connector, 0), "auto.offset.reset": "earliest"}
    first, first_log = logged_consumer(settings, QUIET)
    second, _ = logged_consumer(settings, QUIET)

    def take(most: int) -> int:
        poll = Poll(connector, 0, Sizes(), first_log)
        poll.take(first, most, 0.1)
        return len(poll.messages)

    try:
        first.subscribe([source])
        wait_until(lambda: take(1) > 0)
        second.subscribe([source])
        wait_until(lambda: second.poll(0.1) is not None)
        with pytest.raises(KafkaException, match="fenced"):
            first.commit(offsets=[Partition(source, 0, 1)], asynchronous=False)
        with pytest.raises(Displaced, match=r"taken its place .* \(Fatal error: Broker: Static"):
            take(1)
    finally:
        first.close()
        second.close()


def test_a_topic_that_is_not_known_by_id_contradicts_nothing() -> None:
    ids = ConsumerLog(logging.getLogger(__name__), {})
    assert not ids.fetched("orders").contradicts(LogId("cluster", "id"))


@pytest.mark.parametrize(
    ("config", "passed"), [({"log_level": 0}, 0), ({"log_level": 4}, 1), ({"debug": "cgrp"}, 2)]
)
def test_the_log_gets_what_the_configuration_asks_for(
    config: dict[str, object], passed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ids = ConsumerLog(logging.getLogger(__name__), config)
    ids.log(logging.DEBUG, "%s [%s] %s", "METADATA", "consumer", KAFKA)
    ids.log(logging.WARNING, "%s [%s] %s", "FAIL", "consumer", "no route")
    assert len(caplog.records) == passed
    assert ids.fetched("orders") == LogId("", "EOJwSrvqR/i9pyzNVT+IPA")
