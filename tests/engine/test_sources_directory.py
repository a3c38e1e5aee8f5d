"""The directory source end to end: each record of each file once for a read_committed consumer."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from semel.audit import audit_source
from semel.core import failpoints
from semel.core.errors import ServiceError
from semel.driver.planning import plan_source
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.conftest import Config, Start
from tests.engine.harness import LocalSpark, drive, name
from tests.sinks.kafka.copying import consume

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for folder in ("in", "done", "bad"):
        (tmp_path / folder).mkdir()
    return tmp_path / "in"


@pytest.fixture
def config(kafka: Kafka, topic: MakeTopic, folder: Path) -> Config:
    return {
        "name": name(),
        "connector.class": "SpoolDirCsvSourceConnector",
        "topic": topic(),
        "tasks.max": "2",
        "input.path": str(folder),
        "finished.path": str(folder.parent / "done"),
        "error.path": str(folder.parent / "bad"),
        "csv.first.row.as.header": "true",
        "schema.generation.enabled": "true",
        "schema.generation.key.fields": "id",
        "batch.size": "20",
        "file.minimum.age.ms": "0",
        "empty.poll.wait.ms": "50",
        "bootstrap.servers": kafka.bootstrap_servers,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offsets.storage.topic": f"connect-offsets-{uuid.uuid4().hex[:8]}",
        "offset.storage.partitions": "3",
        "retry.backoff.ms": "100",
    }


def write(folder: Path, first: int, files: int, rows: int = 50) -> None:
    for n in range(first, first + files):
        ids = range(n * rows, (n + 1) * rows)
        (folder / f"{n}.csv").write_text("id,text\n" + "".join(f'{i},"a\n{i}"\n' for i in ids))


def seen(config: Config) -> list[int]:
    records = consume(config["bootstrap.servers"], config["topic"])
    return sorted(int(json.loads(record.value or b"")["id"]) for record in records)


@pytest.mark.parametrize(
    "place",
    ["sink.after_commit", pytest.param("sink.before_commit", marks=pytest.mark.long)],
)
def test_crashes_inside_files_and_before_they_are_moved_lose_and_repeat_nothing(
    place: str, config: Config, folder: Path, points: Path, start: Start
) -> None:
    write(folder, 0, 10)
    failpoints.arm(points, place, "kill-worker", 2)
    start(config, spark=LocalSpark(points), until_caught_up=True).wait()
    assert failpoints.fired(points)
    assert seen(config) == [*range(500)]
    write(folder, 10, 5)
    failpoints.arm(points, place, "kill-driver", 2)
    assert drive(config, points) == -9
    start(config, until_caught_up=True).wait()
    assert seen(config) == [*range(750)]
    assert not list(folder.iterdir())
    report = audit_source(plan_source(config))
    assert (report.records, report.lost, report.duplicated, report.broken) == (750, 0, 0, False)


@pytest.mark.long
def test_a_broken_file_stops_the_connector_once_and_is_moved(
    config: Config, folder: Path, start: Start
) -> None:
    (folder / "a.csv").write_text("id,text\n1,a\n2\n3,c\n")
    with pytest.raises(ServiceError, match=r"file a\.csv: record 2: .*Expected 2 columns, got 1"):
        start(config, until_caught_up=True).wait()
    write(folder, 1, 1, 3)
    start(config, until_caught_up=True).wait()
    assert seen(config) == [1, 3, 4, 5]
    assert [p.name for p in (folder.parent / "bad").iterdir()] == ["a.csv"]
    assert not audit_source(plan_source(config)).broken
