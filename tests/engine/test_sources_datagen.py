"""The Datagen source end to end: each record once for a read_committed consumer."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from semel.audit import audit_source
from semel.core import failpoints
from semel.driver.planning import plan_source
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Start
from tests.engine.harness import LocalSpark, drive, name
from tests.sinks.kafka.copying import consume

pytestmark = pytest.mark.integration


@pytest.fixture
def config(kafka: Kafka, topic: MakeTopic) -> Config:
    return {
        "name": name(),
        "connector.class": "io.confluent.kafka.connect.datagen.DatagenConnector",
        "kafka.topic": topic(),
        "quickstart": "orders",
        "max.interval": "0",
        "iterations": "50000",
        "bootstrap.servers": kafka.bootstrap_servers,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offsets.storage.topic": f"connect-offsets-{uuid.uuid4().hex[:8]}",
        "offset.storage.partitions": "3",
        "retry.backoff.ms": "100",
    }


@pytest.mark.long
def test_a_task_and_a_driver_that_are_killed_lose_and_repeat_nothing(
    config: Config, points: Path, start: Start
) -> None:
    failpoints.arm(points, "sink.before_commit", "kill-driver", 1)
    assert drive(config, points) == -9
    failpoints.arm(points, "sink.after_commit", "kill-worker")
    start(config, spark=LocalSpark(points), until_caught_up=True).wait()
    assert failpoints.fired(points)
    records = consume(config["bootstrap.servers"], config["kafka.topic"])
    found = [json.loads(record.value or b"")["orderid"] for record in records]
    assert sorted(found) == [*range(50_000)]
    report = audit_source(plan_source(config))
    assert (report.records, report.broken) == (50_000, False)
    changed = {**config, "schema.keyfield": "itemid"}
    assert audit_source(plan_source(changed)).broken


@pytest.mark.long
def test_the_audit_of_a_connector_that_runs_ends_and_finds_what_is_wrong(
    config: Config, start: Start, produce: Produce
) -> None:
    running = start({**config, "tasks.max": "2", "max.interval": "10", "iterations": "-1"})
    running.until(lambda p: p.records > 100)
    planned = plan_source({**config, "tasks.max": "2", "iterations": "-1"})
    report = audit_source(planned)
    assert report.records >= 100
    assert (report.lost, report.duplicated, report.changed, report.disordered) == (0, 0, 0, 0)
    first = consume(config["bootstrap.servers"], config["kafka.topic"])[0]
    produce(config["kafka.topic"], [(first.value or b"").decode()])
    report = audit_source(planned)
    assert (report.lost, report.duplicated, report.broken) == (0, 1, True)
    running.stop()
