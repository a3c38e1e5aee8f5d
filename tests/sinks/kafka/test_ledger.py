"""The Kafka sink's ledger: a compacted topic beside the group's offsets, which may expire."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from semel.core.errors import ConfigError, OffsetOutOfRange, ServiceError
from semel.core.ledger import (
    TAKEN_OVER,
    TRUNCATED,
    Advance,
    Hole,
    LedgerEntry,
    OffsetRange,
    Rebase,
    TopicPartition,
)
from semel.driver.planning import plan
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups
from semel.sinks.ledger_json import entry_of, facts_of
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import caught_up, records, wait_until
from tests.patience import PATIENCE
from tests.sinks.byhand import check_keeps_what_was_read
from tests.sinks.kafka.conftest import Config, Configure, MakeSink
from tests.sinks.kafka.copying import assert_each_once, target
from tests.sinks.otherlogs import check_refuses_another_log

pytestmark = pytest.mark.integration

QUICK = {
    "consumer.override.session.timeout.ms": "1500",
    "consumer.override.heartbeat.interval.ms": "300",
}


@pytest.fixture
def admin(kafka: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


def _group(config: Config) -> str:
    return f"connect-{config['name']}"


def _ended(config: Config) -> None:
    """Wait until no task is in the group any more."""
    groups = Groups({"bootstrap.servers": config["bootstrap.servers"]})
    wait_until(lambda: groups.is_idle(_group(config)))


def _expire(admin: AdminClient, config: Config) -> None:
    """What offsets.retention.minutes does to the offsets of an empty group."""
    _ended(config)
    admin.delete_consumer_groups([_group(config)])[_group(config)].result(PATIENCE)


def _delete_ledger(admin: AdminClient, config: Config) -> None:
    name = f"{_group(config)}-offsets"
    admin.delete_topics([name])[name].result(PATIENCE)
    wait_until(lambda: name not in admin.list_topics(timeout=PATIENCE).topics)


def _commit(admin: AdminClient, config: Config, offset: int, metadata: str = "") -> None:
    """As kafka-consumer-groups.sh --reset-offsets does."""
    _ended(config)
    place = KafkaPartition(config["topics"], 0, offset, metadata)
    request = [ConsumerGroupTopicPartitions(_group(config), [place])]
    admin.alter_consumer_group_offsets(request)[_group(config)].result(PATIENCE)


@pytest.mark.long
@pytest.mark.parametrize("reset", ["latest", "earliest"])
def test_offsets_that_expire_change_nothing(
    reset: str, admin: AdminClient, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(40))
    config = configure(source, {**QUICK})
    caught_up(config)
    _expire(admin, config)
    produce(source, records(10, start=40))
    caught_up({**config, "auto.offset.reset": reset})
    report = assert_each_once(config, range(50))
    assert report.exact


@pytest.mark.long
def test_a_ledger_topic_that_is_deleted_is_written_again_from_the_groups_offsets(
    admin: AdminClient, topic: MakeTopic, produce: Produce, configure: Configure, sink: MakeSink
) -> None:
    source = topic(values=records(40))
    config = configure(source, {**QUICK})
    caught_up(config)
    before = sink(config).entries()
    _ended(config)
    _delete_ledger(admin, config)
    produce(source, records(10, start=40))
    caught_up(config)
    assert_each_once(config, range(50))
    _expire(admin, config)
    (entry,) = sink(config).entries()
    assert before[0].records_read + 10 == entry.records_read == entry.rows_written == 50


@pytest.mark.long
def test_positions_are_carried_over_where_the_ledger_topic_was_deleted(
    admin: AdminClient, topic: MakeTopic, produce: Produce, configure: Configure, sink: MakeSink
) -> None:
    """The group's offsets hold the same facts in their metadata."""
    source = topic(values=records(40))
    config = configure(source, {**QUICK, "provenance": "false"})
    caught_up(config)
    _ended(config)
    _delete_ledger(admin, config)
    facts = {"start": 0, "read": 40, "rows": 40, "at": "2026-01-01T00:00:00.000+00:00"}
    _commit(admin, config, 40, json.dumps(facts))
    produce(source, records(10, start=40))
    caught_up(config)
    _expire(admin, config)
    (entry,) = sink(config).entries()
    assert (entry.position, entry.records_read, entry.rows_written) == (50, 50, 50)


def test_a_copy_without_any_ledger_is_refused_not_begun_anew(
    admin: AdminClient, topic: MakeTopic, produce: Produce, configure: Configure, sink: MakeSink
) -> None:
    source = topic(values=records(40))
    config = configure(source, {**QUICK})
    caught_up(config)
    _expire(admin, config)
    _delete_ledger(admin, config)
    with pytest.raises(ConfigError, match=rf"does not know how far topic {source} was copied"):
        caught_up(config)
    produce(source, records(10, start=40))
    sink(config).set_positions([LedgerEntry(source, 0, 40, 40)])  # one way out
    caught_up(config)
    assert_each_once(config, range(50))
    other = {**config, "name": f"{config['name']}-2"}
    with pytest.raises(ConfigError, match=r"dest\.topic\.nonempty=append"):
        caught_up(other)
    caught_up({**other, "dest.topic.nonempty": "append"})  # the other one


@pytest.mark.long
def test_a_connector_that_was_reset_begins_anew(
    topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    source = topic(values=records(10))
    config = configure(source, {**QUICK, "topic.rename.format": "${topic}.copy"})
    caught_up(config)
    _ended(config)
    sink(config).set_positions(None)
    assert sink(config).entries() == []
    caught_up(config)
    (entry,) = sink(config).entries()
    assert (entry.position, entry.records_read) == (10, 10)


def test_positions_that_contradict_each_other_stop_the_connector(
    admin: AdminClient, topic: MakeTopic, produce: Produce, configure: Configure, sink: MakeSink
) -> None:
    source = topic(values=records(40))
    config = configure(source, {**QUICK})
    caught_up(config)
    _commit(admin, config, 7)
    with pytest.raises(OffsetOutOfRange, match=rf"{source}-0: 40 in topic .*, 7 in the group"):
        caught_up(config)
    _ended(config)
    sink(config).set_positions([LedgerEntry(source, 0, 40, 0)])
    produce(source, records(10, start=40))
    caught_up(config)
    assert_each_once(config, range(50))


def test_a_ledger_topic_that_forgets_is_refused(
    kafka: Kafka, topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    config = configure(topic())
    name = f"{_group(config)}-offsets"
    kafka.create_topic(name, config={"cleanup.policy": "delete"})
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete.*kafka-configs\.sh --alter"):
        sink(config).prepare([config["topics"]])
    chosen = {**config, "offset.storage.topic": f"{config['name']}-ledger"}
    sink(chosen).prepare([config["topics"]])
    made = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).topic_config(
        chosen["offset.storage.topic"]
    )
    assert made is not None
    assert made["cleanup.policy"] == "compact"


def test_the_ledger_topic_is_neither_copied_nor_a_target(
    topic: MakeTopic, configure: Configure
) -> None:
    config = configure(topic())
    for keys in ({"offset.storage.topic": target(config)}, {"topics": f"{_group(config)}-offsets"}):
        with pytest.raises(ConfigError, match="is the ledger topic"):
            plan({**config, **keys})


def test_an_open_transaction_of_another_task_is_waited_for(
    kafka: Kafka, topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    """It may yet commit a position: one that has sent its offsets, but not its record, would be
    missed the other way round."""
    source = topic(partitions=2)
    config = configure(source)
    driver = sink(config)
    driver.prepare([source])
    driver.start([LedgerEntry(source, 0, 0, 0)])
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": config["name"]}
    producer = Producer({**settings, "log_level": 0})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    topic_, ledger = driver._ledger.topic, driver._ledger
    entry = LedgerEntry(source, 0, 5, 0)
    topic_.send(producer, topic_.records([entry]), lambda *_: None)
    producer.flush(PATIENCE)
    tp = TopicPartition(source, 0)
    new = TopicPartition(source, 1)
    # Where topic and offsets agree, it can only be a task that has lost the partition.
    expected = ({tp: LedgerEntry(source, 0, 0, 0)}, {new})
    wait_until(lambda: ledger.stable([tp, new]) == expected)
    producer.abort_transaction(PATIENCE)
    wait_until(lambda: ledger.stable([new]) == ({}, set()))


def test_holes_and_the_log_of_a_position_are_kept(
    topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    source = topic()
    config = configure(source)
    driver = sink(config)
    driver.prepare([source])
    entry = LedgerEntry(
        source, 0, 0, 0, cluster_id="C", topic_id="T", leader_epoch=3, epoch_offset=0, target="x"
    )
    driver.start([entry])
    driver.advance([Advance(OffsetRange(source, 0, 0, 10), lost=10)])
    (moved,) = sink(config).entries()
    assert (moved.position, moved.records_lost) == (10, 10)
    assert (moved.cluster_id, moved.topic_id, moved.target) == ("C", "T", "x")
    anew = LedgerEntry(source, 0, 4, 4, cluster_id="C", topic_id="U", target="x")
    hole = Hole(source, 0, 4, 10, TRUNCATED)
    driver.rebase([Rebase(moved, anew, hole)])
    driver.rebase([Rebase(moved, anew, hole)])  # after an unknown outcome
    (found,) = sink(config).entries()
    assert (found.position, found.topic_id) == (4, "U")
    holes = driver._ledger.topic.read(1).holes
    assert holes == (Hole(source, 0, 0, 10), hole)
    driver.set_positions([LedgerEntry(source, 0, 0, 0, topic_id="U")])
    assert set(driver._ledger.topic.read(1).holes) == {hole}


def test_what_was_read_before_positions_are_set_by_hand_stays_known(
    topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    source = topic()
    config = configure(source)
    driver = sink(config)
    driver.prepare([source])
    driver.start([LedgerEntry(source, 0, 0, 0)])
    driver.advance([Advance(OffsetRange(source, 0, 0, 10), read=10)])
    driver.close()
    check_keeps_what_was_read(lambda: sink(config), TopicPartition(source, 0), restarts=False)


def test_what_another_program_has_copied_is_a_hole(
    topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    groups = Groups({"bootstrap.servers": config["bootstrap.servers"]})
    groups.set_offsets(_group(config), [KafkaPartition(source, 0, 4)])
    sink(config).prepare([source])
    assert sink(config).holes() == [Hole(source, 0, 0, 4, TAKEN_OVER)]


def test_records_of_the_former_log_are_refused_at_the_same_position(
    topic: MakeTopic, configure: Configure, sink: MakeSink
) -> None:
    source = topic()
    driver = sink(configure(source))
    driver.prepare([source])
    driver.start([LedgerEntry(source, 0, 0, 0)])
    check_refuses_another_log(driver, TopicPartition(source, 0))


def test_facts_of_a_later_version_are_not_guessed_at() -> None:
    entry = LedgerEntry("t", 0, 9, 1, records_read=8, topic_id="T", leader_epoch=0)
    assert entry_of("t", 0, 9, facts_of(entry)) == entry
    with pytest.raises(ServiceError, match="a later version of semel"):
        entry_of("t", 0, 9, {**facts_of(entry), "v": 2})
