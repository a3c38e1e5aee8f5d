"""What a consumer says in its log: which topic it fetches, and that it was fenced."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as Partition

from semel.config import ConnectorConfig, read
from semel.core.errors import Displaced
from semel.core.ledger import LogId
from semel.kafka.clients import QUIET
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import ConsumerLog, Poll, Sizes, consumer_config, logged_consumer
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import records, recreate, wait_until

KAFKA = "Topic orders changed id from AAAAAAAAAAAAAAAAAAAAAA to EOJwSrvqR/i9pyzNVT+IPA"


@pytest.mark.integration
def test_a_consumer_tells_the_new_id_before_the_first_record_of_a_topic_created_again(
    kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    source = topic(values=records(50))
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


def connector_of(topic: str, servers: str) -> ConnectorConfig:
    config = {
        "name": topic,
        "connector.class": "postgresql",
        "topics": topic,
        "bootstrap.servers": servers,
        "connection.url": "postgresql://localhost/none",
    }
    return read(ConnectorConfig, config)


@pytest.mark.integration
def test_a_fenced_consumer_delivers_nothing_of_what_it_has_fetched(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """Its error comes after all of that. If a task committed it first, its successor would meet
    conflict after conflict, conclude that it is the one that was displaced, and stop."""
    source = topic(values=records(1000))
    connector = connector_of(source, kafka.bootstrap_servers)
    settings = {
        **consumer_config(connector, 0),
        "auto.offset.reset": "earliest",
        # Only the commit tells the first one.
        "heartbeat.interval.ms": 60_000,
        "session.timeout.ms": 120_000,
    }
    first, first_log = logged_consumer(settings, QUIET)
    second, _ = logged_consumer(settings, QUIET)

    def take() -> list[Message]:
        poll = Poll(connector, 0, Sizes(), first_log)
        poll.take(first, 1, 0.1)
        return poll.messages

    def a_record(came: Iterable[Message | None]) -> bool:
        return any(m is not None and m.error() is None for m in came)

    try:
        first.subscribe([source])
        wait_until(lambda: a_record(take()))
        second.subscribe([source])
        wait_until(lambda: a_record([second.poll(0.1)]))
        with pytest.raises(KafkaException, match="fenced"):
            first.commit(offsets=[Partition(source, 0, 1)], asynchronous=False)
        with pytest.raises(Displaced, match=r"taken its place .* \(Fatal error: Broker: Static"):
            take()
    finally:
        first.close()
        second.close()


def test_the_group_s_events_are_heard_before_a_fence_that_the_log_tells_first() -> None:
    """The session may have expired: Kafka mistakes what the consumer sends from then on for
    another run's."""
    consumer_log = ConsumerLog(QUIET, {})
    heard = []

    def first_poll() -> list[Message]:
        line = "[thrd:main]: Fatal error: Broker: Static consumer fenced"
        consumer_log.log(logging.CRITICAL, "%s [%s] %s", "FATAL", "consumer", line)
        consumer_log.log(logging.DEBUG, "%s [%s] %s", "FATAL", "consumer", "Suppressing another")
        return [Message(topic="orders", value=b"1")]

    def next_poll() -> list[Message]:
        heard.append("session lost")
        return [Message(topic="orders", value=b"2")]

    queue = [first_poll, next_poll, list]
    consumer = SimpleNamespace(consume=lambda _most, _wait: queue.pop(0)())
    poll = Poll(connector_of("orders", "localhost:9092"), 0, Sizes(), consumer_log)
    with pytest.raises(Displaced, match=r"\(Fatal error: Broker: Static consumer fenced\)"):
        poll.take(consumer, 1, 0)  # type: ignore[arg-type]
    assert heard == ["session lost"]
    assert not queue


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
