"""The micro-batch engine, with a real Kafka, PostgreSQL and Spark."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import semel
from semel import failpoints
from semel.audit import audit
from semel.config import ConnectorConfig, read
from semel.embedded import Kafka
from semel.engine import microbatch, microtask
from semel.engine.base import Progress
from semel.engine.lineage import is_one_to_one
from semel.engine.microbatch import kafka_options, require_source
from semel.engine.microcommit import Side
from semel.errors import BadRecord, ConfigError, LedgerConflict, OffsetOutOfRange, ServiceError
from semel.kafka import Cluster
from semel.ledger import TopicPartition
from semel.spark import micro_batch_session
from semel.spark import stop as stop_session
from tests.conftest import MakeTopic, Produce

pytestmark = pytest.mark.integration

Config = dict[str, str]
MakeConfig = Callable[..., Config]
Query = Callable[[str], list[tuple[Any, ...]]]
Go = Callable[..., Progress]
Arm = Callable[..., None]

KEYED = {"pk_mode": "record_key", "pk_fields": "k", "insert_mode": "upsert"}
QUICK_JVM = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=FATAL"
}
DEAD_TABLE = {"errors_tolerance": "all", "errors_deadletterqueue_table": "dead"}


def connector(**more: str) -> ConnectorConfig:
    base = {
        "name": "tests",
        "connector.class": "postgresql",
        "topics": "t",
        "bootstrap.servers": "none:9092",
        "tasks.max": "2",
    }
    return read(ConnectorConfig, base | more)


@pytest.fixture(scope="module")
def failpoint_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failpoints")


@pytest.fixture(scope="module")
def spark(failpoint_directory: Path) -> Iterator[SparkSession]:
    """One session for all tests, started as semel starts one. Its workers obey failpoints."""
    os.environ[failpoints.DIRECTORY] = str(failpoint_directory)
    session = micro_batch_session(connector(), QUICK_JVM)
    del os.environ[failpoints.DIRECTORY]
    yield session
    stop_session(session)


@pytest.fixture
def arm(failpoint_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Arm:
    """Arm a place for the workers of the shared session, and for the driver inside this process."""
    monkeypatch.setattr(failpoints, "_directory", str(failpoint_directory))
    return lambda place, action: failpoints.arm(failpoint_directory, place, action)


@pytest.fixture
def configure(kafka: Kafka, database: str) -> MakeConfig:
    """A connector's configuration: plain JSON into tables that are made as needed."""

    def make(topics: str, **more: str) -> Config:
        return {
            "name": f"c-{topics.split(',', maxsplit=1)[0]}",
            "connector.class": "postgresql",
            "topics": topics,
            "bootstrap.servers": kafka.bootstrap_servers,
            "value.converter": "JsonConverter",
            "value.converter.schemas.enable": "false",
            "connection.url": database,
            "auto.create": "true",
            "table.name.format": "t_${topic}" if "," in topics else "t",
            "engine": "micro-batch",
            "tasks.max": "2",
            "retry.backoff.ms": "50",
        } | {k.replace("_", "."): v for k, v in more.items()}

    return make


@pytest.fixture
def query(database: str) -> Query:
    """The rows of a query in the test's database."""

    def ask(sql: str) -> list[tuple[Any, ...]]:
        with adbc.connect(database, autocommit=True) as connection, connection.cursor() as cursor:
            if not sql.startswith("SELECT"):
                cursor.executemany(sql, None)
                return []
            cursor.execute(sql)
            return [tuple(row.values()) for row in cursor.fetch_arrow_table().to_pylist()]

    return ask


@pytest.fixture
def go(spark: SparkSession) -> Go:
    """Run a connector in the shared session until it has caught up."""

    def start(config: Config, transform: Any = None, **more: Any) -> Progress:
        return semel.run(config, transform, spark=spark, until_caught_up=True, **more)

    return start


class Running:
    """A connector that runs in a thread until it is told to stop."""

    def __init__(self, spark: SparkSession, config: Config, transform: Any) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.progress = Progress()
        self._thread = threading.Thread(target=self._run, args=(spark, config, transform))
        self._thread.start()

    def _run(self, spark: SparkSession, config: Config, transform: Any) -> None:
        try:
            self.progress = semel.run(
                config, transform, spark=spark, stop=self.stop, observe=self._observe
            )
        except BaseException as error:
            self.error = error

    def _observe(self, progress: Progress) -> None:
        self.progress = progress

    def reach(self, condition: Callable[[Progress], bool], timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not condition(self.progress):
            assert self._thread.is_alive(), self.error
            assert time.monotonic() < deadline, self.progress
            time.sleep(0.02)

    def end(self, timeout: float = 60) -> BaseException | None:
        self._thread.join(timeout)
        assert not self._thread.is_alive()
        return self.error


@pytest.fixture
def launch(spark: SparkSession) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(config: Config, transform: Any = None) -> Running:
        started.append(Running(spark, config, transform))
        return started[-1]

    yield start
    for running in started:
        running.stop.set()
        running.end()


def rows(count: int, start: int = 0, **more: Any) -> list[str]:
    return [
        json.dumps({"id": i, "name": f"n{i}", "amount": i * 1.5} | more)
        for i in range(start, start + count)
    ]


# DataFrame transforms. Only the last two make rows of several ranges meet.


def passing(df: DataFrame) -> DataFrame:
    return df


def even(df: DataFrame) -> DataFrame:
    return df.where("id % 2 = 0").withColumn("twice", F.col("id") * 2)


def shuffled(df: DataFrame) -> DataFrame:
    return df.repartition(3, "id")


def grouped(df: DataFrame) -> DataFrame:
    return df.groupBy((F.col("id") % 10).alias("id")).agg(F.count("*").alias("n"))


def position(query: Query) -> int:
    return query("SELECT sum(position - start_position)::bigint FROM semel_offsets")[0][0]


# Which commit


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


@pytest.mark.parametrize(("transform", "commits"), [(None, 2), (even, 2), (shuffled, 1)])
def test_a_commit_holds_a_range_or_the_batch(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go,
    transform: Any, commits: int,
) -> None:  # fmt: skip
    t = topic(2)
    produce(t, rows(100))
    progress = go(configure(t), transform)
    expected = [(50, 2450)] if transform is even else [(100, 4950)]
    assert query("SELECT count(*), sum(id)::bigint FROM t") == expected
    assert (progress.commits, progress.records) == (commits, 100)
    assert query(
        "SELECT sum(records_read)::bigint AS a, "
        "sum(rows_written + records_filtered)::bigint AS b FROM semel_offsets"
    ) == [(100, 100)]
    group = Cluster({"bootstrap.servers": configure(t)["bootstrap.servers"]}).committed(
        f"connect-c-{t}"
    )
    assert group == {TopicPartition(t, 0): 50, TopicPartition(t, 1): 50}


def test_aggregates_are_counted_on_the_first_range(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(2)
    produce(t, rows(100))
    assert go(configure(t), grouped).rows == 10
    assert query("SELECT count(*), sum(n)::bigint FROM t") == [(10, 100)]
    counts = query("SELECT sum(rows_written)::bigint AS a, sum(records_filtered)::bigint AS b, "
                   "sum(records_read)::bigint AS c FROM semel_offsets")  # fmt: skip
    assert counts == [(10, 0, 100)]


@pytest.mark.parametrize("nothing", [lambda df: df.where("false"), lambda df: df.where("id < 0")])
def test_a_transform_that_drops_all_rows_still_advances_the_ledger(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, nothing: Any
) -> None:
    t = topic(2)
    produce(t, [*rows(10), "not json"])
    config = configure(t, **DEAD_TABLE)
    assert go(config, nothing).rows == 0
    assert position(query) == 11
    assert query("SELECT count(*) FROM dead") == [(1,)]


def test_a_transform_may_leave_records_unread(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    produce(t, [*rows(50), "not json"])

    def none(df: DataFrame) -> DataFrame:
        def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return iter(())

        return df.select("id").mapInArrow(nothing, "id long")

    go(configure(t, **DEAD_TABLE), none)
    assert position(query) == 51
    assert query("SELECT count(*) FROM dead") == [(1,)]


# The same rows as the direct engine's


TYPES: list[tuple[str, dict[str, Any], Any]] = [
    ("i8", {"type": "int8"}, -8),
    ("i16", {"type": "int16"}, -16),
    ("i32", {"type": "int32"}, 1 << 30),
    ("i64", {"type": "int64"}, 1 << 60),
    ("f32", {"type": "float"}, 1.5),
    ("f64", {"type": "double"}, 0.1),
    ("flag", {"type": "boolean"}, True),
    ("txt", {"type": "string"}, "ä\n€"),
    ("raw", {"type": "bytes"}, base64.b64encode(b"\0\xff").decode()),
    ("dec", {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
             "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
     base64.b64encode((12345).to_bytes(2, "big")).decode()),
    ("day", {"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, 20000),
    ("tod", {"type": "int32", "name": "org.apache.kafka.connect.data.Time"}, 45_296_789),
    ("ts", {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, 1_700_000_000_123),
    ("mtime", {"type": "int64", "name": "io.debezium.time.MicroTime"}, 45_296_789_012),
    ("ntime", {"type": "int64", "name": "io.debezium.time.NanoTime"}, 45_296_789_012_000),
    ("mts", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 1_700_000_000_123_456),
    ("nts", {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, 1_700_000_000_123_456_789),
    ("zts", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
     "2024-02-29T12:30:00.5+02:00"),
    ("doc", {"type": "string", "name": "io.debezium.data.Json"}, '{"a": [1, null]}'),
    ("list", {"type": "array", "items": {"type": "int32"}}, [1, 2, 3]),
    ("inner", {"type": "struct", "fields": [{"field": "x", "type": "int32"}]}, {"x": 1}),
]  # fmt: skip


def enveloped() -> list[str]:
    """A record of every type, and one of nulls."""
    fields = [{"field": name, "optional": True, **schema} for name, schema, _ in TYPES]
    schema = {"type": "struct", "optional": False, "fields": fields}
    full = {name: value for name, _, value in TYPES}
    payloads = [full, dict.fromkeys(full)]
    return [json.dumps({"schema": schema, "payload": payload}) for payload in payloads]


def arrow_passing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_values_of_all_types_are_the_same_through_both_engines(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    produce(t, enveloped())
    for name, engine, transform in (
        ("a", "direct", None),
        ("b", "micro-batch", None),
        ("c", "micro-batch", passing),
        ("d", "micro-batch", shuffled_by_offset),
    ):
        config = configure(t, name=name, table_name_format=name, engine=engine)
        config["value.converter.schemas.enable"] = "true"
        go(config, transform)
    found = {
        name: (
            query(f"SELECT {name}::text FROM {name} ORDER BY i8"),
            query("SELECT column_name::text, data_type::text FROM information_schema.columns "
                  f"WHERE table_name = '{name}' ORDER BY column_name"),
        )
        for name in "abcd"
    }  # fmt: skip
    assert len(found["a"][0]) == 2
    for name in "bcd":
        assert found[name] == found["a"]


def shuffled_by_offset(df: DataFrame) -> DataFrame:
    return df.repartition(2, "__connect_offset")


def test_plain_json_makes_the_same_table_through_both_engines(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    produce(t, ['{"i": 1, "f": 2.5, "s": "x", "d": "2024-02-29", "t": "2024-02-29T01:02:03Z", '
                '"o": {"a": 1}, "l": [1, 2], "n": null}', '{"i": 2}'])  # fmt: skip
    go(configure(t, name="a", table_name_format="a", engine="direct"), arrow_passing)
    go(configure(t, name="b", table_name_format="b"), passing)
    assert query("SELECT a::text FROM a ORDER BY i") == query("SELECT b::text FROM b ORDER BY i")


def test_columns_of_the_target_decide_without_a_transform(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    query("CREATE TABLE t (id int2, u uuid, n numeric(6,2), at time, iv interval, j jsonb)")
    produce(t, [json.dumps({"id": 7, "u": "0e37df36-f698-11e6-8dd4-cb9ced3df976", "n": 12.5,
                            "at": "12:00:01", "iv": "1 day", "j": {"a": 1}})])  # fmt: skip
    go(configure(t))
    direct = configure(t, name="other", engine="direct")
    go(direct)
    found = query("SELECT t::text FROM t")
    assert len(found) == 2
    assert found[0] == found[1]


def test_fields_that_the_sample_lacks_are_found(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    produce(t, [*rows(1100), *rows(1, 1100, late="yes")])
    go(configure(t), lambda df: df.withColumn("upper", F.upper("late")))
    assert query("SELECT count(*) FROM t") == [(1101,)]
    assert query("SELECT id, upper FROM t WHERE late IS NOT NULL") == [(1100, "YES")]


def test_each_topic_has_its_own_transform_and_table(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    one, two = topic(2), topic(1)
    produce(one, rows(10))
    produce(two, [json.dumps({"id": i, "color": "red"}) for i in range(6)])
    seen: list[list[str]] = []

    def noting(df: DataFrame) -> DataFrame:
        seen.append(df.columns)
        return df.where("id % 2 = 0")

    go(configure(f"{one},{two}"), noting)
    assert query(f'SELECT count(*), sum(amount) FROM "t_{one}"') == [(5, 30.0)]
    assert query(f'SELECT count(*), max(color) FROM "t_{two}"') == [(3, "red")]
    assert seen[0][-5:] == [f"__connect_{n}" for n in
                            ("topic", "partition", "offset", "timestamp", "key")]  # fmt: skip


def test_provenance_passes_through_both_commits(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(2)
    produce(t, rows(6), timestamps=[1_700_000_000_000 + i for i in range(6)])
    for name, transform in (("a", passing), ("b", shuffled), ("c", None)):
        engine = "micro-batch" if transform else "direct"
        config = configure(t, name=name, table_name_format=name, provenance="true", engine=engine)
        progress = go(config, transform)
        assert (name, progress.records, progress.rows) == (name, 6, 6)
    of = "SELECT {0}::text FROM {0} ORDER BY id"
    assert query(of.format("a")) == query(of.format("b")) == query(of.format("c"))


# Bad records


@pytest.mark.parametrize("transform", [None, even, grouped])
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


@pytest.mark.parametrize("transform", [None, passing, shuffled])
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


@pytest.mark.parametrize("transform", [None, passing, shuffled])
def test_at_most_once_loses_no_more_than_the_rows_that_the_database_refuses(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    t = topic(2)
    query("CREATE TABLE t (id int8, name varchar(4), amount float8)")
    produce(t, [*rows(3), '{"id": 3, "name": "too long", "amount": 1.0}', *rows(4, 4)])
    go(configure(t, delivery="at-most-once", **DEAD_TABLE), transform)
    assert query("SELECT id FROM t ORDER BY id") == [(i,) for i in (0, 1, 2, 4, 5, 6, 7)]
    assert query("SELECT stage FROM dead") == [("TASK_PUT",)]
    assert position(query) == 8


def test_dead_letters_go_to_a_topic(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, go: Go, kafka: Kafka
) -> None:
    t = topic(2)
    produce(t, [*rows(4), "bad"])
    more = {
        "errors_tolerance": "all",
        "errors_deadletterqueue_topic_name": f"{t}-dead",
        "errors_deadletterqueue_topic_replication_factor": "1",
    }
    assert go(configure(t, **more), even).failed == 1
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    dead = TopicPartition(f"{t}-dead", 0)
    assert cluster.latest([dead]) == {dead: 1}


def test_a_row_that_does_not_say_where_it_comes_from_cannot_be_left_out(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    query("CREATE TABLE t (id int8, n varchar(1))")
    produce(t, rows(20))
    wide = lambda df: df.groupBy("id").agg(F.lit("wide").alias("n"))  # noqa: E731
    with pytest.raises(BadRecord, match="does not say which record"):
        go(configure(t, **DEAD_TABLE), wide)
    assert position(query) == 0


# Upserts and deletes


@pytest.mark.parametrize("transform", [None, passing, shuffled])
def test_the_last_change_of_a_key_wins_and_tombstones_delete(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    t = topic(2)
    config = configure(t, **KEYED, delete_enabled="true")
    config["key.converter"] = "StringConverter"
    keys = [f"k{i % 5}" for i in range(20)]
    produce(t, rows(20), keys=keys)
    produce(t, [None, None], keys=["k1", "k2"])
    produce(t, rows(1, 99), keys=["k2"])
    go(config, transform)
    assert query("SELECT k, id FROM t ORDER BY k") == [
        ("k0", 15), ("k2", 99), ("k3", 18), ("k4", 19)
    ]  # fmt: skip
    produce(t, [None], keys=["k0"])
    go(config, transform)
    assert query("SELECT k FROM t ORDER BY k") == [("k2",), ("k3",), ("k4",)]


# What is refused


@pytest.mark.parametrize(
    ("more", "column"),
    [
        ({"provenance": "true"}, "__connect_"),
        ({"pk_mode": "kafka"}, "__connect_"),
        ({**KEYED}, "__connect_key"),
        (
            {
                "insert_mode": "upsert",
                "pk_mode": "record_value",
                "pk_fields": "id",
                "delivery_mechanism": "idempotent",
            },
            "delivery.mechanism=idempotent needs",
        ),
    ],
)
def test_settings_that_need_metadata_refuse_a_transform_that_drops_it(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go,
    more: dict[str, str], column: str,
) -> None:  # fmt: skip
    t = topic(1)
    produce(t, rows(2))
    with pytest.raises(ConfigError, match=column):
        go(configure(t, **more), grouped)
    assert position(query) == 0


def test_a_transform_that_does_not_fit_is_a_configuration_error(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, go: Go
) -> None:
    t = topic(1)
    produce(t, rows(2))
    with pytest.raises(ConfigError, match="missing_column"):
        go(configure(t), lambda df: df.select("missing_column"))
    with pytest.raises(ConfigError, match="must return a DataFrame"):
        go(configure(t), lambda df: df.columns)
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        go(configure(t), lambda df: 1 / 0)


def test_a_transform_that_fails_on_a_record_stops_the_connector(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    produce(t, rows(3))

    def broken(i):  # type: ignore[no-untyped-def]
        raise ValueError(f"no good: {i}")

    with pytest.raises(BadRecord, match="ValueError: no good: 0"):
        go(configure(t), lambda df: df.withColumn("x", F.udf(broken, "long")("id")))
    with pytest.raises(BadRecord, match=r"(?i)divi"):
        go(configure(t), lambda df: df.withColumn("x", F.expr("1 div id")))
    assert position(query) == 0


def test_a_session_without_the_kafka_source_is_explained() -> None:
    utils = SimpleNamespace(classIsLoadable=lambda _name: False)
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(
        spark=SimpleNamespace(util=SimpleNamespace(Utils=utils)))))  # fmt: skip
    with pytest.raises(ConfigError, match=r"--packages org\.apache\.spark"):
        require_source(SimpleNamespace(_jvm=jvm))  # type: ignore[arg-type]


def test_jars_that_cannot_be_had_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(_jars: object) -> list[Path]:
        raise ServiceError("Cannot get it.")

    monkeypatch.setattr("semel.spark.resolve", unavailable)
    with pytest.raises(ServiceError, match=r"spark\.jars\.packages=org\.apache"):
        micro_batch_session(connector(), {})


def test_consumer_settings_reach_spark_under_their_java_names() -> None:
    raw = {
        "consumer.override.security.protocol": "SASL_SSL",
        "consumer.override.sasl.mechanism": "SCRAM-SHA-512",
        "consumer.override.sasl.username": "me",
        "consumer.override.sasl.password": 'a"b',
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.fetch.min.bytes": "1000",
    }
    positions = {TopicPartition("t", 1): 5, TopicPartition("t", 0): 7}
    options = kafka_options(connector(), raw, positions)
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.fetch.min.bytes"] == "1000"
    assert options["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b";'
    )
    assert json.loads(options["startingOffsets"]) == {"t": {"1": 5, "0": 7}}
    assert "kafka.auto.offset.reset" not in options


# Failures


@pytest.mark.parametrize("transform", [None, even])
@pytest.mark.parametrize("place", ["sink.before_commit", "sink.after_commit"])
def test_a_killed_worker_is_replaced_and_its_replay_is_recognised(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    failpoint_directory: Path, place: str, transform: Any,
) -> None:  # fmt: skip
    t = topic(1)
    produce(t, rows(40))
    arm(place, "kill-worker")
    go(configure(t), transform)
    assert f"{place} kill-worker" in (failpoint_directory / "fired.log").read_text()
    expected = [(40, 40)] if transform is None else [(20, 20)]
    assert query("SELECT count(*), count(DISTINCT id) AS ids FROM t") == expected
    assert query("SELECT position, records_read FROM semel_offsets") == [(40, 40)]


@pytest.mark.parametrize("transform", [None, grouped])
@pytest.mark.parametrize("place", ["sink.before_commit", "sink.after_commit"])
def test_a_transient_failure_is_tried_again(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    transform: Any, place: str,
) -> None:  # fmt: skip
    t = topic(1)
    produce(t, rows(20))
    arm(place, "raise")
    progress = go(configure(t), transform)
    assert progress.restarts == 0
    expected = [(20,)] if transform is None else [(10,)]
    assert query("SELECT count(*) FROM t") == expected
    assert position(query) == 20


@pytest.mark.parametrize(
    ("delivery", "transform", "expected"),
    [
        ("at-least-once", None, 40),
        ("at-least-once", shuffled, 40),
        ("at-most-once", even, 0),
        ("at-most-once", shuffled, 0),
    ],
)
def test_weaker_guarantees_err_only_on_their_own_side(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    delivery: str, transform: Any, expected: int,
) -> None:  # fmt: skip
    t = topic(1)
    query("CREATE TABLE t (id int8, name text, amount float8, twice int8)")
    produce(t, rows(20))
    config = configure(t, delivery=delivery)
    arm("deliver.between", "raise")
    go(config, transform)
    assert query("SELECT count(*) FROM t") == [(expected,)]
    assert position(query) == 20


TRANSFORMS = {"passing": passing, "shuffled": shuffled}
CRASHES = [
    ("passing", "sink.before_commit", "transactional"),
    ("passing", "sink.after_commit", "transactional"),
    ("passing", "deliver.between", "idempotent"),
    ("shuffled", "sink.before_commit", "transactional"),
    ("shuffled", "sink.after_commit", "transactional"),
    ("shuffled", "deliver.between", "idempotent"),
]
RUN = """
import json, sys, semel
from tests.engine.test_microbatch import TRANSFORMS
semel.run(json.loads(sys.argv[1]), TRANSFORMS[sys.argv[2]])
"""


@pytest.fixture
def crash(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, tmp_path: Path, query: Query
) -> Callable[..., Config]:
    """Run a connector over 100 records in a process that is killed at a place."""

    def run(transform: str, place: str, mechanism: str) -> Config:
        t = topic(2)
        produce(t, rows(100))
        config = QUICK_JVM | configure(
            t,
            insert_mode="upsert",
            pk_mode="record_value",
            pk_fields="id",
            delivery_mechanism=mechanism,
        )
        failpoints.arm(tmp_path, place, "kill-driver")
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, json.dumps(config), transform],
            env={**os.environ, failpoints.DIRECTORY: str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.wait(120) == -9
        wait_for_no_clients(query)
        return config

    return run


@pytest.mark.parametrize(("transform", "place", "mechanism"), CRASHES)
def test_a_killed_driver_leaves_what_the_restart_completes_exactly_once(
    crash: Callable[..., Config], produce: Produce, query: Query, go: Go,
    transform: str, place: str, mechanism: str,
) -> None:  # fmt: skip
    config = crash(transform, place, mechanism)
    produce(config["topics"], rows(20, 100))
    go(config, TRANSFORMS[transform])
    assert query("SELECT count(*), sum(id)::bigint FROM t") == [(120, 7140)]
    assert query(
        "SELECT sum(position)::bigint AS a, sum(records_read)::bigint AS b FROM semel_offsets"
    ) == [(120, 120)]


def wait_for_no_clients(query: Query) -> None:
    """A killed driver's tasks live for up to 3 s; what they still commit is theirs to commit."""
    deadline = time.monotonic() + 20
    others = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    while query(others) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("transform", [passing, shuffled])
def test_of_two_drivers_the_loser_stops_and_has_written_nothing(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go,
    launch: Callable[..., Running], transform: Any,
) -> None:  # fmt: skip
    t = topic(1)
    held, release = threading.Event(), threading.Event()
    batches: list[int] = []

    def slow(df: DataFrame) -> DataFrame:
        batches.append(1)
        if len(batches) == 2:
            held.set()
            assert release.wait(60)
        return transform(df)

    produce(t, rows(10))
    config = configure(t)
    first = launch(config, slow)
    first.reach(lambda p: p.records == 10)
    produce(t, rows(10, 10))
    assert held.wait(60)
    produce(t, rows(10, 20))
    go(config, transform)
    release.set()
    error = first.end()
    assert isinstance(error, LedgerConflict), error
    assert "the ledger stands at 30" in str(error)
    assert query("SELECT count(*), count(DISTINCT id) AS ids FROM t") == [(30, 30)]


# The life of a run


def test_a_running_connector_takes_new_partitions_and_stops_when_told(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, kafka: Kafka,
    launch: Callable[..., Running],
) -> None:  # fmt: skip
    t = topic(1)
    produce(t, rows(10))
    running = launch(configure(t), even)
    running.reach(lambda p: p.records == 10)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(t, 2)])[t].result()
    deadline = time.monotonic() + 20
    while Cluster({"bootstrap.servers": kafka.bootstrap_servers}).topics()[t] < 2:
        assert time.monotonic() < deadline
    produce(t, rows(10, 10), partition=1)
    running.reach(lambda p: p.records == 20)
    running.stop.set()
    assert running.end() is None
    assert query("SELECT partition, position, start_position FROM semel_offsets ORDER BY 1") == [
        (0, 10, 0), (1, 10, 0)
    ]  # fmt: skip
    assert query("SELECT count(*) FROM t") == [(10,)]


@pytest.mark.parametrize("transform", [None, even])
def test_a_batch_that_does_not_end_is_cancelled_when_the_run_is_stopped(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    launch: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, failpoint_directory: Path,
    transform: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(microbatch, "_SETTLE", 2.0)
    t = topic(1)
    query("CREATE TABLE t (id int8, name text, amount float8, twice int8)")
    produce(t, rows(10))
    fired = failpoint_directory / "fired.log"
    before = fired.read_text() if fired.exists() else ""
    arm("sink.before_commit", "freeze")
    running = launch(configure(t), transform)
    deadline = time.monotonic() + 60
    while not fired.exists() or fired.read_text() == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.stop.set()
    assert running.end() is None
    wait_for_no_clients(query)
    assert (position(query), query("SELECT count(*) FROM t")) == (0, [(0,)])
    go(configure(t), transform)
    assert position(query) == 10


def test_a_side_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "side"
    microtask._pass_on(path, Side(read=3))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        microtask._pass_on(path, Side())
    side = microtask._passed_on(path)
    assert side is not None
    assert side.read == 3
    assert microtask._passed_on(path) is None
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        microtask._passed_on(path)


def test_a_side_file_of_somebody_else_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "side"
    path.write_bytes(b"what is this")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ServiceError, match="belongs to another user"):
        microtask._passed_on(path)


def test_nothing_is_left_in_the_temporary_directory(
    spark: SparkSession, topic: MakeTopic, produce: Produce, configure: MakeConfig, go: Go
) -> None:
    t = topic(1)
    produce(t, rows(10))
    own = Path(SparkFiles.getRootDirectory())  # where tests of killed workers have left some
    places = (own, Path(tempfile.gettempdir()))
    before = [p for place in places for p in place.glob("semel-*") if p.is_file()]
    go(configure(t), even)
    after = [p for place in places for p in place.glob("semel-*") if p.is_file()]
    assert set(after) <= set(before)


def test_records_that_retention_removes_under_a_running_connector_stop_it_with_the_facts(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, kafka: Kafka,
    launch: Callable[..., Running],
) -> None:  # fmt: skip
    t = topic(1)
    held, release = threading.Event(), threading.Event()
    batches: list[int] = []

    def slow(df: DataFrame) -> DataFrame:
        batches.append(1)
        if len(batches) == 2:
            held.set()
            assert release.wait(60)
        return df

    produce(t, rows(10))
    running = launch(configure(t), slow)
    running.reach(lambda p: p.records == 10)
    produce(t, rows(10, 10))
    assert held.wait(60)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for answer in admin.delete_records([KafkaPartition(t, 0, 15)]).values():
        answer.result()
    release.set()
    error = running.end()
    assert isinstance(error, OffsetOutOfRange), error
    assert "stored position 10, earliest available 15, 5 records lost" in str(error)


def test_a_session_that_was_there_is_used_and_left_alone(
    spark: SparkSession, topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query
) -> None:
    t = topic(1)
    produce(t, rows(4))
    semel.run(configure(t), passing, until_caught_up=True)
    assert query("SELECT count(*) FROM t") == [(4,)]
    assert spark.range(3).count() == 3


def test_topics_by_pattern(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, prefix="pattern")
    produce(t, rows(4))
    config = configure(t, topics_regex=f"pattern-{t.rpartition('-')[2]}")
    del config["topics"]
    go(config, passing)
    assert query("SELECT count(*) FROM t") == [(4,)]


def test_a_batch_holds_at_most_so_many_records(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    produce(t, rows(25))
    assert go(configure(t, maxOffsetsPerTrigger="10")).commits == 3
    assert query("SELECT count(*) FROM t") == [(25,)]


def test_aborted_transactions_are_passed_over(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, kafka: Kafka
) -> None:
    t = topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": t})
    producer.init_transactions(30)
    for values, end in ((rows(5), "commit"), (rows(3, 5), "abort"), (rows(2, 8), "commit")):
        producer.begin_transaction()
        for value in values:
            producer.produce(t, value)
        producer.flush(30)
        getattr(producer, f"{end}_transaction")(30)
    assert go(configure(t), even).records == 7
    assert query("SELECT id FROM t ORDER BY id") == [(0,), (2,), (4,), (8,)]
    assert position(query) == 13  # ten records and three markers


def test_a_store_that_commits_per_table_is_committed_to_by_the_driver(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    source = topic(partitions=2)
    produce(source, [json.dumps({"id": i}) for i in range(100)])

    def doubled(rows: DataFrame) -> DataFrame:
        return rows.withColumn("twice", F.col("id") * 2)

    config = configure(
        source,
        connector_class="delta",
        delta_table_path=str(tmp_path),
        provenance="true",
        maxOffsetsPerTrigger="40",
    )
    progress = semel.run(config, doubled, spark=spark, until_caught_up=True)
    assert progress.rows == 100
    table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert sorted(table.column("twice").to_pylist()) == [2 * i for i in range(100)]
    report = audit(config)
    assert (report.records, report.lost, report.duplicated) == (100, 0, 0)
