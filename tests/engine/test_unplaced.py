"""Fields for which the target has no column: the connector stops or says so, and the audit sees
it."""

# ruff: noqa: F401, F811
from __future__ import annotations

import json
from typing import Any

import pytest

from semel.audit import audit
from semel.core.errors import ConfigError
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Lake, configure, lake, warehouse
from tests.engine.harness import caught_up, sql

pytestmark = pytest.mark.integration

PLACES = "__connect_topic text, __connect_partition int, __connect_offset bigint, "
SIDE_BY_SIDE = {"value.converter.schemas.enable": "true"}


def plain(count: int, **more: Any) -> list[bytes]:
    return [json.dumps({"id": i, "price": i + 0.5, **more}).encode() for i in range(count)]


def enveloped(count: int) -> list[bytes]:
    fields = [{"field": "id", "type": "int64"}, {"field": "price", "type": "double"}]
    schema = {"type": "struct", "fields": fields}
    return [
        json.dumps({"schema": schema, "payload": {"id": i, "price": i + 0.5}}).encode()
        for i in range(count)
    ]


def table(config: Config, columns: str) -> None:
    places = f"{PLACES}__connect_timestamp timestamptz"
    sql(config["connection.url"], f'CREATE TABLE "{config["topics"]}" ({columns}, {places})')


def test_a_misspelt_column_of_plain_json_is_said_and_counted_and_the_audit_sees_it(
    topic: MakeTopic, produce: Produce, configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    source = topic(partitions=2)
    for partition in range(2):
        produce(source, plain(10, note=None), partition=partition)
    config = configure(source, {"tasks.max": "2"})
    table(config, "id int, prise float8")
    progress = caught_up(config)
    assert progress.unplaced == {(source, "price"): 20}
    said = [r.message for r in caplog.records if "has no column price" in r.message]
    assert len(said) == 1  # not by each task
    assert f"table {source} has no column price" in said[0]
    report = audit(config, values=True)
    assert [(u.field, u.values) for u in report.unplaced] == [("price", 20)]
    assert report.broken
    accepted = audit({**config, "fields.unknown": "ignore"}, values=True)
    assert (accepted.unplaced, accepted.broken) == ((), False)


@pytest.mark.long
@pytest.mark.parametrize(
    "keys", [{"field.exclude.list": "price"}, {"fields.whitelist": "id"}, {"auto.evolve": "true"}]
)
def test_fields_that_are_left_out_or_added_on_purpose_are_not_unknown(
    keys: Config, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=plain(5))
    config = configure(source, keys)
    table(config, "id int, prise float8")
    assert caught_up(config).unplaced == {}


@pytest.mark.parametrize(
    ("values", "keys"),
    [(plain(3), {"fields.unknown": "stop"}), (enveloped(3), SIDE_BY_SIDE)],
)
def test_an_unknown_field_stops_it_where_that_is_asked_for_or_values_have_a_schema(
    values: list[bytes], keys: Config, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=values)
    config = configure(source, keys)
    table(config, "id int, prise float8")
    with pytest.raises(ConfigError, match=r"no column price, which .*fields.unknown=warn"):
        caught_up(config)


@pytest.mark.parametrize("mode", ["warn", "ignore"])
def test_values_with_a_schema_go_on_without_the_field_if_told_so(
    mode: str, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=enveloped(3))
    config = configure(source, {**SIDE_BY_SIDE, "fields.unknown": mode})
    table(config, "id int, prise float8")
    progress = caught_up(config)
    assert progress.unplaced == ({(source, "price"): 3} if mode == "warn" else {})
    assert sql(config["connection.url"], f'SELECT id FROM "{source}" ORDER BY id') == [0, 1, 2]


def test_plain_json_with_a_transform_is_judged_as_without(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=plain(3))
    renames = {
        "transforms": "x",
        "transforms.x.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
        "transforms.x.renames": "id:number",
    }
    config = configure(source, renames)
    table(config, "number int, prise float8")
    assert caught_up(config).unplaced == {(source, "price"): 3}


def test_a_field_that_comes_later_is_noticed_beside_json_columns(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    produce(source, [*plain(5, doc={"a": 1}), *plain(2, doc=[1], colour="red", size={"w": 1})])
    config = configure(source)
    table(config, "id int, price float8, doc jsonb")
    assert caught_up(config).unplaced == {(source, "colour"): 2, (source, "size"): 2}


@pytest.mark.long
def test_a_lake_says_and_counts_them_too(
    topic: MakeTopic, produce: Produce, lake: Lake, warehouse: Configure
) -> None:
    for configured in (lake, warehouse):
        source = topic(values=[b'{"id": 1}'])
        config = configured(source)
        caught_up(config)
        produce(source, plain(3))
        assert caught_up(config).unplaced == {(source, "price"): 3}
        report = audit(config, values=True)
        assert [(u.field, u.values) for u in report.unplaced] == [("price", 3)]
