"""What the target topic contains: keys, values, headers, timestamps, partitions, tombstones."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.audit import audit
from semel.core.errors import ConfigError, OffsetOutOfRange
from semel.driver import supervisor
from semel.driver.planning import plan
from semel.kafka.groups import Groups, published
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import caught_up, positions, records, recreate, wait_until
from tests.patience import PATIENCE
from tests.sinks.kafka.conftest import Configure
from tests.sinks.kafka.copying import assert_each_once, consume, ids, target

pytestmark = pytest.mark.integration

TOMBSTONE = None
JSON = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}


def test_a_record_arrives_as_it_was(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2)
    values = [b"\xff\x00 no text", TOMBSTONE, b"", b"4"]
    keys = [b"a", b"b", None, b"\xfe"]
    headers = [[("h", b"1"), ("h", None)], None, [("\u00fc", b"")], None]
    stamps = [1_600_000_000_000 + i for i in range(4)]
    produce(source, values, keys, headers=headers, timestamps=stamps)
    config = configure(source, {"provenance": None, "partitioner": "keep"})
    caught_up(config)
    there = consume(kafka.bootstrap_servers, target(config))
    assert there == consume(kafka.bootstrap_servers, source)
    assert len(there) == 4


def test_provenance_headers_follow_the_records_own(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    produce(source, [b"a", b"b"], headers=[[("own", b"1")], None])
    config = configure(source, {"provenance.offset.header": "where"})
    caught_up(config)
    marks = [("__connect.topic", source.encode()), ("__connect.partition", b"0")]
    first, second = consume(kafka.bootstrap_servers, target(config))
    assert first.headers == (("own", b"1"), *marks, ("where", b"0"))
    assert second.headers == (*marks, ("where", b"1"))
    assert_nothing_but_a_good_audit(config)


def assert_nothing_but_a_good_audit(config: dict[str, str]) -> None:
    report = audit(config)
    assert (report.lost, report.duplicated, report.unknown, report.exact) == (0, 0, 0, True)


def test_keys_go_to_the_partitions_that_kafkas_default_partitioner_chooses(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    # What org.apache.kafka.common.utils.Utils.murmur2 gives for these keys, modulo 5.
    known = {b"21": 1, b"foobar": 4, b"a-little-bit-long-string": 3, b"": 1}
    expected = {k: _murmur2(k) % 5 for k in known}
    source = topic(partitions=1, values=records(4), keys=list(known))
    copy = topic(partitions=5)
    config = configure(source, {"topic.rename.format": copy})
    caught_up(config)
    assert {s.key: s.partition for s in consume(kafka.bootstrap_servers, copy)} == expected


def _murmur2(key: bytes) -> int:
    """Kafka's hash, positive."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return (h ^ (h >> 15)) & 0x7FFFFFFF


def test_tombstones_keep_their_place_between_the_other_records_of_their_key(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    values = [None if i % 3 == 1 else b"%d" % i for i in range(300)]
    source = topic(partitions=2, values=values, keys=[b"key-%d" % (i % 7) for i in range(300)])
    config = configure(source)
    caught_up(config)
    assert _by_key(kafka, target(config)) == _by_key(kafka, source)


def _by_key(kafka: Kafka, topic: str) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = {}
    for seen in consume(kafka.bootstrap_servers, topic):
        found.setdefault(seen.key, []).append(seen.value)
    return found


def test_a_transforms_columns_are_written_as_json(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    produce(source, [b'{"id": 1, "text": "\xc3\xbc"}', b'{"id": 2}', None], [b"k", b"l", b"m"])

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        index = batch.schema.get_field_index("id")
        twice = pc.multiply(batch.column(index), 2)
        return batch.set_column(index, "id", twice).filter(pc.greater(twice, 2))

    config = configure(source, JSON)
    caught_up(config, doubled)
    there = consume(kafka.bootstrap_servers, target(config))
    assert [(s.key, s.value and json.loads(s.value)) for s in there] == [
        (b"l", {"id": 4, "text": None}),
        (b"m", None),
    ]


def test_a_value_that_a_transform_has_extracted_is_written_without_its_object(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=[b'{"a": 7}', b'{"a": 8}'])
    config = configure(
        source,
        {
            **JSON,
            "transforms": "only",
            "transforms.only.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
            "transforms.only.field": "a",
        },
    )
    caught_up(config)
    assert [s.value for s in consume(kafka.bootstrap_servers, target(config))] == [b"7", b"8"]


def test_a_program_may_write_bytes_of_its_own(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=[b'{"id": 1}', b'{"id": 2}'])

    def packed(batch: pa.RecordBatch) -> pa.RecordBatch:
        made = pc.cast(pc.cast(batch.column("id"), pa.string()), pa.binary())
        rest = batch.drop_columns(["id"])
        return rest.append_column("value", pc.binary_join_element_wise(b"\xff", made, b""))

    config = configure(source, JSON)
    caught_up(config, packed)
    there = consume(kafka.bootstrap_servers, target(config))
    assert [s.value for s in there] == [b"\xff1", b"\xff2"]


def test_the_ledger_is_the_groups_offsets_and_counts(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(100))
    config = configure(source)
    caught_up(config)
    produce(source, records(100, start=100))
    caught_up(config)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    assert published(client, f"connect-{config['name']}") == positions(config)
    entries = plan(config).sink.entries()
    assert [(e.start_position, e.records_read, e.rows_written) for e in entries] == [
        (0, 100, 100),
        (0, 100, 100),
    ]
    assert_each_once(config, range(200))


@pytest.mark.long
def test_without_provenance_the_audit_goes_by_counts(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(100))
    config = configure(source, {"provenance": None})
    caught_up(config)
    report = assert_each_once(config, range(100))
    assert not report.exact
    produce(target(config), records(1))
    with pytest.raises(AssertionError, match="1 twice"):
        assert_each_once(config, range(100))
    assert (audit(config).lost, audit(config).duplicated) == (0, 1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"topic.rename.format": "${topic}"}, "go round forever"),
        ({"auto.create": None}, "does not exist. Create it, or set auto.create=true"),
        ({"delivery": "exactly-once", "delivery.mechanism": "idempotent"}, "cannot overwrite"),
        ({"producer.override.acks": "1"}, "no delivery but at-most-once can be kept"),
        ({"delivery": "at-least-once", "producer.override.acks": "0"}, "at-most-once can be kept"),
        ({"producer.override.transactional.id": "x"}, "is set by semel"),
        ({"producer.override.enable.idempotence": "false"}, "or set delivery=at-least-once"),
        (
            {"delivery": "at-most-once", "producer.override.enable.idempotence": "false"},
            "or set delivery=at-least-once",
        ),
        ({"engine": "micro-batch"}, "Set engine=direct"),
        ({"topic.rename.format": "${key}"}, r"only \$\{topic\}"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    keys: dict[str, str | None], message: str, topic: MakeTopic, configure: Configure
) -> None:
    config = configure(topic(), keys)
    with pytest.raises(ConfigError, match=message):
        caught_up(config)


@pytest.mark.long
def test_outside_of_transactions_the_producer_need_not_be_idempotent(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(partitions=2, values=[b"{", *records(100)])
    config = configure(
        source,
        {
            "delivery": "at-least-once",
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": topic(),
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "producer.override.enable.idempotence": "false",
            "producer.override.max.in.flight.requests.per.connection": "10",
        },
    )
    assert caught_up(config).failed == 1
    assert_each_once(config, range(100))


def test_kept_partitions_need_as_many_in_the_target(topic: MakeTopic, configure: Configure) -> None:
    config = configure(
        topic(partitions=3),
        {"topic.rename.format": topic(partitions=2), "partitioner": "keep"},
    )
    with pytest.raises(ConfigError, match=r"has 2 partitions, but .* has 3"):
        caught_up(config)


@pytest.mark.long
def test_another_cluster_holds_the_ledger_and_is_left_alone_by_the_source(
    kafka: Kafka,
    other_kafka: Kafka,
    topic: MakeTopic,
    configure: Configure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "SETTLE", PATIENCE)  # what a task publishes last, as it closes
    source = topic(partitions=2, values=records(100), keys=[b"%d" % i for i in range(100)])
    servers = other_kafka.bootstrap_servers
    config = configure(source, {"dest.kafka.bootstrap.servers": servers})
    caught_up(config)
    assert_each_once(config, range(100))
    assert sum(positions(config).values()) == 100
    assert {tp.topic for tp in positions(config)} == {source}
    group = f"connect-{config['name']}"
    there = published({"bootstrap.servers": servers}, group)
    assert {tp.topic for tp in there} == {target(config)}
    # In the source the group shows how far the connector is, as with any sink.
    here = published({"bootstrap.servers": kafka.bootstrap_servers}, group)
    assert here == positions(config)


@pytest.mark.long
def test_a_recreated_topic_goes_on_in_another_cluster(
    kafka: Kafka, other_kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    """The driver moves the positions while nobody is in the group, itself included."""
    source = topic(values=records(20))
    keys = {
        "dest.kafka.bootstrap.servers": other_kafka.bootstrap_servers,
        "topic.recreated": "earliest",
        "consumer.override.session.timeout.ms": 1500,
        "consumer.override.heartbeat.interval.ms": 300,
    }
    config = configure(source, keys)
    caught_up(config)
    recreate(kafka, source)
    produce(source, records(5, start=20))
    groups = Groups({"bootstrap.servers": kafka.bootstrap_servers})
    wait_until(lambda: groups.is_idle(f"connect-{config['name']}"))
    caught_up(config)
    assert list(positions(config).values()) == [5]
    assert ids(config) == list(range(25))


@pytest.mark.long
def test_an_audit_notices_a_topic_that_was_created_again(
    kafka: Kafka, other_kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(20))
    servers = other_kafka.bootstrap_servers
    config = configure(source, {"dest.kafka.bootstrap.servers": servers})
    caught_up(config)
    recreate(kafka, source)
    produce(source, records(10))
    with pytest.raises(OffsetOutOfRange, match=f"topic {source} was created again"):
        audit(config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dest.kafka.bootstrap.servers": "localhost:{port}"}, "is the cluster of bootstrap"),
        ({"errors.deadletterqueue.table": "dead"}, "Kafka has no tables"),
    ],
)
def test_what_makes_no_sense_is_refused(
    keys: dict[str, str], message: str, kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    filled = {k: v.replace("{port}", str(kafka.port)) for k, v in keys.items()}
    with pytest.raises(ConfigError, match=message):
        caught_up(configure(topic(), filled))


def test_several_topics_have_no_place_in_the_ledger_of_one_topic_elsewhere(
    topic: MakeTopic, configure: Configure
) -> None:
    keys = {"topic.rename.format": "all", "dest.kafka.bootstrap.servers": "elsewhere:9092"}
    with pytest.raises(ConfigError, match=r"Let it contain \$\{topic\}"):
        plan(configure(f"{topic()},{topic()}", keys))
