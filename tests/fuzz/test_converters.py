"""Converters: any schema, any bytes. A value is read or is a failure of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from semel.converters import create
from semel.converters.avro import AvroConverter
from semel.converters.base import Converter
from semel.converters.jsonschema import JsonSchemaConverter
from semel.converters.protobuf import ProtobufConverter
from semel.converters.registry.client import Schema
from semel.core.errors import ConfigError
from tests.converters.registries import Memory
from tests.fuzz.junk import JUNK, TEXTS, cut, damaged

Fuzz = Callable[..., Callable[[Callable[..., None]], None]]

AVRO = {
    "type": "record",
    "name": "Row",
    "namespace": "a.b",
    "fields": [
        {"name": "id", "type": "int", "default": 7},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal"}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "by_name", "type": {"type": "map", "values": "double"}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}, "default": "abc"},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": []}},
    ],
}
AVRO_PARTS = (
    *("null", "int", "string", "bytes", "Kind", "a.b.Row", "decimal", ["int"], [], {}, -1, 10**9),
    {"type": "record", "name": "Row", "fields": []},
    {"type": "int", "connect.type": "int8", "connect.default": "x"},
    {"type": "array", "items": "null"},
)
AVRO_VALUE = b"\x0e\x02\x02a\x02\x02\x05\x10\x02\x02\x02b\0\x02\x02k" + b"\0" * 8 + b"\0abc"

JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Row",
    "properties": {
        "id": {"type": "integer", "connect.type": "int32", "default": 7},
        "price": {"title": "org.apache.kafka.connect.data.Decimal", "type": "number"},
        "any": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "list": {"type": "array", "items": {"$ref": "#/definitions/Inner"}},
        "map": {"type": "object", "connect.type": "map", "additionalProperties": True},
    },
    "required": ["id"],
    "definitions": {"Inner": {"type": "object", "properties": {"x": {"type": "string"}}}},
}
JSON_SCHEMA_PARTS = ("#", "#/definitions/Inner", "object", [], {}, True, {"$ref": "#"})

PROTO = """syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto";
message Row {
  int32 id = 1; optional string name = 2; repeated double price = 3 [packed = true];
  map<string, Inner> inner = 4; oneof one { bytes data = 5; Kind kind = 6; }
  google.protobuf.Timestamp at = 7; Row self = 8;
}
message Inner { sint64 x = 1; }
enum Kind { A = 0; B = 1; }
"""
PROTO_VALUE = b"\x08\x05\x12\x01a\x1a\x08" + b"\0" * 8 + b"\x22\x07\x0a\x01k\x12\x02\x08\x04"


def judged(
    converter: Converter, values: list[bytes | None], expected: pa.Schema | None = None
) -> None:
    """Each value is read or refused, whatever stands beside it."""
    array = pa.array(values, pa.binary())
    decoded = converter.decode(array, expected)
    assert len(decoded.values) == len(values)
    if decoded.apart is not None:  # their schemas contradict each other: the pipeline parts them
        return
    refused = {failure.index for failure in decoded.failures}
    assert len(refused) == len(decoded.failures), "each value fails once"
    for failure in decoded.failures:
        assert failure.message
        assert decoded.values[failure.index].as_py() is None
    decoded.values.validate(full=True)
    for index, value in enumerate(values):
        alone = converter.decode(pa.array([value], pa.binary()), expected)
        assert bool(alone.failures) == (index in refused), (value, decoded.failures)


def registered(kind: str, text: str) -> Any:
    memory = Memory()
    memory.subjects["s"] = [Schema(kind, text, (), 1)]
    return memory


def framed(value: bytes) -> bytes:
    return b"\0\0\0\0\1" + value


def dumped(value: Any) -> str:
    return json.dumps(value)


def test_any_avro_schema(fuzz: Fuzz) -> None:
    @fuzz(
        text=damaged(AVRO, AVRO_PARTS).map(dumped) | damaged(AVRO, AVRO_PARTS).map(dumped) | TEXTS,
        value=cut(AVRO_VALUE),
    )
    def check(text: str, value: bytes) -> None:
        converter = AvroConverter(registered("AVRO", text), "value.converter")
        judged(converter, [framed(value), None, framed(AVRO_VALUE), framed(b""), value])


def test_any_json_schema(fuzz: Fuzz) -> None:
    valid = {"id": 1, "price": 1.5, "any": None, "list": [{"x": "a"}], "map": {"k": 1}}

    @fuzz(
        text=damaged(JSON_SCHEMA, JSON_SCHEMA_PARTS).map(dumped) | TEXTS,
        value=damaged(valid).map(dumped).map(str.encode) | cut(dumped(valid).encode()),
    )
    def check(text: str, value: bytes) -> None:
        converter = JsonSchemaConverter(registered("JSON", text), "value.converter")
        judged(converter, [framed(value), None, framed(dumped(valid).encode()), framed(b"")])


def test_any_protobuf_schema(fuzz: Fuzz) -> None:
    words = PROTO.split(" ")

    @st.composite
    def texts(draw: st.DrawFn) -> str:
        found = list(words)
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(found) - 1))
            found[at] = draw(st.sampled_from(words) | TEXTS | st.just(""))
        return " ".join(found)

    @fuzz(text=texts(), value=cut(PROTO_VALUE))
    def check(text: str, value: bytes) -> None:
        converter = ProtobufConverter(registered("PROTOBUF", text), "value.converter")
        judged(converter, [framed(b"\0" + value), None, framed(b"\0" + PROTO_VALUE), framed(value)])


ENVELOPE = {
    "schema": {
        "type": "struct",
        "name": "Row",
        "optional": False,
        "fields": [
            {"field": "id", "type": "int32", "optional": False, "default": 7},
            {"field": "at", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
            {
                "field": "price",
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "2"},
                "optional": True,
            },
            {"field": "tags", "type": "array", "items": {"type": "string"}, "optional": True},
            {
                "field": "by",
                "type": "map",
                "keys": {"type": "string"},
                "values": {"type": "double"},
                "optional": True,
            },
        ],
    },
    "payload": {"id": 1, "at": 0, "price": "AQI=", "tags": ["a"], "by": {"k": 1.5}},
}
TARGET = pa.schema([("schema", pa.string()), ("payload", pa.string()), ("id", pa.int64())])
"""The columns of a table, which JSON without schemas is read for."""
ENVELOPE_PARTS = (
    *("struct", "int8", "float", "string", "bytes", "map", [], {}, None, True),
    *(5, [5], "100", -(10**20), "org.apache.kafka.connect.data.Decimal"),
)


def json_texts(valid: Any, parts: tuple[Any, ...]) -> st.SearchStrategy[bytes]:
    return (
        damaged(valid, parts).map(dumped).map(str.encode)
        | cut(dumped(valid).encode())
        | JUNK.map(dumped).map(str.encode)
    )


def made(name: str, **keys: str) -> Converter:
    config = {key.replace("_", "."): value for key, value in keys.items()}
    return create(name, config, is_key=False, where="value.converter")


@pytest.mark.parametrize("schemas", ["true", "false"])
def test_any_json(schemas: str, fuzz: Fuzz) -> None:
    name = "org.apache.kafka.connect.json.JsonConverter"

    @fuzz(values=st.lists(json_texts(ENVELOPE, ENVELOPE_PARTS) | st.none(), max_size=4))
    def check(values: list[bytes | None]) -> None:
        good = [dumped(ENVELOPE).encode()] * 2
        judged(made(name, schemas_enable=schemas), [*good, *values], TARGET)


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.connect.storage.StringConverter",
        "org.apache.kafka.connect.converters.ByteArrayConverter",
        *(f"org.apache.kafka.connect.converters.{kind}Converter" for kind in ("Boolean", "Long")),
        *(f"org.apache.kafka.connect.converters.{kind}Converter" for kind in ("Short", "Double")),
    ],
)
def test_any_bytes(name: str, fuzz: Fuzz) -> None:
    @fuzz(values=st.lists(st.binary(max_size=12) | st.none(), max_size=6))
    def check(values: list[bytes | None]) -> None:
        judged(made(name), values)


def test_any_encoding_is_known_or_refused(fuzz: Fuzz) -> None:
    name = "org.apache.kafka.connect.storage.StringConverter"

    @fuzz(encoding=TEXTS, values=st.lists(st.binary(max_size=8), max_size=4))
    def check(encoding: str, values: list[bytes]) -> None:
        try:
            converter = made(name, encoding=encoding)
        except ConfigError:
            return
        judged(converter, [*values])
