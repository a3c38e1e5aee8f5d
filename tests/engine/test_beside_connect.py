"""Chains that examples of Kafka Connect and Debezium show, run by Kafka Connect and by semel on the
same topics: the tables are the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from semel.sinks.jdbc import DEBEZIUM
from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.connect import ConnectWorker
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import caught_up, name, sql
from tests.patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.long]

KAFKA = "org.apache.kafka.connect.transforms."
JSON = "org.apache.kafka.connect.json.JsonConverter"
TEXT = "org.apache.kafka.connect.storage.StringConverter"
WITH_ZONE, WITHOUT_ZONE = "timestamp with time zone", "timestamp without time zone"
_POLL = 0.5
_TYPES = {int: "int64", str: "string", float: "double", bool: "boolean"}

Fields = Mapping[str, Any]
Record = tuple[bytes | None, bytes | None]


def _struct(fields: Fields, of: str = "") -> dict[str, Any]:
    found = [
        {**_struct(v, f), "field": f}
        if isinstance(v, Mapping)
        else {"field": f, "type": _TYPES[type(v)], "optional": True}
        for f, v in fields.items()
    ]
    return {"type": "struct", "fields": found, "optional": True} | ({"name": of} if of else {})


def enveloped(fields: Fields, payload: Fields | None = None, of: str = "") -> bytes:
    """A record with its schema, of the types of ``fields``."""
    schema = {**_struct(fields, of), "optional": False}
    return json.dumps(
        {"schema": schema, "payload": fields if payload is None else payload}
    ).encode()


ROW = {"id": 1, "name": "a", "email": "a@example.com"}


def change(op: str, before: Fields | None, after: Fields | None) -> bytes:
    """An event as Debezium's PostgreSQL connector writes it, with the parts that matter."""
    source = {"version": "3.5", "connector": "postgresql", "db": "shop", "schema": "public"}
    source = {**source, "table": "customers", "lsn": 7, "ts_ms": 1}
    shape = {"before": ROW, "after": ROW, "source": source, "op": "c", "ts_ms": 1}
    payload = {**shape, "before": before, "after": after, "op": op}
    return enveloped(shape, payload, "shop.public.customers.Envelope")


def of_key(id_: int) -> bytes:
    return enveloped({"id": id_}, of="shop.public.customers.Key")


def changes() -> list[Record]:
    """Snapshot, insert, update, delete with its tombstone, and an insert of the same key."""
    one, two = ROW, {**ROW, "id": 2, "name": "b"}
    return [
        (of_key(1), change("r", None, one)),
        (of_key(2), change("c", None, two)),
        (of_key(1), change("u", one, {**one, "name": "z"})),
        (of_key(2), change("d", two, None)),
        (of_key(2), None),
        (of_key(3), change("c", None, {**two, "id": 3})),
        (of_key(3), change("d", {**two, "id": 3}, None)),
        (of_key(3), None),
        (of_key(3), change("c", None, {**two, "id": 3, "email": "again"})),
    ]


def orders() -> list[Record]:
    return [
        (
            str(n % 7).encode(),
            enveloped(
                {
                    "id": n,
                    "name": f"n{n % 5}",
                    "amount": n / 4,
                    "day": f"2024-02-{n % 28 + 1:02} 01:02:03",
                    "card": f"4111-{n:04}",
                    "secret": "x",
                    "to": {"city": f"c{n % 3}", "zip": n % 9},
                }
            ),
        )
        for n in range(60)
    ]


UPSERT = {"insert.mode": "upsert", "primary.key.mode": "record_key"}
FLAT = {"type": f"{KAFKA}Flatten$Value", "delimiter": "_"}


def chain(**stages: Fields) -> dict[str, str]:
    """Transforms in this order."""
    options = {f"transforms.{a}.{k}": v for a, stage in stages.items() for k, v in stage.items()}
    return {"transforms": ",".join(stages), **options}


@dataclass(frozen=True)
class Example:
    """Records, and what a connector is to make of them."""

    records: Callable[[], list[Record]]
    keys: Mapping[str, str]
    tables: Sequence[str] = ("{name}_{topic}",)
    named: str = "{name}_${{topic}}"
    key_converter: str = TEXT
    stamps: Sequence[int] | None = field(default=None)


FEBRUARY, MARCH = 1_707_000_000_000, 1_710_000_000_000
EXAMPLES = {
    "unwrap": Example(
        changes,
        {
            **UPSERT,
            "delete.enabled": "true",
            **chain(
                unwrap={
                    "type": "io.debezium.transforms.ExtractNewRecordState",
                    "drop.tombstones": "false",
                }
            ),
        },
        key_converter=JSON,
    ),
    "unwrap and mark what is deleted": Example(
        changes,
        {
            **UPSERT,
            **chain(
                unwrap={
                    "type": "io.debezium.transforms.ExtractNewRecordState",
                    "delete.tombstone.handling.mode": "rewrite",
                    "add.fields": "op,table,source.lsn",
                }
            ),
        },
        key_converter=JSON,
    ),
    "change events as they are": Example(
        changes, {**UPSERT, "delete.enabled": "true"}, key_converter=JSON
    ),
    "a table for each table of the source": Example(
        changes,
        {**UPSERT, "delete.enabled": "true"},
        tables=("{name}_public_customers",),
        named="{name}_${{source.schema}}_${{source.table}}",
        key_converter=JSON,
    ),
    "a key out of the value": Example(
        orders,
        {
            **UPSERT,
            "primary.key.fields": "id",
            **chain(
                make={"type": f"{KAFKA}ValueToKey", "fields": "id"},
                flat=FLAT,
            ),
        },
    ),
    "fields renamed, cast, masked and added": Example(
        orders,
        {
            "insert.mode": "insert",
            **chain(
                flat=FLAT,
                names={
                    "type": f"{KAFKA}ReplaceField$Value",
                    "exclude": "secret",
                    "renames": "name:customer,to_city:city",
                },
                kind={"type": f"{KAFKA}Cast$Value", "spec": "amount:string,to_zip:int32"},
                mask={
                    "type": f"{KAFKA}MaskField$Value",
                    "fields": "card",
                    "replacement": "hidden",
                },
                place={
                    "type": f"{KAFKA}InsertField$Value",
                    "offset.field": "at_offset",
                    "timestamp.field": "came",
                    "static.field": "origin",
                    "static.value": "shop",
                },
            ),
        },
        stamps=[FEBRUARY + n for n in range(60)],
    ),
    "text becomes a time": Example(
        orders,
        {
            "insert.mode": "insert",
            **chain(
                flat=FLAT,
                at={
                    "type": f"{KAFKA}TimestampConverter$Value",
                    "field": "day",
                    "target.type": "Timestamp",
                    "format": "yyyy-MM-dd HH:mm:ss",
                },
            ),
        },
    ),
    "a table for each month": Example(
        orders,
        {
            "insert.mode": "insert",
            **chain(
                flat=FLAT,
                month={
                    "type": f"{KAFKA}TimestampRouter",
                    "topic.format": "${topic}_${timestamp}",
                    "timestamp.format": "yyyyMM",
                },
            ),
        },
        tables=("{name}_{topic}_202402", "{name}_{topic}_202403"),
        stamps=[(FEBRUARY, MARCH)[n % 2] for n in range(60)],
    ),
    "another table, without tombstones": Example(
        lambda: [*orders(), (b"1", None)],
        {
            "insert.mode": "upsert",
            "primary.key.mode": "record_value",
            "primary.key.fields": "to_zip",
            "predicates": "tombstone",
            "predicates.tombstone.type": f"{KAFKA}predicates.RecordIsTombstone",
            **chain(
                gone={"type": f"{KAFKA}Filter", "predicate": "tombstone"},
                flat=FLAT,
                route={"type": f"{KAFKA}RegexRouter", "regex": "(.*)", "replacement": "all-$1"},
            ),
        },
        tables=("{name}_all-{topic}",),
    ),
}


@pytest.fixture(scope="module")
def connect(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectWorker]:
    with ConnectWorker(tmp_path_factory.mktemp("connect"), kafka.bootstrap_servers) as worker:
        yield worker


def _rows(database: str, table: str) -> list[Any]:
    """The columns with their types, and the rows in order. semel's times know their zone."""
    columns = sql(
        database,
        "SELECT column_name, data_type FROM information_schema.columns "
        f"WHERE table_name = '{table}' ORDER BY 1",
    )
    if not columns:
        return []
    names = ", ".join(
        f'"{column}"' + (" AT TIME ZONE 'UTC'" if kind == WITH_ZONE else "")
        for column, kind in columns
    )
    found = sql(database, f'SELECT {names} FROM "{table}" ORDER BY {names}')
    kinds = [(column, kind.replace(WITH_ZONE, WITHOUT_ZONE)) for column, kind in columns]
    return [*kinds, *map(tuple, found)]


@pytest.mark.parametrize("shown", EXAMPLES)
def test_tables_are_those_of_kafka_connect(
    shown: str,
    connect: ConnectWorker,
    kafka: Kafka,
    postgres: Postgres,
    database: str,
    topic: MakeTopic,
    produce: Produce,
) -> None:
    example = EXAMPLES[shown]
    source = topic()
    keys, values = zip(*example.records(), strict=True)
    produce(source, values, keys, partition=0, timestamps=example.stamps)
    where = urlsplit(database)
    common = {
        "connector.class": DEBEZIUM,
        "topics": source,
        "connection.url": f"jdbc:postgresql://{where.hostname}:{where.port}{where.path}",
        "connection.username": postgres.user,
        "connection.password": postgres.password,
        "schema.evolution": "basic",
        "key.converter": example.key_converter,
        "value.converter": JSON,
        "consumer.override.auto.offset.reset": "earliest",
        **example.keys,
    }
    theirs = name()
    named = "collection.name.format"
    connect.create(theirs, {**common, "name": theirs, named: example.named.format(name="c")})
    ours = {"name": name(), "bootstrap.servers": kafka.bootstrap_servers}
    caught_up({**common, **ours, named: example.named.format(name="s")})

    def tables(side: str) -> list[list[Any]]:
        return [_rows(database, t.format(name=side, topic=source)) for t in example.tables]

    found = tables("s")
    assert all(found)
    until = time.monotonic() + PATIENCE / 10
    while (expected := tables("c")) != found:
        connect.check(theirs)
        if time.monotonic() > until:
            break
        time.sleep(_POLL)
    connect.delete(theirs)
    assert found == expected
