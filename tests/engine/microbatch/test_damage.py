"""Record batches that are damaged on the broker's disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.core.errors import BadRecord
from semel.core.ledger import TopicPartition
from semel_lab.embedded import Kafka, logs
from tests.conftest import Produce
from tests.engine.harness import transaction
from tests.engine.microbatch.conftest import Go, MakeConfig, Query
from tests.engine.microbatch.transforms import DEAD_TABLE, passing, rows

pytestmark = pytest.mark.integration

ZERO = TopicPartition("orders", 0)


@pytest.fixture
def damaged(own_kafka: Callable[[], Kafka], produce: Produce) -> Kafka:
    """Batches of ten records in partition 0, of which that at offset 20 is damaged; ten good
    records in partition 1."""
    kafka = own_kafka()
    kafka.create_topic(ZERO.topic, 2)
    servers = kafka.bootstrap_servers
    for start in range(0, 50, 10):
        produce(ZERO.topic, rows(10, start), partition=0, bootstrap_servers=servers)
    produce(ZERO.topic, rows(10, 50), partition=1, bootstrap_servers=servers)
    kafka.stop()
    batches = logs.batches(logs.partition_directory(kafka.directory / "data", ZERO))
    logs.flip(next(b for b in batches if b.first_offset == 20))
    return kafka.start()


@pytest.mark.long
def test_damage_after_the_marker_of_a_transaction_is_passed_over_too(
    own_kafka: Callable[[], Kafka], produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    """Spark's source meets it while it looks for a record at the marker's offset."""
    kafka = own_kafka()
    kafka.create_topic(ZERO.topic, 1)
    transaction(kafka, ZERO.topic, rows(10))
    for start in (10, 20):
        produce(ZERO.topic, rows(10, start), bootstrap_servers=kafka.bootstrap_servers)
    kafka.stop()
    batches = logs.batches(logs.partition_directory(kafka.directory / "data", ZERO))
    logs.flip(next(b for b in batches if b.first_offset == 11))
    kafka.start()
    config = configure("orders") | {"bootstrap.servers": kafka.bootstrap_servers}
    with pytest.raises(BadRecord, match="orders-0 is damaged: offsets 11 to 20 cannot be read"):
        go(config)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in range(10)]
    go(configure("orders", **DEAD_TABLE) | config)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in (*range(10), *range(20, 30))]
    holes = query("SELECT from_offset, until_offset, reason FROM semel_holes")
    assert holes == [(11, 21, "damaged in Kafka")]


@pytest.mark.long
@pytest.mark.parametrize("transform", [None, passing])
def test_a_damaged_batch_stops_it_and_with_tolerance_is_passed_over(
    damaged: Kafka, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    config = configure("orders") | {"bootstrap.servers": damaged.bootstrap_servers}
    with pytest.raises(BadRecord, match="orders-0 is damaged: offsets 20 to 29 cannot be read"):
        go(config, transform)
    assert query("SELECT position FROM semel_offsets WHERE partition = 0") == [(20,)]
    go(configure("orders", **DEAD_TABLE) | config, transform)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in (*range(20), *range(30, 60))]
    holes = query("SELECT from_offset, until_offset, reason FROM semel_holes")
    assert holes == [(20, 30, "damaged in Kafka")]
    assert query('SELECT "offset", key, value, stage FROM dead') == [
        (20, None, None, "KAFKA_CONSUME")
    ]
