"""Queries over streams: state, offsets and rows agree, whatever dies between their commits."""

from __future__ import annotations

import datetime
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import requests
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import BadRecord, ConfigError, SemelError
from semel.driver.microbatch.checkpoint import Checkpoint, CheckpointState
from semel.driver.planning import plan
from semel_lab.embedded.hdfs import Hdfs
from semel_lab.embedded.opensearch import OpenSearch
from tests.conftest import MakeTopic, Produce
from tests.databases import SYSTEMS
from tests.engine.harness import some, sql, wait_until
from tests.engine.microbatch.conftest import QUICK_JVM, Config, Go, MakeConfig, Query
from tests.engine.microbatch.drivers import drive
from tests.patience import PATIENCE
from tests.processes import run_to_end
from tests.searching import documents

pytestmark = pytest.mark.integration

COUNTRIES = ("de", "fr", "it")
PER_MINUTE = """
    SELECT country, window(at, '1 minute').start AS minute, count(*) AS orders, sum(amount) AS total
    FROM `{topic}` GROUP BY country, window(at, '1 minute')
"""
MERGED = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "country,minute"}
BATCHES = {"maxOffsetsPerTrigger": "20"}


def order(n: int, second: int | None = None) -> dict[str, Any]:
    at = datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=n if second is None else second)
    return {"id": n, "country": COUNTRIES[n % 3], "amount": n, "at": at.isoformat()}


def orders(count: int, start: int = 0) -> list[str]:
    return [json.dumps(order(n)) for n in range(start, start + count)]


def per_minute(numbers: Iterable[int]) -> list[tuple[Any, ...]]:
    """What a recomputation over all orders gives."""
    found: dict[tuple[str, int], list[int]] = {}
    for n in numbers:
        found.setdefault((COUNTRIES[n % 3], n // 60), []).append(n)
    return sorted((c, m, len(ns), sum(ns)) for (c, m), ns in found.items())


STORED = """SELECT country, (extract(epoch FROM minute - timestamp '2026-01-01') / 60)::int AS m,
    orders, total::bigint AS total FROM t ORDER BY 1, 2"""


@pytest.fixture
def stateful(configure: MakeConfig, tmp_path: Path) -> MakeConfig:
    """A connector with a place for the state of a query."""
    return functools.partial(configure, checkpoint_location=str(tmp_path / "state"))


@pytest.fixture
def appended(stateful: MakeConfig) -> MakeConfig:
    """Orders by country and minute, which the sink only adds."""

    def make(topic: str, **more: str) -> Config:
        query = PER_MINUTE.format(topic=topic)
        return stateful(topic, query=query, event_time_field="at", **more)

    return make


@pytest.fixture
def windows(appended: MakeConfig) -> MakeConfig:
    """Orders by country and minute, which the sink replaces by key."""
    return functools.partial(appended, **MERGED, **BATCHES)


Die = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def die(spark: SparkSession, tmp_path: Path) -> Die:
    """Run a connector in a driver of its own, which is killed at a place. Returns where drivers
    were killed so far."""
    points = tmp_path / "points"
    points.mkdir()

    def run(
        config: Config, place: str = "sink.after_commit", skip: int = 0
    ) -> list[tuple[str, str]]:
        failpoints.arm(points, place, "kill-worker", skip)
        assert drive(spark, config, "none", points) != 0
        return [f[:2] for f in failpoints.fired(points)]

    return run


def check_audit(config: Config) -> None:
    report = audit(config)
    assert (report.lost, report.duplicated, report.broken) == (0, 0, False)


def test_windows_that_span_batches_have_one_row_each(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(2, values=orders(70))
    config = windows(t)
    first = go(config)
    assert (first.records, first.failed) == (70, 0)
    assert first.commits >= 4, "of 20 records"
    produce(t, orders(70, 70))
    assert go(config).records == 70
    assert query(STORED) == per_minute(range(140))
    entries = plan(config).offsets.listed()
    own = next(e for e in entries if e["topic"] == "(query)")
    assert own["position"] >= 8 and own["rows_written"] > 0, "the batches of the query"
    assert sum(e["records_read"] for e in entries) == 140
    check_audit(config)


PLACES = ("task.after_convert", "sink.after_positions", "sink.before_commit", "sink.after_commit")


@pytest.mark.parametrize("place", some([*PLACES, "task.before_publish"], {"sink.after_commit"}))
@pytest.mark.parametrize("skip", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_process_that_dies_between_the_commits_leaves_state_and_rows_equal(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, query: Query, go: Go,
    die: Die, place: str, skip: int,
) -> None:  # fmt: skip
    t = topic(2, values=orders(70))
    config = windows(t)
    assert die(config, place, skip) == [(place, "kill-worker")]
    produce(t, orders(70, 70))
    again = go(config)
    assert query(STORED) == per_minute(range(140))
    replayed = place in ("sink.after_commit", "task.before_publish")
    assert again.deliveries.replays == (1 if replayed else 0)
    check_audit(config)


@pytest.mark.long
def test_a_second_death_at_the_same_place_changes_nothing_either(
    topic: MakeTopic, windows: MakeConfig, query: Query, go: Go, die: Die
) -> None:
    t = topic(1, values=orders(50))
    config = windows(t)
    die(config)
    die(config)
    go(config)
    assert query(STORED) == per_minute(range(50))


@pytest.mark.long
def test_state_in_hdfs_is_as_good(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, query: Query, go: Go, die: Die,
    hdfs: Hdfs,
) -> None:  # fmt: skip
    t = topic(2)
    home = f"/queries/{t}"
    http = f"http://127.0.0.1:{hdfs.port}/webhdfs/v1"
    made = requests.put(
        f"{http}{home}?op=MKDIRS&permission=777&user.name={hdfs.user}", timeout=PATIENCE
    )
    assert made.json() == {"boolean": True}
    produce(t, orders(70))
    config = windows(t, checkpoint_location=f"{hdfs.rpc_url}{home}/state")
    assert die(config) == [("sink.after_commit", "kill-worker")]
    produce(t, orders(70, 70))
    again = go(config)
    assert query(STORED) == per_minute(range(140))
    assert again.deliveries.replays == 1
    check_audit(config)
    elsewhere = config | {"checkpoint.location": f"{hdfs.rpc_url}{home}/other"}
    with pytest.raises(ConfigError, match="is empty, but the ledger has the rows"):
        go(elsewhere)
    hdfs.kill()
    try:
        with pytest.raises(SemelError, match=r"checkpoint\.location=hdfs://.*Check that"):
            go(config)
    finally:
        hdfs.start()


# Checkpoint and ledger that do not belong together


def state(config: Config) -> Path:
    return Path(config["checkpoint.location"])


def test_a_lost_checkpoint_is_told_and_a_fresh_start_is_the_way_out(
    topic: MakeTopic, windows: MakeConfig, query: Query, go: Go, tmp_path: Path
) -> None:
    t = topic(1, values=orders(50))
    config = windows(t)
    go(config)
    shutil.rmtree(state(config))
    with pytest.raises(ConfigError, match=r"is empty, but the ledger has the rows .* up to batch"):
        go(config)
    assert not (state(config) / "metadata").exists(), "nothing was begun"
    query("DELETE FROM t")
    plan(config).offsets.reset("a test")
    go(config | {"checkpoint.location": str(tmp_path / "another")})
    assert query(STORED) == per_minute(range(50))


@pytest.mark.long
def test_an_older_checkpoint_and_a_newer_one_are_told(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, query: Query, go: Go, tmp_path: Path
) -> None:
    t = topic(1, values=orders(50))
    config = windows(t)
    go(config)
    shutil.copytree(state(config), tmp_path / "older")
    query("CREATE TABLE older AS SELECT * FROM semel_offsets")
    produce(t, orders(50, 50))
    go(config)
    newer = config["checkpoint.location"]
    with pytest.raises(ConfigError, match="the checkpoint is older"):
        go(config | {"checkpoint.location": str(tmp_path / "older")})
    query("DELETE FROM semel_offsets")
    query("INSERT INTO semel_offsets SELECT * FROM older")
    with pytest.raises(ConfigError, match=r"the checkpoint is newer.*are missing"):
        go(config | {"checkpoint.location": newer})


@pytest.mark.long
def test_a_batch_that_another_run_finishes_at_the_same_moment_is_no_damage(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, query: Query, go: Go,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    t = topic(2, values=orders(70))
    config = windows(t)
    go(config)
    produce(t, orders(70, 70))
    read, others = Checkpoint.read, iter([lambda: go(config)])

    def late(checkpoint: Checkpoint) -> CheckpointState:
        for another in others:
            another()
        return read(checkpoint)

    monkeypatch.setattr(Checkpoint, "read", late)
    go(config)
    assert query(STORED) == per_minute(range(140))


@pytest.mark.long
def test_a_changed_query_stops_and_goes_on_if_told_to(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=orders(50))
    config = windows(t)
    go(config)
    changed = config | {"query": config["query"].replace("sum(amount)", "sum(2 * amount)")}
    with pytest.raises(ConfigError, match=r"the query has changed since batch .*sum\(amount\)"):
        go(changed)
    go(config | {"query": f"  {config['query']}  "})  # blanks are no change
    produce(t, orders(10, 120))
    go(changed | {"query.changed": "continue"})
    assert query("SELECT sum(total)::bigint FROM t WHERE minute >= '2026-01-01 00:02'") == [
        (2 * sum(range(120, 130)),)
    ]
    with pytest.raises(ConfigError, match="the query has changed"):
        go(config)


@pytest.mark.long
def test_a_changed_query_may_name_a_field_that_has_come_later(
    topic: MakeTopic, produce: Produce, stateful: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=orders(5))
    config = stateful(t, auto_evolve="true")
    go(config | {"query": f"SELECT id FROM `{t}`"})
    produce(t, [json.dumps(order(n) | {"tip": n}) for n in range(5, 10)])
    go(config | {"query": f"SELECT id, tip FROM `{t}`", "query.changed": "continue"})
    assert query("SELECT id, tip FROM t ORDER BY id") == [
        (n, n if n > 4 else None) for n in range(10)
    ]


@pytest.mark.long
def test_a_lost_ledger_is_told(topic: MakeTopic, windows: MakeConfig, query: Query, go: Go) -> None:
    t = topic(1, values=orders(50))
    config = windows(t)
    go(config)
    plan(config).offsets.reset("a test")
    with pytest.raises(ConfigError, match="the ledger knows nothing of it"):
        go(config)


@pytest.mark.long
def test_positions_of_a_query_cannot_be_set_by_hand(
    topic: MakeTopic, windows: MakeConfig, go: Go
) -> None:
    t = topic(1, values=orders(50))
    config = windows(t)
    go(config)
    offsets = plan(config).offsets
    with pytest.raises(ConfigError, match="its query has run"):
        offsets.set([offsets.parsed(f"{t}-0=0")], "a test")
    lag = offsets.lag()
    assert lag is not None and lag.total == 0 and len(lag.partitions) == 1
    assert "of query" in offsets.begins()


@pytest.mark.long
def test_two_connectors_cannot_share_a_checkpoint(
    topic: MakeTopic, windows: MakeConfig, go: Go
) -> None:
    t = topic(1, values=orders(20))
    config = windows(t)
    go(config)
    with pytest.raises(ConfigError, match="keeps the state of connector c-"):
        go(config | {"name": "another", "table.name.format": "another"})


# Bad records


@pytest.mark.long
def test_bad_records_are_set_aside_once_also_in_a_replay(
    topic: MakeTopic, windows: MakeConfig, query: Query, go: Go, die: Die
) -> None:
    values = orders(60)
    values[5], values[30], values[45] = "{", json.dumps({"country": "de", "amount": 1}), "[1"
    t = topic(1, values=values)
    config = windows(t, errors_tolerance="all", errors_deadletterqueue_table="dead")
    die(config)
    go(config)
    assert query(STORED) == per_minute(n for n in range(60) if n not in (5, 30, 45))
    dead = query("SELECT * FROM dead")
    assert len(dead) == 3, dead
    assert any("event.time.field=at is missing" in str(row) for row in dead)
    check_audit(config)


@pytest.mark.long
def test_a_bad_record_stops_the_query_before_its_batch(
    topic: MakeTopic, windows: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=[*orders(25), "{", *orders(5, 25)])
    config = windows(t)
    with pytest.raises(
        BadRecord, match=f"{t}-0 offset 25 .* Batch 1 of the query is not committed"
    ):
        go(config)
    assert query(STORED) == per_minute(range(20)), "the first batch"
    go(config | {"errors.tolerance": "all"})
    assert query(STORED) == per_minute(range(30))


# What Structured Streaming can do


def per_country(orders: DataFrame) -> DataFrame:
    return orders.groupBy("country").agg(F.count("*").alias("orders"))


@pytest.mark.long
def test_a_python_query_and_one_in_sql_are_the_same(
    topic: MakeTopic, produce: Produce, stateful: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=orders(30))
    keyed = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "country"}
    config = stateful(t, **keyed)
    go(config, query=per_country)
    produce(t, orders(30, 30))
    go(config, query=per_country)
    assert query("SELECT country, orders FROM t ORDER BY 1") == [(c, 20) for c in COUNTRIES]
    with pytest.raises(ConfigError, match="the query has changed"):
        go(config, query=lambda orders: per_country(orders.where("amount > 5")))


JOIN = """
    SELECT o.id, o.country, p.method FROM `{orders}` o JOIN `{payments}` p
    ON o.id = p.order AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE
"""


@pytest.mark.long
def test_streams_of_two_topics_join(
    topic: MakeTopic, produce: Produce, stateful: MakeConfig, query: Query, go: Go
) -> None:
    ordered = topic(1, values=orders(30))
    paid = topic(1, values=[json.dumps({"order": 0, "method": "cash", "at": order(0)["at"]})])
    config = stateful(
        f"{ordered},{paid}",
        table_name_format="t",
        query=JOIN.format(orders=ordered, payments=paid),
        event_time_field="at",
    )
    go(config)
    payments = [{"order": n, "method": "card", "at": order(n)["at"]} for n in range(1, 30)]
    produce(paid, list(map(json.dumps, payments)))
    go(config)
    found = query("SELECT id, country, method FROM t ORDER BY id")
    assert found == [(n, COUNTRIES[n % 3], "card" if n else "cash") for n in range(30)]
    check_audit(config)


@pytest.mark.long
def test_a_topic_joins_itself(topic: MakeTopic, stateful: MakeConfig, query: Query, go: Go) -> None:
    t = topic(2, values=orders(40))
    config = stateful(
        t,
        query=f"""SELECT a.id, b.id AS after FROM `{t}` a JOIN `{t}` b
            ON b.id = a.id + 1 AND b.at BETWEEN a.at AND a.at + INTERVAL 5 SECONDS""",
        event_time_field="at",
        maxOffsetsPerTrigger="10",
    )
    go(config)
    assert query("SELECT id, after FROM t ORDER BY id") == [(n, n + 1) for n in range(39)]


@pytest.mark.long
def test_final_rows_come_once_in_append_mode(
    topic: MakeTopic, produce: Produce, appended: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=orders(130))
    config = appended(t, watermark="5 seconds", **BATCHES)
    go(config)
    assert query(STORED) == [r for r in per_minute(range(130)) if r[1] < 2]
    produce(t, orders(70, 130))
    go(config)
    assert query(STORED) == [r for r in per_minute(range(200)) if r[1] < 3]
    check_audit(config)


@pytest.mark.long
def test_session_windows_close(
    topic: MakeTopic, stateful: MakeConfig, query: Query, go: Go
) -> None:
    seconds = [0, 3, 5, 60, 62, 300]
    t = topic(1, values=[json.dumps(order(3 * n, s)) for n, s in enumerate(seconds)])
    config = stateful(
        t,
        query=f"""SELECT session_window(at, '10 seconds').start AS start, count(*) AS n
            FROM `{t}` GROUP BY country, session_window(at, '10 seconds')""",
        event_time_field="at",
        watermark="1 second",
    )
    go(config)
    assert query("SELECT n FROM t ORDER BY start") == [(3,), (2,)]


def once(orders: DataFrame) -> DataFrame:
    return orders.dropDuplicatesWithinWatermark(["id"]).select("id", "country")


@pytest.mark.long
def test_duplicates_within_the_watermark_are_dropped(
    topic: MakeTopic, produce: Produce, stateful: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=[*orders(20), *orders(10)])
    config = stateful(t, event_time_field="at", **BATCHES)
    go(config, query=once)
    produce(t, orders(10, 15))
    go(config, query=once)
    assert query("SELECT id FROM t ORDER BY id") == [(n,) for n in range(25)]


def chained(orders: DataFrame) -> DataFrame:
    """The busiest second of each minute: an aggregate of an aggregate."""
    seconds = orders.groupBy(F.window("at", "10 seconds"), "country").count()
    minutes = seconds.groupBy(F.window(F.window_time("window"), "1 minute"))
    return minutes.agg(F.max("count").alias("most")).select("window.start", "most")


@pytest.mark.long
def test_stateful_operators_follow_each_other_in_append_mode(
    topic: MakeTopic, stateful: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=orders(200))
    config = stateful(t, event_time_field="at", watermark="1 second", **BATCHES)
    go(config, query=chained)
    assert query("SELECT most FROM t ORDER BY start") == [(4,), (4,), (4,)]


def running(orders: DataFrame) -> DataFrame:
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    class Total(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            total = StructType([StructField("total", LongType())])
            self._total = handle.getValueState("total", total)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            found = self._total.get()
            total = found[0] if found else 0
            total += sum(int(frame["amount"].sum()) for frame in rows)
            self._total.update((total,))
            yield pd.DataFrame({"country": [key[0]], "total": [total]})

        def close(self) -> None: ...

    made = StructType([StructField("country", StringType()), StructField("total", LongType())])
    return orders.groupBy("country").transformWithStateInPandas(
        statefulProcessor=Total(), outputStructType=made, outputMode="Update", timeMode="None"
    )


@pytest.mark.long
def test_state_of_ones_own_is_kept(
    topic: MakeTopic, produce: Produce, stateful: MakeConfig, query: Query, go: Go
) -> None:
    pytest.importorskip("pandas")
    t = topic(1, values=orders(60))
    keyed = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "country"}
    config = stateful(t, **keyed, **BATCHES)
    go(config, query=running)
    produce(t, orders(30, 60))
    go(config, query=running)
    totals = [(c, sum(range(i, 90, 3))) for i, c in enumerate(COUNTRIES)]
    assert query("SELECT country, total FROM t ORDER BY 1") == totals


def stored(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What rows or documents say, as :func:`per_minute` does."""
    zero = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    found = []
    for row in rows:
        at = row["minute"]
        at = datetime.datetime.fromisoformat(at) if isinstance(at, str) else at
        minute = int((at - zero).total_seconds()) // 60
        found.append((row["country"], minute, row["orders"], row["total"]))
    return sorted(found)


def without_keys(config: Config) -> Config:
    """A configuration without the keys of databases."""
    of_databases = ("connection", "insert", "pk", "auto", "table")
    return {key: value for key, value in config.items() if key.split(".")[0] not in of_databases}


@pytest.mark.long
def test_delta_lake_takes_a_query_and_knows_replays(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, go: Go, die: Die, tmp_path: Path
) -> None:
    t = topic(2, values=orders(70))
    lake = tmp_path / "lake"
    config = windows(t) | {"connector.class": "delta", "delta.table.path": str(lake)}
    config = {k: v for k, v in config.items() if not k.startswith("connection.")}
    die(config, skip=1)
    produce(t, orders(70, 70))
    assert go(config).deliveries.replays == 1
    rows = DeltaTable(str(lake / "t")).to_pyarrow_table().to_pylist()
    assert stored(rows) == per_minute(range(140))
    check_audit(config)


@pytest.mark.long
def test_iceberg_takes_a_query_and_knows_replays(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, go: Go, die: Die, tmp_path: Path
) -> None:
    t = topic(2, values=orders(70))
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    catalog["warehouse"] = f"file://{tmp_path}/warehouse"
    made = {f"iceberg.catalog.{key}": value for key, value in catalog.items()} | {
        "connector.class": "iceberg",
        "iceberg.tables": "db.t",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.tables.default-id-columns": "country,minute",
    }
    config = without_keys(windows(t)) | made
    die(config, skip=1)
    produce(t, orders(70, 70))
    assert go(config).deliveries.replays == 1
    table = load_catalog("iceberg", **catalog).load_table("db.t")
    assert stored(table.scan().to_arrow().to_pylist()) == per_minute(range(140))
    check_audit(config)


@pytest.mark.long
def test_a_search_engine_takes_a_query_and_writes_a_batch_again_in_place(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, go: Go, die: Die,
    opensearch: OpenSearch,
) -> None:  # fmt: skip
    t = topic(2, values=orders(70))
    keyed = PER_MINUTE.format(topic=t).replace(
        "SELECT", "SELECT concat_ws('|', country, window(at, '1 minute').start) AS __connect_key,"
    )
    made = {"connector.class": "opensearch", "connection.url": opensearch.url, "query": keyed}
    config = without_keys(windows(t)) | made
    die(config, skip=1)
    produce(t, orders(70, 70))
    go(config)
    assert stored(documents(opensearch.url, config["name"])) == per_minute(range(140))
    check_audit(config)


@pytest.mark.long
@pytest.mark.parametrize("database_url", SYSTEMS, indirect=True)
def test_other_databases_take_a_query_and_know_replays(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, go: Go, die: Die, database_url: str
) -> None:
    t = topic(2, values=orders(70))
    numbered = """SELECT country, unix_timestamp(window(at, '1 minute').start) AS minute,
        count(*) AS orders, sum(amount) AS total
        FROM `{t}` GROUP BY country, window(at, '1 minute')"""
    made = {"connector.class": database_url.split(":")[1], "connection.url": database_url}
    config = windows(t) | made | {"query": numbered.format(t=t)}
    die(config, skip=1)
    produce(t, orders(70, 70))
    assert go(config).deliveries.replays == 1
    zero = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp())
    rows = sql(
        database_url, f"SELECT country, (minute - {zero}) / 60, orders, total FROM t ORDER BY 1, 2"
    )
    found = [(country, *map(int, numbers)) for country, *numbers in rows]
    assert found == per_minute(range(140))
    check_audit(config)


# Refusals


@pytest.mark.long
@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT missing FROM `{t}`", "does not fit its topics"),
        ("DROP TABLE `{t}`", "must be a SELECT"),
        ("SELECT transform(id) USING 'cat' AS (x) FROM `{t}`", "must be a SELECT"),
        ("SELECT reflect('java.lang.System', 'exit', 1) FROM `{t}`", "does not fit its topics"),
        ("SELECT * FROM csv.`/etc/passwd`", "does not fit its topics"),
        ("SELECT 1 AS one", "must make a DataFrame of the streams"),
        ("SELECT id, country AS id FROM `{t}`", "two columns named"),
        ("SELECT id FROM", "does not fit its topics"),
    ],
)
def test_sql_that_is_no_query_over_the_topics_is_refused(
    topic: MakeTopic, windows: MakeConfig, go: Go, sql: str, says: str
) -> None:
    t = topic(1, values=orders(3))
    with pytest.raises(ConfigError, match=says):
        go(windows(t) | {"query": sql.format(t=t)})


@pytest.mark.long
def test_a_topic_without_records_needs_declared_columns(
    topic: MakeTopic, produce: Produce, windows: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    config = windows(t)
    with pytest.raises(ConfigError, match="has no record whose columns"):
        go(config)
    declared = config | {
        "value.converter.schema": "id BIGINT, country STRING, amount BIGINT, at TIMESTAMP"
    }
    go(declared)
    produce(t, orders(10))
    go(declared)
    assert query(STORED) == per_minute(range(10))


def test_an_update_needs_a_sink_that_replaces_rows(
    topic: MakeTopic, appended: MakeConfig, go: Go
) -> None:
    t = topic(1, values=orders(3))
    config = appended(t, query_output_mode="update")
    with pytest.raises(SemelError, match="the sink only adds rows"):
        go(config)


# Two drivers, each with a Spark of its own


def started(config: Config, path: Path, points: Path | None = None) -> subprocess.Popen[str]:
    path.write_text(json.dumps(config | QUICK_JVM))
    where = {failpoints.DIRECTORY: str(points)} if points else {}
    return subprocess.Popen(
        [sys.executable, "-m", "semel", "run", str(path), "--until-caught-up"],
        env={**os.environ, **where},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
@pytest.mark.parametrize("further", [0, 70])
def test_a_driver_that_wakes_up_after_another_has_gone_on_writes_nothing(
    topic: MakeTopic,
    produce: Produce,
    windows: MakeConfig,
    query: Query,
    tmp_path: Path,
    further: int,
) -> None:
    t = topic(1, values=orders(20))
    config, points = windows(t), tmp_path / "points"
    points.mkdir()
    failpoints.arm(points, "task.after_convert", "freeze")
    first = started(config, tmp_path / "config.json", points)
    wait_until(lambda: bool(failpoints.fired(points)))
    produce(t, orders(further, 20))
    second = started(config, tmp_path / "config.json")
    told, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, told
    failpoints.thaw(points, first.pid)
    told, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == 4, told
    assert "Nothing was written" in told
    assert query(STORED) == per_minute(range(20 + further))


@pytest.mark.long
def test_a_query_runs_from_the_command_line(
    topic: MakeTopic, windows: MakeConfig, query: Query, tmp_path: Path
) -> None:
    t = topic(1, values=orders(50))
    config = windows(t)
    told, _ = started(config, tmp_path / "config.json").communicate(timeout=PATIENCE)
    assert query(STORED) == per_minute(range(50)), told
    for command in (["describe"], ["offsets", "show"], ["lag"], ["audit"]):
        shown = run_to_end([sys.executable, "-m", "semel", *command, str(tmp_path / "config.json")])
        assert shown.returncode in (0, 7), shown.stdout + shown.stderr
        if command == ["describe"]:
            assert "RocksDB" in shown.stdout and "exactly-once" in shown.stdout
        if command == ["offsets", "show"]:
            assert "(query)" in shown.stdout
