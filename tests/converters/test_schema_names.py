"""Names and versions of schemas that are written."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from semel.converters import Converter, create
from semel.converters.avro import AvroConverter
from semel.converters.registry.converter import RegistryConverter
from semel.core.errors import ConfigError
from semel.transforms import chain_of
from tests.converters.registries import Memory
from tests.transforms.records import batch

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
ROW = pa.array([{"id": 1, "to": {"city": "x"}}])
SET = "org.apache.kafka.connect.transforms.SetSchemaMetadata$Value"


def chain(**options: str) -> dict[str, str]:
    given = {f"transforms.t.{k.replace('_', '.')}": v for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": SET, **given}


class Subjects:
    """A registry that remembers what is registered."""

    url = "http://registry"

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def id_of(self, subject: str, _kind: str, text: str, *, register: bool) -> int:
        self.found[subject] = json.loads(text) if text.startswith("{") else text
        return 1


def named(
    converter: Converter, raw: dict[str, str], *, is_key: bool, values: pa.Array = ROW
) -> Converter:
    """The converter for what the transforms make of values, or of keys, with a schema."""
    made = chain_of(raw).apply(batch(values, values, has_schema=True)).batch
    return converter.describing(made.contents(is_key).facts)


PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
BY_RECORD = "io.confluent.kafka.serializers.subject.RecordNameStrategy"


def written(kind: str, raw: dict[str, str], strategy: str = "", **more: str) -> dict[str, Any]:
    """What a converter registers under which subject."""
    config = {"schema.registry.url": "http://r", "value.subject.name.strategy": strategy, **more}
    made = create(kind, config, is_key=False, where="value.converter")
    assert isinstance(made, RegistryConverter)
    made._registry = subjects = Subjects()  # type: ignore[assignment]
    named(made, raw, is_key=False).for_topic("orders").encode(ROW)
    return subjects.found


def test_json_schema_is_written_under_the_title_and_version() -> None:
    raw = chain(schema_name="com.acme.Order", schema_version="3")
    schema = written(JSON_SCHEMA, raw)["orders-value"]
    assert (schema["title"], schema["connect.version"]) == ("com.acme.Order", 3)
    assert "title" not in schema["properties"]["to"]["oneOf"][1]
    assert set(written(JSON_SCHEMA, raw, BY_RECORD)) == {"com.acme.Order"}


def test_protobuf_is_written_as_a_message_of_the_package() -> None:
    raw = chain(schema_name="com.acme.Order")
    text = written(PROTOBUF, raw)["orders-value"]
    assert "package com.acme;" in text
    assert "message Order {" in text
    assert "message ConnectDefault1 {" in text  # the first that has no name
    assert set(written(PROTOBUF, raw, BY_RECORD)) == {"com.acme.Order"}
    assert "package" not in written(PROTOBUF, chain(schema_name="Order"))["orders-value"]


@pytest.mark.parametrize("kind", [PROTOBUF, JSON_SCHEMA])
def test_what_is_written_under_a_name_can_be_read(kind: str) -> None:
    made = create(kind, {"schema.registry.url": "http://r"}, is_key=False, where="value.converter")
    assert isinstance(made, RegistryConverter)
    made._registry = Memory()  # type: ignore[assignment]
    encoded = named(made, chain(schema_name="a.b.Order", schema_version="2"), is_key=False)
    values = made.decode(encoded.for_topic("orders").encode(ROW)).values
    assert values.field("id").to_pylist() == [1]


def test_a_name_that_protobuf_does_not_allow_is_refused_or_scrubbed() -> None:
    raw = chain(schema_name="com.my-order")
    with pytest.raises(ConfigError, match=r"schema name com\.my-order: Protobuf allows"):
        written(PROTOBUF, raw)
    scrub = {"scrub.invalid.names": "true"}
    assert set(written(PROTOBUF, raw, BY_RECORD, **scrub)) == {"com.my_order"}


@pytest.mark.parametrize("kind", [PROTOBUF, AVRO])
def test_a_name_that_no_scrubbing_mends_is_refused_without_naming_it(kind: str) -> None:
    scrub = {"scrub.invalid.names": "true"}
    with pytest.raises(ConfigError, match=r"schema name com\.\.order: .* only\. Set another name"):
        written(kind, chain(schema_name="com..order"), **scrub)


def avro(strategy: str = "TopicNameStrategy") -> tuple[AvroConverter, Subjects]:
    config = {"schema.registry.url": "http://r", "value.subject.name.strategy": strategy}
    made = create(AVRO, config, is_key=False, where="value.converter")
    assert isinstance(made, AvroConverter)
    made._registry = subjects = Subjects()  # type: ignore[assignment]
    return made, subjects


def test_avro_is_written_under_the_name_and_version() -> None:
    made, subjects = avro()
    raw = chain(schema_name="com.acme.Order", schema_version="3")
    named(made, raw, is_key=False).for_topic("orders").encode(ROW)
    schema = subjects.found["orders-value"]
    names = ("namespace", "name", "connect.name", "connect.version")
    assert [schema[n] for n in names] == ["com.acme", "Order", "com.acme.Order", 3]
    inner = schema["fields"][1]["type"][1]
    assert (inner["namespace"], inner["name"]) == ("io.confluent.connect.avro", "ConnectDefault")


@pytest.mark.parametrize("name", ["com.acme.Order", "Order"])
def test_the_name_is_the_subject_where_the_strategy_goes_by_records(name: str) -> None:
    made, subjects = avro("io.confluent.kafka.serializers.subject.RecordNameStrategy")
    named(made, chain(schema_name=name), is_key=False).for_topic("orders").encode(ROW)
    assert set(subjects.found) == {name}


def test_a_name_that_avro_does_not_allow_is_refused() -> None:
    made, _ = avro()
    with pytest.raises(ConfigError, match=r"schema name com\.my-order: Avro allows"):
        named(made, chain(schema_name="com.my-order"), is_key=False).encode(ROW)


def test_json_carries_them_in_its_schema() -> None:
    made = create(JSON, {}, is_key=False, where="value.converter")
    raw = chain(schema_name="orders", schema_version="2")
    (written,) = named(made, raw, is_key=False).encode(ROW).to_pylist()
    schema = json.loads(written)["schema"]
    assert (schema["name"], schema["version"]) == ("orders", 2)
    (plain,) = named(made, raw, is_key=True).encode(ROW).to_pylist()
    assert "name" not in json.loads(plain)["schema"]


@pytest.mark.parametrize(
    ("later", "values"),
    [
        ({"type": "HoistField$Value", "field": "order"}, ROW),
        ({"type": "ExtractField$Value", "field": "to"}, ROW),
        (
            {"type": "TimestampConverter$Value", "target.type": "unix"},
            pa.array([0], pa.timestamp("ms", "UTC")),
        ),
        (
            {"type": "ExtractNewRecordState"},
            pa.array([{"before": None, "after": {"id": 1}, "source": None, "op": "c"}]),
        ),
        ({"type": "sql", "query": "SELECT * FROM records"}, ROW),
    ],
    ids=lambda later: later["type"] if isinstance(later, dict) else "",
)
def test_a_later_transform_that_makes_another_schema_takes_the_name_back(
    later: dict[str, str], values: pa.Array
) -> None:
    raw = chain(schema_name="com.acme.Envelope") | {"transforms": "t,h"}
    raw |= {f"transforms.h.{name}": value for name, value in later.items()}
    for order, has_name in (("t,h", False), ("h,t", True)):
        found = chain_of(raw | {"transforms": order}).apply(batch(values, has_schema=True)).batch
        assert (found.values.name == "com.acme.Envelope") is has_name


@pytest.mark.parametrize(
    "later",
    [
        {"type": "Flatten$Value"},
        {"type": "ReplaceField$Value", "exclude": "x"},
        {"type": "TimestampConverter$Value", "target.type": "Timestamp", "field": "at"},
        {"type": "HoistField$Key", "field": "order"},
    ],
    ids=lambda later: later["type"],
)
def test_a_later_transform_that_copies_the_schema_keeps_the_name(later: dict[str, str]) -> None:
    raw = chain(schema_name="com.acme.Order") | {"transforms": "t,h"}
    raw |= {f"transforms.h.{name}": value for name, value in later.items()}
    assert written(JSON_SCHEMA, raw)["orders-value"]["title"] == "com.acme.Order"
