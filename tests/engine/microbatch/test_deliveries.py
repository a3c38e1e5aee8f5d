"""Each delivery on the micro-batch engine, its tasks killed where they commit, and its driver where
that one does."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from semel_lab.embedded import Kafka
from tests import matrix
from tests.conftest import MakeTopic
from tests.databases import SYSTEMS
from tests.engine.harness import assert_promise_kept, ids, name, records, some
from tests.engine.microbatch import drivers
from tests.engine.microbatch.conftest import Arm, Config, Go
from tests.engine.microbatch.transforms import TRANSFORMS, passing

pytestmark = pytest.mark.integration

COUNT = 120
PLACE = {
    "at-most-once": "deliver.between",
    "at-least-once": "deliver.between",
    "transactional": "sink.after_commit",
    "idempotent": "deliver.between",
}
"""Where dying tells the delivery from the weaker ones."""


DATABASES = ("postgresql", *SYSTEMS)
SHORT = {
    ("postgresql", "transactional"),
    ("sqlite", "transactional"),
    ("postgresql", "at-most-once"),
}
"""The strongest delivery of two systems, and of one another one, which is the engine's doing."""
LAKES = ("delta", "iceberg")


def connector(kafka: Kafka, source: str, sink: str, delivery: str, keys: dict[str, str]) -> Config:
    """Two batches from two partitions, by one of the deliveries."""
    key = matrix.SINKS[matrix.sink_name(sink)].keyed if delivery == "idempotent" else {}
    return {
        "name": name(),
        "connector.class": sink,
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "engine": "micro-batch",
        "auto.create": "true",
        "provenance": "true",
        "value.converter.schemas.enable": "false",
        "retry.backoff.ms": "100",
        "tasks.max": "2",
        "maxOffsetsPerTrigger": "60",
        **keys,
        **key,
        **matrix.DELIVERIES[delivery],
    }


@pytest.mark.cell(sink="database_url", mode="micro-batch", delivery="delivery")
@pytest.mark.parametrize(
    ("database_url", "delivery"),
    some(product(DATABASES, matrix.DELIVERIES), SHORT),
    indirect=["database_url"],
)
def test_a_task_that_is_killed_in_its_commit(
    delivery: str,
    kafka: Kafka,
    topic: MakeTopic,
    database_url: str,
    go: Go,
    arm: Arm,
    failpoint_directory: Path,
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    system = database_url.split(":")[1] if database_url.startswith("jdbc:") else "postgresql"
    keys = {"connection.url": database_url}
    config = connector(kafka, source, system, delivery, keys)
    arm(PLACE[delivery], "kill-worker", skip=1)
    go(config)
    found = ids(database_url, source)
    assert_promise_kept(config, failpoint_directory, found, COUNT, shows=True)


@pytest.mark.cell(sink="postgresql", mode="micro-batch", delivery="delivery")
@pytest.mark.parametrize(
    ("transform", "action", "delivery"),
    some(
        [
            ("passing", "driver", "at-least-once"),
            ("passing", "driver", "transactional"),
            ("shuffled", "worker", "at-most-once"),
            ("shuffled", "worker", "transactional"),
            ("shuffled", "worker", "idempotent"),
        ],
        (),
    ),
)
def test_a_driver_that_is_killed_in_a_commit(
    transform: str,
    action: str,
    delivery: str,
    kafka: Kafka,
    topic: MakeTopic,
    database: str,
    spark: SparkSession,
    go: Go,
    arm: Arm,
    failpoint_directory: Path,
) -> None:
    """The commit is the driver's own, or that of a task that dies with it."""
    source = topic(partitions=2, values=records(COUNT))
    config = connector(kafka, source, "postgresql", delivery, {"connection.url": database})
    arm(PLACE[delivery], f"kill-{action}", skip=1)
    assert drivers.drive(spark, config, transform, failpoint_directory) == -9
    go(config, TRANSFORMS[transform])
    found = ids(database, source)
    assert_promise_kept(config, failpoint_directory, found, COUNT, shows=True)


def lake(sink: str, directory: Path) -> dict[str, str]:
    """Where a lake's connector writes."""
    if sink == "delta":
        return {"delta.table.path": str(directory)}
    return {
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{directory}/catalog.db",
        "iceberg.catalog.warehouse": f"file://{directory}/warehouse",
        "iceberg.tables": "db.t",
        "iceberg.tables.auto-create-enabled": "true",
    }


def ids_in_lake(config: Config) -> list[int]:
    if config["connector.class"] == "delta":
        path = f"{config['delta.table.path']}/{config['topics']}"
        rows = DeltaTable(path).to_pyarrow_table()
    else:
        prefix = "iceberg.catalog."
        keys = {k.removeprefix(prefix): v for k, v in config.items() if k.startswith(prefix)}
        rows = load_catalog("iceberg", **keys).load_table("db.t").scan().to_arrow()
    found: list[int] = rows.column("id").to_pylist()
    return found


@pytest.mark.cell(sink="sink", mode="micro-batch", delivery="delivery")
@pytest.mark.parametrize(
    ("sink", "delivery"),
    some(product(LAKES, matrix.DELIVERIES), {("delta", "transactional")}),
)
def test_a_driver_that_is_killed_in_a_commit_to_a_lake(
    sink: str,
    delivery: str,
    kafka: Kafka,
    topic: MakeTopic,
    tmp_path: Path,
    spark: SparkSession,
    go: Go,
    arm: Arm,
    failpoint_directory: Path,
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config: Any = connector(kafka, source, sink, delivery, lake(sink, tmp_path))
    arm(PLACE[delivery], "kill-worker", skip=1)
    assert drivers.drive(spark, config, "passing", failpoint_directory) == -9
    go(config, passing)
    found = ids_in_lake(config)
    assert_promise_kept(config, failpoint_directory, found, COUNT, shows=True)
