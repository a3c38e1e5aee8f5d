"""Confluent's and Aiven's transforms."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from semel.core.errors import ConfigError
from semel.core.records import TIMESTAMP
from semel.transforms import chain_of
from tests.transforms.records import KAFKA, STAMP, applied, batch

CONFLUENT, AIVEN = "io.confluent.connect.transforms.", "io.aiven.kafka.connect.transforms."
ROWS = [{"a": "x", "n": 1}, None, {"a": None, "n": 3}]


def one(name: str, **options: Any) -> dict[str, str]:
    given = {f"transforms.t.{k.replace('_', '.')}": str(v) for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": name, **given}


@pytest.mark.parametrize(("prefix", "field"), [(CONFLUENT, "field"), (AIVEN, "field.name")])
def test_a_field_or_the_whole_names_the_topic(prefix: str, field: str) -> None:
    config = one(f"{prefix}ExtractTopic$Value", **{field: "a"})
    outcome = applied(config, batch(ROWS))
    assert outcome.batch.topics.to_pylist() == ["x"]
    assert [r.index for r in outcome.refused] == [1, 2]
    made = applied(config | {"transforms.t.skip.missing.or.null": "true"}, batch(ROWS)).batch
    assert made.topics.to_pylist() == ["x", "orders", "orders"]
    assert [r.index for r in applied(config, batch([{"a": ""}, {"a": " "}])).refused] == [0, 1]
    route = {"transforms": "t,route", "transforms.route.type": f"{KAFKA}TimestampRouter"}
    routed = applied(config | route, batch([{"a": "x\0y"}])).batch.topics.to_pylist()
    assert routed == ["x\0y-20231114"]
    made = applied(one(f"{prefix}ExtractTopic$Key"), batch(ROWS, [1, 2, 3])).batch
    assert made.topics.to_pylist() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("prefix", "behavior", "left"),
    [
        (CONFLUENT, "ignore", 2),
        (CONFLUENT, "warn", 2),
        (CONFLUENT, "fail", 2),
        (AIVEN, "drop_silent", 2),
        (AIVEN, "drop_warn", 2),
        (AIVEN, "fail", 2),
    ],
)
def test_tombstones_are_dropped_or_refused(prefix: str, behavior: str, left: int) -> None:
    outcome = applied(one(f"{prefix}TombstoneHandler", behavior=behavior), batch(ROWS))
    assert len(outcome.batch) == left
    assert [r.index for r in outcome.refused] == ([1] if behavior == "fail" else [])


def test_a_filter_of_nulls_drops_tombstones() -> None:
    made = applied(one("io.confluent.transforms.NullFilter"), batch(ROWS)).batch
    assert made.rows.tolist() == [0, 2]


def test_keys_and_values_become_null() -> None:
    keys = applied(one(f"{CONFLUENT}Drop$Key"), batch(ROWS, [1, 2, 3])).batch
    assert keys.keys.array.to_pylist() == [None] * 3
    assert keys.values.array.to_pylist() == ROWS
    for name in (f"{CONFLUENT}Drop$Value", f"{AIVEN}MakeTombstone"):
        assert applied(one(name), batch(ROWS)).batch.values.array.to_pylist() == [None] * 3


@pytest.mark.parametrize("function", ["md5", "sha1", "sha256"])
def test_a_text_is_hashed(function: str) -> None:
    config = one(f"{AIVEN}Hash$Value", function=function, **{"field.name": "a"})
    outcome = applied(config, batch(ROWS))
    hashed = hashlib.new(function, b"x").hexdigest()
    assert outcome.batch.values.array.to_pylist() == [{"a": hashed, "n": 1}]
    assert [r.index for r in outcome.refused] == [1, 2]
    made = applied(config | {"transforms.t.skip.missing.or.null": "true"}, batch(ROWS)).batch
    assert made.values.array.to_pylist() == [{"a": hashed, "n": 1}, None, ROWS[2]]


def test_a_time_in_the_value_routes() -> None:
    rows = [
        {"time": "2019-08-06", "ts": None, "n": 1_565_049_600_000},
        {"time": None, "ts": "2019-08-07", "n": None},
        {"time": None, "ts": None, "n": 3},
        {"time": "today", "ts": None, "n": 4},
        None,
    ]
    config = one(f"{CONFLUENT}MessageTimestampRouter") | {
        "transforms.t.topic.format": "foo-${topic}-${timestamp}",
        "transforms.t.message.timestamp.format": "yyyy-MM-dd",
        "transforms.t.topic.timestamp.format": "yyyy.MM.dd",
        "transforms.t.message.timestamp.keys": "timestamp,time,ts",
    }
    outcome = applied(config, batch(rows))
    assert outcome.batch.topics.to_pylist() == ["foo-orders-2019.08.06", "foo-orders-2019.08.07"]
    assert {r.index: r.message.partition(": ")[2] for r in outcome.refused} == {
        2: "none of timestamp, time, ts holds a time",
        3: "timestamp, time, ts: no time of the format yyyy-MM-dd",
        4: "Only Map objects supported in absence of schema for "
        "[routing by a time in the value], found: null",
    }
    config["transforms.t.message.timestamp.keys"] = "n"
    assert applied(config, batch(rows[:1])).batch.topics.to_pylist() == ["foo-orders-2019.08.06"]
    stamp = pa.StructArray.from_arrays([pa.array([STAMP], pa.timestamp("ms", "UTC"))], ["n"])
    made = applied(config, batch(stamp, has_schema=True)).batch
    assert made.topics.to_pylist() == ["foo-orders-2023.11.14"]
    large = pa.StructArray.from_arrays([pa.array([STAMP, 2**63, None], pa.uint64())], ["n"])
    outcome = applied(config, batch(large, has_schema=True))
    assert outcome.batch.topics.to_pylist() == ["foo-orders-2023.11.14"]
    assert {r.index for r in outcome.refused} == {1, 2}


def test_a_format_that_cannot_be_read_is_refused() -> None:
    config = one(f"{CONFLUENT}MessageTimestampRouter", message_timestamp_keys="n")
    with pytest.raises(ConfigError, match=r"message\.timestamp\.format.* pattern letter Y"):
        chain_of(config | {"transforms.t.message.timestamp.format": "YYYY"})


@pytest.mark.parametrize(("resolution", "factor"), [("milliseconds", 1), ("seconds", 1000)])
def test_a_field_becomes_the_records_time(resolution: str, factor: int) -> None:
    """Later transforms use it; where the record was read stays what it was."""
    route = {
        "transforms": "t, route",
        "transforms.route.type": f"{KAFKA}TimestampRouter",
        "transforms.route.topic.format": "${timestamp}",
    }
    config = one(f"{AIVEN}ExtractTimestamp$Value", timestamp_resolution=resolution) | route
    config["transforms.t.field.name"] = "n"
    rows = [{"n": 86_400_000}, {"n": None}, None, {"n": 172_800_000}]
    outcome = applied(config, batch(rows))
    made = outcome.batch.timestamps.cast(pa.int64()).to_pylist()
    assert made == [86_400_000 * factor, 172_800_000 * factor]
    assert sorted(r.index for r in outcome.refused) == [1, 2]
    if factor == 1:
        assert outcome.batch.topics.to_pylist() == ["19700102", "19700103"]
    read = outcome.batch.origin.column(TIMESTAMP).cast(pa.int64())
    assert read.to_pylist() == [STAMP, STAMP]


def test_the_time_of_some_records_is_replaced() -> None:
    config = one(f"{AIVEN}ExtractTimestamp$Value") | {
        "transforms.t.field.name": "n",
        "transforms.t.predicate": "gone",
        "transforms.t.negate": "true",
        "predicates": "gone",
        "predicates.gone.type": f"{KAFKA}predicates.RecordIsTombstone",
    }
    made = applied(config, batch([{"n": 5}, None, {"n": 7}])).batch
    assert made.timestamps.cast(pa.int64()).to_pylist() == [5, STAMP, 7]


@pytest.mark.parametrize("has_schema", [True, False])
def test_fields_of_the_key_are_copied_to_the_value(has_schema: bool) -> None:
    config = one(f"{AIVEN}KeyToValue", key_fields="id, department, cost", value_fields="id, dept")
    keys = [{"id": 1, "department": "x", "cost": 9.5}, {"id": 2, "department": None, "cost": 0.5}]
    records = batch([{"a": 1, "id": 7}, {"a": 2, "id": 8}], keys, has_schema=has_schema)
    assert applied(config, records).batch.values.array.to_pylist() == [
        {"a": 1, "id": 1, "dept": "x", "cost": 9.5},
        {"a": 2, "id": 2, "dept": None, "cost": 0.5},
    ]
    outcome = applied(one(f"{AIVEN}KeyToValue", key_fields="id, other"), records)
    if has_schema:
        assert [r.message for r in outcome.refused] == [
            "transforms.t: Key field 'other' not found in key schema"
        ] * 2
    else:
        assert outcome.batch.values.array.to_pylist()[0] == {"a": 1, "id": 1, "other": None}


def test_the_whole_key_is_copied_to_the_value() -> None:
    config = one(f"{AIVEN}KeyToValue", key_fields="*")
    made = applied(config, batch([{"a": 1}, {"a": 2}], ["k", None])).batch
    assert made.values.array.to_pylist() == [{"a": 1, "_key": "k"}, {"a": 2, "_key": None}]
    with pytest.raises(ConfigError, match="more than one field of the key is copied to id"):
        chain_of(one(f"{AIVEN}KeyToValue", key_fields="id, x", value_fields="id, id"))
