"""Apicurio's Java serializers: semel reads their bytes, and they read semel's."""

from __future__ import annotations

import base64
import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from semel.converters import create
from semel_lab.embedded.registry import SchemaRegistry
from semel_lab.jars import APICURIO_SERIALIZERS
from tests.processes import run_java

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONVERTERS = {
    "AVRO": "io.apicurio.registry.utils.converter.AvroConverter",
    "JSON": "io.confluent.connect.json.JsonSchemaConverter",
    "PROTOBUF": "io.apicurio.registry.utils.converter.ProtobufConverter",
}
DAY, MOMENT = (
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4000, datetime.UTC),
)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "by_name", "type": {"type": "map", "values": "double"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        ],
    }
)
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }
)
PROTOBUF = """
syntax = "proto3";
package some.where;
import "google/protobuf/timestamp.proto";
message Other { int32 x = 1; }
message Row {
  int64 id = 1;
  optional string name = 2;
  repeated string tags = 3;
  map<string, double> by_name = 4;
  google.protobuf.Timestamp at = 5;
  oneof choice { string text = 6; Row row = 7; int32 number = 8; }
  Kind kind = 9;
  repeated sint32 packed = 10;
  fixed64 fixed = 11;
  Inner inner = 12;
  message Inner { bytes data = 1; bool flag = 2; float real = 3; }
}
enum Kind { NONE = 0; SOME = 7; }
"""
ROWS: Mapping[str, tuple[str, Sequence[Any], Sequence[Any]]] = {
    "AVRO": (
        AVRO,
        [
            {
                "id": 2**62,
                "name": {"string": "ä"},
                "tags": ["", "b"],
                "by_name": {"k": 0.5},
                "day": 1,
            },
            {"id": -1, "name": None, "tags": [], "by_name": {}, "day": -1},
        ],
        [
            *({"id": 2**62, "name": "ä", "tags": ["", "b"], "by_name": [("k", 0.5)]},),
            *({"id": -1, "name": None, "tags": [], "by_name": []},),
        ],
    ),
    "JSON": (
        JSON,
        [{"id": 2**62, "name": "ä", "tags": ["b"]}, {"id": -1, "name": None, "tags": []}],
        [{"id": 2**62, "name": "ä", "tags": ["b"]}, {"id": -1, "name": None, "tags": []}],
    ),
    "PROTOBUF": (
        PROTOBUF,
        [
            {
                **{"id": 2**62, "name": "", "tags": ["", "b"], "by_name": {"k": 0.5, "": 0}},
                **{"at": "2024-02-29T01:02:03.004Z", "number": 0, "kind": "SOME"},
                **{"packed": [0, -1, 2**31 - 1], "fixed": 7},
                "inner": {"data": "AP8=", "flag": True, "real": 0.5},
            },
            {"row": {"id": 5}},
        ],
        [
            {
                **{"id": 2**62, "name": "", "tags": ["", "b"], "by_name": [("k", 0.5), ("", 0.0)]},
                **{"at": MOMENT, "text": None, "row": None, "number": 0, "kind": "SOME"},
                **{"packed": [0, -1, 2**31 - 1], "fixed": 7},
                "inner": {"data": b"\0\xff", "flag": True, "real": 0.5},
            },
            {"id": 0, "name": None, "kind": "NONE", "text": None, "number": None},
        ],
    ),
}


def java(asked: Mapping[str, Any]) -> list[str]:
    """What the Java program answers."""
    program = Path(__file__).with_name("Serializers.java")
    return list(json.loads(run_java(program, json.dumps(asked), APICURIO_SERIALIZERS)[-1]))


def asked(registry: SchemaRegistry, topic: str, kind: str, **more: Any) -> dict[str, Any]:
    address = registry.url.replace("/apis/ccompat/v7", "/apis/registry/v2")
    return {"registry": address, "topic": topic, "format": kind, **more}


def converter(registry: SchemaRegistry, kind: str, topic: str) -> Any:
    config = {"schema.registry.url": registry.url}
    if "apicurio" in CONVERTERS[kind]:
        config = {"apicurio.registry.url": registry.url, "apicurio.registry.as-confluent": "true"}
        config["apicurio.registry.auto-register"] = "true"
    made = create(CONVERTERS[kind], config, is_key=False, where="value.converter")
    return made.for_topic(topic)


@pytest.mark.parametrize("kind", ROWS)
def test_bytes_of_javas_serializers_are_read(kind: str, registry: SchemaRegistry) -> None:
    topic = f"java-{uuid.uuid4().hex[:8]}"
    schema, values, wanted = ROWS[kind]
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema(f"{topic}-value", Schema(schema, kind))
    question = asked(registry, topic, kind, schema=schema, values=values, message="Row")
    written = [base64.b64decode(value) for value in java(question)]
    decoded = converter(registry, kind, topic).decode(pa.array(written, pa.binary()))
    assert not decoded.failures
    for row, expected in zip(decoded.values.to_pylist(), wanted, strict=True):
        assert {name: row[name] for name in expected} == expected
    if kind == "PROTOBUF":
        assert json.loads(decoded.values[1].as_py()["row"])["id"] == 5


@pytest.mark.parametrize("kind", ROWS)
def test_javas_deserializers_read_what_is_written(kind: str, registry: SchemaRegistry) -> None:
    topic = f"java-{uuid.uuid4().hex[:8]}"
    fields = {
        "id": pa.int64(),
        "name": pa.string(),
        "small": pa.int8(),
        "price": pa.decimal128(9, 2),
        "day": pa.date32(),
        "at": pa.timestamp("ms", "UTC"),
        "tags": pa.list_(pa.string()),
        "inner": pa.struct([("x", pa.float64())]),
    }
    row = {"id": 2**62, "name": "ä", "small": -5, "price": Decimal("-1.50"), "day": DAY}
    row |= {"at": MOMENT, "tags": ["a", ""], "inner": {"x": 0.5}}
    if kind == "PROTOBUF":  # Apicurio's library knows no files of Confluent's
        for name in ("small", "price"):
            del fields[name], row[name]
    values = pa.array([row], pa.struct(list(fields.items())))
    written = converter(registry, kind, topic).encode(values).to_pylist()
    read = [base64.b64encode(value).decode() for value in written]
    more = {"class": "com.google.protobuf.DynamicMessage"} if kind == "PROTOBUF" else {}
    if kind == "JSON":
        more = {"class": "com.fasterxml.jackson.databind.JsonNode"}
    (text,) = java(asked(registry, topic, kind, read=read, **more))
    found = json.loads(text)
    assert (int(found["id"]), found["name"], found.get("small", -5)) == (2**62, "ä", -5)
    assert found["tags"] == ["a", ""]
    assert found["inner"] == {"x": 0.5}
    if kind == "PROTOBUF":
        assert found["day"] == {"year": 2024, "month": 2, "day": 29}
        assert found["at"] == "2024-02-29T01:02:03.004Z"
