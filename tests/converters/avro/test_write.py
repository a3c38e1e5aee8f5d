"""Columns as Avro: what is written is what fastavro and the converter read."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.config import section_of
from semel.converters.avro import AvroConverter
from semel.converters.avro.parse import parse
from semel.converters.avro.write import WriteOptions, longs, schema_of, write
from semel.converters.binary import SchemaMismatch
from semel.converters.json.facts import described
from semel.converters.jsonschema import JsonSchemaConverter
from semel.converters.registry.config import RegistryKeys
from semel.converters.registry.converter import Registration
from semel.core.errors import ConfigError
from tests.converters.avro.test_columns import Names, by_fastavro, in_arrow, read, schemas, written
from tests.converters.registries import ROW, VALUES, Memory


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_was_read_is_written_again_byte_for_byte(data: st.DataObject) -> None:
    """Of schemas that can be written: the union of several types cannot. Maps have no order, and
    their bytes are compared after reading."""
    schema, values = data.draw(schemas(Names()).filter(lambda s: _writable(s[0])))
    parsed = fastavro.parse_schema(schema)
    messages = [written(parsed, v) for v in data.draw(st.lists(values, min_size=1, max_size=9))]
    node = parse(json.dumps(schema))
    found, _ = read(node, messages)
    array = pa.array(found, node.type)
    if array.null_count and not isinstance(schema, list) and schema != "null":
        return
    again = write(node, array).to_pylist()
    if "map" not in json.dumps(schema):
        assert again == messages
    for one, other in zip(again, messages, strict=True):
        assert repr(in_arrow(node, by_fastavro(parsed, one))) == repr(
            in_arrow(node, by_fastavro(parsed, other))
        )


def _writable(schema: Any) -> bool:
    if isinstance(schema, list):
        return "null" in schema and len(schema) == 2 and all(map(_writable, schema))
    if isinstance(schema, dict):
        inner = [schema.get("items"), schema.get("values")]
        inner += [f["type"] for f in schema.get("fields", ())]
        return all(_writable(s) for s in inner if s is not None)
    return True


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130), min_size=1))
def test_longs_are_fastavros(numbers: list[int]) -> None:
    wanted = [written("long", n) for n in numbers]
    assert longs(np.array(numbers, np.int64)).to_pylist() == wanted


def converter(registry: Memory, **more: Any) -> AvroConverter:
    made = AvroConverter(registry, "value.converter", **more).for_topic("orders")  # type: ignore[arg-type]
    assert isinstance(made, AvroConverter)
    return made


def test_columns_come_back_as_they_were() -> None:
    registry = Memory()
    made = converter(registry)
    array = pa.array([*VALUES, None], ROW)
    bytes_ = made.encode(array)
    assert bytes_[2].as_py() is None
    assert list(registry.subjects) == ["orders-value"]
    decoded = made.decode(bytes_)
    assert not decoded.failures
    rows = decoded.values.to_pylist()
    assert rows[2] is None
    for name in [f.name for f in ROW]:
        assert rows[0][name] == VALUES[0][name], name
    assert {k for k, v in rows[1].items() if v is not None} == {"id", "tags"}
    assert decoded.values.type.field("small").type == pa.int8()
    assert not decoded.values.type.field("id").nullable


def test_the_schema_is_that_of_kafka_connect() -> None:
    registry = Memory()
    converter(registry).encode(pa.array(VALUES, ROW))
    schema = json.loads(registry.subjects["orders-value"][0].text)
    fastavro.parse_schema(json.loads(json.dumps(schema)))
    assert (schema["namespace"], schema["name"]) == ("io.confluent.connect.avro", "ConnectDefault")
    fields = {f["name"]: f for f in schema["fields"]}
    assert fields["id"] == {"name": "id", "type": "long"}
    assert fields["small"] == {
        "name": "small",
        "type": ["null", {"type": "int", "connect.type": "int8"}],
        "default": None,
    }
    assert fields["day"]["type"][1] == {
        "type": "int",
        "connect.version": 1,
        "connect.name": "org.apache.kafka.connect.data.Date",
        "logicalType": "date",
    }
    assert fields["price"]["type"][1] == {
        "type": "bytes",
        "scale": 2,
        "precision": 9,
        "connect.version": 1,
        "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "logicalType": "decimal",
    }
    assert fields["inner"]["type"][1]["name"] == "ConnectDefault2"
    assert fields["by_number"]["type"][1]["items"]["connect.internal.type"] == "MapEntry"


def test_json_stays_json() -> None:
    doc = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None]))
    array = pa.StructArray.from_arrays([doc], ["doc"])
    made = converter(Memory())
    decoded = made.decode(made.encode(array))
    assert decoded.values.type.field("doc").type == pa.json_()
    assert decoded.values.to_pylist() == array.to_pylist()


def test_without_meta_data_the_schema_is_plain_avro() -> None:
    text = json.dumps(schema_of(ROW, WriteOptions(connect_properties=False)))
    assert "connect." not in text.replace("io.confluent.connect.avro", "").replace(
        '"connect.internal.type"', ""
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(AvroConverter, "Avro"), (JsonSchemaConverter, "JSON Schema")]
)
def test_a_field_of_a_type_that_no_schema_has_is_named(kind: type, name: str) -> None:
    inner = pa.struct([("n", pa.list_(pa.uint64()))])
    row = pa.struct([("t", pa.string()), ("m", pa.map_(pa.string(), inner))])
    with pytest.raises(ConfigError, match=rf"field m\.n: {name} cannot represent uint64"):
        kind(Memory(), "value.converter").for_topic("orders").encode(pa.array([{"t": "a"}], row))


def test_invalid_names_are_refused_or_scrubbed() -> None:
    """As Kafka Connect scrubs them."""
    array = pa.array([{"a-b": 1, "1": 2, "c$": 3, "é": 4, "_d": 5}])
    with pytest.raises(ConfigError, match=r"field a-b: Avro allows .* Set scrub\.invalid\.names"):
        converter(Memory()).encode(array)
    registry = Memory()
    made = converter(registry, write_options=WriteOptions(scrub=True))
    with pytest.raises(ConfigError, match=r"only\. Let a transform rename it"):
        made.encode(pa.array([{"": 1}]))
    assert made.decode(made.encode(array)).values.to_pylist() == [
        {"a_b": 1, "x1": 2, "c_24": 3, "_C3_A9": 4, "_d": 5}
    ]
    made.describing({"name": "my-server.public.1.Value"}).for_topic("named").encode(array)
    schema = json.loads(registry.subjects["named-value"][0].text)
    assert (schema["namespace"], schema["name"]) == ("my_server.public.x1", "Value")
    assert schema["connect.name"] == "my-server.public.1.Value"


def test_schemas_differ_if_only_the_names_of_fields_do() -> None:
    registry = Memory()
    made = converter(registry)
    for number, unit in enumerate(("MicroTimestamp", "NanoTimestamp"), 1):
        field = described(pa.field("at", pa.int64()), {"name": f"io.debezium.time.{unit}"})
        values = pa.StructArray.from_arrays([pa.array([7])], fields=[field])
        assert made.encode(values)[0].as_py()[:5] == b"\0\0\0\0" + bytes([number])
        assert unit in registry.subjects["orders-value"][-1].text


@pytest.mark.parametrize(
    ("strategy", "is_key", "subject"),
    [
        ("TopicNameStrategy", True, "orders-key"),
        ("RecordNameStrategy", False, "io.confluent.connect.avro.ConnectDefault"),
        ("TopicRecordNameStrategy", False, "orders-io.confluent.connect.avro.ConnectDefault"),
    ],
)
def test_subjects_follow_their_strategy(strategy: str, is_key: bool, subject: str) -> None:
    name = f"{'key' if is_key else 'value'}.subject.name.strategy"
    config = {name: f"io.confluent.kafka.serializers.subject.{strategy}"}
    keys = section_of(RegistryKeys, {"schema.registry.url": "http://r", **config}, "", otherwise="")
    registration = Registration.of(keys, is_key=is_key, where="value.converter")
    registry = Memory()
    converter(registry, registration=registration).encode(pa.array([{"a": 1}]))
    assert list(registry.subjects) == [subject]


def test_a_value_without_a_name_has_no_record_name_strategy() -> None:
    registration = Registration(is_key=False, strategy="RecordNameStrategy")
    with pytest.raises(
        ConfigError, match="uses the names of records, but what is written is not a record"
    ):
        converter(Memory(), registration=registration).encode(pa.array([1]))


def test_a_schema_that_may_not_be_registered_must_be_there() -> None:
    registry = Memory()
    alone = converter(registry, registration=Registration(is_key=False, registers=False))
    with pytest.raises(ConfigError, match=r"orders-value in http://registry has no schema like"):
        alone.encode(pa.array([{"a": 1}]))
    first = converter(registry).encode(pa.array([{"a": 1}]))
    assert alone.encode(pa.array([{"a": 1}])) == first


LATEST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string", "default": "none"},
        {"name": "price", "type": ["null", "double"], "default": None},
    ],
}


def test_the_latest_version_is_written_with_if_that_is_wanted() -> None:
    registry = Memory()
    registry.id_of("orders-value", "AVRO", json.dumps(LATEST), register=True)
    latest = Registration(is_key=False, registers=False, latest=True)
    made = converter(registry, registration=latest)
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False), ("other", pa.string())])
    bytes_ = made.encode(pa.array([{"id": 7, "other": "x"}], kind))
    data = io.BytesIO(bytes_[0].as_py()[5:])
    assert fastavro.schemaless_reader(data, LATEST, None) == {
        "id": 7,
        "note": "none",
        "price": None,
    }
    nullable = pa.array([{"id": 7}], pa.struct([("id", pa.int32())]))
    with pytest.raises(
        ConfigError, match="field id: it may be null, but not in the latest version"
    ):
        made.encode(nullable)
    tried = Registration(is_key=False, registers=False, latest=True, strict=False)
    loose = converter(registry, registration=tried)
    assert loose.encode(nullable)[0].as_py()[:5] == b"\0\0\0\0\1"
    with pytest.raises(ConfigError, match="field id: null, but its schema requires a value"):
        loose.encode(pa.array([{"id": None}], nullable.type))
    with pytest.raises(
        ConfigError, match=r"use\.latest\.version=true, but subject orders-value has no"
    ):
        converter(Memory(), registration=latest).encode(nullable)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("long", -1),
        ({"type": "long", "logicalType": "timestamp-micros"}, -500),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, -500_000),
        ({"type": "long", "connect.name": "io.debezium.time.Timestamp"}, -1),
        ({"type": "long", "logicalType": "time-micros"}, None),
        ({"type": "int", "logicalType": "time-millis"}, None),
        ("string", None),
    ],
)
def test_times_are_written_in_the_units_of_the_schema(kind: Any, number: int | None) -> None:
    values = pa.array([-500], pa.timestamp("us", "UTC"))
    node = parse(json.dumps(kind))
    if number is not None:
        assert write(node, values).equals(longs(np.array([number])))
        return
    with pytest.raises(SchemaMismatch, match=r"timestamp\[us, tz=UTC\] cannot be written as"):
        write(node, values)


@pytest.mark.parametrize("kind", ["long", "string"])
def test_a_duration_is_refused(kind: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"duration\[ms\] cannot be written as"):
        write(parse(json.dumps(kind)), pa.array([1], pa.duration("ms")))


def test_a_decimal_that_is_too_long_for_its_schema_is_refused() -> None:
    kind = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 9}
    node = parse(json.dumps(kind))
    assert write(node, pa.array([Decimal(-5)]))[0].as_py() == b"\xff\xfb"
    with pytest.raises(SchemaMismatch, match="its schema has 2 bytes for a decimal"):
        write(node, pa.array([Decimal(32768)]))


def test_a_default_that_does_not_fit_is_not_written() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "n", "type": "long", "default": "0"}]
    node = parse(json.dumps({"type": "record", "name": "R", "fields": fields}))
    write(node, pa.array([{"id": 1, "n": 2}]))
    with pytest.raises(ValueError, match='field n: its default "0" does not fit its type'):
        write(node, pa.array([{"id": 1}]))


def test_what_does_not_fit_is_reported_with_its_field() -> None:
    node = parse(json.dumps(LATEST))
    with pytest.raises(SchemaMismatch, match="field id: string does not fit int64"):
        write(node, pa.array([{"id": "x"}]))
    with pytest.raises(
        SchemaMismatch, match="field id: it is missing, and the schema has no default"
    ):
        write(node, pa.array([{"price": 1.5}]))
