"""Source offsets in Kafka: semel reads what Kafka Connect has written, and vice versa."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.driver.planning import plan_source
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import partition_of
from semel.kafka.transactions import PlainProducer
from semel.sources.offsets import Owner, SourceOffsets, own
from semel.sources.offsets.outside import Record
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.patience import PATIENCE
from tests.sinks.kafka.copying import consume

pytestmark = pytest.mark.integration

NAME = "local-file-source"
Make = Callable[..., SourceOffsets]


@pytest.fixture
def make(kafka: Kafka) -> Make:
    """A connector's offsets, in a topic that is created unless it is given."""

    def made(topic: str = "", prepare: bool = True, **keys: str) -> SourceOffsets:
        connector = plan_source(
            {
                "name": NAME,
                "connector.class": "FileStreamSource",
                "file": "test.txt",
                "topic": "lines",
                "bootstrap.servers": kafka.bootstrap_servers,
                "offsets.storage.topic": topic or f"offsets-{uuid.uuid4().hex[:8]}",
                "offset.storage.partitions": "5",
                **{name.replace("_", "."): value for name, value in keys.items()},
            }
        ).connector
        offsets = SourceOffsets(connector, Cluster(client_config(connector, "admin")))
        if prepare:
            offsets.prepare()
        return offsets

    return made


def write(
    kafka: Kafka, topic: str, *records: Record, partition: int = -1, timestamp: int = 0
) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key, value in records:
        producer.produce(topic, value, key, partition, timestamp=timestamp)
    assert producer.flush(30) == 0


def partitions_of(offsets: SourceOffsets) -> dict[bytes, set[int]]:
    """Where the records of each key are."""
    found: dict[bytes, set[int]] = {}
    connector = offsets._connector
    for record in consume(connector.bootstrap_servers, connector.offsets_topic):
        found.setdefault(record.key or b"", set()).add(record.partition)
    return found


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


PLACES = [{"filename": f"{n}.txt"} for n in range(20)]


def test_a_key_stays_in_kafka_connects_partition_whatever_the_producers_partitioner(
    kafka: Kafka, make: Make
) -> None:
    """Otherwise an old and a new offset of a key would be in two partitions, and the old one may be
    read last."""
    offsets = make(producer_override_partitioner="random")
    connector = offsets._connector
    stored = offsets.read()
    records = [stored.record(place, {"position": 1}) for place in PLACES]
    write(kafka, connector.offsets_topic, *records)
    as_java = partitions_of(offsets)
    producer = PlainProducer("", client_config(connector, "producer"))
    for position in range(2, 5):
        records = [stored.record(place, {"position": position}) for place in PLACES]
        offsets.store(producer, records)
    assert partitions_of(offsets) == as_java
    assert [o for _, o in offsets.read().offsets] == [{"position": 4}] * len(PLACES)


def test_of_two_partitions_that_hold_a_key_the_later_record_counts(
    kafka: Kafka, make: Make
) -> None:
    """As after the topic was given more partitions: Kafka Connect then writes elsewhere."""
    offsets = make()
    topic, now = offsets._connector.offsets_topic, int(time.time() * 1000)
    stored = offsets.read()
    for n, place in enumerate(PLACES):
        old, new = (stored.record(place, {"position": p}) for p in (1, 2))
        write(kafka, topic, old, partition=n % 5, timestamp=now - 1)
        write(kafka, topic, new, partition=(n + 1) % 5, timestamp=now)
    found = offsets.read()
    assert [o for _, o in found.offsets] == [{"position": 2}] * len(PLACES)
    # A tombstone is removed after a day: if an older offset stayed elsewhere, it would come back.
    producer = PlainProducer("", client_config(offsets._connector, "producer"))
    offsets.store(producer, [found.record(place, None) for place in PLACES])
    assert offsets.read().offsets == ()
    last: dict[tuple[bytes | None, int], bytes | None] = {
        (record.key, record.partition): record.value
        for record in consume(kafka.bootstrap_servers, topic)
    }
    assert set(last.values()) == {None}


def test_what_a_slow_clock_writes_counts_among_older_records_from_a_faster_one(
    kafka: Kafka, make: Make
) -> None:
    """After a failover to a host whose clock is behind: in another partition, or under another
    spelling of the key, an older offset would be the latest record."""
    offsets = make()
    topic, ahead = offsets._connector.offsets_topic, int(time.time() * 1000) + 600_000
    twice, spelled = {"table": "a", "schema": "s"}, {"table": "b", "schema": "s"}
    stored = offsets.read()
    (key, old), owner = stored.record(twice, {"id": 1}), stored.owned_by(Owner("old", 1))
    for partition in (1, 2):
        write(kafka, topic, (key, old), owner, partition=partition, timestamp=ahead - partition)
    theirs = b'["local-file-source",{"schema":"s","table":"b"}]'
    write(kafka, topic, stored.record(spelled, {"id": 1}), timestamp=ahead)
    write(kafka, topic, (theirs, b'{"id":1}'), timestamp=ahead - 1)
    found = offsets.read()
    records = [(key, b'{"id":2}'), (theirs, b'{"id":2}'), found.owned_by(Owner("new", 1))]
    offsets.store(PlainProducer("", client_config(offsets._connector, "producer")), records)
    found = make(topic).read()
    assert [o for _, o in found.offsets] == [{"id": 2}, {"id": 2}]
    assert found.owner == Owner("new", 1)


def test_a_clock_that_was_further_ahead_than_the_brokers_allow_by_now_is_named(
    kafka: Kafka, make: Make
) -> None:
    """Before version 4, brokers took records of any time (KIP-1030)."""
    limit, topic = "message.timestamp.after.max.ms", f"offsets-{uuid.uuid4().hex[:8]}"
    day = 24 * 3_600_000
    kafka.create_topic(topic, config={"cleanup.policy": "compact", limit: str(2 * day)})
    offsets = make(topic)
    ahead = int(time.time() * 1000) + day
    write(kafka, topic, offsets.read().record(PLACES[0], {"position": 1}), timestamp=ahead)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    entry = ConfigEntry(limit, "1000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(PATIENCE)
    offsets.read()
    with pytest.raises(ServiceError, match=f"dated .* UTC, and .*Raise {limit} of the topic"):
        own(offsets._connector, offsets, [()], fences=False)


@pytest.mark.parametrize("order", [1, -1])
def test_of_records_of_the_same_time_the_one_in_the_keys_own_partition_counts(
    order: int, kafka: Kafka, make: Make
) -> None:
    offsets = make()
    topic, now = offsets._connector.offsets_topic, int(time.time() * 1000)
    old, new = (offsets.read().record(PLACES[0], {"position": p}) for p in (1, 2))
    own = partition_of(new[0], 5)
    write(kafka, topic, new, timestamp=now)
    write(kafka, topic, old, partition=(own + order) % 5, timestamp=now)
    assert [o for _, o in offsets.read().offsets] == [{"position": 2}]


def test_a_topic_that_is_given_more_partitions_keeps_a_key_where_it_is(
    kafka: Kafka, make: Make
) -> None:
    offsets = make()
    connector = offsets._connector
    stored = offsets.read()
    write(
        kafka,
        connector.offsets_topic,
        *(stored.record(place, {"position": 1}) for place in PLACES),
    )
    before = partitions_of(offsets)
    kafka.increase_partitions(connector.offsets_topic, 13)
    offsets = make(connector.offsets_topic)
    stored = offsets.read()
    producer = PlainProducer("", client_config(connector, "producer"))
    offsets.store(producer, [stored.record(place, {"position": 2}) for place in PLACES])
    assert partitions_of(offsets) == before
    assert [o for _, o in offsets.read().offsets] == [{"position": 2}] * len(PLACES)


def test_of_two_keys_of_one_partition_the_later_record_counts_and_both_are_forgotten(
    kafka: Kafka, make: Make
) -> None:
    """Writers may differ in the order of fields, and in how they escape a character."""
    offsets = make()
    topic, now = offsets._connector.offsets_topic, int(time.time() * 1000)
    theirs = b'["local-file-source",{"table":"t","schema":"s"}]'
    ours = b'["local-file-source",{"schema":"s","table":"t"}]'
    for later, earlier in ((theirs, ours), (ours, theirs)):
        now += 10
        write(kafka, topic, (later, b'{"id":2}'), timestamp=now)
        write(kafka, topic, (earlier, b'{"id":1}'), timestamp=now - 1)
        stored = offsets.read()
        assert [o for _, o in stored.offsets] == [{"id": 2}]
        assert stored.record({"schema": "s", "table": "t"}, {"id": 3})[0] == later
    gone = stored.forgetting({"schema": "s", "table": "t"})
    offsets.store(PlainProducer("", client_config(offsets._connector, "producer")), gone)
    assert offsets.read().offsets == ()


def test_a_tombstone_forgets_what_an_older_spelling_of_its_key_has(
    kafka: Kafka, make: Make
) -> None:
    """Kafka Connect writes it under its own key only."""
    offsets = make()
    topic, now = offsets._connector.offsets_topic, int(time.time() * 1000)
    older = b'["local-file-source",{"table":"t","schema":"s"}]'
    newer = b'["local-file-source",{"schema":"s","table":"t"}]'
    for key, value, timestamp in ((older, b'{"id":1}', 2), (newer, b'{"id":2}', 1)):
        write(kafka, topic, (key, value), timestamp=now - timestamp)
    write(kafka, topic, (newer, None), timestamp=now)
    stored = offsets.read()
    assert stored.offsets == ()
    assert stored.forgetting({"schema": "s", "table": "t"}) == [(older, None), (newer, None)]


def test_without_a_topic_nothing_is_stored(make: Make) -> None:
    assert make(prepare=False).read(expected=False).offsets == ()
