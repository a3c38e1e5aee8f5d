"""Records with a schema registry, which is a real one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from semel.core.errors import BadRecord, ServiceError
from semel_lab.embedded import Kafka
from semel_lab.embedded.registry import SchemaRegistry
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Start
from tests.engine.harness import Running, caught_up, name, sql, wait_until
from tests.sinks.kafka.copying import consume

pytestmark = pytest.mark.integration

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "io.confluent.connect.json.JsonSchemaConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def order(**fields: Any) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": listed})


OLD = order(id="int", amount=AMOUNT)
NEW = order(id="long", amount=AMOUNT, item=["null", ITEM])


def by_confluent(registry: SchemaRegistry, topic: str, schema: str) -> Any:
    """Confluent's own serializer of Python, which registers what it writes."""
    client = SchemaRegistryClient({"url": registry.url})
    write = AvroSerializer(client, schema)
    context = SerializationContext(topic, MessageField.VALUE)
    return lambda value: write(value, context)


def read_by_confluent(registry: SchemaRegistry, kafka: Kafka, topic: str) -> list[Any]:
    """What Confluent's own deserializer of Python finds in a topic."""
    client = SchemaRegistryClient({"url": registry.url})
    read = AvroDeserializer(client)
    context = SerializationContext(topic, MessageField.VALUE)
    return [read(seen.value, context) for seen in consume(kafka.bootstrap_servers, topic)]


def by_hand(registry: SchemaRegistry, topic: str, kind: str, schema: str) -> Any:
    """Bytes with the id of a schema in front."""
    client = SchemaRegistryClient({"url": registry.url})
    number = client.register_schema(f"{topic}-value", Schema(schema, kind))
    return lambda content: b"\0" + number.to_bytes(4, "big") + content


def with_registry(registry: SchemaRegistry, converter: str = AVRO) -> Mapping[str, Any]:
    return {
        "value.converter": converter,
        "value.converter.schema.registry.url": registry.url,
        "value.converter.schemas.enable": None,
    }


def test_a_schema_that_evolves_while_records_flow(
    registry: SchemaRegistry,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    database: str,
) -> None:
    orders = topic()
    old, new = (by_confluent(registry, orders, s) for s in (OLD, NEW))
    item = {"sku": "a", "tags": ["x", "y"]}
    produce(
        orders,
        [
            old({"id": 1, "amount": Decimal("1.50")}),
            new({"id": 2**40, "amount": Decimal("2.00"), "item": item}),
            old({"id": 3, "amount": Decimal("-0.25")}),
        ],
    )
    config = configure(orders, {**with_registry(registry), "auto.evolve": "true"})
    assert caught_up(config).rows == 3
    rows = sql(database, f'select id, amount::text, item::text from "{orders}" order by id')
    assert [tuple(r[:2]) for r in rows] == [(1, "1.50"), (3, "-0.25"), (2**40, "2.00")]
    assert '"sku": "a"' in rows[2][2]
    assert '"x"' in rows[2][2]


@pytest.mark.long
def test_an_id_that_the_registry_does_not_know_is_a_bad_record(
    registry: SchemaRegistry,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    database: str,
) -> None:
    orders = topic()
    write = by_confluent(registry, orders, OLD)
    good = write({"id": 1, "amount": Decimal("1.50")})
    produce(orders, [good, b"\0\x7f\xff\xff\xff\2", good[:-1], b"{}", good])
    with pytest.raises(BadRecord, match=r"schema id 2147483647 is unknown to http://127.*ccompat"):
        caught_up(configure(orders, dict(with_registry(registry))))
    table = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = configure(orders, {**with_registry(registry), **table, "table.name.format": "t"})
    progress = caught_up(config)
    assert (progress.rows, progress.failed) == (2, 3)
    assert len(sql(database, "select 1 from dead")) == 3


@pytest.mark.long
def test_a_registry_that_is_away_is_waited_for(
    caplog: pytest.LogCaptureFixture,
    services_directory: Path,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    database: str,
) -> None:
    orders = topic()
    with SchemaRegistry(services_directory / f"registry-{uuid.uuid4().hex[:8]}") as mine:
        old, new = (by_confluent(mine, orders, s) for s in (OLD, NEW))
        produce(orders, [old({"id": 1, "amount": Decimal("1.50")})])
        config = configure(orders, {**with_registry(mine), "auto.evolve": "true"})
        running = Running(config)
        try:
            wait_until(lambda: running.progress.rows == 1)
            later = new({"id": 2, "amount": Decimal("2.50")})
            mine.stop()
            produce(orders, [later])
            wait_until(lambda: "schema registry" in caplog.text)
            assert running.progress.rows == 1
            mine.start()
            wait_until(lambda: running.progress.rows == 2)
        finally:
            running.end()
        assert sql(database, f'select id from "{orders}" order by id') == [1, 2]
        mine.stop()
        with pytest.raises(ServiceError, match=r"schema registry at http://127.*cannot be reached"):
            caught_up({**config, "name": f"{config['name']}-2", "table.name.format": "other"})


@pytest.mark.long
def test_what_a_transform_returns_is_written_with_a_registered_schema(
    registry: SchemaRegistry, kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    orders, copy = topic(), topic()
    write = by_confluent(registry, orders, OLD)
    produce(orders, [write({"id": n, "amount": Decimal("1.50")}) for n in (1, 2)] + [None])

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        twice = pc.multiply(batch.column("amount"), 2).cast(pa.decimal128(12, 2))
        index = batch.schema.get_field_index("amount")
        return batch.set_column(index, "amount", twice)

    config = {
        "name": name(),
        "connector.class": "kafka",
        "topics": orders,
        "topic.rename.format": copy,
        "bootstrap.servers": kafka.bootstrap_servers,
        "retry.backoff.ms": "200",
        **{k: v for k, v in with_registry(registry).items() if v is not None},
    }
    caught_up(config, doubled)
    found = read_by_confluent(registry, kafka, copy)
    assert found == [
        {"id": 1, "amount": Decimal("3.00")},
        {"id": 2, "amount": Decimal("3.00")},
        None,
    ]
    client = SchemaRegistryClient({"url": registry.url})
    assert "ConnectDefault" in str(client.get_latest_version(f"{copy}-value").schema.schema_str)


@pytest.mark.long
def test_json_takes_its_types_from_its_schema(
    registry: SchemaRegistry,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    database: str,
) -> None:
    orders = topic()
    properties = {
        "id": {"type": "integer"},
        "amount": {
            "oneOf": [
                {"type": "null"},
                {
                    "type": "number",
                    "title": "org.apache.kafka.connect.data.Decimal",
                    "connect.type": "bytes",
                    "connect.parameters": {"scale": "2"},
                },
            ]
        },
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    schema = json.dumps({"type": "object", "properties": properties})
    write = by_hand(registry, orders, "JSON", schema)
    produce(
        orders,
        [
            write(b'{"id": 1, "amount": 1.50, "tags": ["a"]}'),
            write(b'{"id": 2, "amount": null, "tags": []}'),
        ],
    )
    config = configure(orders, dict(with_registry(registry, JSON)))
    assert caught_up(config).rows == 2
    rows = sql(database, f'select id, amount::text, tags::text from "{orders}" order by id')
    assert [tuple(r) for r in rows] == [(1, "1.50", "{a}"), (2, None, "{}")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("converter", "kind"), [(AVRO, "AVRO"), (JSON, "JSON"), (PROTOBUF, "PROTOBUF")]
)
def test_a_source_registers_what_it_writes(
    converter: str,
    kind: str,
    registry: SchemaRegistry,
    kafka: Kafka,
    topic: MakeTopic,
    tmp_path: Path,
    start: Start,
) -> None:
    lines = topic()
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    config = {
        "name": name(),
        "connector.class": "FileStreamSource",
        "file": str(path),
        "topic": lines,
        "bootstrap.servers": kafka.bootstrap_servers,
        "offsets.storage.topic": f"connect-offsets-{uuid.uuid4().hex[:8]}",
        "value.converter": converter,
        "value.converter.schema.registry.url": registry.url,
    }
    assert start(config, until_caught_up=True).wait().records == 2
    client = SchemaRegistryClient({"url": registry.url})
    latest = client.get_latest_version(f"{lines}-value")
    assert latest.schema.schema_type == kind
    found = [seen.value or b"" for seen in consume(kafka.bootstrap_servers, lines)]
    assert [int.from_bytes(value[1:5], "big") for value in found] == [latest.schema_id] * 2
    wanted = {"AVRO": [b"\x06one", b"\x06two"], "JSON": [b'"one"', b'"two"']}
    wanted["PROTOBUF"] = [b"\x02\x0e\n\x03one", b"\x02\x0e\n\x03two"]  # the eighth wrapper
    assert [value[5:] for value in found] == wanted[kind]
