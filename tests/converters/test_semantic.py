"""Every converter reads every semantic type alike, wherever it stands in a value."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass

from semel.converters.avro import AvroConverter
from semel.converters.base import Converter, Decoded
from semel.converters.json.converter import JsonConverter
from semel.converters.jsonschema import JsonSchemaConverter
from semel.converters.protobuf import ProtobufConverter
from semel.converters.protobuf.compiler import compiled
from semel.converters.semantic import DECIMAL, FACTS, TYPES, SemanticType
from tests.converters.registries import Memory, framed
from tests.engine.harness import some
from tests.sinks.test_semantic_types import CASES, Case, kind_of, schema_of

NAMES = [case.name for case in CASES]
SHORT = {f"io.debezium.{n}" for n in ("data.Bits", "data.VariableScaleDecimal", "time.ZonedTime")}
AVRO = {"int16": "int", "int32": "int", "int64": "long", "double": "double", "float": "float"}
AVRO |= {"string": "string", "bytes": "bytes"}
JSON = {"int16": "integer", "int32": "integer", "int64": "integer", "double": "number"}
JSON |= {"float": "number", "string": "string", "bytes": "string"}


def decode(converter: Converter, value: bytes) -> pa.Array:
    found = converter.decode(pa.array([value]))
    assert found.failures == []
    return found.values


def by_json(schema: Mapping[str, Any], value: Any) -> pa.Array:
    return decode(JsonConverter(), json.dumps({"schema": schema, "payload": value}).encode())


# JSON Schema and Avro, as Confluent's converters derive them from Kafka Connect's schemas


def in_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    kind = schema["type"]
    named = {"title": schema.get("name"), "connect.parameters": schema.get("parameters")}
    found: dict[str, Any] = {k: v for k, v in named.items() if v is not None}
    if kind == "struct":
        fields = schema["fields"]
        properties = {
            f["field"]: {**in_json_schema(f), "connect.index": n} for n, f in enumerate(fields)
        }
        found |= {"type": "object", "properties": properties}
    elif kind == "array":
        found |= {"type": "array", "items": in_json_schema(schema["items"])}
    elif kind == "map" and schema["keys"]["type"] == "string":
        found |= {"type": "object", "connect.type": "map"}
        found["additionalProperties"] = in_json_schema(schema["values"])
    elif kind == "map":
        parts = [("key", schema["keys"]), ("value", schema["values"])]
        entry = {
            name: {**in_json_schema(s), "connect.index": n} for n, (name, s) in enumerate(parts)
        }
        found |= {"type": "array", "connect.type": "map"}
        found["items"] = {"type": "object", "properties": entry}
    elif kind == "bytes" and schema.get("name") == DECIMAL:
        found |= {"type": "number", "connect.type": "bytes"}
    else:
        found |= {"type": JSON[kind], "connect.type": kind if kind != "float" else "float32"}
    return {"oneOf": [{"type": "null"}, found]} if schema.get("optional") else found


def json_value(schema: Mapping[str, Any], value: Any) -> Any:
    if schema["type"] == "struct" and value is not None:
        return {f["field"]: json_value(f, value[f["field"]]) for f in schema["fields"]}
    if schema["type"] == "map" and schema["keys"]["type"] != "string":
        return [{"key": key, "value": item} for key, item in value]
    return value


def by_json_schema(schema: Mapping[str, Any], value: Any) -> pa.Array:
    registry = Memory()
    number = registry.add("JSON", json.dumps(in_json_schema(schema)))
    converter = JsonSchemaConverter(registry, "value.converter")  # type: ignore[arg-type]
    return decode(converter, framed(number, json.dumps(json_value(schema, value)).encode()))


def in_avro(schema: Mapping[str, Any], path: str = "r") -> Any:
    kind = schema["type"]
    named = {"connect.name": schema.get("name"), "connect.parameters": schema.get("parameters")}
    facts = {k: v for k, v in named.items() if v is not None}
    found: Any
    if kind == "struct":
        fields = [
            {"name": f["field"], "type": in_avro(f, f"{path}_{f['field']}")}
            for f in schema["fields"]
        ]
        found = {"type": "record", "name": path, "fields": fields, **facts}
    elif kind == "array":
        found = {"type": "array", "items": in_avro(schema["items"], f"{path}_i"), **facts}
    elif kind == "map" and schema["keys"]["type"] == "string":
        found = {"type": "map", "values": in_avro(schema["values"], f"{path}_v")}
    elif kind == "map":
        parts = [("key", schema["keys"]), ("value", schema["values"])]
        entry = [{"name": name, "type": in_avro(s, f"{path}_{name}")} for name, s in parts]
        item = {"type": "record", "name": f"{path}_e", "fields": entry}
        found = {"type": "array", "items": {**item, "connect.internal.type": "MapEntry"}}
    else:
        found = {"type": AVRO[kind], **facts}
        found |= {"connect.type": kind} if kind == "int16" else {}
        if schema.get("name") == DECIMAL:
            found |= {"logicalType": "decimal", "precision": 10, "scale": 2}
    return ["null", found] if schema.get("optional") else found


def raw(schema: Mapping[str, Any], value: Any) -> Any:
    """A value of JSON as Python's libraries take it."""
    kind = schema["type"]
    if value is None:
        return None
    if kind == "struct":
        return {f["field"]: raw(f, value[f["field"]]) for f in schema["fields"]}
    if kind == "array":
        return [raw(schema["items"], each) for each in value]
    if kind == "map" and schema["keys"]["type"] == "string":
        return {k: raw(schema["values"], v) for k, v in value.items()}
    if kind == "map":
        return [{"key": k, "value": v} for k, v in value]
    return base64.b64decode(value) if kind == "bytes" else value


def by_avro(schema: Mapping[str, Any], value: Any) -> pa.Array:
    registry = Memory()
    described = in_avro(schema)
    number = registry.add("AVRO", json.dumps(described))
    bare = json.loads(json.dumps(described).replace('"logicalType": "decimal", ', ""))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(bare), raw(schema, value))
    converter = AvroConverter(registry, "value.converter")  # type: ignore[arg-type]
    return decode(converter, framed(number, out.getvalue()))


def struct(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"field": n, **s} for n, s in fields.items()]}


def shown(values: pa.Array) -> Any:
    facts = None
    if isinstance(values.type, SemanticType):
        facts, values = json.loads(values.type.serialized), values.storage
    if pa.types.is_struct(values.type):
        inner = {f.name: (f.metadata or {}).get(FACTS) for f in values.type}
        facts = {name: json.loads(text) for name, text in inner.items() if text}
        return facts, {
            f.name: shown(a)[1] for f, a in zip(values.type, values.flatten(), strict=True)
        }
    kind = values.type
    width = pa.int64() if pa.types.is_primitive(kind) and kind.bit_width == 64 else pa.int32()
    counted = values.cast(width) if pa.types.is_temporal(kind) else values
    return facts, (str(kind), counted.to_pylist())


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_field_is_read_alike_from_json_json_schema_and_avro(case: Case) -> None:
    schema = struct({"v": schema_of(case.name), "n": schema_of(case.name)})
    value = {"v": case.sent, "n": None}
    found = [shown(read(schema, value)) for read in (by_json, by_json_schema, by_avro)]
    assert found[1:] == [found[0]] * 2
    facts = found[0][0]
    told = case.name != DECIMAL and TYPES[case.name].told
    assert {name: f["name"] for name, f in facts.items()} == (
        dict.fromkeys(("v", "n"), case.name) if told else {}
    )


@pytest.mark.parametrize("name", some(NAMES, SHORT))
def test_a_whole_value_is_read_alike_from_json_json_schema_and_avro(name: str) -> None:
    case = CASES[NAMES.index(name)]
    schema = {**schema_of(case.name), "optional": False}
    found = [shown(read(schema, case.sent)) for read in (by_json, by_json_schema, by_avro)]
    assert found[1:] == [found[0]] * 2
    if case.name != DECIMAL and TYPES[case.name].told and kind_of(case.name) != "struct":
        assert found[0][0]["name"] == case.name


@pytest.mark.parametrize("name", some(NAMES, SHORT))
def test_items_of_lists_are_read_alike_from_json_json_schema_and_avro(name: str) -> None:
    case = CASES[NAMES.index(name)]
    if kind_of(case.name) == "array":
        pytest.skip("lists of lists are JSON")
    items = {"type": "array", "items": {**schema_of(case.name), "optional": False}}
    schema, value = struct({"v": items}), {"v": [case.sent, case.sent]}
    found = [shown(read(schema, value)) for read in (by_json, by_json_schema, by_avro)]
    assert found[1:] == [found[0]] * 2


def named(name: str, **parameters: str) -> str:
    given = {"connect.name": f"io.debezium.{name}", **parameters}
    pairs = ", ".join(f'{{ key: "{key}", value: "{value}" }}' for key, value in given.items())
    return f"[(confluent.field_meta) = {{ params: [{pairs}] }}]"


PROTO = f"""syntax = "proto3";
import "confluent/meta.proto";
message Row {{
  int64 at = 1 {named("time.MicroTimestamp")};
  bytes bits = 2 {named("data.Bits", length="16")};
  repeated string ids = 3 {named("data.Uuid")};
  VariableScaleDecimal amount = 4;
  repeated VariableScaleDecimal amounts = 5;
  message VariableScaleDecimal {{ int32 scale = 1; bytes value = 2; }}
}}
"""


def test_protobuf_reads_named_fields_and_messages_alike() -> None:
    registry = Memory()
    number = registry.add("PROTOBUF", PROTO)
    row = GetMessageClass(compiled(PROTO).message_types_by_name["Row"])()
    row.at, row.bits = 1_000_001, b"\2\1"
    row.ids.append("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    row.amount.scale, row.amount.value = 3, b"\1\xe2\x40"
    row.amounts.add(scale=1, value=b"\5")
    converter = ProtobufConverter(registry, "value.converter")  # type: ignore[arg-type]
    found = converter.decode(pa.array([framed(number, b"\0" + row.SerializeToString())]), None)
    assert found.failures == []
    facts, values = shown(found.values)
    assert {n: json.dumps(f) for n, f in facts.items()} == {
        "bits": '{"name": "io.debezium.data.Bits", "parameters": {"length": "16"}}',
        "ids": '{"items": {"name": "io.debezium.data.Uuid", "parameters": {}}}',
        "amount": '{"name": "io.debezium.data.VariableScaleDecimal", "parameters": {}}',
        "amounts": '{"items": {"name": "io.debezium.data.VariableScaleDecimal", "parameters": {}}}',
    }
    assert values["at"] == ("timestamp[us]", [1_000_001])
    assert values["bits"][1] == [b"\2\1"]
    assert (values["amount"][1], values["amounts"][1]) == (["123.456"], [["0.5"]])


def test_a_value_that_is_none_of_its_type_is_refused_alone_by_each_converter() -> None:
    schema = struct({"v": schema_of("io.debezium.data.VariableScaleDecimal")})
    good, bad = ({"v": {"scale": 1, "value": text}} for text in ("BQ==", ""))
    envelopes = [json.dumps({"schema": schema, "payload": v}).encode() for v in (good, bad, good)]
    registry = Memory()
    number = registry.add("AVRO", json.dumps(in_avro(schema)))
    parsed = fastavro.parse_schema(in_avro(schema))

    def encoded(value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, raw(schema, value))
        return framed(number, out.getvalue())

    avro = AvroConverter(registry, "value.converter")  # type: ignore[arg-type]
    for found in (
        JsonConverter().decode(pa.array(envelopes)),
        avro.decode(pa.array([encoded(v) for v in (good, bad, good)])),
    ):
        assert isinstance(found, Decoded)
        assert [f.index for f in found.failures] == [1]
        assert "field v: " in found.failures[0].message
        assert found.values.to_pylist()[::2] == [{"v": "0.5"}] * 2


def test_only_the_number_that_has_many_digits_takes_their_memory() -> None:
    reader = TYPES["io.debezium.data.VariableScaleDecimal"]
    short, zero = {"scale": 2, "value": b"\xfb"}, {"scale": -5, "value": b"\0"}
    values = [*[short] * 5000, None, zero, {"scale": -131_072, "value": b"\5"}]
    peak = pa.default_memory_pool().max_memory()
    found = reader.of(pa.array(values, reader.wire))
    assert pa.default_memory_pool().max_memory() < peak + 2**28
    assert found[4998:5002].to_pylist() == ["-0.05", "-0.05", None, "0"]
    assert found[5002].as_py() == "5" + "0" * 131_072


def converters_of(schema: Mapping[str, Any], value: Any) -> dict[str, tuple[Converter, bytes]]:
    """The converters that read and write with schemas, each with a value that it reads."""
    registry = Memory()
    described = in_avro(schema)
    bare = json.loads(json.dumps(described).replace('"logicalType": "decimal", ', ""))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(bare), raw(schema, value))
    number = registry.add("AVRO", json.dumps(described))
    text = json.dumps(json_value(schema, value)).encode()
    other = registry.add("JSON", json.dumps(in_json_schema(schema)))
    envelope = json.dumps({"schema": schema, "payload": value}).encode()
    where = "value.converter"
    return {
        "json": (JsonConverter(), envelope),
        "avro": (AvroConverter(registry, where), framed(number, out.getvalue())),  # type: ignore[arg-type]
        "json schema": (JsonSchemaConverter(registry, where), framed(other, text)),  # type: ignore[arg-type]
    }


WRITABLE = [c for c in CASES if c.name == DECIMAL or not TYPES[c.name].told]
WRITABLE += [c for c in CASES if c not in WRITABLE and TYPES[c.name].wire == TYPES[c.name].type]


@pytest.mark.parametrize("whole", [False, True], ids=["fields", "whole"])
@pytest.mark.parametrize("kind", ["json", "avro", "json schema"])
def test_what_a_transform_leaves_alone_is_written_as_it_was_sent(kind: str, whole: bool) -> None:
    for case in WRITABLE:
        schema, value = {**schema_of(case.name), "optional": False}, case.sent
        if not whole:
            items = {"type": "array", "items": schema}
            schema = struct({"v": schema_of(case.name), "n": schema_of(case.name), "l": items})
            value = {"v": case.sent, "n": None, "l": [case.sent]}
            if kind_of(case.name) in ("array", "struct"):  # lists of them are JSON
                schema["fields"].pop()
                del value["l"]
        converter, sent = converters_of(schema, value)[kind]
        read = converter.decode(pa.array([sent]))
        assert not read.failures
        plain = read.values.storage if isinstance(read.values.type, SemanticType) else read.values
        facts = {**getattr(read.values.type, "facts", {}), **read.facts}
        written = converter.describing(facts).for_topic("t").encode(plain)
        again = converter.decode(written)
        assert not again.failures, case.name
        assert shown(again.values) == shown(read.values), case.name
        assert again.facts.get("name") == read.facts.get("name"), case.name


def test_names_of_nested_records_are_written() -> None:
    point = schema_of("io.debezium.data.geometry.Point")
    described = {
        "type": "record",
        "name": "Envelope",
        "namespace": "db.t",
        "fields": [
            {
                "name": "before",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Value",
                        "fields": [
                            {
                                "name": "p",
                                "type": ["null", in_avro({**point, "optional": False}, "Point")],
                            }
                        ],
                    },
                ],
            },
            {"name": "after", "type": ["null", "Value"]},
        ],
    }
    registry = Memory()
    number = registry.add("AVRO", json.dumps(described))
    out = io.BytesIO()
    point_value = {"x": 1.0, "y": 2.0, "wkb": None, "srid": None}
    parsed = fastavro.parse_schema(described)
    fastavro.schemaless_writer(out, parsed, {"before": None, "after": {"p": point_value}})
    converter = AvroConverter(registry, "value.converter")  # type: ignore[arg-type]
    read = converter.decode(pa.array([framed(number, out.getvalue())]))
    assert read.facts["name"] == "db.t.Envelope"
    converter.describing(read.facts).for_topic("t").encode(read.values)
    written = json.loads(registry.subjects["t-value"][0].text)
    after, before = (f["type"][1] for f in written["fields"][::-1])
    assert (written["connect.name"], before["connect.name"], after) == (
        "db.t.Envelope",
        "db.t.Value",
        "db.t.Value",
    )
    assert before["fields"][0]["type"][1]["connect.name"] == "io.debezium.data.geometry.Point"
    (text,) = JsonConverter().describing(read.facts).encode(read.values).to_pylist()
    schema = json.loads(text)["schema"]
    assert [schema["name"], *(f["name"] for f in schema["fields"])] == [
        "db.t.Envelope",
        "db.t.Value",
        "db.t.Value",
    ]
    assert schema["fields"][1]["fields"][0]["name"] == "io.debezium.data.geometry.Point"


@pytest.mark.parametrize("name", ["data.geometry.Geometry", "data.FloatVector", "data.Uuid"])
def test_schemas_that_differ_in_their_description_share_a_column(name: str) -> None:
    case = CASES[NAMES.index(f"io.debezium.{name}")]
    schemas = [struct({"v": {**schema_of(case.name), "doc": doc}}) for doc in ("one", "other")]
    texts = [json.dumps({"schema": s, "payload": {"v": case.sent}}).encode() for s in schemas]
    found = JsonConverter().decode(pa.array(texts))
    assert (found.failures, found.apart) == ([], None)
    facts = shown(found.values)[0]
    assert facts["v"]["name"] == case.name
