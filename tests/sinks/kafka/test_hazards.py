"""What can happen to the Kafka sink's ledger topic, and what a topic's absence proves."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from semel.config import group_of
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.ledger import Advance, LedgerEntry, OffsetRange
from semel.driver.planning import plan
from semel.kafka import topics
from semel.kafka.cluster import Cluster
from semel.sinks.kafka import KafkaSink
from semel.sinks.kafka.ledger import LedgerTopic
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import records
from tests.patience import PATIENCE
from tests.sinks.kafka.conftest import Config, Configure, MakeSink

pytestmark = pytest.mark.integration


def _ledger(config: Config) -> str:
    return f"{group_of(config['name'])}-offsets"


class Lagging(Cluster):
    """Whose broker has not heard of one topic, however often it is asked."""

    def __init__(self, config: Mapping[str, Any], unknown: str) -> None:
        super().__init__(config)
        self._unknown = unknown

    def topics(self) -> dict[str, int]:
        return {t: n for t, n in super().topics().items() if t != self._unknown}


def _topic_seen_by(config: Config, cluster: Cluster) -> LedgerTopic:
    client = {"bootstrap.servers": config["bootstrap.servers"]}
    return LedgerTopic(config["name"], _ledger(config), -1, cluster, client)


def _started(driver: KafkaSink, source: str) -> None:
    driver.prepare([source])
    driver.start([LedgerEntry(source, 0, 7, 7)])


def test_a_broker_that_has_not_heard_of_the_ledger_topic_does_not_empty_the_ledger(
    topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    config = configure(topic())
    _started(sink(config), config["topics"])
    client = {"bootstrap.servers": config["bootstrap.servers"]}
    seen = _topic_seen_by(config, Lagging(client, _ledger(config))).read(1.0)
    assert [e.position for e in seen.entries.values()] == [7]


def test_brokers_that_never_hear_of_a_topic_that_the_controller_knows_are_an_error(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "describe", lambda *_: None)
    monkeypatch.setattr(topics, "_TIMEOUT", 1.0)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    with pytest.raises(TransientError, match=r"do not know of it yet|no Kafka broker answers"):
        topics.is_there(client, topic(), expected=False)


def test_absence_is_believed_when_the_controller_says_so_or_all_brokers_for_a_while(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    assert not topics.is_there(client, "no-such-topic", expected=False)
    looks: list[float] = []
    monkeypatch.setattr(topics, "describe", lambda *_: looks.append(time.monotonic()))
    monkeypatch.setattr(topics, "_ask_controller", lambda *_: None)  # no right to ask
    monkeypatch.setattr(topics, "_AGREED_AFTER", 0.5)
    began = time.monotonic()
    assert not topics.is_there(client, "no-such-topic", expected=False)
    assert len(looks) >= 3
    assert time.monotonic() - began >= 0.5


def test_a_ledger_topic_that_may_not_be_described_is_not_an_empty_one() -> None:
    """Brokers leave such a topic out of the list of all topics."""
    from confluent_kafka import KafkaError, KafkaException

    answer = Future[object]()
    answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    admin: Any = SimpleNamespace(describe_topics=lambda *_, **__: {"ledger": answer})
    with pytest.raises(ServiceError, match=r"describe topic ledger.*Grant DESCRIBE"):
        topics.describe(admin, {"bootstrap.servers": "here"}, "ledger")


def test_a_ledger_topic_deleted_under_a_running_connector_is_reported_and_does_not_come_back(
    kafka: Kafka, topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    source = topic()
    config = configure(source)
    driver = sink(config)
    _started(driver, source)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    admin.delete_topics([_ledger(config)])[_ledger(config)].result(PATIENCE)
    with pytest.raises((ServiceError, TransientError)):
        driver.advance([Advance(OffsetRange(source, 0, 7, 9), lost=2)])
    with pytest.raises(ServiceError, match=r"does not exist any more.*Was it deleted\?"):
        driver._ledger.topic.read(0.0, expected=True)
    assert _ledger(config) not in Cluster({"bootstrap.servers": kafka.bootstrap_servers}).topics()


def test_producers_create_no_topics() -> None:
    """A topic that is deleted would come back with the brokers' defaults."""
    from semel.kafka.transactions import DEFAULTS

    assert DEFAULTS["allow.auto.create.topics"] is False


def test_a_topic_that_demands_more_replicas_than_it_has_is_refused_at_start(
    kafka: Kafka, topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    config = configure(topic())
    demanding = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    kafka.create_topic(_ledger(config), config=demanding)
    with pytest.raises(ConfigError, match=r"min\.insync\.replicas=2, but 1 replica:"):
        sink(config).prepare([config["topics"]])
    config = configure(topic())
    kafka.create_topic(f"{config['topics']}.copy", config={"min.insync.replicas": "2"})
    with pytest.raises(ConfigError, match=r"\.copy for topic .* has min\.insync\.replicas=2"):
        sink(config).prepare([config["topics"]])


def test_a_pattern_that_matches_the_ledger_topic_is_refused(configure: Configure) -> None:
    keys = {"topics": None, "topics.regex": "connect-.*", "topic.rename.format": "copy.${topic}"}
    with pytest.raises(ConfigError, match="matches the ledger topic"):
        plan(configure("", keys))


@pytest.mark.parametrize("value", [b"garbage", b"{}", b'{"position":"x"}', b'{"position":null}'])
def test_a_strange_record_in_the_ledger_topic_is_named(
    value: bytes, kafka: Kafka, topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    source = topic()
    config = configure(source)
    driver = sink(config)
    _started(driver, source)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    place = {"kafka_topic": source, "kafka_partition": 0}
    key = json.dumps([config["name"], place], separators=(",", ":"))
    producer.produce(_ledger(config), value, key, 0)
    producer.flush(PATIENCE)
    with pytest.raises(ServiceError, match=rf"ledger topic .*{source}.*is not semel's"):
        sink(config).entries()


def test_records_of_a_source_connector_of_the_same_name_are_left_alone(
    kafka: Kafka, topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    """Kafka Connect's offsets topic may be the ledger topic, and MirrorMaker's keys are alike."""
    source = topic()
    config = configure(source)
    driver = sink(config)
    _started(driver, source)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for place in ('{"cluster":"a","partition":0,"topic":"t"}', "null", "{"):
        producer.produce(_ledger(config), b'{"offset":3}', f'["{config["name"]}",{place}]', 0)
    producer.flush(PATIENCE)
    assert [e.position for e in sink(config).entries()] == [7]
    driver.set_positions(None)
    stored = driver._ledger.topic.read(1.0)
    assert not stored.entries
    assert stored.is_reset


# A connector of the earlier form, to whose topic a partition was added before its first start


def _of_the_earlier_form(kafka: Kafka, config: Config, source: str) -> None:
    """Its ledger is the group's offsets; its target holds ten records."""
    facts = {"start": 0, "read": 10, "rows": 10, "at": "2026-01-01T00:00:00.000+00:00"}
    place = KafkaPartition(source, 0, 10, json.dumps(facts))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    group = group_of(config["name"])
    request = [ConsumerGroupTopicPartitions(group, [place])]
    admin.alter_consumer_group_offsets(request)[group].result(PATIENCE)


@pytest.mark.parametrize("written", [True, False])
def test_a_partition_added_before_the_first_upgraded_start_begins_and_the_others_are_carried_over(
    written: bool,
    kafka: Kafka,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    sink: MakeSink,
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    kafka.create_topic(f"{source}.copy")
    produce(f"{source}.copy", records(10))
    _of_the_earlier_form(kafka, config, source)
    kafka.increase_partitions(source, 2)
    if written:
        _produce_to(kafka, source, 1, int(time.time() * 1000))
    driver = sink(config)
    driver.prepare([source])
    driver.start([LedgerEntry(source, 1, 0, 0)])
    found = {e.partition: e for e in driver._ledger.topic.read(1.0).entries.values()}
    assert (found[0].position, found[0].records_read) == (10, 10)
    assert (found[1].position, found[1].records_read) == (0, 0)


def test_a_partition_whose_offset_may_have_expired_is_not_mistaken_for_a_new_one(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, sink: MakeSink
) -> None:
    source = topic(partitions=2)
    config = configure(source)
    kafka.create_topic(f"{source}.copy")
    produce(f"{source}.copy", records(10))
    _of_the_earlier_form(kafka, config, source)
    week = 7 * 24 * 3600 * 1000
    _produce_to(kafka, source, 1, int(time.time() * 1000) - week - 60_000)
    with pytest.raises(ConfigError, match=rf"how far {source}-1 was copied.*{source}-1=OFFSET"):
        sink(config).prepare([source])
    sink(config).set_positions([LedgerEntry(source, 1, 1, 1)])  # the way out
    driver = sink(config)
    driver.prepare([source])
    entries = driver._ledger.topic.read(1.0).entries
    assert {tp.partition: e.position for tp, e in entries.items()} == {0: 10, 1: 1}


def test_a_timestamp_from_the_future_does_not_make_a_partition_a_new_one(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, sink: MakeSink
) -> None:
    source = topic(partitions=2, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    config = configure(source)
    kafka.create_topic(f"{source}.copy")
    produce(f"{source}.copy", records(10))
    _of_the_earlier_form(kafka, config, source)
    year = 365 * 24 * 3600 * 1000
    _produce_to(kafka, source, 1, int(time.time() * 1000) + year)
    with pytest.raises(ConfigError, match=rf"how far {source}-1 was copied.*{source}-1=OFFSET"):
        sink(config).prepare([source])


def _produce_to(kafka: Kafka, topic: str, partition: int, timestamp: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b'{"id": 1}', partition=partition, timestamp=timestamp)
    producer.flush(PATIENCE)


# The target cluster's first contact


def test_a_target_cluster_that_does_not_exist_is_reported_like_the_source(
    topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    config = configure(topic(), {"dest.kafka.bootstrap.servers": "no-such-host.invalid:9092"})
    with pytest.raises(
        ServiceError, match=r"resolve.*Check dest\.kafka\.bootstrap\.servers"
    ) as told:
        sink(config).prepare([config["topics"]])
    assert "no Kafka broker answers" not in str(told.value)  # as after 20 s of silence
