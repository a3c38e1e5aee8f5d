"""Records that are large for the heap of Spark's JVM, in a driver of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.microbatch.conftest import Query
from tests.patience import PATIENCE
from tests.processes import run_to_end

pytestmark = [pytest.mark.integration, pytest.mark.long]

LARGE = 15_000_000
LIMIT = 32 * 1024 * 1024
RECORDS = 8


@pytest.fixture
def run(
    kafka: Kafka, database: str, topic: MakeTopic, written: Callable[[Any], Path]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Moves large records from two partitions to PostgreSQL with ``semel run``."""
    source = topic(2, {"max.message.bytes": str(LIMIT)})
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "message.max.bytes": LIMIT,
            "compression.type": "lz4",
        }
    )
    config = {
        "name": "large",
        "connector.class": "postgresql",
        "engine": "micro-batch",
        "topics": source,
        "tasks.max": "2",
        "bootstrap.servers": kafka.bootstrap_servers,
        "connection.url": database,
        "table.name.format": "t",
        "auto.create": "true",
        "value.converter.schemas.enable": "false",
    }

    def invoke(size: int = LARGE, **keys: str) -> subprocess.CompletedProcess[str]:
        for i in range(RECORDS):
            value = json.dumps({"id": i, "text": str(i) * size})
            producer.produce(source, value, partition=i % 2)
            assert producer.flush(PATIENCE) == 0
        given = {key.replace("_", "."): value for key, value in keys.items()}
        return run_to_end(
            [
                *(sys.executable, "-m", "semel", "run", "--until-caught-up"),
                str(written(config | given)),
            ],
            stdin=subprocess.DEVNULL,
        )

    return invoke


def test_records_of_15_mb_fit_into_the_heap_that_is_the_default(
    run: Callable[..., subprocess.CompletedProcess[str]], query: Query
) -> None:
    ended = run()
    assert ended.returncode == 0, ended.stderr
    assert query("SELECT count(*), sum(length(text))::bigint FROM t") == [
        (RECORDS, RECORDS * LARGE)
    ]


def test_a_heap_that_is_too_small_for_the_records_is_named(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = run(size=30_000_000, spark_driver_memory="480m")
    assert ended.returncode == 3, ended.stderr
    assert "Spark's JVM has run out of memory. Increase spark.driver.memory=480m" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_heap_that_is_too_small_for_spark_is_named(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = run(spark_driver_memory="300m")
    assert ended.returncode == 2, ended.stderr
    assert "spark.driver.memory=300m is too little for Spark. Set it to 512m" in ended.stderr
    assert "Traceback" not in ended.stderr
