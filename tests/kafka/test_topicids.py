"""A consumer's own word on which topic it fetches."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import TopicPartition as Partition

from semel.kafka.cluster import Cluster
from semel.kafka.topicids import TopicIds, consumer_with_ids
from semel.lab.embedded import Kafka
from semel.ledger import LogId
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
    consumer, ids = consumer_with_ids(config, logging.getLogger(__name__))
    try:
        consumer.assign([Partition(source, 0, 0)])
        came = []

        def read(upto: int) -> bool:
            came.extend(m.offset() for m in consumer.consume(100, 0.1) if m.error() is None)
            return len(came) >= upto

        wait_until(lambda: read(50))
        before = cluster.logs([source])[source]
        assert ids.fetched(source).topic_id == before.topic_id
        recreate(kafka, source)
        produce(source, records(100, 50))
        wait_until(lambda: read(51))
        after = cluster.logs([source])[source]
        # As if nothing had happened, or from the start if it asked before there were as many again.
        assert came[50] in (0, 50)
        assert ids.fetched(source).topic_id == after.topic_id != before.topic_id
    finally:
        consumer.close()


def test_a_topic_that_is_not_known_by_id_contradicts_nothing() -> None:
    ids = TopicIds(logging.getLogger(__name__), {})
    assert not ids.fetched("orders").contradicts(LogId("cluster", "id"))


@pytest.mark.parametrize(
    ("config", "passed"), [({"log_level": 0}, 0), ({"log_level": 4}, 1), ({"debug": "cgrp"}, 2)]
)
def test_the_log_gets_what_the_configuration_asks_for(
    config: dict[str, object], passed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ids = TopicIds(logging.getLogger(__name__), config)
    ids.log(logging.DEBUG, "%s [%s] %s", "METADATA", "consumer", KAFKA)
    ids.log(logging.WARNING, "%s [%s] %s", "FAIL", "consumer", "no route")
    assert len(caplog.records) == passed
    assert ids.fetched("orders") == LogId("", "EOJwSrvqR/i9pyzNVT+IPA")
