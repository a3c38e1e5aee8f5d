"""``audit --values`` finds a row whose values are not its record's, and names it."""

# ruff: noqa: F401, F811
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from typer.testing import CliRunner

from semel.audit import audit
from semel.audit.report import ChangedRow
from semel.cli import proof
from semel.cli.commands import app
from semel.core.ledger import Advance, OffsetRange, TopicPartition, firsts
from semel.core.records import Commit, RowsRejected
from semel.driver.planning import plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.reader import read_ranges
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import by_topic
from tests.conftest import MakeTopic, Produce
from tests.databases import query
from tests.engine.conftest import Config, Configure, Lake, configure, lake, warehouse, written
from tests.engine.harness import caught_up, some, sql
from tests.test_audit import BY_KEY

pytestmark = pytest.mark.integration

UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}


def fill(config: Config) -> None:
    """Commit what Kafka holds as the direct engine does, a poll at a time."""
    planned = plan(config)
    sink, connector = planned.sink, planned.connector
    cluster = Cluster(client_config(connector, "admin"))
    topics = cluster.matching(connector)
    sink.prepare(topics)
    everything = [TopicPartition(t, p) for t, n in topics.items() for p in range(n)]
    ends = cluster.latest(everything)
    starts = sink.start(firsts(dict.fromkeys(everything, 0)))
    pipeline = Pipeline(connector, sink, target=sink.schema)
    at = dict(starts)
    for messages in read_ranges(connector, starts, ends):
        for poll in by_topic(messages):
            raw = poll.raw(key=pipeline.wants_key, timestamp=True)
            if pipeline.schema(poll.topic) is None:
                pipeline.infer(poll.topic, raw)
            converted = pipeline.convert(poll.topic, raw)
            sink.accommodate(converted.records)
            advances = []
            for partition in sorted(set(poll.partitions.tolist())):
                tp = TopicPartition(poll.topic, partition)
                mine = poll.offsets[poll.partitions == partition]
                span = OffsetRange(*tp, at[tp], int(mine.max()) + 1)
                failed = sum(poll.partitions[f.index] == partition for f in converted.failed)
                advances.append(
                    Advance(span, read=len(mine), written=len(mine) - failed, failed=failed)
                )
                at[tp] = span.until_offset
            sink.commit(advances, Commit([converted.records]))
    sink.close()


def values(*numbers: int, nested: bool = True) -> list[bytes]:
    def one(n: int) -> dict[str, object]:
        flat = {"id": n, "text": f"text {n}", "price": n + 0.5, "at": "2024-05-01T10:20:30.5Z"}
        return {**flat, "tags": {"n": n, "a": [1.0, None]}} if nested else flat

    return [json.dumps(one(n)).encode() for n in numbers]


def changed(config: Config) -> tuple[int, list[ChangedRow], tuple[str, ...]]:
    report = audit(config, values=True)
    assert report.broken == bool(report.changed or report.lost or report.duplicated)
    return report.changed, list(report.changed_rows), report.not_judged


@pytest.mark.parametrize(
    ("keys", "provenance"),
    [
        ({}, "true"),
        pytest.param(UPSERT, "true", marks=pytest.mark.long),
        pytest.param(BY_KEY, "false", marks=pytest.mark.long),
        pytest.param({}, "false", marks=pytest.mark.long),
        pytest.param(UPSERT, "false", marks=pytest.mark.long),
        pytest.param(BY_KEY, "true", marks=pytest.mark.long),
    ],
    ids=["insert", "upsert", "by key", "insert-bare", "upsert-bare", "by key-traced"],
)
def test_a_row_changed_by_hand_is_found(
    keys: Config, provenance: str, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    numbers = [*range(20), *range(5)]
    names = [f"k{n}" for n in numbers]
    source = topic(values=values(*numbers), keys=names)
    if keys is BY_KEY:
        produce(source, [None, *values(19)], keys=["k7", "k19"])
    config = configure(source, {**keys, "provenance": provenance})
    fill(config)
    url = config["connection.url"]
    assert changed(config) == (0, [], ())
    sql(url, f'UPDATE "{source}" SET price = -1 WHERE id = 9')
    named = ("price",) if keys or provenance == "true" else ()
    assert changed(config) == (1, [ChangedRow(source, 0, 9, named)], ())
    assert audit(config).kept  # which nothing else sees
    sql(url, f'UPDATE "{source}" SET text = NULL')
    assert changed(config)[0] == {"{}": 25, str(UPSERT): 20, str(BY_KEY): 19}[str(keys)]


@pytest.mark.parametrize(
    "keys", some([{}, UPSERT | {"provenance": "false"}], [{}]), ids=["insert", "by key"]
)
def test_a_row_changed_by_hand_in_a_delta_table_is_found(
    keys: Config, topic: MakeTopic, lake: Lake
) -> None:
    source = topic(values=values(*range(20), *range(5), nested=False))
    config = lake(source, keys)
    fill(config)
    assert changed(config) == (0, [], ())
    table = DeltaTable(f"{config['delta.table.path']}/{source}")
    table.update(updates={"price": "-1"}, predicate="id = 9")
    assert changed(config) == (1, [ChangedRow(source, 0, 9, ("price",))], ())


@pytest.mark.parametrize(
    "keys", some([{}, {"provenance": "false"}], [{}]), ids=["by place", "by count"]
)
def test_a_row_changed_by_hand_in_an_iceberg_table_is_found(
    keys: Config, topic: MakeTopic, warehouse: Configure
) -> None:
    source = topic(values=values(*range(20), nested=False))
    config = warehouse(source, keys)
    fill(config)
    assert changed(config) == (0, [], ())
    catalog = load_catalog("iceberg", type="sql", uri=config["iceberg.catalog.uri"])
    table = catalog.load_table("db.t")
    rows = table.scan().to_arrow()
    at = rows.schema.get_field_index("price")
    prices = pc.if_else(pc.equal(rows.column("id"), 9), -1.0, rows.column("price"))
    table.overwrite(rows.set_column(at, rows.schema.field(at), prices))
    named = () if keys else ("price",)
    assert changed(config) == (1, [ChangedRow(source, 0, 9, named)], ())


@pytest.mark.long
@pytest.mark.parametrize("provenance", ["true", "false"])
def test_rows_of_records_that_are_refused_by_now_are_not_judged(
    provenance: str, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=[*values(*range(20)), *[b"{"] * 5])
    keys = {
        **UPSERT,
        "provenance": provenance,
        "errors.tolerance": "all",
        "errors.deadletterqueue.table": "dead",
    }
    config = configure(source, keys)
    caught_up(config)
    assert changed(config) == (0, [], ())
    sql(config["connection.url"], f'ALTER TABLE "{source}" ALTER price TYPE numeric(2, 1) USING 0')
    why = (
        f"{source}: values of 10 records that converter, transform or target leave out now, "
        "although the connector has written them"
    )
    assert why in changed(config)[2]


@pytest.fixture
def sqlite(configure: Configure, tmp_path: Path) -> Configure:
    """A connector into a SQLite file."""

    def make(topics: str, keys: Config | None = None) -> Config:
        url = f"jdbc:sqlite:{tmp_path}/t.db"
        made = configure(
            topics, {"connector.class": "sqlite", "connection.url": url, **(keys or {})}
        )
        del made["connection.loginTimeout"]
        return made

    return make


@pytest.mark.parametrize(
    "keys",
    some(
        [{}, UPSERT, {"provenance": "false"}, {**BY_KEY, "provenance": "false"}],
        [{"provenance": "false"}, {**BY_KEY, "provenance": "false"}],
    ),
    ids=["by place", "upsert", "by count", "by key"],
)
def test_a_row_changed_by_hand_in_a_sqlite_file_is_found(
    keys: Config, topic: MakeTopic, sqlite: Configure
) -> None:
    source = topic(values=values(*range(20)), keys=[f"k{n}" for n in range(20)])
    config = sqlite(source, keys)
    fill(config)
    report = audit(config, values=True)
    assert (report.kept, report.changed, report.compared) == (True, 0, 20)
    query(config["connection.url"], f"UPDATE \"{source}\" SET tags = '{{}}' WHERE id = 9")
    named = () if keys == {"provenance": "false"} else ("tags",)
    assert changed(config) == (1, [ChangedRow(source, 0, 9, named)], ())


def test_rows_that_a_transform_leaves_out_now_are_not_judged(
    topic: MakeTopic, sqlite: Configure
) -> None:
    def without_last(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.less(batch.column("id"), 19))

    source = topic(values=values(*range(20)))
    why = (
        f"{source}: values of 1 records that converter, transform or target leave out now, "
        "although the connector has written them"
    )
    for provenance in ("true", "false"):
        config = sqlite(source, {"provenance": provenance, "table.name.format": f"t{provenance}"})
        fill(config)
        report = audit(config, without_last, values=True)
        assert why in [line.replace(f"t{provenance}", source) for line in report.not_judged]


def test_values_that_no_row_could_be_compared_with_are_not_judged(
    topic: MakeTopic, sqlite: Configure
) -> None:
    source = topic(values=values(*range(20)))
    config = sqlite(source)
    fill(config)
    query(config["connection.url"], f'UPDATE "{source}" SET __connect_topic = NULL')
    report = audit(config, values=True)
    assert report.compared == 0
    assert (
        f"{source}: values: none of its 20 rows belongs to one of the 20 records, so nothing was "
        "compared"
    ) in report.not_judged


def test_a_sink_that_does_not_show_its_rows_is_not_judged(
    topic: MakeTopic, configure: Configure, tmp_path: Path
) -> None:
    source = topic(values=values(1, 2))
    keys = {"connector.class": "files", "path": str(tmp_path / "out"), "auto.create": None}
    config = configure(source, {**keys, "connection.url": None, "connection.loginTimeout": None})
    fill(config)
    report = audit(config, values=True)
    assert report.not_judged == ("values: the files sink does not show its rows",)
    assert report.compared is None


def test_the_command_names_changed_rows_and_says_how_far_it_is(
    topic: MakeTopic,
    configure: Configure,
    written: Callable[[Config], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "_LINE_EVERY", 0.0)
    source = topic(values=values(*range(5)))
    config = configure(source)
    fill(config)
    sql(config["connection.url"], f"UPDATE \"{source}\" SET text = '' WHERE id = 3")
    runner, file = CliRunner(), str(written(config))
    told = runner.invoke(app, ["audit", file, "--values"])
    assert told.exit_code == 1
    assert "1 changed of 5 compared" in told.stdout
    assert f"changed: the row of {source}-0 offset 3, column text" in told.stdout
    assert "audited 5 of 5 records" in told.stderr
    facts = json.loads(runner.invoke(app, ["audit", file, "--values", "--json"]).stdout)
    assert (facts["changed"], facts["partitions"][0]["changed"]) == (1, 1)
    assert facts["compared"] == 5
    assert facts["changed_rows"][0]["columns"] == ["text"]
