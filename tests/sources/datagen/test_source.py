"""The Datagen source, without Kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.core.errors import ConfigError
from semel.driver.planning import plan_source
from semel.sources.base import Measurable
from semel.sources.datagen import source as datagen
from semel.sources.datagen.source import DatagenSource

PUBLISHED = {
    "name": "datagen-stocktrades",
    "config": {
        "connector.class": "io.confluent.kafka.connect.datagen.DatagenConnector",
        "kafka.topic": "stock-trades",
        "quickstart": "Stock_Trades",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "max.interval": 100,
        "iterations": 10000000,
        "tasks.max": "1",
    },
}
"""Confluent's config/connector_stock_trades.config."""
RAW = {
    "name": "gen",
    "connector.class": "Datagen",
    "kafka.topic": "gen",
    "quickstart": "orders",
    "max.interval": "0",
    "bootstrap.servers": "localhost:1",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}


def made(**keys: str) -> DatagenSource:
    raw = {**RAW, **{k.replace("_", "."): v for k, v in keys.items()}}
    source = plan_source({k: v for k, v in raw.items() if v}).source
    assert isinstance(source, DatagenSource)
    return source


def values(source: DatagenSource, task: int, offset: Mapping[str, Any] | None) -> list[Any]:
    """All records from an offset on."""
    batches = source.read({"task.id": task}, offset)
    return [v for b in batches if b for r in b.records for v in r.values.to_pylist()]


def test_a_published_configuration_runs_unchanged() -> None:
    config = {**PUBLISHED["config"], "name": "s", "bootstrap.servers": "localhost:1"}  # type: ignore[dict-item]
    planned = plan_source(config)
    assert not planned.warnings
    assert planned.source.topics() == ["stock-trades"]
    assert planned.source.partitions() == [{"task.id": 0}]


def test_reading_continues_after_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagen, "_MOST", 7)
    source = made(iterations="50")
    whole = values(source, 0, None)
    assert [v["orderid"] for v in whole] == [*range(50)]
    for batch in source.read({"task.id": 0}, None):
        assert batch is not None
        assert batch.offset["random.seed"] == datagen.salt("gen") >> 1
        number = batch.offset["current.iteration"]
        assert values(source, 0, batch.offset) == whole[number:]
        before = source.before({"task.id": 0}, batch.offset)
        again = [v for b in before for r in b.records for v in r.values.to_pylist()]
        assert again == whole[:number]


def test_batches_of_large_records_are_small() -> None:
    text = {"type": "string", "arg.properties": {"length": (1 << 20) - 1}}
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": text}]}
    source = made(quickstart="", **{"schema.string": json.dumps(schema), "max.interval": "0"})
    batch = next(iter(source.read({"task.id": 0}, None)))
    assert batch is not None
    assert batch.offset["current.iteration"] == 4


def test_tasks_make_different_records_and_the_seed_decides_which() -> None:
    one = made(tasks_max="2", iterations="20", random_seed="7")
    assert one.partitions() == [{"task.id": 0}, {"task.id": 1}]
    assert values(one, 0, None) != values(one, 1, None)
    assert values(made(name="other", iterations="20", random_seed="7"), 1, None) == values(
        one, 1, None
    )
    assert values(made(iterations="20"), 1, None) != values(one, 1, None)


def test_the_key_is_the_quickstarts_or_another_field() -> None:
    batch = next(made().read({"task.id": 0}, None))
    assert batch is not None
    assert batch.records[0].keys[:3].to_pylist() == [0, 1, 2]
    batch = next(made(schema_keyfield="itemid").read({"task.id": 0}, None))
    assert batch is not None
    assert batch.records[0].keys[0].as_py().startswith("Item_")


def test_records_come_no_faster_than_max_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(datagen._Pace, "_now", lambda _self: now[0])
    batches = made(max_interval="100").read({"task.id": 0}, None)
    count = 0
    assert next(batches) is None
    for _ in range(100):
        now[0] += 0.5
        while (batch := next(batches)) is not None:
            count += len(batch)
    assert 800 < count < 1250  # every 50 ms on average, in 50 s


def test_a_schema_of_ones_own_is_read_from_a_file_or_a_key(tmp_path: Path) -> None:
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]})
    path = tmp_path / "own.avsc"
    path.write_text(schema)
    of_file = made(quickstart="", schema_filename=str(path), iterations="3")
    of_key = made(quickstart="", schema_string=schema, iterations="3")
    assert values(of_file, 0, None) == values(of_key, 0, None)
    batch = next(of_key.read({"task.id": 0}, None))
    assert batch is not None
    assert batch.records[0].keys.null_count == 3
    assert values(made(quickstart="", schema_filename="users_schema.avro", iterations="3"), 0, None)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"quickstart": "order"}, "quickstart='order' must be one of"),
        ({"quickstart": ""}, "one of quickstart, schema.string and schema.filename is required"),
        ({"schema_string": "{}"}, "quickstart and schema.string exclude each other"),
        ({"quickstart": "", "schema_string": "{"}, "schema.string: the schema is not JSON"),
        (
            {"quickstart": "", "schema_filename": "/nowhere.avsc"},
            "schema.filename=/nowhere.avsc cannot be read: No such file",
        ),
        ({"schema_keyfield": "no"}, "schema.keyfield=no must be a field .*: ordertime, orderid"),
        ({"kafka_topic": "a,b"}, "must be one topic"),
        ({"max_interval": "soon"}, "must be a whole number"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**keys)


def test_a_schema_that_is_missing_is_the_only_mistake() -> None:
    with pytest.raises(ConfigError) as told:
        plan_source({**RAW, "quickstart": ""})
    assert [p.key for p in told.value.problems] == ["quickstart"]


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"current.iteration": -1}, "must have a current.iteration of 0 or more"),
        ({"current.iteration": 10**30}, "of 0 or more, below 4,611,686,018,427,387,904"),
        ({"position": 3}, "must have a current.iteration"),
        ({"current.iteration": 3, "random.seed": 5}, "was reached with random.seed=5"),
    ],
)
def test_offsets_that_make_no_sense_are_refused(offset: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made().check_offset({"task.id": 0}, offset)
    with pytest.raises(ConfigError, match=r"source partition .* must be a task\.id"):
        made().check_offset({"file": "a"}, {"current.iteration": 1})


def test_reading_continues_from_an_offset_of_confluents_connector() -> None:
    offset = {"task.generation": 1, "current.iteration": 40, "random.seed": -5}
    found = values(made(iterations="50"), 0, offset)
    assert [v["orderid"] for v in found] == [*range(40, 50)]


def test_of_unlimited_records_it_cannot_tell_how_many_are_left() -> None:
    assert made().unit is None
    source = made(iterations="50", tasks_max="2")
    assert isinstance(source, Measurable)
    assert source.unit == "records"
    stored = {0: {"current.iteration": 40}}
    found = source.lag(lambda partition: stored.get(partition["task.id"]))
    assert list(found) == [({"task.id": 0}, 10), ({"task.id": 1}, 50)]
