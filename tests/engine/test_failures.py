"""Services that go away, for a moment or for good."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.core.errors import ServiceError
from semel.driver import run as runs
from semel.kafka.cluster import wait_for_brokers
from semel_lab.embedded import Kafka, Postgres
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Start
from tests.engine.harness import assert_nothing_lost_nothing_twice, caught_up, records, some, sql
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

SMALL = {"consumer.override.max.poll.records": 10}


@pytest.mark.long
def test_connections_that_the_server_ends_are_opened_again(
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(partitions=2)
    config = configure(source, SMALL)
    url = config["connection.url"]
    running = start(config)
    for batch in range(4):
        produce(source, records(200, start=200 * batch))
        running.until(lambda p, batch=batch: p.rows > 200 * batch)
        sql(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
    running.stop_when(lambda p: sum(p.positions.values()) == 800)
    assert "trying again" in caplog.text
    assert_nothing_lost_nothing_twice(config, range(800))


@pytest.mark.parametrize("how", some(["restart", "kill"], ()))
def test_a_postgresql_that_goes_away_and_comes_back_costs_nothing_but_time(
    how: str,
    own_postgres: Callable[[], Postgres],
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
) -> None:
    postgres = own_postgres()
    source = topic(partitions=2, values=records(300))
    config = configure(source, {**SMALL, "connection.url": postgres.url, "max.retries": 5000})
    running = start(config)
    running.until(lambda p: p.rows > 0)
    if how == "kill":
        postgres.kill()
        produce(source, records(300, start=300))
        postgres.start()
    else:
        produce(source, records(300, start=300))
        postgres.restart()
    running.stop_when(lambda p: sum(p.positions.values()) == 600)
    assert_nothing_lost_nothing_twice(config, range(600))


@pytest.mark.long
def test_it_gives_up_after_max_retries(
    own_postgres: Callable[[], Postgres],
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
) -> None:
    postgres = own_postgres()
    source = topic(values=records(10))
    config = configure(source, {"connection.url": postgres.url, "max.retries": 2})
    running = start(config)
    running.until(lambda p: p.rows == 10)
    postgres.stop()
    produce(source, records(10, start=10))
    with pytest.raises(ServiceError, match=r"gave up after 2 retries \(max.retries\): .*connect"):
        running.wait()


@pytest.fixture
def full_disk(own_postgres: Callable[[], Postgres]) -> Iterator[Postgres]:
    """A PostgreSQL with a tablespace of 2 MB. It is not in pytest's own folder, which every pytest
    of this user closes to others when it starts."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    place = Path(tempfile.mkdtemp(prefix="semel-test-"))
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE).returncode:
        place.rmdir()
        pytest.skip("may not mount a small disk")
    try:
        postgres = own_postgres()
        place.chmod(0o755)
        inner = place / "data"
        inner.mkdir()
        owner = postgres.data.stat()
        os.chown(inner, owner.st_uid, owner.st_gid)
        sql(postgres.url, f"CREATE TABLESPACE small LOCATION '{inner}'")
        yield postgres
        postgres.kill()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, timeout=PATIENCE)
        place.rmdir()


@pytest.mark.long
def test_a_full_disk_is_tried_again_and_leaves_everything_before_committed(
    full_disk: Postgres, topic: MakeTopic, configure: Configure
) -> None:
    values = [{"id": i, "text": random.randbytes(700).hex()} for i in range(2000)]
    source = topic(values=[json.dumps(v).encode() for v in values])
    keys = {"connection.url": full_disk.url, "max.retries": 2, **SMALL}
    config = configure(source, keys)
    sql(
        full_disk.url,
        f'CREATE TABLE "{source}" (id bigint, text text, __connect_topic text, '
        "__connect_partition int, __connect_offset bigint, __connect_timestamp timestamptz) "
        "TABLESPACE small",
    )
    with pytest.raises(
        ServiceError, match=r"gave up after 2 retries .*(No space|could not extend)"
    ):
        caught_up(config)
    (done,) = sql(full_disk.url, "SELECT position FROM semel_offsets")
    assert 0 < done < 2000
    assert_nothing_lost_nothing_twice(config, range(done))


def test_a_kafka_that_is_away_at_start_is_named_within_bounded_time(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "wait_for_brokers", functools.partial(wait_for_brokers, timeout=1.0))
    config = configure("anything", {"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(ServiceError, match=r"no Kafka broker answers at 127\.0\.0\.1"):
        caught_up(config)


@pytest.mark.long
def test_a_broker_that_goes_away_and_comes_back_costs_nothing_but_time(
    own_kafka: Callable[[], Kafka], produce: Produce, configure: Configure, start: Start
) -> None:
    kafka = own_kafka()
    kafka.create_topic("source", 2)
    servers = kafka.bootstrap_servers
    produce("source", records(300), bootstrap_servers=servers)
    keys = {**SMALL, "bootstrap.servers": servers, "max.retries": 5000}
    config = configure("source", keys)
    running = start(config)
    running.until(lambda p: p.rows > 0)
    kafka.kill()
    kafka.start()
    produce("source", records(300, start=300), bootstrap_servers=servers)
    running.stop_when(lambda p: sum(p.positions.values()) == 600)
    assert_nothing_lost_nothing_twice(config, range(600))


@pytest.mark.long
def test_a_failure_outside_of_a_commit_is_tried_again_too(
    topic: MakeTopic, configure: Configure, points: Path
) -> None:
    from semel.core import failpoints
    from tests.engine.harness import LocalSpark

    source = topic(partitions=2, values=records(100))
    config = configure(source, SMALL)
    for skip, place in enumerate(failpoints.PLACES):
        if place != "deliver.between":
            failpoints.arm(points, place, "raise", skip=skip % 2)
    caught_up(config, spark=LocalSpark(points))
    assert len(failpoints.fired(points)) == len(failpoints.PLACES) - 1
    assert_nothing_lost_nothing_twice(config, range(100))
