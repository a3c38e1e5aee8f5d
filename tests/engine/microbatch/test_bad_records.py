"""Bad records in a micro-batch."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from semel.core.errors import BadRecord
from semel.core.ledger import TopicPartition
from semel.kafka.cluster import Cluster
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import some
from tests.engine.microbatch.conftest import Go, MakeConfig, Query, position
from tests.engine.microbatch.transforms import DEAD_TABLE, even, grouped, passing, rows, shuffled

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("transform", some([None, even, grouped], {None}))
def test_a_bad_record_stops_the_connector_after_everything_before_it(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    t = topic(2)
    produce(t, rows(10), partition=0)
    produce(t, [*rows(6, 10), "not json", *rows(3, 16)], partition=1)
    with pytest.raises(BadRecord, match=f"{t}-1 offset 6 failed in VALUE_CONVERTER"):
        go(configure(t), transform)
    expected = {None: (16, None), even: (8, None), grouped: (10, 16)}[transform]
    total = "sum(n)::bigint" if transform is grouped else "NULL::bigint"
    assert query(f"SELECT count(*), {total} FROM t") == [expected]
    positions = query("SELECT partition, position FROM semel_offsets ORDER BY 1")
    assert positions == [(0, 10), (1, 6)]


@pytest.mark.long
@pytest.mark.parametrize("transform", some([None, passing, shuffled], {shuffled}))
def test_bad_and_refused_records_become_dead_letters_in_the_same_transaction(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    t = topic(1)
    query("CREATE TABLE t (id int8, name varchar(4), amount float8)")
    values = ["not json", *rows(3), '{"id": 3, "name": "too long", "amount": 1.0}', *rows(2, 4)]
    headers: list[Any] = [[("h", b"v"), ("e", None)]] + [None] * 6
    produce(t, values, keys=[f"k{i}" for i in range(7)], headers=headers)
    progress = go(configure(t, **DEAD_TABLE), transform)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in (0, 1, 2, 4, 5)]
    assert query('SELECT "offset", key, stage, headers::text FROM dead ORDER BY 1') == [
        (0, b"k0", "VALUE_CONVERTER", '[["h", "v"], ["e", null]]'),
        (4, b"k4", "TASK_PUT", "[]"),
    ]
    assert (progress.rows, progress.failed, position(query)) == (5, 2, 7)


@pytest.mark.long
@pytest.mark.parametrize("transform", [None, passing, shuffled])
def test_at_most_once_loses_no_more_than_the_rows_that_the_database_refuses(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    query("CREATE TABLE t (id int8, name varchar(4), amount float8)")
    t = topic(2, values=[*rows(3), '{"id": 3, "name": "too long", "amount": 1.0}', *rows(4, 4)])
    go(configure(t, delivery="at-most-once", **DEAD_TABLE), transform)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in (0, 1, 2, 4, 5, 6, 7)]
    assert query("SELECT stage FROM dead") == [("TASK_PUT",)]
    assert position(query) == 8


@pytest.mark.long
def test_dead_letters_go_to_a_topic(
    topic: MakeTopic, configure: MakeConfig, go: Go, kafka: Kafka
) -> None:
    t = topic(2, values=[*rows(4), "bad"])
    more = {
        "errors_tolerance": "all",
        "errors_deadletterqueue_topic_name": f"{t}-dead",
        "errors_deadletterqueue_topic_replication_factor": "1",
    }
    assert go(configure(t, **more), even).failed == 1
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    dead = TopicPartition(f"{t}-dead", 0)
    assert cluster.latest([dead]) == {dead: 1}


@pytest.mark.long
def test_a_row_that_does_not_say_where_it_comes_from_cannot_be_left_out(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    query("CREATE TABLE t (id int8, n varchar(1))")
    t = topic(1, values=rows(20))
    wide = lambda df: df.groupBy("id").agg(F.lit("wide").alias("n"))  # noqa: E731
    with pytest.raises(BadRecord, match="does not say which record"):
        go(configure(t, **DEAD_TABLE), wide)
    assert position(query) == 0
