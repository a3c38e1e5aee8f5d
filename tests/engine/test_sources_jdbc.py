"""The JDBC source end to end: nothing lost and nothing twice for a read_committed consumer."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.audit import audit_source
from semel.core import failpoints
from semel.core.errors import BadRecord, ConfigError, SemelError
from semel.driver.planning import plan_source
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.transactions import Transactions
from semel.sources.base import SourceBatch
from semel.sources.jdbc.source import JdbcSource
from semel.sources.offsets import SourceOffsets
from semel_lab.embedded import Kafka
from semel_lab.embedded.mariadb import MariaDB
from tests.conftest import MakeTopic, Produce
from tests.databases import query
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import LocalSpark, drive, name
from tests.sinks.kafka.copying import consume
from tests.sources.jdbc.conftest import executed

pytestmark = pytest.mark.integration


@pytest.fixture
def source(kafka: Kafka, database: str, topic: MakeTopic) -> Configure:
    """A connector from the table ``orders`` of the test's PostgreSQL to a topic of its own."""

    def make(**keys: str) -> Config:
        written = topic()
        executed(
            database, "CREATE TABLE orders (id bigserial PRIMARY KEY, at timestamptz NOT NULL)"
        )
        config = {
            "name": name(),
            "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
            "connection.url": database,
            "query": "SELECT * FROM orders",
            "incrementing.column.name": "id",
            "timestamp.column.name": "at",
            "topic.prefix": written,
            "poll.interval.ms": "100",
            "bootstrap.servers": kafka.bootstrap_servers,
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offsets.storage.topic": f"connect-offsets-{uuid.uuid4().hex[:8]}",
            "offset.storage.partitions": "3",
            "retry.backoff.ms": "100",
        }
        return config | {k.replace("_", "."): v for k, v in keys.items()}

    return make


def insert(database: str, count: int, days: int) -> None:
    executed(
        database,
        "INSERT INTO orders (at) SELECT now() - interval '1 day' "
        f"* ({days} - i / 10) FROM generate_series(0, {count} - 1) i",
    )


def of_table(config: Config) -> Config:
    """The same connector, which reads the table itself."""
    created = {"topic.creation.default.partitions": "1"}
    created["topic.creation.default.replication.factor"] = "1"
    tables = {k: v for k, v in config.items() if k != "query"}
    return {**tables, **created, "table.whitelist": "orders"}


def stored(config: Config) -> list[dict[str, Any]]:
    """The source offsets that are stored."""
    planned = plan_source(config)
    cluster = Cluster(client_config(planned.connector, "admin"))
    found = SourceOffsets(planned.connector, cluster).read().offsets
    return [dict(offset) for _, offset in found]


def seen(config: Config) -> list[int]:
    """The numbers of the rows, as a read_committed consumer sees them."""
    return of(config, "" if "query" in config else "orders")


def of(config: Config, table: str) -> list[int]:
    """The same of a table."""
    records = consume(config["bootstrap.servers"], config["topic.prefix"] + table)
    return [json.loads(record.value or b"")["id"] for record in records]


def topics(config: Config) -> Collection[str]:
    """The topics that there are."""
    return Cluster(client_config(plan_source(config).connector, "admin")).topics()


@pytest.mark.parametrize(
    "mode",
    [
        "timestamp",
        pytest.param("incrementing", marks=pytest.mark.long),
        pytest.param("timestamp+incrementing", marks=pytest.mark.long),
    ],
)
def test_a_task_and_a_driver_that_are_killed_lose_and_repeat_nothing(
    mode: str, database: str, points: Path, source: Configure, start: Start
) -> None:
    config = source(mode=mode)
    insert(database, 100, 100)
    failpoints.arm(points, "sink.before_commit", "kill-worker")
    start(config, spark=LocalSpark(points), until_caught_up=True).wait()
    assert failpoints.fired(points)
    assert seen(config) == list(range(1, 101))
    insert(database, 50, 50)
    failpoints.arm(points, "sink.after_commit", "kill-driver")
    assert drive(config, points) == -9
    start(config, until_caught_up=True).wait()
    assert seen(config) == list(range(1, 151))


@pytest.mark.long
def test_a_missing_topic_of_a_table_stops_the_connector_before_its_first_record(
    source: Configure, start: Start
) -> None:
    config = of_table(source(mode="incrementing"))
    topic = f"{config['topic.prefix']}orders"
    created = {k: v for k, v in config.items() if not k.startswith("topic.creation.")}
    forbidden = {**created, "topic.creation.enable": "false"}
    with pytest.raises(ConfigError, match=rf"topic {topic} does not exist .*enable=false\. Create"):
        start(forbidden, until_caught_up=True).wait()
    with pytest.raises(ConfigError, match=rf"topic {topic} .*auto\.create\.topics\.enable=false"):
        start(created, until_caught_up=True).wait()
    with pytest.raises(ConfigError, match=r"topic 'my t-orders': Kafka allows only .*RegexRouter"):
        start({**config, "topic.prefix": "my t-"}, until_caught_up=True).wait()
    assert start(config, until_caught_up=True).wait().records == 0
    assert topic not in topics(config)  # it comes with the first record
    routed = {
        "transforms": "one",
        "transforms.one.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.one.regex": ".*",
        "transforms.one.replacement": config["topic.prefix"],
    }
    assert start({**forbidden, **routed}, until_caught_up=True).wait().records == 0


@pytest.mark.long
def test_an_audit_compares_the_table_with_kafka(
    database: str, source: Configure, start: Start
) -> None:
    config = source(mode="incrementing")
    insert(database, 100, 100)
    start(config, until_caught_up=True).wait()
    insert(database, 3, 3)
    report = audit_source(plan_source(config))
    (topic,) = report.topics
    assert (topic.source, topic.kafka, topic.behind) == (100, 100, 3)
    assert not report.broken
    executed(database, "UPDATE orders SET at = now() WHERE id = 7")
    assert audit_source(plan_source(config)).changed == 1


@pytest.mark.long
def test_an_audit_knows_the_earlier_versions_of_updated_rows(
    database: str, source: Configure, start: Start, produce: Produce
) -> None:
    config = source(mode="timestamp+incrementing") | {
        "transforms": "key",
        "transforms.key.type": "org.apache.kafka.connect.transforms.ValueToKey",
        "transforms.key.fields": "id",
    }
    insert(database, 100, 100)
    start(config, until_caught_up=True).wait()
    for minutes in (20, 10):
        at = f"now() - interval '{minutes} minutes'"
        executed(database, f"UPDATE orders SET at = {at} WHERE id % 10 = 7")
        start(config, until_caught_up=True).wait()
    (found,) = audit_source(plan_source(config)).topics
    assert (found.source, found.kafka, found.replaced) == (100, 120, 20)
    assert not (found.lost or found.duplicated or found.changed or found.disordered)
    topic = config["topic.prefix"]
    copies = consume(config["bootstrap.servers"], topic)
    seventh = [record for record in copies if json.loads(record.value or b"")["id"] == 7]
    assert len(seventh) == 3
    oldest = seventh[0]
    produce(topic, [oldest.value], [oldest.key], oldest.partition)
    report = audit_source(plan_source(config))
    (found,) = report.topics
    assert (found.replaced, found.duplicated, found.disordered) == (20, 1, 1)
    assert report.broken
    executed(database, "INSERT INTO orders (at) VALUES (now() - interval '1 year')")
    assert audit_source(plan_source(config)).lost == 1


@pytest.mark.long
@pytest.mark.parametrize("in_ranges", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_audit_does_not_miss_versions_that_were_replaced_before_they_were_read(
    database: str, source: Configure, start: Start, monkeypatch: pytest.MonkeyPatch, in_ranges: bool
) -> None:
    config = source(mode="timestamp+incrementing", first_load_range_rows="20") | {
        "transforms": "key",
        "transforms.key.type": "org.apache.kafka.connect.transforms.ValueToKey",
        "transforms.key.fields": "id",
    }
    config = of_table(config) if in_ranges else config
    insert(database, 100, 100)
    start(config, until_caught_up=True).wait()
    after = JdbcSource.after

    def after_an_update(*arguments: Any) -> Iterator[SourceBatch]:
        executed(database, "UPDATE orders SET at = now() WHERE id % 10 < 8")
        yield from after(*arguments)

    monkeypatch.setattr(JdbcSource, "after", after_an_update)
    late = {"timestamp.delay.interval.ms": "3600000"}  # nothing of this is due to be read
    report = audit_source(plan_source(config | late))
    (found,) = report.topics
    assert (found.lost, found.duplicated, found.changed) == (0, 0, 0)
    assert (found.source, found.kafka, found.behind) == (100, 100, 80)
    assert not report.broken
    executed(database, "DROP TABLE orders")
    gone = "not there any more" if in_ranges else "orders"
    with pytest.raises(SemelError, match=gone):
        audit_source(plan_source(config))


@pytest.mark.long
def test_a_first_load_in_ranges_that_is_killed_in_the_middle_goes_on_there(
    database: str, points: Path, source: Configure, start: Start
) -> None:
    config = of_table(source(mode="timestamp+incrementing", first_load_range_rows="20"))
    insert(database, 100, 100)
    executed(database, "UPDATE orders SET at = at - interval '30 days' WHERE id % 2 = 0")
    failpoints.arm(points, "sink.before_commit", "kill-driver", skip=3)
    assert drive(config, points) == -9
    connector = plan_source(config).connector
    client = client_config(connector, "producer")
    Transactions(connector.name, client).fence(connector.transactional_id(0))
    (offset,) = stored(config)
    assert 20 <= offset["loaded"] < 100
    assert "incrementing" not in offset
    executed(database, "UPDATE orders SET at = now() - interval '1 hour' WHERE id IN (7, 95)")
    failpoints.arm(points, "sink.after_commit", "kill-worker", skip=1)
    without = config | {"first.load.range.rows": "0"}  # the load continues in ranges
    start(without, spark=LocalSpark(points), until_caught_up=True).wait()
    assert len(failpoints.fired(points)) == 2
    loaded = [n for n in range(1, 101) if n != 95]
    assert seen(config) == [*loaded, 7, 95]
    (offset,) = stored(config)
    assert offset["incrementing"] == 95
    assert offset.keys() == {"incrementing", "timestamp", "timestamp_nanos"}


@pytest.mark.long
def test_a_bulk_query_that_is_killed_comes_once_and_not_again_before_its_time(
    database: str, points: Path, source: Configure, start: Start
) -> None:
    config = source(mode="bulk", poll_interval_ms="3600000")
    insert(database, 100, 100)
    for place in ("source.after_records", "sink.after_commit"):
        failpoints.arm(points, place, "kill-driver")
        assert drive(config, points) == -9
    assert len(failpoints.fired(points)) == 2
    start(config, until_caught_up=True).wait()
    assert seen(config) == list(range(1, 101))
    executed(database, "DELETE FROM orders WHERE id > 3")
    start({**config, "poll.interval.ms": "1"}, until_caught_up=False).until(
        lambda _: len(seen(config)) >= 106
    )
    assert seen(config)[100:106] == [1, 2, 3, 1, 2, 3]


@pytest.mark.long
def test_a_table_that_appears_while_the_connector_runs_is_read_without_repeating_another(
    database: str, source: Configure, start: Start
) -> None:
    config = of_table(source(mode="incrementing", table_poll_interval_ms="200"))
    config["table.whitelist"] = "orders, later"
    prefix = config["topic.prefix"]
    insert(database, 10, 10)
    running = start(config)
    running.until(lambda _: f"{prefix}orders" in topics(config) and len(seen(config)) == 10)
    executed(
        database,
        "CREATE TABLE later (id bigserial PRIMARY KEY)",
        *["INSERT INTO later DEFAULT VALUES"] * 3,
    )
    insert(database, 5, 5)
    running.until(lambda _: f"{prefix}later" in topics(config) and len(of(config, "later")) == 3)
    running.stop_when(lambda _: len(seen(config)) == 15)
    assert of(config, "later") == [1, 2, 3]
    assert seen(config) == list(range(1, 16))


@pytest.mark.long
def test_mariadb_is_read_once_through_crashes(
    mariadb: MariaDB, points: Path, source: Configure, start: Start
) -> None:
    name_ = f"source_{uuid.uuid4().hex[:8]}"
    url = mariadb.create_database(name_)
    try:
        executed(
            url,
            "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, at datetime(6) NOT NULL)",
            "INSERT INTO orders (at) WITH RECURSIVE n (i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) "
            "SELECT utc_timestamp(6) - INTERVAL 101 - i HOUR FROM n",
        )
        config = of_table(source(mode="timestamp+incrementing", first_load_range_rows="30"))
        read_once_through_crashes(config | {"connection.url": url}, points, start)
    finally:
        mariadb.drop_database(name_)


@pytest.mark.long
@pytest.mark.parametrize("sql_url", ["sqlserver"], indirect=True)
def test_sqlserver_is_read_once_through_crashes(
    sql_url: str, points: Path, source: Configure, start: Start
) -> None:
    executed(
        sql_url,
        "CREATE TABLE orders (id bigint IDENTITY PRIMARY KEY, at datetime2 NOT NULL)",
        "WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) "
        "INSERT INTO orders (at) SELECT DATEADD(hour, i - 101, SYSUTCDATETIME()) FROM n",
    )
    config = of_table(source(mode="timestamp+incrementing", first_load_range_rows="30"))
    read_once_through_crashes(config | {"connection.url": sql_url}, points, start)


def read_once_through_crashes(config: Config, points: Path, start: Start) -> None:
    """Read a table of 100 rows and two changes, and kill the driver and a worker meanwhile."""
    url = config["connection.url"]
    failpoints.arm(points, "sink.before_commit", "kill-driver", skip=2)
    assert drive(config, points) == -9
    executed(url, f"UPDATE orders SET at = {ago(url, 60)} WHERE id = 99")
    failpoints.arm(points, "source.after_records", "kill-worker", skip=1)
    start(config, spark=LocalSpark(points), until_caught_up=True).wait()
    assert len(failpoints.fired(points)) == 2
    assert seen(config) == [*(n for n in range(1, 101) if n != 99), 99]
    executed(url, f"INSERT INTO orders (at) VALUES ({ago(url, 1)})")
    start(config, until_caught_up=True).wait()
    ((last,),) = query(url, "SELECT max(id) FROM orders")  # MariaDB leaves numbers out
    assert seen(config)[-1] == last
    assert len(seen(config)) == 101
    report = audit_source(plan_source(config))
    assert not report.broken
    assert report.topics[0].source == 101


def ago(url: str, seconds: int) -> str:
    """A time of so many seconds ago, as SQL."""
    if url.startswith("jdbc:sqlserver:"):
        return f"DATEADD(second, -{seconds}, SYSUTCDATETIME())"
    return f"utc_timestamp(6) - INTERVAL {seconds} SECOND"


@pytest.mark.long
def test_a_row_that_no_record_can_hold_stops_the_connector_or_is_left_out_and_named(
    database: str, source: Configure, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    config = of_table(source(mode="incrementing"))
    insert(database, 5, 5)
    executed(
        database,
        "ALTER TABLE orders ADD COLUMN tags int[]",
        "UPDATE orders SET tags = '{{1,2},{3,4}}' WHERE id IN (2, 4)",
    )
    named = r"table public\.orders: the row with id=2: column tags of type integer\[\] has a value"
    with pytest.raises(BadRecord, match=named):
        start(config, until_caught_up=True).wait()
    config["errors.tolerance"] = "all"
    progress = start(config, until_caught_up=True).wait()
    assert (progress.records, progress.failed) == (3, 2)
    assert seen(config) == [1, 3, 5]
    assert caplog.text.count("skipping all records like this one") == 1
    assert re.search(named, caplog.text)
    assert stored(config) == [{"incrementing": 5}]
    report = audit_source(plan_source(config))
    assert not report.broken
    assert report.skipped == 2
