"""Who commits a micro-batch: each task its own range, or the driver all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semel.core.ledger import TopicPartition
from semel.driver.microbatch.plan import is_one_to_one
from semel.kafka.groups import published
from tests.conftest import MakeTopic
from tests.engine.harness import some
from tests.engine.microbatch.conftest import Go, MakeConfig, Query, position
from tests.engine.microbatch.transforms import DEAD_TABLE, even, grouped, rows, shuffled

pytestmark = pytest.mark.integration


PLANS: dict[str, tuple[Callable[[DataFrame], DataFrame], bool]] = {
    "filter": (lambda df: df.where("id > 3"), True),
    "select": (lambda df: df.select("id"), True),
    "withColumn": (lambda df: df.withColumn("x", F.col("id") + 1), True),
    "explode": (lambda df: df.withColumn("x", F.explode(F.array("id", "id"))), True),
    "udf": (lambda df: df.withColumn("x", F.udf(lambda i: i + 1, "long")("id")), True),
    "mapInArrow": (lambda df: df.mapInArrow(lambda b: b, df.schema), True),
    "sortWithinPartitions": (lambda df: df.sortWithinPartitions("id"), True),
    "groupBy": (lambda df: df.groupBy("id").count(), False),
    "repartition": (lambda df: df.repartition(4), False),
    "coalesce": (lambda df: df.coalesce(1), False),
    "distinct": (lambda df: df.distinct(), False),
    "limit": (lambda df: df.limit(5), False),
    "sort": (lambda df: df.orderBy("id"), False),
    "union": (lambda df: df.union(df), False),
    "join": (lambda df: df.join(df.withColumnRenamed("id", "x"), F.col("x") == df.id), False),
    "broadcast": (lambda df: df.join(F.broadcast(df.sparkSession.range(3)), "id"), False),
}


@pytest.mark.parametrize("plan", PLANS)
def test_tasks_commit_only_where_each_partition_is_made_of_one_range(
    spark: SparkSession, plan: str
) -> None:
    session: Any = spark
    frame = spark.range(20).repartition(2).select("id")
    rdd = frame._jdf.queryExecution().toRdd()
    source = DataFrame(
        session._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False), session
    )
    transform, expected = PLANS[plan]
    result = transform(source).mapInArrow(lambda batches: batches, "r binary")
    assert is_one_to_one(result, rdd.id()) is expected


@pytest.mark.parametrize(
    ("transform", "commits"),
    some([(None, 2), (even, 2), (shuffled, 1)], {(None, 2), (shuffled, 1)}),
)
def test_a_commit_holds_a_range_or_the_batch(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, transform: Any, commits: int
) -> None:
    t = topic(2, values=rows(100))
    progress = go(configure(t), transform)
    expected = [(50, 2450)] if transform is even else [(100, 4950)]
    assert query("SELECT count(*), sum(id)::bigint FROM t") == expected
    assert (progress.commits, progress.records) == (commits, 100)
    assert query(
        "SELECT sum(records_read)::bigint AS a, "
        "sum(rows_written + records_filtered)::bigint AS b FROM semel_offsets"
    ) == [(100, 100)]
    client = {"bootstrap.servers": configure(t)["bootstrap.servers"]}
    assert published(client, f"connect-c-{t}") == {
        TopicPartition(t, 0): 50,
        TopicPartition(t, 1): 50,
    }


@pytest.mark.long
def test_aggregates_are_counted_on_the_first_range(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(2, values=rows(100))
    assert go(configure(t), grouped).rows == 10
    assert query("SELECT count(*), sum(n)::bigint FROM t") == [(10, 100)]
    counts = query("SELECT sum(rows_written)::bigint AS a, sum(records_filtered)::bigint AS b, "
                   "sum(records_read)::bigint AS c FROM semel_offsets")  # fmt: skip
    assert counts == [(10, 0, 100)]


@pytest.mark.long
@pytest.mark.parametrize("nothing", [lambda df: df.where("false"), lambda df: df.where("id < 0")])
def test_a_transform_that_drops_all_rows_still_advances_the_ledger(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, nothing: Any
) -> None:
    t = topic(2, values=[*rows(10), "not json"])
    config = configure(t, **DEAD_TABLE)
    assert go(config, nothing).rows == 0
    assert position(query) == 11
    assert query("SELECT count(*) FROM dead") == [(1,)]


@pytest.mark.long
def test_a_transform_may_leave_records_unread(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=[*rows(50), "not json"])

    def none(df: DataFrame) -> DataFrame:
        def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return iter(())

        return df.select("id").mapInArrow(nothing, "id long")

    go(configure(t, **DEAD_TABLE), none)
    assert position(query) == 51
    assert query("SELECT count(*) FROM dead") == [(1,)]
