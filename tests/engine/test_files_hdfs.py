"""The bounded direct engine on files in HDFS: its own kills, and its NameNode's."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.dataset as ds
import pytest

from semel.core import failpoints
from semel_lab.embedded import Kafka
from semel_lab.embedded.hdfs import Hdfs
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Start
from tests.engine.harness import (
    InlineSpark,
    assert_each_exactly_once,
    caught_up,
    drive,
    name,
    positions,
    records,
    until_one_is_fenced,
    wait_until,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.usefixtures("small_shares"),
]

Files = Callable[..., Config]

SHORT = ["sink.before_commit", "files.between_renames"]
REST = [
    p for p in (*failpoints.PLACES, *failpoints.OF_FILES) if p not in {*SHORT, "deliver.between"}
]


@pytest.fixture
def files(kafka: Kafka, hdfs: Hdfs) -> Files:
    """A connector from the session's Kafka to a directory of the session's HDFS."""

    def make(topics: str, keys: dict[str, Any] | None = None) -> Config:
        return {
            "name": name(),
            "connector.class": "io.confluent.connect.hdfs3.Hdfs3SinkConnector",
            "format.class": "io.confluent.connect.hdfs3.parquet.ParquetFormat",
            "topics": topics,
            "bootstrap.servers": kafka.bootstrap_servers,
            "hdfs.url": f"webhdfs://127.0.0.1:{hdfs.port}/{uuid.uuid4().hex}",
            "storage.options.user": hdfs.user,
            "delivery": "exactly-once",
            "provenance": "true",
            "value.converter.schemas.enable": "false",
            "retry.backoff.ms": "100",
            "processingTime": "0 seconds",
            "maxOffsetsPerTrigger": "60",
            "flush.size": "15",
            "tasks.max": "2",
            **(keys or {}),
        }

    return make


def ids(config: Config, topic: str) -> list[int]:
    """Straight from the files, by a reader that knows nothing of semel."""
    filesystem, root = fsspec.url_to_fs(config["hdfs.url"], user=config["storage.options.user"])
    paths = [f for f in filesystem.find(f"{root}/{topic}") if f.endswith(".parquet")]
    table = ds.dataset(paths, filesystem=filesystem).to_table(["id"])
    return sorted(table.column("id").to_pylist())


@pytest.mark.parametrize("places", [SHORT, REST])
def test_killed_at_each_place_of_a_commit(
    places: list[str], topic: MakeTopic, files: Files, points: Path
) -> None:
    count = 120 * len(places)
    source = topic(partitions=2, values=records(count))
    config = files(source)
    for place in places:
        failpoints.arm(points, place, "kill-worker", skip=1)
        assert drive(config, points) == -9, place
    caught_up(config, spark=InlineSpark())
    assert_each_exactly_once(config, ids(config, source), range(count))


@pytest.mark.long
def test_of_two_drivers_one_is_fenced_and_nothing_is_duplicated(
    topic: MakeTopic, produce: Produce, files: Files, start: Start
) -> None:
    source = topic(partitions=2)
    config = files(source)

    def feed(sent: int) -> int:
        produce(source, records(300, start=sent))
        return sent + 300

    sent, fenced = until_one_is_fenced(start, config, feed)
    assert fenced == 1
    caught_up(config)
    assert_each_exactly_once(config, ids(config, source), range(sent))


@pytest.mark.long
def test_a_name_node_that_is_killed_while_the_connector_runs(
    topic: MakeTopic, produce: Produce, files: Files, hdfs: Hdfs, start: Start
) -> None:
    source = topic(partitions=2, values=records(100))
    config = files(source, {"max.retries": "5000"})
    running = start(config)
    wait_until(lambda: sum(positions(config).values()) == 100)
    hdfs.kill()
    produce(source, records(100, 100))
    hdfs.start()
    wait_until(lambda: sum(positions(config).values()) == 200)
    running.end()
    assert_each_exactly_once(config, ids(config, source), range(200))
