"""The micro-batch engine, with a real Kafka, PostgreSQL and Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import semel
from semel.config import ConnectorConfig, read
from semel.embedded import Kafka
from semel.engine.base import Progress
from semel.spark import micro_batch_session
from semel.spark import stop as stop_session
from tests.conftest import MakeTopic, Produce

pytestmark = pytest.mark.integration

Config = dict[str, str]
MakeConfig = Callable[..., Config]
Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One session for all tests, as a user would start it."""
    connector = read(
        ConnectorConfig,
        {
            "name": "tests",
            "connector.class": "postgresql",
            "topics": "none",
            "bootstrap.servers": "none",
            "tasks.max": "2",
        },
    )
    session = micro_batch_session(connector, {})
    yield session
    stop_session(session)


@pytest.fixture
def configure(kafka: Kafka, database: str) -> MakeConfig:
    """A connector's configuration: plain JSON into tables that are made as needed."""

    def make(topics: str, **more: str) -> Config:
        return {
            "name": f"c-{topics.split(',')[0]}",
            "connector.class": "postgresql",
            "topics": topics,
            "bootstrap.servers": kafka.bootstrap_servers,
            "value.converter": "JsonConverter",
            "value.converter.schemas.enable": "false",
            "connection.url": database,
            "auto.create": "true",
            "engine": "micro-batch",
            "tasks.max": "2",
            "retry.backoff.ms": "50",
        } | {k.replace("_", "."): v for k, v in more.items()}

    return make


@pytest.fixture
def query(database: str) -> Query:
    """Rows of a query in the test's database."""

    def ask(sql: str) -> list[tuple[Any, ...]]:
        with adbc.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row.values()) for row in cursor.fetch_arrow_table().to_pylist()]

    return ask


@pytest.fixture
def go(spark: SparkSession) -> Callable[..., Progress]:
    """Run a connector in the shared session until it has caught up."""

    def start(config: Config, transform: Any = None, **more: Any) -> Progress:
        return semel.run(
            config, transform, spark=spark, until_caught_up=more.pop("until_caught_up", True), **more
        )

    return start


def rows(count: int, start: int = 0) -> list[str]:
    return [json.dumps({"id": i, "name": f"n{i}", "amount": i * 1.5}) for i in range(start, count)]


def test_without_a_transform_rows_arrive(topic, produce, configure, query, go) -> None:
    t = topic(2)
    produce(t, rows(100))
    progress = go(configure(t))
    assert query(f'SELECT count(*), count(DISTINCT id), sum(id)::bigint FROM "{t}"') == [(100, 100, 4950)]
    assert (progress.records, progress.rows) == (100, 100)


def test_transform(topic, produce, configure, query, go) -> None:
    t = topic(2)
    produce(t, rows(100))

    def even(df: DataFrame) -> DataFrame:
        return df.where("id % 2 = 0").withColumn("twice", F.col("id") * 2)

    go(configure(t), even)
    assert query(f'SELECT count(*), sum(twice)::bigint FROM "{t}"') == [(50, 4900)]


def test_grouped(topic, produce, configure, query, go) -> None:
    t = topic(2)
    produce(t, rows(100))

    def grouped(df: DataFrame) -> DataFrame:
        return df.groupBy((F.col("id") % 10).alias("k")).agg(F.count("*").alias("n"))

    go(configure(t), grouped)
    assert query(f'SELECT count(*), sum(n)::bigint FROM "{t}"') == [(10, 100)]
