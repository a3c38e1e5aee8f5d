"""Nulls where the schema has a default, and what else a schema says of itself."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from semel.converters import create
from semel.converters.avro.parse import parse
from semel.converters.base import Writers
from semel.converters.json.facts import default_of, facts_in

JSON = "org.apache.kafka.connect.json.JsonConverter"
INSIDE = {"type": "int32", "optional": True, "default": 7, "field": "n"}
SCHEMA = {
    "type": "struct",
    "name": "acme.Order",
    "version": 3,
    "optional": True,
    "doc": "An order.",
    "fields": [
        {"type": "string", "optional": True, "default": "new", "doc": "Its state.", "field": "s"},
        {"type": "struct", "optional": True, "field": "in", "name": "In", "fields": [INSIDE]},
        {"type": "array", "optional": True, "field": "l", "items": {"type": "int8"}},
    ],
}


def envelope(payload: Any, **more: Any) -> bytes:
    return json.dumps({"schema": {**SCHEMA, **more}, "payload": payload}).encode()


@pytest.mark.parametrize(("replace", "state"), [("true", "new"), ("false", None)])
def test_a_null_is_the_default_unless_it_is_to_stay(replace: str, state: str | None) -> None:
    keys = {"replace.null.with.default": replace}
    made = create(JSON, keys, is_key=False, where="value.converter")
    payload = {"s": None, "in": {"n": None}, "l": None}
    decoded = made.decode(pa.array([envelope(payload)]))
    assert decoded.values.field("s").to_pylist() == [state]
    assert default_of(decoded.values.type.field("s")) == pa.scalar("new")


def test_json_is_written_with_the_schema_that_it_was_read_with() -> None:
    made = create(JSON, {}, is_key=False, where="value.converter")
    payload = {"s": "x", "in": {"n": 1}, "l": [1]}
    decoded = made.decode(pa.array([envelope(payload)]))
    (text,) = Writers(made).of("orders", decoded.facts).encode(decoded.values).to_pylist()
    written = json.loads(text)
    assert written["payload"] == payload
    assert _required(written["schema"]) == _required(SCHEMA)


def _required(schema: Any) -> Any:
    """The schema with an explicit ``optional`` at each level."""
    if not isinstance(schema, dict):
        return schema
    made = {n: _required(v) for n, v in schema.items() if n not in ("fields", "optional")}
    if "fields" in schema:
        made["fields"] = [_required(f) for f in schema["fields"]]
    return {**made, "optional": schema.get("optional", False)} if "type" in schema else made


def test_values_of_two_names_are_told_apart_only_for_who_writes_them() -> None:
    made = create(JSON, {}, is_key=False, where="value.converter")
    payload = {"s": "x", "in": None, "l": None}
    values = pa.array([envelope(payload), envelope(payload, name="acme.Other")])
    assert made.decode(values).apart is None
    made.tell_names_apart()
    labels = made.decode(values).apart
    assert labels is not None
    assert labels.tolist() == [0, 1]


def test_avro_fields_say_their_defaults_and_what_they_are() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {
                "name": "a",
                "type": [{"type": "int", "connect.default": 5}, "null"],
                "default": 5,
                "doc": "How many.",
            },
            {"name": "b", "type": "bytes", "default": "\u00ff"},
            {"name": "c", "type": {"type": "int", "logicalType": "date"}, "default": 1},
            {"name": "d", "type": "string"},
            {"name": "e", "type": ["int", "null"], "default": 5},
        ],
    }
    fields = {f.name: f for f in parse(json.dumps(schema)).type}
    found = {name: default_of(f) for name, f in fields.items()}
    assert {n: None if v is None else v.as_py() for n, v in found.items()} == {
        "a": 5,
        "b": b"\xff",
        "c": pa.scalar(1, pa.date32()).as_py(),
        "d": None,
        "e": None,
    }
    assert facts_in(fields["a"])["doc"] == "How many."
    assert [f.nullable for f in fields.values()] == [True, False, False, False, True]
