"""A chain of transforms in a connector: rows, positions, dead letters and the audit go by where
records were read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from semel import run
from semel.audit import audit, audit_source
from semel.core.errors import ConfigError
from semel.driver.planning import plan, plan_source
from semel.sinks.base import Capabilities
from semel.sinks.files.sink import FilesSink
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Lake
from tests.sinks.kafka.copying import consume
from tests.sinks.target import Target

DAY = 86_400_000
KAFKA = "org.apache.kafka.connect.transforms."
CHAIN = {
    "transforms": "route,key,id,where,drop,at,gone",
    "transforms.route.type": f"{KAFKA}RegexRouter",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "$1_out",
    "transforms.key.type": f"{KAFKA}ValueToKey",
    "transforms.key.fields": "id",
    "transforms.key.predicate": "tombstone",
    "transforms.key.negate": "true",
    "transforms.id.type": f"{KAFKA}ExtractField$Key",
    "transforms.id.field": "id",
    "transforms.where.type": f"{KAFKA}InsertField$Value",
    "transforms.where.topic.field": "place",
    "transforms.where.offset.field": "at_offset",
    "transforms.drop.type": f"{KAFKA}ReplaceField$Value",
    "transforms.drop.exclude": "secret",
    "transforms.drop.renames": "n:amount",
    "transforms.at.type": f"{KAFKA}TimestampConverter$Value",
    "transforms.at.field": "day",
    "transforms.at.target.type": "Date",
    "transforms.at.format": "dd.MM.yyyy",
    "transforms.gone.type": f"{KAFKA}Filter",
    "transforms.gone.predicate": "tombstone",
    "predicates": "tombstone",
    "predicates.tombstone.type": f"{KAFKA}predicates.RecordIsTombstone",
}


def connector(topic: str, bootstrap: str, database: str, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "name": topic,
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "topics": topic,
        "bootstrap.servers": bootstrap,
        "connection.url": database,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "auto.create": "true",
        "provenance": "true",
        **more,
    }


def records() -> list[bytes | None]:
    """A hundred; the one at 7 cannot be transformed, the one at 8 is a tombstone."""
    rows = [{"id": n, "n": n * 10, "day": "05.02.2024", "secret": "x"} for n in range(100)]
    rows[7]["day"] = "soon"
    return [None if n == 8 else json.dumps(r).encode() for n, r in enumerate(rows)]


@pytest.mark.integration
def test_a_chain_changes_rows_keys_and_the_table_and_the_audit_finds_them(
    topic: MakeTopic, kafka: Kafka, database: str
) -> None:
    name = topic(2, values=records())
    keys = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id"}
    lenient = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = connector(name, kafka.bootstrap_servers, database, {**CHAIN, **keys, **lenient})
    done = run(config, until_caught_up=True)
    target = Target(database)
    table = f"{name}_out"
    found = target.query(f'SELECT id, amount, day::text, place FROM "{table}" ORDER BY id')
    assert found == [
        {"id": n, "amount": n * 10, "day": "2024-02-05", "place": table}
        for n in range(100)
        if n not in (7, 8)
    ]
    (letter,) = target.query("SELECT topic, stage, message FROM dead")
    target.close()
    assert (letter["topic"], letter["stage"]) == (name, "TRANSFORMATION")
    assert "transforms.at: Could not parse timestamp: value (soon)" in letter["message"]
    assert done.rows == 98
    report = audit(config, values=True)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report
    assert sum(p.filtered for p in report.partitions) == 1


@pytest.mark.integration
@pytest.mark.long
def test_a_chain_runs_where_the_driver_commits(topic: MakeTopic, lake: Lake) -> None:
    name = topic(2, values=records())
    lenient = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = lake(name, {**CHAIN, **lenient})
    run(config, until_caught_up=True)
    found = DeltaTable(f"{config['delta.table.path']}/{name}_out").to_pyarrow_table()
    assert sorted(found.column("amount").to_pylist()) == [
        n * 10 for n in range(100) if n not in (7, 8)
    ]
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report


@pytest.mark.long
@pytest.mark.integration
def test_a_router_splits_a_topic_into_tables_and_goes_on_after_a_restart(
    topic: MakeTopic, produce: Produce, kafka: Kafka, database: str
) -> None:
    name = topic(2)
    days = {"transforms": "t", "transforms.t.type": f"{KAFKA}TimestampRouter"}
    config = connector(name, kafka.bootstrap_servers, database, days)
    config |= {"value.converter.schemas.enable": "false", "table.name.format": "${topic}"}
    written: list[int] = []
    for _ in range(2):
        texts = [json.dumps({"n": len(written) + n}).encode() for n in range(40)]
        produce(name, texts, timestamps=[(n % 3 + 1) * DAY for n in range(40)])
        written += range(len(written), len(written) + 40)
        run(config, until_caught_up=True)
        target = Target(database)
        found = {
            number: [
                row["n"]
                for row in target.query(f'SELECT n FROM "{name}-1970010{number + 2}" ORDER BY n')
            ]
            for number in range(3)
        }
        target.close()
        assert found == {d: [n for n in written if n % 40 % 3 == d] for d in range(3)}
        report = audit(config)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report
        assert not report.not_judged
    target = Target(database)
    target.execute(f'DELETE FROM "{name}-19700103" WHERE n = 1')
    target.execute(f'INSERT INTO "{name}-19700104" SELECT * FROM "{name}-19700104" WHERE n = 2')
    target.close()
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (1, 1, False), report


def _days(produce: Produce, topic: str, origin: int) -> None:
    texts = [json.dumps({"n": origin + n}).encode() for n in range(40)]
    produce(topic, texts, timestamps=[(n % 3 + 1) * DAY for n in range(40)])


@pytest.mark.long
@pytest.mark.integration
def test_a_router_splits_topics_into_folders_of_files_in_one_commit(
    topic: MakeTopic, produce: Produce, lake: Lake, tmp_path: Path
) -> None:
    names = [topic(2), topic(2)]
    keys = {
        "connector.class": "files",
        "delta.table.path": None,
        "auto.create": None,
        "path": str(tmp_path),
        "transforms": "t,u",
        "transforms.t.type": f"{KAFKA}RegexRouter",
        "transforms.t.regex": ".*",
        "transforms.t.replacement": "day",
        "transforms.u.type": f"{KAFKA}TimestampRouter",
    }
    config = lake(",".join(names), keys)
    for turn in range(2):
        for number, name in enumerate(names):
            _days(produce, name, turn * 100 + number * 1000)
        run(config, until_caught_up=True)
    for number in range(3):
        found = duckdb.sql(f"SELECT n FROM '{tmp_path}/day-1970010{number + 2}/**/*.parquet'")
        assert sorted(n for (n,) in found.fetchall()) == [
            first + n for first in (0, 100, 1000, 1100) for n in range(40) if n % 3 == number
        ]
    for provenance in ("true", "false"):
        report = audit(config | {"provenance": provenance})
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report
        assert not report.not_judged
        assert {p.topic: p.kafka for p in report.partitions}.keys() == set(names)
    gone = next((tmp_path / "day-19700103").rglob(f"{names[0]}+*.parquet"))
    count = pq.read_metadata(gone).num_rows
    gone.unlink()
    for provenance in ("true", "false"):
        report = audit(config | {"provenance": provenance})
        assert (report.lost, report.duplicated, report.kept) == (count, 0, False), report


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("splits", [False, True])
def test_a_router_before_iceberg_changes_what_later_transforms_see(
    topic: MakeTopic, produce: Produce, warehouse: Configure, splits: bool
) -> None:
    name = topic(2)
    keys = {
        "iceberg.tables": None,
        "iceberg.tables.dynamic-enabled": "true",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.route-field": "where",
        "transforms": "t,u",
        "transforms.t.type": f"{KAFKA}TimestampRouter",
        "transforms.t.topic.format": "db.day${timestamp}" if splits else "db.${topic}",
        "transforms.u.type": f"{KAFKA}InsertField$Value",
        "transforms.u.topic.field": "where",
    }
    if not splits:
        keys |= {
            "transforms.t.type": f"{KAFKA}RegexRouter",
            "transforms.t.regex": ".*",
            "transforms.t.replacement": "db.$0",
        }
        keys.pop("transforms.t.topic.format")
    config = warehouse(name, keys)
    for turn in range(2):
        _days(produce, name, turn * 100)
        run(config, until_caught_up=True)
    expected = [turn + n for turn in (0, 100) for n in range(40)]
    tables = {
        f"db.day1970010{d + 2}" if splits else f"db.{name}": [
            n for n in expected if not splits or n % 100 % 3 == d
        ]
        for d in range(3)
    }
    catalog = load_catalog("iceberg", type="sql", uri=config["iceberg.catalog.uri"])
    for table, rows in tables.items():
        found = catalog.load_table(table).scan().to_arrow()
        assert sorted(found.column("n").to_pylist()) == rows
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report


@pytest.mark.integration
def test_a_source_connector_makes_keys_and_chooses_topics(
    topic: MakeTopic, kafka: Kafka, tmp_path: Path
) -> None:
    name = topic(2)
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {n}\n" for n in range(20)))
    config = {
        "name": name,
        "connector.class": "FileStreamSource",
        "file": str(file),
        "topic": name.removeprefix("topic-"),
        "bootstrap.servers": kafka.bootstrap_servers,
        "offsets.storage.topic": f"{name}-offsets",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "transforms": "hoist,key,id,route",
        "transforms.hoist.type": f"{KAFKA}HoistField$Value",
        "transforms.hoist.field": "text",
        "transforms.key.type": f"{KAFKA}ValueToKey",
        "transforms.key.fields": "text",
        "transforms.id.type": f"{KAFKA}ExtractField$Key",
        "transforms.id.field": "text",
        "transforms.route.type": f"{KAFKA}RegexRouter",
        "transforms.route.regex": ".*",
        "transforms.route.replacement": "topic-$0",
    }
    run(config, until_caught_up=True)
    found = consume(kafka.bootstrap_servers, name)
    texts = [f"line {n}" for n in range(20)]
    assert sorted((m.key.decode(), json.loads(m.value)["text"]) for m in found) == sorted(
        zip(texts, texts, strict=True)
    )
    report = audit_source(plan_source(config))
    assert (report.lost, report.duplicated, report.broken) == (0, 0, False), report


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"engine": "micro-batch"}, "which engine=micro-batch cannot. Set engine=direct"),
        (
            {"connector.class": "delta", "delta.table.path": "/nowhere"},
            "the delta sink, as it is configured, writes one for each topic",
        ),
    ],
)
def test_a_router_that_the_sink_cannot_follow_is_refused_with_what_to_set(
    more: dict[str, str], message: str
) -> None:
    config = connector("t", "nowhere:9092", "jdbc:postgresql://nowhere/x", {"transforms": "t"})
    config |= {"transforms.t.type": f"{KAFKA}TimestampRouter", **more}
    with pytest.raises(ConfigError) as refused:
        plan(config)
    assert message in str(refused.value)


def test_a_router_is_refused_by_a_sink_that_does_not_name_targets_by_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FilesSink, "capabilities", Capabilities())
    config = connector("t", "nowhere:9092", "jdbc:postgresql://nowhere/x", {"transforms": "t"})
    config |= {"connector.class": "files", "path": str(tmp_path)}
    config |= {"transforms.t.type": f"{KAFKA}TimestampRouter"}
    with pytest.raises(ConfigError, match="names what it writes by the topic that records were"):
        plan(config)


@pytest.mark.parametrize(
    "sink",
    [
        {"connector.class": "kafka", "topic.rename.format": "${topic}.copy"},
        {
            "connector.class": "files",
            "path": "/nowhere",
            "rotate.interval.ms": "1000",
            "timestamp.extractor": "Record",
        },
    ],
)
def test_another_time_is_refused_where_the_sink_writes_times(sink: dict[str, str]) -> None:
    config = connector("t", "nowhere:9092", "jdbc:postgresql://nowhere/x", {"transforms": "t"})
    config |= {
        "transforms.t.type": "io.aiven.kafka.connect.transforms.ExtractTimestamp$Value",
        "transforms.t.field.name": "at",
    }
    plan(config)
    with pytest.raises(ConfigError, match="uses the one that Kafka has"):
        plan(config | sink)
