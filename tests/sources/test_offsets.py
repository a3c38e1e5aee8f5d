"""Source offsets in Kafka: what Kafka Connect has written is read, and what is written it reads."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from semel.errors import ConfigError, ServiceError, TransientError
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.lab.embedded import Kafka
from semel.planning import plan_source
from semel.sources.offsets.outside import Record
from semel.sources.offsets.store import Owner, SourceOffsets
from tests.conftest import MakeTopic

pytestmark = pytest.mark.integration

NAME = "local-file-source"
Make = Callable[..., SourceOffsets]


@pytest.fixture
def make(kafka: Kafka) -> Make:
    """A connector's offsets, in a topic that is created unless it is given."""

    def made(topic: str = "", prepare: bool = True) -> SourceOffsets:
        connector = plan_source(
            {
                "name": NAME,
                "connector.class": "FileStreamSource",
                "file": "test.txt",
                "topic": "lines",
                "bootstrap.servers": kafka.bootstrap_servers,
                "offsets.storage.topic": topic or f"offsets-{uuid.uuid4().hex[:8]}",
                "offset.storage.partitions": "5",
            }
        ).connector
        offsets = SourceOffsets(connector, Cluster(client_config(connector, "admin")))
        if prepare:
            offsets.prepare()
        return offsets

    return made


def write(kafka: Kafka, topic: str, *records: Record) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def test_what_kafka_connect_has_written_is_understood(kafka: Kafka, make: Make) -> None:
    """To the byte as its FileStreamSource writes it, among records of other connectors and some
    that nobody can read; the last offset counts, and a tombstone forgets."""
    offsets = make()
    write(
        kafka,
        offsets._connector.offsets_topic,
        (b'["local-file-source",{"filename":"test.txt"}]', b'{"position":8}'),
        (b'["local-file-source",{"filename":"test.txt"}]', b'{"position":1234567890123}'),
        (b'["local-file-source",{"filename":"gone.txt"}]', b'{"position":3}'),
        (b'["local-file-source",{"filename":"gone.txt"}]', None),
        (b'["other",{"filename":"test.txt"}]', b'{"position":9}'),
        (b'["other",{"connector":"local-file-source"}]', b'{"position":9}'),
        (b"local-file-source", b"no JSON"),
        (b'["local-file-source"]', b'{"position":7}'),
        (b'\xff\xfe"local-file-source"\x80', b"\x00\xff"),
        (b"[" * 100_000 + b'"local-file-source"', b"{}"),
        (b'["local-file-source",{"filename":"gone too"},3]', b"\xff"),
        (b"\x00\x00\x00\x00\x07", None),
    )
    stored = offsets.read()
    assert stored.offsets == (({"filename": "test.txt"}, {"position": 1234567890123}),)
    assert stored.offset({"filename": "test.txt"}) == {"position": 1234567890123}
    assert stored.offset({"filename": "other.txt"}) is None
    assert stored.owner == Owner()


def test_what_is_written_is_kafka_connects_to_the_byte(make: Make) -> None:
    stored = make().read()
    assert stored.record({"filename": "größe.txt"}, {"position": 8}) == (
        '["local-file-source",{"filename":"größe.txt"}]'.encode(),
        b'{"position":8}',
    )
    assert stored.record({"filename": "a"}, None)[1] is None


def test_a_known_partition_keeps_its_key(kafka: Kafka, make: Make) -> None:
    """Otherwise two keys of one partition, which differ in the order of fields, would both stay."""
    offsets = make()
    key = b'["local-file-source",{"table":"t","schema":"s"}]'
    write(kafka, offsets._connector.offsets_topic, (key, b'{"id":1}'))
    stored = offsets.read()
    same = {"schema": "s", "table": "t"}
    assert stored.offset(same) == {"id": 1}
    assert stored.record(same, {"id": 2})[0] == key


def test_the_owner_is_told_apart_from_offsets(kafka: Kafka, make: Make) -> None:
    offsets = make()
    stored = offsets.read()
    write(kafka, offsets._connector.offsets_topic, stored.owned_by(Owner("run", 3)))
    assert offsets.read().owner == Owner("run", 3)
    assert offsets.read().offsets == ()
    assert json.loads(stored.owned_by(Owner("run", 3))[0]) == [NAME, None]


def test_an_aborted_transaction_stores_nothing_and_an_open_one_is_waited_for(
    kafka: Kafka, make: Make
) -> None:
    offsets = make()
    record = offsets.read().record({"filename": "test.txt"}, {"position": 8})
    client = {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"}
    producer = Producer({**client, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(offsets._connector.offsets_topic, record[1], record[0])
    producer.flush(30)
    with pytest.raises(TransientError, match="has not ended for 0 s"):
        offsets.read(0.0)
    producer.abort_transaction(30)
    assert offsets.read().offsets == ()


def test_the_topic_is_created_compacted_and_one_that_forgets_is_refused(
    kafka: Kafka, make: Make, topic: MakeTopic
) -> None:
    offsets = make()
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    assert cluster.topics()[offsets._connector.offsets_topic] == 5
    assert (cluster.topic_config(offsets._connector.offsets_topic) or {})[
        "cleanup.policy"
    ] == "compact"
    with pytest.raises(ConfigError, match=r"has cleanup\.policy=delete"):
        make(topic())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b'["local-file-source",{"filename":"f"}]', b"8", "is not a source offset: 8"),
        (b'["local-file-source",{"filename":"f"}]', b"\xff\x00", "is not a source offset: \ufffd"),
        (b'["local-file-source",null]', b'{"tasks":"many"}', "is not a run of semel: .*many"),
        (b'["local-file-source",null]', b"[1]", "is not a run of semel"),
    ],
)
def test_a_value_that_is_no_offset_is_refused(
    key: bytes, value: bytes, message: str, kafka: Kafka, make: Make
) -> None:
    offsets = make()
    write(kafka, offsets._connector.offsets_topic, (key, value))
    with pytest.raises(ServiceError, match=message):
        offsets.read()


def test_without_a_topic_nothing_is_stored(make: Make) -> None:
    assert make(prepare=False).read(expected=False).offsets == ()
