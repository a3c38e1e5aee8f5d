"""Record batches that are damaged on the broker's disk, and on their way from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.audit import audit
from semel.core.errors import BadRecord
from semel.core.ledger import TopicPartition
from semel_lab.embedded import Kafka, logs
from tests.conftest import Produce
from tests.engine.conftest import Configure, Lake
from tests.engine.harness import caught_up, ids, name, positions, records, sql, transaction

TOPIC = "orders"
ZERO, ONE, MARKED = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1), TopicPartition("marked", 0)


@pytest.fixture(scope="module")
def damaged(module_kafka: Kafka, produce: Produce) -> Kafka:
    """Ten batches of ten records in partition 0, of which that at offset 40 is damaged; ten good
    records in partition 1. In the second topic, the damage at offset 11 follows ten records and
    the marker of their transaction."""
    kafka, servers = module_kafka, module_kafka.bootstrap_servers
    kafka.create_topic(TOPIC, 2)
    for start in range(0, 100, 10):
        produce(TOPIC, records(10, start), partition=0, bootstrap_servers=servers)
    produce(TOPIC, records(10, 100), partition=1, bootstrap_servers=servers)
    kafka.create_topic(MARKED.topic, 1)
    transaction(kafka, MARKED.topic, records(10))
    for start in (10, 20):
        produce(MARKED.topic, records(10, start), partition=0, bootstrap_servers=servers)
    kafka.stop()
    for tp, at in ((ZERO, 40), (MARKED, 11)):
        batches = logs.batches(logs.partition_directory(kafka.directory / "data", tp))
        logs.flip(next(b for b in batches if b.first_offset == at))
    return kafka.start()


STOPS = rf"{TOPIC}-0 is damaged: offsets 40 to 49 cannot be read .*failed CRC32C check.*"
LEFT = [*range(40), *range(50, 110)]


@pytest.mark.integration
def test_a_damaged_batch_stops_the_tasks_and_with_tolerance_is_passed_over(
    damaged: Kafka, configure: Configure
) -> None:
    servers = {"bootstrap.servers": damaged.bootstrap_servers}
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = configure(TOPIC, servers)
    with pytest.raises(BadRecord, match=STOPS):
        caught_up(config)
    assert positions(config)[ZERO] == 40
    progress = caught_up({**config, **tolerant})
    assert progress.positions == {ZERO: 100, ONE: 10}
    url = config["connection.url"]
    assert ids(url, TOPIC) == LEFT
    holes = sql(url, "SELECT partition, from_offset, until_offset, reason FROM semel_holes")
    assert holes == [(0, 40, 50, "damaged in Kafka")]
    letters = sql(url, 'SELECT partition, "offset", key, value, stage, message FROM dead')
    assert [x[:5] for x in letters] == [(0, 40, None, None, "KAFKA_CONSUME")]
    assert "offsets 40 to 49 cannot be read" in letters[0][5]
    report = audit({**config, **tolerant})
    assert report.kept
    assert (report.lost, report.duplicated) == (0, 0)
    assert sum(p.retention for p in report.partitions) == 10
    sql(url, f'DELETE FROM "{TOPIC}" WHERE id IN (SELECT id FROM "{TOPIC}" LIMIT 7)')
    assert audit({**config, **tolerant}).lost == 7


@pytest.mark.long
@pytest.mark.integration
def test_a_damaged_batch_stops_the_driver_and_with_tolerance_is_passed_over(
    damaged: Kafka, lake: Lake
) -> None:
    staged = lake(TOPIC, {"bootstrap.servers": damaged.bootstrap_servers})
    with pytest.raises(BadRecord, match=STOPS):
        caught_up(staged)
    assert positions(staged)[ZERO] == 40
    caught_up({**staged, "errors.tolerance": "all"})
    report = audit({**staged, "errors.tolerance": "all"})
    assert (report.kept, report.lost, report.duplicated) == (True, 0, 0)
    assert sum(p.rows for p in report.partitions) == len(LEFT)


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize("kind", ["lake", "table"])
def test_damage_after_the_marker_of_a_transaction_is_passed_over_too(
    kind: str, damaged: Kafka, configure: Configure, lake: Lake
) -> None:
    """The consumer meets it before it has passed the marker."""
    servers = {"bootstrap.servers": damaged.bootstrap_servers}
    make: Configure = lake if kind == "lake" else configure
    config = make(MARKED.topic, servers)
    with pytest.raises(BadRecord, match="marked-0 is damaged: offsets 11 to 20 cannot be read"):
        caught_up(config)
    assert positions(config)[MARKED] in (10, 11)
    report = audit(config)
    assert (report.kept, report.lost, report.duplicated) == (True, 0, 0)
    assert sum(p.rows for p in report.partitions) == 10
    caught_up({**config, "errors.tolerance": "all"})
    assert positions(config)[MARKED] == 31
    report = audit({**config, "errors.tolerance": "all"})
    assert (report.kept, report.lost, report.duplicated) == (True, 0, 0)
    assert sum(p.rows for p in report.partitions) == 20


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("kind", ["lake", "table"])
def test_what_lies_before_damage_of_unknown_extent_is_committed(
    kind: str, own_kafka: Callable[[], Kafka], produce: Produce, configure: Configure, lake: Lake
) -> None:
    """Of a format that nobody knows."""
    kafka, at = own_kafka(), TopicPartition("strange", 0)
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    kafka.create_topic(at.topic, 1)
    for start in (0, 10, 20):
        produce(
            at.topic, records(10, start), partition=0, bootstrap_servers=kafka.bootstrap_servers
        )
    kafka.stop()
    logs.strange(list(logs.batches(logs.partition_directory(kafka.directory / "data", at)))[1])
    kafka.start()
    make: Configure = lake if kind == "lake" else configure
    config = make(at.topic, {**servers, "errors.tolerance": "all"})
    config.pop("key.converter", None)
    for _ in range(2):
        with pytest.raises(
            BadRecord, match=r"strange-0 cannot be read at offset 10: .* is not kno"
        ):
            caught_up(config)
        assert positions(config)[at] == 10


@pytest.mark.long
@pytest.mark.integration
def test_damage_done_after_a_record_was_written_is_not_held_against_its_row(
    damaged: Kafka, configure: Configure
) -> None:
    unchecked = {"consumer.override.check.crcs": "false"}
    config = configure(TOPIC, {"bootstrap.servers": damaged.bootstrap_servers})
    caught_up({**config, **unchecked, "errors.tolerance": "all", "name": config["name"]})
    report = audit(config)
    assert (report.lost, report.duplicated) == (0, 0)
    assert report.unknown >= 9


@pytest.mark.integration
@pytest.mark.long
def test_a_topic_that_begins_with_damage_is_sampled_and_read(
    module_kafka: Kafka, produce: Produce, configure: Configure
) -> None:
    kafka = module_kafka
    source = name()
    kafka.create_topic(source, 1)
    for start in (0, 10):
        produce(source, records(10, start), bootstrap_servers=kafka.bootstrap_servers)
    kafka.stop()
    tp = TopicPartition(source, 0)
    logs.flip(next(logs.batches(logs.partition_directory(kafka.directory / "data", tp))))
    kafka.start()
    config = configure(
        source, {"bootstrap.servers": kafka.bootstrap_servers, "errors.tolerance": "all"}
    )
    caught_up(config)
    assert ids(config["connection.url"], source) == list(range(10, 20))
