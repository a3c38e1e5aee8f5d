"""Exactly once into SQL databases: killed, frozen and started twice at every moment."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import TopicPartition, firsts
from semel.driver.planning import plan
from semel_lab.drill.disk import Disk
from semel_lab.embedded import Kafka
from semel_lab.embedded.proxy import Proxy
from tests.conftest import MakeTopic, Produce
from tests.databases import SYSTEMS
from tests.engine.conftest import Configure, Start, connector
from tests.engine.harness import (
    MANY_COMMITS,
    SHORT_SESSION,
    LocalSpark,
    assert_nothing_lost_nothing_twice,
    caught_up,
    name,
    one_takes_the_place,
    records,
    some,
    sql,
    wait_until,
)
from tests.matrix import UPSERT

pytestmark = pytest.mark.integration

IN_FILES = ("sqlite", "duckdb")
MYSQL_TIMEOUT = {"connection.idle.in.transaction.timeout.ms": "3000"}


@pytest.fixture
def configure(kafka: Kafka, sql_url: str) -> Configure:
    """A connector to a new database of each system."""
    system = sql_url.split(":")[1]
    own = {"connector.class": system, "connection.url": sql_url, "auto.create": "true"}
    return connector(kafka, own)


@pytest.mark.long
@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_of_two_runs_one_stops_as_fenced_and_nothing_is_written_twice(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(partitions=2, values=records(500))
    config = configure(source, MANY_COMMITS)
    first = start(config)
    first.until(lambda p: p.rows > 0)
    sink = plan(config).sink
    with pytest.raises(ConfigError, match="is running: stop it"):
        sink.set_positions(firsts({TopicPartition(source, 0): 0}))
    sink.close()
    second = start(config)
    winner = one_takes_the_place(first, second)
    produce(source, records(100, start=500))
    winner.stop_when(lambda p: sum(p.positions.values()) >= 600)
    assert_nothing_lost_nothing_twice(config, range(600))


@pytest.mark.parametrize(
    ("sql_url", "place"),
    [
        *some(product(SYSTEMS, ["sink.before_commit"]), {("mariadb", "sink.before_commit")}),
        *some(product(SYSTEMS, ["task.after_convert"]), ()),
    ],
    indirect=["sql_url"],
)
def test_a_task_that_wakes_up_after_its_partitions_were_taken_over_writes_nothing_twice(
    place: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    points: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(partitions=2, values=records(400))
    keys: dict[str, Any] = {
        "tasks.max": 2,
        "max.retries": 5000,
        **SHORT_SESSION,
    }
    config = configure(source, keys)
    system = config["connector.class"]
    others_wait = system in (*IN_FILES, "sqlserver")
    soon = {"connection.lock.timeout.ms": "200"} if others_wait else MYSQL_TIMEOUT
    failpoints.arm(points, place, "freeze", skip=3)
    running = start({**config, **soon}, spark=LocalSpark(points))
    wait_until(lambda: bool(failpoints.fired(points)))
    frozen = failpoints.fired(points)[-1].pid
    # If a file is locked, the message names the process that holds it, and the others wait.
    waits = "is frozen, end it" if system == "sqlserver" else f"held by process {frozen}"
    running.until(
        lambda p: sum(p.positions.values()) >= 400 or (others_wait and waits in caplog.text)
    )
    if others_wait and place == "sink.before_commit":
        assert waits in caplog.text
    assert running.alive
    failpoints.thaw(points, frozen)
    produce(source, records(200, start=400))
    running.stop_when(lambda p: sum(p.positions.values()) >= 600)
    assert_nothing_lost_nothing_twice(config, range(600))


@pytest.mark.parametrize("sql_url", some((*IN_FILES, "mariadb"), ()), indirect=True)
def test_a_full_disk_is_waited_for_and_loses_nothing(
    disk: Disk,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(partitions=2)
    config = configure(source, {"consumer.override.max.poll.records": 20, "max.retries": 2})
    system = config["connector.class"]
    if system in IN_FILES:
        config["connection.url"] = f"jdbc:{system}:{disk.directory / 'database'}"
    else:
        sql(
            config["connection.url"],
            f'CREATE TABLE "{source}" (id bigint, text longtext, __connect_topic text, '
            "__connect_partition int, __connect_offset bigint, __connect_timestamp datetime(6)) "
            f"DATA DIRECTORY '{disk.directory}'",
        )

    def send(first: int) -> None:
        text = [random.randbytes(3000).hex() for _ in range(200)]
        produce(source, [json.dumps({"id": first + i, "text": t}) for i, t in enumerate(text)])

    send(0)
    running = start({**config, "max.retries": "1000"})
    running.until(lambda p: sum(p.positions.values()) == 200)
    with disk.full(4, lambda: []):
        send(200)
        wait_until(lambda: caplog.text.count("trying again") >= 2)
    running.stop_when(lambda p: sum(p.positions.values()) == 400)

    running = start(config)
    running.until(lambda p: bool(p.tasks))
    where = disk.directory if system in IN_FILES else source
    with disk.full(4, lambda: []):
        send(400)
        told = rf"gave up after 2 retries .*{where}.*(is full|No space|bytes are free)"
        with pytest.raises(ServiceError, match=told):
            running.wait()
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(600))


@pytest.mark.parametrize("sql_url", ["mariadb"], indirect=True)
def test_a_server_that_falls_silent_is_left(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(values=records(10))
    config = configure(source, {"store.timeout.ms": "2000"})
    with Proxy.before(config["connection.url"]) as proxy:
        running = start({**config, "connection.url": proxy.url(config["connection.url"])})
        running.until(lambda p: p.rows == 10)
        assert proxy.silence() >= 1
        produce(source, records(10, start=10))
        running.stop_when(lambda p: p.rows == 20)
        assert proxy.held > 0
    assert_nothing_lost_nothing_twice(config, range(20))


@pytest.mark.parametrize("sql_url", some(SYSTEMS, {"mariadb"}), indirect=True)
def test_bad_records_go_to_the_table_of_dead_letters_and_the_audit_counts_them(
    topic: MakeTopic, configure: Configure
) -> None:
    good = records(100)
    bad = [b"{", json.dumps({"id": 7, "text": "again"}).encode()]
    source = topic(values=[*good[:50], *bad, *good[50:]])
    keys = {
        "pk.mode": "record_value",
        "pk.fields": "id",
        "errors.tolerance": "all",
        "errors.deadletterqueue.table": "letters",
    }
    config = configure(source, keys)
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(100))
    columns = '"offset", value, stage, exception'
    found = sql(config["connection.url"], f"SELECT {columns} FROM letters ORDER BY 1")
    assert [(o, bytes(v)) for o, v, *_ in found] == [(50, bad[0]), (51, bad[1])]
    kind = "org.apache.kafka.connect.errors.DataException"
    assert [tuple(e) for _, _, *e in found] == [("VALUE_CONVERTER", kind), ("TASK_PUT", kind)]


@pytest.mark.long
@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
def test_topics_that_match_the_pattern_are_picked_up_while_it_runs(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    prefix = name()
    first = topic(prefix=f"{prefix}-a", values=records(20))
    age = {"consumer.override.metadata.max.age.ms": 1000}
    config = configure(None, {"topics.regex": f"{prefix}-[ab].*", **age})
    running = start(config, spark=LocalSpark())
    running.until(lambda p: p.positions.get(TopicPartition(first, 0)) == 20)
    second = topic(prefix=f"{prefix}-b", values=records(20, start=20))
    produce(topic(prefix=f"{prefix}-c"), records(5))
    running.stop_when(lambda p: p.positions.get(TopicPartition(second, 0)) == 20)
    named = {k: v for k, v in config.items() if k != "topics.regex"}
    assert_nothing_lost_nothing_twice({**named, "topics": f"{first},{second}"}, range(40))
    sink = plan(config).sink  # knows nothing but the database
    assert {e.topic for e in sink.entries()} == {first, second}
    sink.close()


@pytest.mark.parametrize("sql_url", some(SYSTEMS, {"sqlite"}), indirect=True)
def test_without_provenance_the_audit_goes_by_counts(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(100))
    config = configure(source, {"provenance": "false"})
    caught_up(config)
    report = assert_nothing_lost_nothing_twice(config, range(100))
    assert not report.exact
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id < 3')
    assert audit(config).lost == 3


@pytest.mark.parametrize("sql_url", some(SYSTEMS, {"sqlite", "mariadb"}), indirect=True)
def test_upserts_and_tombstones_end_as_the_last_change_of_each_key(
    topic: MakeTopic, configure: Configure
) -> None:
    values = [json.dumps({"v": i}).encode() for i in range(60)]
    keys = [f"k{i % 20}" for i in range(60)]
    source = topic(partitions=2, values=[*values, None, None], keys=[*keys, "k3", "k4"])
    upsert = {**UPSERT, "pk.mode": "record_key", "delete.enabled": "true"}
    config = configure(source, {**upsert, "consumer.override.max.poll.records": 7})
    caught_up(config)
    found = dict(sql(config["connection.url"], f'SELECT id, v FROM "{source}"'))
    assert found == {f"k{i}": 40 + i for i in range(20) if i not in (3, 4)}
    report = audit(config)
    assert report.exact and report.kept
