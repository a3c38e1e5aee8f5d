"""Protobuf records, whose schemas are in a real registry, to PostgreSQL and to other topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from semel_lab.embedded import Kafka
from semel_lab.embedded.registry import SchemaRegistry
from tests.conftest import MakeTopic, Produce
from tests.converters.protobuf.test_converter import inside, number
from tests.engine.conftest import Configure
from tests.engine.harness import caught_up, name, sql

pytestmark = pytest.mark.integration

PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
OLD = """
syntax = "proto3";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
message Order {
  int32 id = 1;
  confluent.type.Decimal amount = 2 [(confluent.field_meta) = {
    params: [{ key: "precision", value: "9" }, { key: "scale", value: "2" }] }];
}
"""
NEW = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message NotThis { int32 id = 1; }
message Order {
  int64 id = 1;
  google.protobuf.Timestamp at = 3;
  repeated string tags = 4;
  Kind kind = 5;
  optional int32 maybe = 6;
}
enum Kind { NONE = 0; SOME = 1; }
"""

Write = Callable[..., bytes]


def writer(registry: SchemaRegistry, topic: str, text: str, indexes: bytes = b"\0") -> Write:
    """Bytes with the id of a schema in front, and the indexes of a message."""
    client = SchemaRegistryClient({"url": registry.url})
    id_ = client.register_schema(f"{topic}-value", Schema(text, "PROTOBUF"))
    return lambda *fields: b"\0" + id_.to_bytes(4, "big") + indexes + b"".join(fields)


def with_registry(registry: SchemaRegistry, **more: str) -> dict[str, str | None]:
    return {
        "value.converter": PROTOBUF,
        "value.converter.schema.registry.url": registry.url,
        "value.converter.schemas.enable": None,
        **{f"value.converter.{key}": value for key, value in more.items()},
    }


def produced(registry: SchemaRegistry, orders: str, produce: Produce) -> None:
    """Records of two schemas, and bad ones between them."""
    old = writer(registry, orders, OLD)
    new = writer(registry, orders, NEW, b"\x02\x02")
    amount = inside(1, b"\x00\x96") + number(2, 3) + number(3, 2)
    records = [
        old(number(1, 1), inside(2, amount)),
        new(number(1, 2**40), inside(3, number(1, 5)), inside(4, "a"), inside(4, ""), number(5, 1)),
        old(number(1, 3))[:-1],
        b"\0\x7f\xff\xff\xff\0",
        old(number(1, 4), inside(2, amount)),
        new(number(6, 0), number(1, 5)),
    ]
    produce(orders, records)


@pytest.mark.long
def test_a_topic_of_several_schemas_to_postgresql(
    registry: SchemaRegistry,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    database: str,
) -> None:
    orders = topic()
    produced(registry, orders, produce)
    dead = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = configure(orders, {**with_registry(registry), **dead, "auto.evolve": "true"})
    progress = caught_up(config)
    assert (progress.rows, progress.failed) == (4, 2)
    columns = "id, amount::text, extract(epoch from at)::int, tags::text, kind, maybe"
    rows = sql(database, f'select {columns} from "{orders}" order by id')
    assert [tuple(row) for row in rows] == [
        (1, "1.50", None, None, None, None),
        (4, "1.50", None, None, None, None),
        (5, None, None, "{}", "NONE", 0),
        (2**40, None, 5, '{a,""}', "SOME", None),
    ]
    assert len(sql(database, "select 1 from dead")) == 2


@pytest.mark.long
def test_what_a_transform_returns_is_written_with_a_registered_schema(
    registry: SchemaRegistry,
    kafka: Kafka,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    database: str,
) -> None:
    orders, copy = topic(), topic()
    old = writer(registry, orders, OLD)
    amount = inside(1, b"\x00\x96") + number(2, 3) + number(3, 2)
    produce(orders, [old(number(1, n), inside(2, amount)) for n in (0, 1)] + [None])

    def more(batch: pa.RecordBatch) -> pa.RecordBatch:
        tags: Sequence[object] = [["a", f"{n}"] for n in range(len(batch))]
        found = batch.append_column("tags", pa.array(tags, pa.list_(pa.string())))
        small = pa.array([None if n else 0 for n in range(len(batch))], pa.int8())
        return found.append_column("small", small)

    config = {
        "name": name(),
        "connector.class": "kafka",
        "topics": orders,
        "topic.rename.format": copy,
        "bootstrap.servers": kafka.bootstrap_servers,
        "retry.backoff.ms": "200",
        "value.converter": PROTOBUF,
        "value.converter.schema.registry.url": registry.url,
        "value.converter.optional.for.nullables": "true",
    }
    caught_up(config, more)
    client = SchemaRegistryClient({"url": registry.url})
    latest = client.get_latest_version(f"{copy}-value").schema
    assert latest.schema_type == "PROTOBUF"
    assert "repeated string tags" in str(latest.schema_str)
    reader = configure(copy, {**with_registry(registry), "behavior.on.null.values": "ignore"})
    caught_up(reader)
    rows = sql(database, f'select id, amount::text, tags::text, small from "{copy}" order by id')
    assert [tuple(row) for row in rows] == [
        (0, "1.50", "{a,0}", 0),
        (1, "1.50", "{a,1}", None),
    ]
