"""Debezium's EventRouter."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.transforms import chain_of
from semel.transforms.base import Batch
from tests.transforms.records import STAMP, applied, batch, refusals, rows
from tests.transforms.test_debezium import DEBEZIUM, SOURCE

MICRO = "io.debezium.time.MicroTimestamp"
FIELDS: list[dict[str, Any]] = [
    {"field": "id", "type": "string"},
    {"field": "aggregatetype", "type": "string", "optional": True},
    {"field": "aggregateid", "type": "string", "optional": True},
    {"field": "type", "type": "string", "optional": True},
    {"field": "payload", "type": "string", "optional": True},
    {"field": "number", "type": "int32", "optional": True},
    {"field": "at", "type": "int64", "optional": True, "name": MICRO, "version": 1},
    {"field": "plain", "type": "int64", "optional": True},
]
ROW = {"type": "struct", "optional": True, "name": "s.Value", "fields": FIELDS}
ENVELOPE = {
    "type": "struct",
    "name": "s.Envelope",
    "fields": [
        {**ROW, "field": "before"},
        {**ROW, "field": "after"},
        {**SOURCE, "field": "source"},
        {"field": "op", "type": "string", "optional": True},
        {"field": "ts_ms", "type": "int64", "optional": True},
    ],
}
CREATED = {
    "id": "e1",
    "aggregatetype": "User",
    "aggregateid": "k1",
    "type": "UserCreated",
    "payload": "{}",
}


def inserted(**changes: Any) -> dict[str, Any]:
    return event(after={**CREATED, **changes})


def event(**parts: Any) -> dict[str, Any]:
    source = {"lsn": 7, "ts_ms": 8, "table": "outbox"}
    whole = {"before": None, "after": None, "source": source, "op": "c", "ts_ms": 9, **parts}
    for side in ("before", "after"):
        if whole[side] is not None:
            whole[side] = {**{f["field"]: None for f in FIELDS}, **whole[side]}
    return whole


def events(*found: dict[str, Any] | None, schemas: bool = True, **more: Any) -> Batch:
    texts = [e and ({"schema": ENVELOPE, "payload": e} if schemas else e) for e in found]
    converter = JsonConverter(schemas_enable=schemas)
    converter.keep_text()
    encoded = pa.array([t and json.dumps(t).encode() for t in texts], pa.binary())
    return batch(converter.decode(encoded).values, has_schema=schemas, **more)


def router(**options: Any) -> dict[str, str]:
    given = {f"transforms.t.{k.replace('_', '.')}": str(v) for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": f"{DEBEZIUM}outbox.EventRouter", **given}


@pytest.mark.parametrize("schemas", [True, False])
def test_a_row_becomes_a_message(schemas: bool) -> None:
    records = events(inserted(), headers=[[("old", b"1")]], schemas=schemas)
    made = applied(router(), records).batch
    assert made.topics.to_pylist() == ["outbox.event.User"]
    assert made.keys.array.to_pylist() == ["k1"]
    assert made.values.array.to_pylist() == ["{}"]
    assert made.headers.to_pylist() == [
        [{"key": "old", "value": b"1"}, {"key": "id", "value": b"e1"}]
    ]
    assert made.timestamps.cast(pa.int64()).to_pylist() == [9]


def test_only_inserts_become_messages() -> None:
    row = CREATED
    records = events(
        None,
        event(op="d", before=row),
        event(op="u", before=row, after=row),
        event(op="r", after={**row, "payload": "x"}),
    )
    assert rows(router(), records) == ["x"]
    assert rows(router(table_op_invalid_behavior="error"), records) == ["x"]
    (refused,) = applied(router(table_op_invalid_behavior="fatal"), records).refused
    assert refused.index == 2
    assert "Unexpected update message" in refused.message
    (refused,) = applied(router(), events(None, event(op="t"), inserted())).refused
    assert refused.index == 1
    (why,) = refusals(router(), events(event(op="t")))
    assert why.endswith("[Read Outbox Event], found: null")


def test_records_that_are_no_change_events_pass() -> None:
    made = applied(router(), batch([{"ts_ms": 1}, None], has_schema=True)).batch
    assert made.values.array.to_pylist() == [{"ts_ms": 1}]
    assert made.topics.to_pylist() == ["orders"]
    assert rows(router(), batch([None])) == []


def test_every_field_of_the_table_may_have_another_name() -> None:
    config = router(
        table_field_event_id="type",
        table_field_event_key="number",
        table_field_event_payload="aggregateid",
        table_field_event_timestamp="at",
        route_by_field="id",
    )
    made = applied(config, events(inserted(number=5, at=-1500), inserted(), headers=[[], []])).batch
    assert made.keys.array.to_pylist() == [5, None]
    assert made.values.array.to_pylist() == ["k1", "k1"]
    assert made.topics.to_pylist() == ["outbox.event.e1"] * 2
    assert made.headers.to_pylist() == [[{"key": "id", "value": b"UserCreated"}]] * 2
    assert made.timestamps.cast(pa.int64()).to_pylist() == [-1, 9]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table_field_event_id": "z"}, "z is not a valid field name"),
        ({"table_field_event_key": "z"}, "z is not a valid field name"),
        ({"table_field_event_payload": "z"}, "Unable to find payload field z in event"),
        ({"table_field_event_timestamp": "z"}, "Unable to find timestamp field z in event"),
        ({"table_field_event_timestamp": "plain"}, "(without logical schema name) for event time"),
        ({"table_field_event_timestamp": "id"}, "Field 'id' is not of type INT64"),
        ({"route_by_field": "number"}, "Field 'number' is not of type STRING"),
        ({"route_by_field": "type"}, "field type, which is to name the topic, is null"),
        ({"table_fields_additional_placement": "z:header"}, "z is not a valid field name"),
        ({"table_fields_additional_placement": "z:envelope"}, "Unable to find field z in event"),
        ({"table_fields_additional_placement": "id:partition"}, "'id' is not of type INT32"),
    ],
)
def test_a_row_without_a_field_is_refused_alone(options: dict[str, str], why: str) -> None:
    (found,) = refusals(router(**options), events(inserted(plain=3, type=None, number=1)))
    assert why in found


def test_a_partition_that_is_too_large_is_refused_alone() -> None:
    rows = [{**CREATED, "number": number} for number in (1, 2**63, 2**64 - 1, 2**31)]
    row = pa.struct([*((n, pa.string()) for n in CREATED), ("number", pa.uint64())])
    kind = pa.struct([("op", pa.string()), ("before", row), ("after", row), ("source", row)])
    records = batch(pa.array([{"op": "c", "after": r} for r in rows], kind))
    outcome = applied(router(table_fields_additional_placement="number:partition"), records)
    assert [r.index for r in outcome.refused] == [1, 2, 3]
    assert outcome.batch.places.to_pylist() == [1]


def test_a_regex_makes_the_topic() -> None:
    config = router(route_topic_regex="(.*)er", route_topic_replacement="all.$1")
    records = events(inserted(), inserted(aggregatetype="Bill"))
    assert applied(config, records).batch.topics.to_pylist() == ["all.Us", "Bill"]


def test_fields_are_added_to_the_headers_and_to_the_value() -> None:
    config = router(
        table_fields_additional_placement="type:envelope:kind, number:envelope,type:header:kind"
    )
    made = applied(config, events(inserted(number=5), headers=[[]])).batch
    assert made.values.array.to_pylist() == [{"payload": "{}", "kind": "UserCreated", "number": 5}]
    assert made.headers.to_pylist() == [
        [{"key": "id", "value": b"e1"}, {"key": "kind", "value": b"UserCreated"}]
    ]
    config = router(table_fields_additional_placement="number:header")
    plain = events(inserted(number=5), inserted(number="x"), headers=[[], []], schemas=False)
    made = applied(config, plain).batch
    assert [h[1]["value"] for h in made.headers.to_pylist()] == [b"5", b"x"]
    config = router(
        table_fields_additional_placement="z:envelope,y:header",
        table_field_additional_missing="ignore",
    )
    assert rows(config, events(inserted())) == [{"payload": "{}"}]


@pytest.mark.parametrize("options", [{}, {"table_fields_additional_placement": "type:envelope"}])
def test_an_empty_payload_may_be_a_tombstone(options: dict[str, str]) -> None:
    records = events(inserted(payload=" "), inserted(payload=None), inserted(payload="x"))
    first, second, third = rows(router(route_tombstone_on_empty_payload="true", **options), records)
    assert (first, second) == (None, None)
    assert third is not None
    assert rows(router(**options), records)[0] is not None


def test_a_payload_of_json_becomes_an_object() -> None:
    config = router(table_expand_json_payload="true", route_tombstone_on_empty_payload="true")
    text = '{"name": "Jo", "rating": 4.5, "age": 42, "inner": {"x": 1}}'
    records = events(inserted(payload=text), inserted(payload=""), inserted(payload=None))
    whole, *others = rows(config, records)
    assert whole == {"name": "Jo", "rating": 4.5, "age": 42, "inner": '{"x":1}'}
    assert others == [None, None]
    config |= router(table_fields_additional_placement="type:envelope")
    (found,) = rows(config, events(inserted(payload='{"a": "b"}')))
    assert found == {"payload": {"a": "b"}, "type": "UserCreated"}


def test_null_fields_of_a_payload_become_optional_bytes() -> None:
    options = {"table_json_payload_null_behavior": "optional_bytes"}
    config = router(table_expand_json_payload="true", **options)
    made = applied(config, events(inserted(payload='{"a": 1, "b": null}'))).batch.values.array
    assert made.type.field("b").type == pa.binary()
    assert made.to_pylist() == [{"a": 1, "b": None}]


def test_a_payload_that_is_no_object_is_refused_alone() -> None:
    config = router(table_expand_json_payload="true")
    payloads = ['{"a": 1}', "[1]", "text", '{"a": ', ""]
    records = events(*(inserted(payload=p) for p in payloads))
    outcome = applied(config, records)
    assert outcome.batch.values.array.to_pylist() == [{"a": 1}]
    assert sorted(r.index for r in outcome.refused) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table_fields_additional_placement": "type"}, "must be field:header, field:envelope"),
        ({"table_op_invalid_behavior": "nonsense"}, "table.op.invalid.behavior"),
        ({"route_topic_replacement": "${x}"}, "No group with name"),
        ({"table_json_payload_null_behavior": "nonsense"}, "null.behavior"),
        ({"table_fields_additional_placement": ""}, "must list fields"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as error:
        chain_of(router(**options))
    assert why in str(error.value)


@pytest.mark.parametrize("stamp", ["soon", 1.5, [9]])
def test_an_event_without_a_time_in_milliseconds_is_refused(stamp: Any) -> None:
    (why,) = refusals(router(), events({**inserted(), "ts_ms": stamp}, schemas=False))
    assert "Field 'ts_ms' is not of type INT64" in why


def test_the_record_keeps_its_own_time_beside_the_new_one() -> None:
    made = applied(router(), events(inserted())).batch
    assert made.origin.column("__connect_timestamp").cast(pa.int64()).to_pylist() == [STAMP]


@pytest.mark.parametrize("depth", [400, 900, 3000])
def test_a_payload_that_is_nested_without_end_stays_json(depth: int) -> None:
    deep = f'{{"a":{"[" * depth}1{"]" * depth}}}'
    config = {
        "transforms": "t",
        "transforms.t.type": f"{DEBEZIUM}outbox.EventRouter",
        "transforms.t.table.expand.json.payload": "true",
    }
    outcome = applied(config, events(inserted(payload=deep)))
    assert not outcome.refused
    (value,) = outcome.batch.values.array.to_pylist()
    assert str(value).count("[") >= depth
