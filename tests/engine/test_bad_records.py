"""Records that cannot be converted or do not fit: where it stops, and how it continues."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from semel.core import failpoints
from semel.core.errors import BadRecord, ConfigError, ServiceError
from semel.core.ledger import TopicPartition, firsts
from semel.driver.planning import plan
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure
from tests.engine.harness import (
    LocalSpark,
    assert_nothing_lost_nothing_twice,
    caught_up,
    ids,
    once_let_go,
    positions,
    records,
    some,
    sql,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

PROVENANCE = (
    "__connect_topic text, __connect_partition int, __connect_offset bigint, "
    "__connect_timestamp timestamptz"
)
BAD = {
    "not JSON": (b'{"id": 5', {}, "VALUE_CONVERTER"),
    "wrong type for the column": (b'{"id": "five"}', {}, "VALUE_CONVERTER|TASK_PUT"),
    "number that does not fit": (b'{"id": 99999999999}', {}, "VALUE_CONVERTER|TASK_PUT"),
    "no field that the table has": (b'{"ID": 5}', {}, "VALUE_CONVERTER"),
    "constraint in the database": (b'{"id": 3000}', {}, "TASK_PUT"),
    "null in the key": (
        b'{"id": null}',
        {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"},
        "TASK_PUT",
    ),
}
SMALL = {"consumer.override.max.poll.records": 7}
UPSERT_BY_KEY = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "k"}


def table(url: str, name: str) -> None:
    columns = "id integer PRIMARY KEY CHECK (id < 2000), text text"
    sql(url, f'CREATE TABLE "{name}" ({columns}, {PROVENANCE})')


def set_positions(config: Config, topic: str, partition: int, offset: int) -> None:
    sink = plan(config).sink
    once_let_go(lambda: sink.set_positions(firsts({TopicPartition(topic, partition): offset})))
    sink.close()


@pytest.mark.parametrize(
    ("kind", "delivery"),
    some(
        [
            *((kind, "exactly-once") for kind in BAD),
            ("constraint in the database", "at-least-once"),
            ("constraint in the database", "at-most-once"),
        ],
        {(next(iter(BAD)), "exactly-once")},
    ),
)
def test_a_bad_record_stops_it_with_everything_before_committed(
    kind: str, delivery: str, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    value, keys, stage = BAD[kind]
    source = topic(partitions=2)
    produce(source, [*records(7), value, *records(5, start=10)], partition=0)
    produce(source, records(4, start=20), partition=1)
    config = configure(source, {**keys, "delivery": delivery})
    table(config["connection.url"], source)
    with pytest.raises(BadRecord, match=rf"{source}-0 offset 7 failed in ({stage}): .+"):
        caught_up(config)
    assert set(range(7)) <= set(ids(config["connection.url"], source))
    if delivery == "at-most-once":
        return
    assert positions(config)[TopicPartition(source, 0)] == 7
    with pytest.raises(BadRecord, match="offset 7"):
        caught_up(config)  # again and again, until it is handled
    set_positions(config, source, 0, 8)
    caught_up(config)
    assert ids(config["connection.url"], source) == [*range(7), *range(10, 15), *range(20, 24)]


def test_a_record_without_the_key_that_the_table_needs_is_a_bad_record(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(3), keys=[b"a", None, b"b"])
    with pytest.raises(BadRecord, match=rf"{source}-0 offset 1 failed in TASK_PUT: .*key.* null"):
        caught_up(configure(source, UPSERT_BY_KEY))


@pytest.mark.parametrize(
    "place",
    some(
        [p for p in failpoints.PLACES if p != "deliver.between"],
        {"sink.before_commit"},
    ),
)
def test_dead_letters_in_a_table_are_there_exactly_once(
    place: str, topic: MakeTopic, configure: Configure, points: Path
) -> None:
    bad = [v for v, keys, _ in BAD.values() if not keys]
    values = records(90)
    for index, value in zip(itertools.count(5, 20), bad, strict=False):
        values[index] = value
    source = topic(partitions=2, values=values)
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead", **SMALL}
    config = configure(source, keys)
    table(config["connection.url"], source)
    failpoints.arm(points, place, "kill-worker", skip=3)
    caught_up(config, spark=LocalSpark(points))
    assert failpoints.fired(points)
    good = set(range(90)) - set(range(5, 5 + 20 * len(bad), 20))
    report = assert_nothing_lost_nothing_twice(config, good)
    assert sum(p.failed for p in report.partitions) == len(bad)
    dead = sql(config["connection.url"], "SELECT convert_from(value, 'UTF8') FROM dead ORDER BY 1")
    assert dead == sorted(v.decode() for v in bad)


def test_dead_letters_in_a_topic_are_raw_with_the_reason_in_their_headers(
    kafka: Kafka,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic()
    dead = f"{source}-dead"
    value = b'{"id": 1, \xff'
    produce(
        source,
        [*records(2), value],
        keys=[b"a", b"b", b"\x00k"],
        headers=[None, None, [("h", b"1")]],
        timestamps=[5, 6, 7],
    )
    config = configure(
        source,
        {
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": dead,
            "errors.deadletterqueue.topic.replication.factor": 1,
            "errors.log.enable": "true",
            "errors.log.include.messages": "true",
        },
    )
    caught_up(config)
    (message,) = consumed(kafka, dead)
    assert (message.key(), message.value()) == (b"\x00k", value)
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 7)
    headers = [(k, v.decode()) for k, v in message.headers()]
    assert headers[0] == ("h", "1")
    context = {k.removeprefix("__connect.errors."): v for k, v in headers[1:]}
    assert context.pop("exception.message")
    assert context == {
        "exception.class.name": "org.apache.kafka.connect.errors.DataException",
        "topic": source,
        "partition": "0",
        "offset": "2",
        "connector.name": config["name"],
        "task.id": "0",
        "stage": "VALUE_CONVERTER",
        "class.name": "org.apache.kafka.connect.json.JsonConverter",
    }
    said = "\n".join(caplog.messages)
    assert f"bad record at {source}-0 offset 2 (VALUE_CONVERTER)" in said
    assert repr(value) in said
    assert_nothing_lost_nothing_twice(config, range(2))


@pytest.mark.long
def test_a_commit_that_is_tried_again_does_not_send_its_dead_letters_again(
    kafka: Kafka, topic: MakeTopic, configure: Configure, points: Path
) -> None:
    source = topic(values=[b"{", *records(3), b'{"id": 3000}'])
    keys = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{source}-dead",
        "errors.deadletterqueue.topic.replication.factor": 1,
    }
    config = configure(source, keys)
    table(config["connection.url"], source)
    failpoints.arm(points, "sink.before_commit", "raise")
    caught_up(config, spark=LocalSpark(points))
    assert failpoints.fired(points)
    assert sorted(m.value() for m in consumed(kafka, f"{source}-dead")) == [b"{", b'{"id": 3000}']


def test_bad_records_without_dead_letters_are_counted_and_dropped(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=[b"{", *records(3)])
    config = configure(source, {"errors.tolerance": "all"})
    assert caught_up(config).failed == 1
    report = assert_nothing_lost_nothing_twice(config, range(3))
    assert report.partitions[0].failed == 1


def test_a_transform_that_raises_for_one_record_fails_only_that_one(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(50))
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = configure(source, keys)
    caught_up(config, refuse_thirty)
    found = sql(config["connection.url"], 'SELECT "offset", stage, exception, message FROM dead')
    assert found == [(30, "TRANSFORMATION", "ValueError", "not thirty")]
    assert_nothing_lost_nothing_twice(config, set(range(50)) - {30}, refuse_thirty)

    with pytest.raises(BadRecord, match=r"offset 30 failed in TRANSFORMATION: not thirty"):
        caught_up(configure(source, {"table.name.format": "other"}), refuse_thirty)
    assert ids(config["connection.url"], "other") == list(range(30))


def test_a_transform_written_for_dataframes_is_a_mistake_not_a_bad_record(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(5))
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead", "engine": "direct"}
    config = configure(source, keys)
    with pytest.raises(ConfigError, match=r"asks for where.*engine=micro-batch"):
        caught_up(config, lambda df: df.where("id > 3"))
    assert sql(config["connection.url"], "SELECT count(*) FROM dead") == [0]


def refuse_thirty(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 30 in batch.column("id").to_pylist():
        raise ValueError("not thirty")
    return batch


def test_a_dead_letter_topic_that_it_reads_itself_is_refused(configure: Configure) -> None:
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead-letters"}
    with pytest.raises(ConfigError, match="dead letters would come back"):
        plan(configure("dead-letters", keys))
    with pytest.raises(ConfigError, match="dead letters would come back"):
        plan(configure("", {**keys, "topics.regex": "dead.*", "topics": None}))


def test_a_dead_letter_topic_that_cannot_be_created_is_named(
    topic: MakeTopic, configure: Configure
) -> None:
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "never-there"}
    with pytest.raises(ServiceError, match=r"cannot create topic.*dead letters.*replication"):
        caught_up(configure(topic(), keys))


def consumed(kafka: Kafka, topic: str) -> list[Any]:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "dead"})
    _, end = consumer.get_watermark_offsets(Partition(topic, 0), timeout=PATIENCE)
    consumer.assign([Partition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < end:
        found += consumer.consume(end - len(found), 5)
    consumer.close()
    return found
