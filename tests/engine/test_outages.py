"""A store that is away, silent or read-only while a connector runs."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from semel.audit import audit
from semel.core.abandoned import MOST, Abandoned, within
from semel.driver import run as runs
from semel.driver import supervisor
from semel_lab.drill.disk import Disk
from semel_lab.embedded import Kafka
from semel_lab.embedded.proxy import Proxy
from tests.conftest import MakeTopic, Produce
from tests.disks import read_only
from tests.engine.conftest import Configure, Start
from tests.engine.harness import (
    assert_nothing_lost_nothing_twice,
    outlast_retries,
    records,
    some,
    wait_until,
)
from tests.faults import Faults, proxied
from tests.patience import PATIENCE
from tests.s3 import Bucket
from tests.sinks.test_object_store_faults import DeltaPlace

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with Proxy.before(database) as made:
        yield made


def test_a_store_that_is_away_for_longer_than_all_retries_is_waited_for(
    proxy: Proxy,
    database: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(values=records(10))
    keys = {"connection.url": proxy.url(database), "retry.backoff.ms": "10"}
    config = configure(source, keys)
    running = start(config)
    running.until(lambda p: p.rows == 10)
    proxy.refuse()
    produce(source, records(10, start=10))
    wait_until(lambda: "waiting for it to recover" in caplog.text)
    outlast_retries(config)
    assert running.alive
    proxy.accept()
    running.stop_when(lambda p: p.rows == 20)
    assert "recovered after" in caplog.text
    assert caplog.text.count("cannot connect to PostgreSQL") < 3
    assert_nothing_lost_nothing_twice({**config, "connection.url": database}, range(20))


def test_a_store_that_falls_silent_is_left_and_the_commit_judged_anew(
    proxy: Proxy,
    database: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(partitions=2, values=records(10))
    keys = {"connection.url": proxy.url(database), "store.timeout.ms": "2000", "tasks.max": "2"}
    config = configure(source, keys)
    running = start(config)
    running.until(lambda p: p.rows == 10)
    assert proxy.silence() >= 2
    produce(source, records(50, start=10))
    running.stop_when(lambda p: p.rows == 60)
    assert "semel dropped the connection" in caplog.text
    waited = re.findall(r"has not answered for (\d+) s", caplog.text)
    assert min(map(int, waited)) < 60  # the default of store.timeout.ms
    assert_nothing_lost_nothing_twice({**config, "connection.url": database}, range(60))


@pytest.mark.long
def test_a_run_that_waits_for_a_silent_store_stops_within_seconds(
    proxy: Proxy,
    database: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the silent call that ends, rather than the job around it, or its own time."""
    monkeypatch.setattr(supervisor, "SETTLE", 10 * PATIENCE)
    monkeypatch.setattr(runs, "LEAVE", 10 * PATIENCE)
    source = topic(values=records(10))
    hour = {"store.timeout.ms": "3600000"}
    config = configure(source, {"connection.url": proxy.url(database), **hour})
    running = start(config)
    running.until(lambda p: p.rows == 10)
    proxy.silence()
    produce(source, records(10, start=10))
    wait_until(lambda: proxy.held > 0)
    running.stop()
    assert_nothing_lost_nothing_twice({**config, "connection.url": database}, range(10))


@pytest.mark.long
def test_an_object_store_that_is_silent_is_left_and_one_that_is_away_is_waited_for(
    faulty_aws: Faults,
    topic: MakeTopic,
    produce: Produce,
    start: Start,
    kafka: Kafka,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On the bounded engine, whose driver commits."""
    source, bucket = topic(), Bucket(faulty_aws.backend)
    produce(source, records(10))
    with proxied(faulty_aws.backend) as proxy:
        options = DeltaPlace.options(proxy.url(faulty_aws.backend))
        config = {
            "name": f"c-{source}",
            "topics": source,
            "bootstrap.servers": kafka.bootstrap_servers,
            "connector.class": "delta",
            "delta.table.path": bucket.where,
            "auto.create": "true",
            "value.converter": "JsonConverter",
            "value.converter.schemas.enable": "false",
            "processingTime": "100 milliseconds",
            "retry.backoff.ms": "10",
            "store.timeout.ms": "5000",
            **{f"storage.options.{k}": v for k, v in options.items()},
        }
        running = start(config)
        running.until(lambda p: p.rows == 10)
        proxy.silence(new=True)
        produce(source, records(10, start=10))
        wait_until(lambda: "waiting for it to recover" in caplog.text)
        proxy.refuse()
        outlast_retries(config)
        assert running.alive
        proxy.accept()
        running.stop_when(lambda p: p.rows == 20)
    table = DeltaTable(
        f"{bucket.where}/{source}", storage_options=DeltaPlace.options(faulty_aws.backend)
    )
    assert sorted(table.to_pyarrow_table().column("id").to_pylist()) == list(range(20))


LAKES = {
    "delta": {"delta.table.path": "{0}/lake", "auto.create": "true"},
    "files": {"path": "{0}/files"},
    "iceberg": {
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": "sqlite:///{0.parent}/catalog.db",
        "iceberg.catalog.warehouse": "file://{0}/warehouse",
        "iceberg.tables": "db.t",
        "iceberg.tables.auto-create-enabled": "true",
    },
}


@pytest.mark.parametrize("kind", some(LAKES, {"delta"}))
@pytest.mark.parametrize("full", some((False, True), {False}))
def test_a_lake_whose_disk_becomes_read_only_or_full_is_waited_for(
    full: bool,
    kind: str,
    disk: Disk,
    topic: MakeTopic,
    produce: Produce,
    start: Start,
    kafka: Kafka,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(partitions=2, values=records(10))
    config = {
        "name": f"c-{source}",
        "connector.class": kind,
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "value.converter": "JsonConverter",
        "value.converter.schemas.enable": "false",
        "processingTime": "100 milliseconds",
        "retry.backoff.ms": "10",
        "tasks.max": "2",
        "provenance": "true",
        **{key: value.format(disk.directory) for key, value in LAKES[kind].items()},
    }
    running = start(config)
    running.until(lambda p: p.rows == 10)
    with disk.full(1, lambda: []) if full else read_only(disk):
        produce(source, records(200, start=10))
        wait_until(lambda: "waiting for it to recover" in caplog.text)
        assert running.alive
    running.stop_when(lambda p: p.rows == 210)
    report = audit(config)
    assert (report.lost, report.duplicated) == (0, 0)


@pytest.mark.long
def test_a_task_that_has_left_calls_behind_starts_again_in_a_new_process(
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(values=records(10))
    marker, driver = tmp_path / "marker", os.getpid()

    def leaves_calls_behind(batch: Any) -> Any:
        if os.getpid() != driver and not marker.exists():  # it is called for a sample, too
            marker.touch()
            for _ in range(MOST):
                with suppress(Abandoned):
                    within(0.01, "closing a client", threading.Event().wait)
        return batch

    config = configure(source)
    running = start(config, leaves_calls_behind)
    running.until(lambda p: sum(p.positions.values()) == 10)  # its last report may be lost
    produce(source, records(10, start=10))
    running.stop_when(lambda p: sum(p.positions.values()) == 20)
    assert running.spark.attempts[0] == 1
    assert (
        "3 calls have not returned (closing a client); starting again in a new process"
        in caplog.text
    )
    assert_nothing_lost_nothing_twice(config, range(20))
