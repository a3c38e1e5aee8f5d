"""Sink configurations as tutorials and READMEs publish them, with other addresses: the results are
those that Kafka Connect leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from semel.converters import create
from semel.driver.planning import plan
from semel_lab.embedded import Kafka
from semel_lab.embedded.registry import SchemaRegistry
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import caught_up, name, sql
from tests.engine.test_beside_connect import change, enveloped, of_key
from tests.searching import documents

pytestmark = [pytest.mark.integration, pytest.mark.long]

KAFKA = "org.apache.kafka.connect.transforms."
JCUSTENBORDER = "com.github.jcustenborder.kafka.connect.transform.common."
JDBC = "io.confluent.connect.jdbc.JdbcSinkConnector"
ELASTIC = "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector"
S3 = "io.confluent.connect.s3.S3SinkConnector"
ICEBERG = "io.tabular.iceberg.connect.IcebergSinkConnector"
AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
TEXT = "org.apache.kafka.connect.storage.StringConverter"
LONG = "org.apache.kafka.connect.converters.LongConverter"
DECEMBER = 1_607_000_000_000
"""Thursday, 3 December 2020, 12:53:20 in UTC: the time of all records."""
DAY = 86_400_000

Fields = Mapping[str, Any]
Rows = Sequence[Any]


@dataclass(frozen=True)
class Example:
    """A configuration, records for it, and the rows of each target.

    ``records`` are keys and values; a value is encoded with ``value``, unless it is bytes.
    ``{t}`` stands for the topic, and ``{suffix}`` for its part that is new in each run.
    """

    connector: str
    keys: Mapping[str, str]
    records: Sequence[tuple[bytes | None, Fields | bytes | None]]
    rows: Mapping[str, Rows]
    value: str = AVRO
    prefix: str = "topic"
    stamps: Sequence[int] = field(default=())
    select: str = "*"
    store: str = "mariadb"


def chain(**stages: Fields) -> dict[str, str]:
    """Transforms in this order."""
    options = {f"transforms.{a}.{k}": v for a, stage in stages.items() for k, v in stage.items()}
    return {"transforms": ",".join(stages), **options}


def predicates(**named: Fields) -> dict[str, str]:
    options = {f"predicates.{a}.{k}": v for a, stage in named.items() for k, v in stage.items()}
    return {"predicates": ",".join(named), **options}


GROWING = {"auto.create": "true", "auto.evolve": "true"}
SOLD: list[tuple[bytes | None, Fields]] = [
    (b"1", {"id": 1, "item": "Oatmeal Stout", "amount": "41.5", "shop": "a"}),
    (b"2", {"id": 2, "item": "Pale Ale", "amount": "64.2", "shop": "b"}),
]
"""Two sales."""
THIS, THAT = "Sat Dec 05 10:11:12 UTC 2020", "Sun Dec 06 23:59:59 UTC 2020"
DATED: list[tuple[bytes | None, Fields]] = [
    (None, {"id": 1, "txn_date": THIS}),
    (None, {"id": 2, "txn_date": THAT}),
]
PARSED = {"field": "txn_date", "format": "EEE MMM dd HH:mm:ss zzz yyyy"}
STRUCT = {"id": 1, "full_name": "x", "address": {"city": "c", "street": "s"}}


def converted(kind: str, **rows: Sequence[Any]) -> Example:
    stages = {
        "convertTS": {
            "type": f"{KAFKA}TimestampConverter$Value",
            **PARSED,
            "target.type": kind,
        },
        "changeTopic": {
            "type": f"{KAFKA}RegexRouter",
            "regex": "(.*)",
            "replacement": f"$1_with{kind}",
        },
    }
    named = {f"{{t}}_with{kind}": found for found in rows.values()}
    return Example(JDBC, {**GROWING, **chain(**stages)}, DATED, named, select="id, txn_date")


TUTORIAL = {
    "the time of a message in a field": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                insertTS={
                    "type": f"{KAFKA}InsertField$Value",
                    "timestamp.field": "messageTS",
                }
            ),
        },
        DATED,
        {"{t}": ["2020-12-03 12:53:20", "2020-12-03 12:53:20"]},
        select="messageTS",
    ),
    "a nested struct, flattened": Example(
        JDBC,
        {**GROWING, **chain(flatten={"type": f"{KAFKA}Flatten$Value", "delimiter": "_"})},
        [(None, STRUCT)],
        {"{t}": [(1, "x", "c", "s")]},
        select="id, full_name, address_city, address_street",
    ),
    "a key that is a number": Example(
        JDBC,
        {
            **GROWING,
            **chain(flatten={"type": f"{KAFKA}Flatten$Value", "delimiter": "_"}),
            "pk.mode": "record_key",
            "pk.fields": "id",
            "key.converter": LONG,
        },
        [((42).to_bytes(8, "big"), {"full_name": "x", "address": {"city": "c"}})],
        {"{t}": [(42, "x", "c")]},
        select="id, full_name, address_city",
    ),
    "a prefix of topics that tables lack": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                dropTopicPrefix={
                    "type": f"{KAFKA}RegexRouter",
                    "regex": "day4-(.*)",
                    "replacement": "$1",
                }
            ),
        },
        DATED,
        {"{suffix}": [1, 2]},
        prefix="day4",
        select="id",
    ),
    "parts of the topic in another order": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                dropTopicPrefix={
                    "type": f"{KAFKA}RegexRouter",
                    "regex": "day(\\d+)-(.*)",
                    "replacement": "$2_day$1",
                }
            ),
        },
        DATED,
        {"{suffix}_day4": [1, 2]},
        prefix="day4",
        select="id",
    ),
    "a masked field": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                maskAddress={
                    "type": f"{KAFKA}MaskField$Value",
                    "fields": "fullAddress",
                    "replacement": "[\u274cedacted\u274c]",
                }
            ),
        },
        [(None, {"id": 1, "fullAddress": "1 High Street"})],
        {"{t}": [(1, "[\u274cedacted\u274c]")]},
        select="id, fullAddress",
    ),
    "where a message was read": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                insertPartition={
                    "type": f"{KAFKA}InsertField$Value",
                    "partition.field": "kafkaPartition",
                },
                insertOffset={"type": f"{KAFKA}InsertField$Value", "offset.field": "kafkaOffset"},
                insertTopic={"type": f"{KAFKA}InsertField$Value", "topic.field": "kafkaTopic"},
            ),
        },
        DATED,
        {"{t}": [(1, 0, 0, "{t}"), (2, 0, 1, "{t}")]},
        select="id, kafkaPartition, kafkaOffset, kafkaTopic",
    ),
    "a table for each day of messages": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                addTimestampToTopic={
                    "type": f"{KAFKA}TimestampRouter",
                    "topic.format": "${topic}_${timestamp}",
                    "timestamp.format": "YYYY-MM-dd",
                }
            ),
        },
        DATED,
        {"{t}_2020-12-03": [1], "{t}_2020-12-04": [2]},
        stamps=[DECEMBER, DECEMBER + DAY],
        select="id",
    ),
    "a table for each day of a field": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                addTimestampToTopicFromField={
                    "type": "io.confluent.connect.transforms.MessageTimestampRouter",
                    "message.timestamp.keys": "txn_date",
                    "message.timestamp.format": "EEE MMM dd HH:mm:ss zzz yyyy",
                    "topic.format": "${topic}_${timestamp}",
                    "topic.timestamp.format": "YYYY-MM-dd",
                }
            ),
        },
        DATED,
        {"{t}_2020-12-05": [1], "{t}_2020-12-06": [2]},
        select="id",
    ),
    "texts as timestamps": converted(
        "Timestamp", rows=[(1, "2020-12-05 10:11:12"), (2, "2020-12-06 23:59:59")]
    ),
    "texts as dates": converted("Date", rows=[(1, "2020-12-05"), (2, "2020-12-06")]),
    "texts as times of day": converted("Time", rows=[(1, "10:11:12"), (2, "23:59:59")]),
    "texts as seconds": converted("unix", rows=[(1, 1607163072000), (2, 1607299199000)]),
    "all to one table": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                changeTableName={
                    "type": f"{KAFKA}RegexRouter",
                    "regex": ".*",
                    "replacement": "production_data",
                }
            ),
        },
        DATED,
        {"production_data": [1, 2]},
        select="id",
    ),
    "fields left out, by the old name of the key": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                dropCC={
                    "type": f"{KAFKA}ReplaceField$Value",
                    "blacklist": "cc_num,cc_exp,card_type",
                }
            ),
        },
        [(None, {"id": 1, "cc_num": "4", "cc_exp": "01/30", "card_type": "visa", "cost": 2.5})],
        {"{t}": [(1, 2.5)]},
    ),
    "fields renamed in some topics": Example(
        JDBC,
        {
            **GROWING,
            "topics.regex": "{t}.*",
            **chain(
                renameSystemBFields={
                    "type": f"{KAFKA}ReplaceField$Value",
                    "renames": "item:product,cost:amount",
                    "predicate": "isSystemBTopic",
                },
                renameTargetTopic={
                    "type": f"{KAFKA}RegexRouter",
                    "regex": "systemB.*",
                    "replacement": "transactions",
                },
            ),
            **predicates(
                isSystemBTopic={
                    "type": f"{KAFKA}predicates.TopicNameMatches",
                    "pattern": "systemB-.*",
                }
            ),
        },
        [(None, {"item": "ale", "cost": 4})],
        {"transactions": [("ale", 4)]},
        prefix="systemB",
        select="product, amount",
    ),
    "no tombstones": Example(
        JDBC,
        {
            **GROWING,
            **chain(dropNullRecords={"type": f"{KAFKA}Filter", "predicate": "isNullRecord"}),
            **predicates(isNullRecord={"type": f"{KAFKA}predicates.RecordIsTombstone"}),
        },
        [(b"1", {"id": 1}), (b"2", None), (b"3", {"id": 3})],
        {"{t}": [1, 3]},
        select="id",
    ),
    "only what a field matches": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                filterStout={
                    "type": "io.confluent.connect.transforms.Filter$Value",
                    "filter.condition": "$[?(@.item =~ /.*Stout/)]",
                    "filter.type": "include",
                }
            ),
        },
        SOLD,
        {"{t}": [1]},
        select="id",
    ),
    "only small orders, of a number that came as text": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                castTypes={"type": f"{KAFKA}Cast$Value", "spec": "amount:float32"},
                filterSmallOrder={
                    "type": "io.confluent.connect.transforms.Filter$Value",
                    "filter.condition": "$[?(@.amount < 42)]",
                    "filter.type": "include",
                },
            ),
        },
        SOLD,
        {"{t}": [(1, 41.5)]},
        select="id, amount",
    ),
    "a topic in another case": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                topicCase={
                    "type": f"{JCUSTENBORDER}ChangeTopicCase",
                    "from": "LOWER_HYPHEN",
                    "to": "UPPER_CAMEL",
                }
            ),
        },
        DATED,
        {"{Camel}": [1, 2]},
        prefix="sys",
        select="id",
    ),
    "a table for each day of a field that becomes the time": Example(
        JDBC,
        {
            **GROWING,
            **chain(
                convertTS={
                    "type": f"{KAFKA}TimestampConverter$Value",
                    **PARSED,
                    "target.type": "Timestamp",
                },
                extractTS={
                    "type": f"{JCUSTENBORDER}ExtractTimestamp$Value",
                    "field.name": "txn_date",
                },
                setTopicName={
                    "type": f"{KAFKA}TimestampRouter",
                    "topic.format": "${topic}_${timestamp}",
                    "timestamp.format": "YYYY-MM-dd",
                },
            ),
        },
        DATED,
        {"{t}_2020-12-05": [1], "{t}_2020-12-06": [2]},
        select="id",
    ),
}
OTHERS = {
    "the quickstart of Aiven's JDBC sink": Example(
        "io.aiven.connect.jdbc.JdbcSinkConnector",
        {"auto.create": "true"},
        [(None, enveloped({"id": 1, "product": "foo", "quantity": 100}))],
        {"{t}": [(1, "foo", 100)]},
        value=JSON,
        store="sqlite",
    ),
    "upserts by a text key, one field less and two more": Example(
        JDBC,
        {
            **GROWING,
            "insert.mode": "upsert",
            "pk.mode": "record_key",
            "pk.fields": "MESSAGE_KEY",
            "key.converter": TEXT,
            **chain(
                dropSome={"type": f"{KAFKA}ReplaceField$Value", "blacklist": "COL2"},
                addSome={
                    "type": f"{KAFKA}InsertField$Value",
                    "partition.field": "_partition",
                    "timestamp.field": "RECORD_TS",
                },
            ),
        },
        [(b"X", {"COL1": 1, "COL2": "a"}), (b"Y", {"COL1": 2, "COL2": "b"}), (b"X", {"COL1": 3})],
        {"{t}": [("X", 3, 0, "2020-12-03 12:53:20"), ("Y", 2, 0, "2020-12-03 12:53:20")]},
        select="MESSAGE_KEY, COL1, _partition, RECORD_TS",
    ),
    "PostgreSQL, with columns that have dots": Example(
        JDBC,
        {
            "auto.create": "true",
            **chain(flatten={"type": f"{KAFKA}Flatten$Value", "delimiter": "."}),
        },
        [(None, STRUCT)],
        {"{t}": [(1, "c")]},
        select='id, "address.city"',
        store="postgresql",
    ),
    "documents with times as numbers": Example(
        ELASTIC,
        {
            "type.name": "_doc",
            "key.ignore": "false",
            "schema.ignore": "false",
            "key.converter": TEXT,
            **chain(
                setTimestampType0={
                    "type": f"{KAFKA}TimestampConverter$Value",
                    "field": "ORDER_TS_EPOCH",
                    "target.type": "Timestamp",
                }
            ),
        },
        [(b"7", {"ORDER_TS_EPOCH": DECEMBER, "ID": 1})],
        {"{t}": [{"_id": "7", "ORDER_TS_EPOCH": "2020-12-03T12:53:20.000Z", "ID": 1}]},
        store="opensearch",
    ),
    "documents with the time of their messages as text": Example(
        ELASTIC,
        {
            "type.name": "_doc",
            "key.ignore": "false",
            "schema.ignore": "true",
            "key.converter": TEXT,
            **chain(
                ExtractTimestamp={
                    "type": f"{KAFKA}InsertField$Value",
                    "timestamp.field": "MSG_TS",
                },
                setTimestampType={
                    "type": f"{KAFKA}TimestampConverter$Value",
                    "field": "MSG_TS",
                    "target.type": "string",
                    "format": "yyyy-MM-dd'T'HH:mm:ssX",
                },
            ),
        },
        [(b"7", {"ID": 1})],
        {"{t}": [{"_id": "7", "ID": 1, "MSG_TS": "2020-12-03T12:53:20Z"}]},
        store="opensearch",
    ),
    "an index for each month, with deletes": Example(
        ELASTIC,
        {
            "type.name": "_doc",
            "key.ignore": "false",
            "schema.ignore": "true",
            "behavior.on.null.values": "delete",
            "key.converter": TEXT,
            "value.converter.schemas.enable": "false",
            **chain(
                TimestampRouter={
                    "type": f"{KAFKA}TimestampRouter",
                    "topic.format": "{t}-categories-${timestamp}",
                    "timestamp.format": "yyyy-MM",
                }
            ),
        },
        [(b"1", b'{"n": 1}'), (b"2", b'{"n": 2}'), (b"3", b'{"n": 3}'), (b"2", None)],
        {
            "{t}-categories-2020-12": [{"_id": "1", "n": 1}],
            "{t}-categories-2021-01": [{"_id": "3", "n": 3}],
        },
        value=JSON,
        stamps=[DECEMBER, DECEMBER, DECEMBER + 30 * DAY, DECEMBER],
        store="opensearch",
    ),
    "rows of change events by a field of the key": Example(
        ELASTIC,
        {
            "key.ignore": "false",
            "type.name": "customer",
            "key.converter": JSON,
            **chain(
                unwrap={"type": "io.debezium.transforms.ExtractNewRecordState"},
                key={"type": f"{KAFKA}ExtractField$Key", "field": "id"},
            ),
        },
        [
            (of_key(1), change("c", None, {"id": 1, "name": "a", "email": "e"})),
            (of_key(1), change("u", None, {"id": 1, "name": "b", "email": "e"})),
        ],
        {"{t}": [{"_id": "1", "id": 1, "name": "b", "email": "e"}]},
        value=JSON,
        store="opensearch",
    ),
    "the quickstart of Aiven's OpenSearch sink": Example(
        "io.aiven.kafka.connect.opensearch.OpenSearchSinkConnector",
        {"key.ignore": "true", "type.name": "kafka-connect"},
        [(None, enveloped({"f1": "value1"}))],
        {"{t}": [{"_id": "{t}+0+0", "f1": "value1"}]},
        value=JSON,
        store="opensearch",
    ),
    "objects of Avro": Example(
        S3,
        {
            "storage.class": "io.confluent.connect.s3.storage.S3Storage",
            "format.class": "io.confluent.connect.s3.format.avro.AvroFormat",
            "schema.compatibility": "NONE",
            "s3.part.size": "52428801",
            "flush.size": "3",
        },
        [(None, {"f1": f"value{n}"}) for n in range(5)],
        {"{t}/partition=0/*.avro": [{"f1": f"value{n}"} for n in range(5)]},
        store="files",
    ),
    "objects of JSON": Example(
        S3,
        {
            "storage.class": "io.confluent.connect.s3.storage.S3Storage",
            "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
            "schema.generator.class": "io.confluent.connect.storage.hive.schema."
            "DefaultSchemaGenerator",
            "schema.compatibility": "NONE",
            "partitioner.class": "io.confluent.connect.storage.partitioner.DefaultPartitioner",
            "flush.size": "16",
            **chain(
                insertTS={
                    "type": f"{KAFKA}InsertField$Value",
                    "timestamp.field": "messageTS",
                },
                formatTS={
                    "type": f"{KAFKA}TimestampConverter$Value",
                    "field": "messageTS",
                    "target.type": "string",
                    "format": "yyyy-MM-dd HH:mm:ss:SSS",
                },
            ),
        },
        [(None, {"id": 1})],
        {"{t}/partition=0/*.json": [{"id": 1, "messageTS": "2020-12-03 12:53:20:000"}]},
        store="files",
    ),
    "lines of text": Example(
        "FileStreamSinkConnector",
        {"key.converter": TEXT},
        [(None, b"one line"), (None, None), (b"key", b"another")],
        {"lines": ["one line", "null", "another"]},
        value=TEXT,
        store="lines",
    ),
    "lines of Kafka's quickstart": Example(
        "FileStreamSink",
        {"tasks.max": "1", "key.converter": JSON, "key.converter.schemas.enable": "true"},
        [
            (None, b'{"schema":{"type":"string","optional":false},"payload":"foo"}'),
            (None, b'{"schema":{"type":"string","optional":false},"payload":"bar"}'),
        ],
        {"lines": ["foo", "bar"]},
        value=JSON,
        store="lines",
    ),
    "lines of hoisted values": Example(
        "FileStreamSink",
        {
            "value.converter.schemas.enable": "false",
            **chain(hoist={"type": f"{KAFKA}HoistField$Value", "field": "line"}),
        },
        [(None, b'{"id": 1}')],
        {"lines": ['{"line":{"id":1}}']},
        value=JSON,
        store="lines",
    ),
    "two Iceberg tables by a field": Example(
        ICEBERG,
        {
            "iceberg.tables": "default.events_list,default.events_create",
            "iceberg.tables.route-field": "type",
            "iceberg.table.default.events_list.route-regex": "list",
            "iceberg.table.default.events_create.route-regex": "create",
        },
        [
            (None, b'{"id": 1, "type": "list"}'),
            (None, b'{"id": 2, "type": "create"}'),
            (None, b'{"id": 3, "type": "other"}'),
        ],
        {"default.events_list": [(1, "list")], "default.events_create": [(2, "create")]},
        value=JSON,
        store="iceberg",
    ),
    "the Iceberg tables that a field names": Example(
        ICEBERG,
        {"iceberg.tables.dynamic-enabled": "true", "iceberg.tables.route-field": "db_table"},
        [(None, b'{"id": 1, "db_table": "db.one"}'), (None, b'{"id": 2, "db_table": "db.two"}')],
        {"db.one": [(1, "db.one")], "db.two": [(2, "db.two")]},
        value=JSON,
        store="iceberg",
    ),
    "an Iceberg table of change events": Example(
        ICEBERG,
        {
            "iceberg.tables": "default.events",
            "iceberg.tables.cdc-field": "_cdc_op",
            "iceberg.tables.default-id-columns": "id",
        },
        [
            (None, b'{"id": 1, "name": "a", "_cdc_op": "I"}'),
            (None, b'{"id": 2, "name": "b", "_cdc_op": "I"}'),
            (None, b'{"id": 1, "name": "z", "_cdc_op": "U"}'),
            (None, b'{"id": 2, "name": "b", "_cdc_op": "D"}'),
        ],
        {"default.events": [(1, "z", "U")]},
        value=JSON,
        store="iceberg",
    ),
}
EXAMPLES = TUTORIAL | OTHERS


def in_sql(config: Mapping[str, str], example: Example, target: str) -> Rows:
    rows = sql(config["connection.url"], f'SELECT {example.select} FROM "{target}" ORDER BY 1')
    return [tuple(map(_plain, r)) if isinstance(r, tuple) else _plain(r) for r in rows]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else str(value)


def in_search(config: Mapping[str, str], _example: Example, target: str) -> Rows:
    return sorted(documents(config["connection.url"], target), key=lambda d: str(d["_id"]))


def in_files(config: Mapping[str, str], _example: Example, target: str) -> Rows:
    rows: list[Any] = []
    for path in sorted(Path(config["path"]).glob(target)):
        if path.suffix == ".avro":
            with path.open("rb") as stream:
                rows += list(fastavro.reader(stream))
        else:
            rows += map(json.loads, path.read_text().splitlines())
    return rows


def in_lines(config: Mapping[str, str], _example: Example, _target: str) -> Rows:
    return Path(config["file"]).read_text().splitlines()


def in_iceberg(config: Mapping[str, str], _example: Example, target: str) -> Rows:
    catalog = load_catalog("iceberg", type="sql", uri=config["iceberg.catalog.uri"])
    found = catalog.load_table(target).scan().to_arrow()
    return sorted(duckdb.from_arrow(found).fetchall())


LOOK: Mapping[str, Callable[[Mapping[str, str], Example, str], Rows]] = {
    "files": in_files,
    "iceberg": in_iceberg,
    "lines": in_lines,
    "opensearch": in_search,
}


def address(store: str, request: pytest.FixtureRequest, directory: Path) -> dict[str, str]:
    """Where the example's results go."""
    if store == "postgresql":
        return {"connection.url": request.getfixturevalue("database")}
    if store == "sqlite":
        return {"connection.url": f"jdbc:sqlite:{directory / 'test.db'}"}
    if store == "mariadb":
        return {"connection.url": request.getfixturevalue("mariadb").create_database(name())}
    if store == "opensearch":
        url = request.getfixturevalue("opensearch").url
        return {"connection.url": url, "read.timeout.ms": "600000"}
    if store == "files":
        return {"path": str(directory / "bucket")}
    if store == "lines":
        return {"file": str(directory / "lines")}
    return {
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{directory}/catalog.db",
        "iceberg.catalog.warehouse": f"file://{directory}/warehouse",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.evolve-schema-enabled": "true",
        "iceberg.control.commit.interval-ms": "1000",
        "value.converter.schemas.enable": "false",
    }


@pytest.mark.parametrize("title", EXAMPLES)
def test_a_published_configuration_leaves_what_kafka_connect_leaves(
    title: str,
    kafka: Kafka,
    registry: SchemaRegistry,
    topic: MakeTopic,
    produce: Produce,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    example = EXAMPLES[title]
    there = topic(1, prefix=example.prefix)
    suffix = there.partition("-")[2]
    camel = "".join(part.capitalize() for part in there.split("-"))
    names = {"{t}": there, "{suffix}": suffix, "{Camel}": camel}

    def named(text: Any) -> Any:
        if isinstance(text, tuple):
            return tuple(map(named, text))
        if isinstance(text, dict):
            return {k: named(v) for k, v in text.items()}
        for what, by in names.items():
            text = text.replace(what, by) if isinstance(text, str) else text
        return text

    config = {
        "name": name(),
        "connector.class": example.connector,
        "topics": there,
        "bootstrap.servers": kafka.bootstrap_servers,
        "value.converter": example.value,
        **address(example.store, request, tmp_path),
        **{k: named(v) for k, v in example.keys.items()},
    }
    if "topics.regex" in config:
        del config["topics"]
    if example.value == AVRO:
        config["value.converter.schema.registry.url"] = registry.url
    plan(config).close()
    values = [_encoded(example, there, registry, value) for _, value in example.records]
    stamps = example.stamps or [DECEMBER] * len(values)
    produce(there, values, keys=[key for key, _ in example.records], timestamps=stamps)
    caught_up(config)
    look = LOOK.get(example.store, in_sql)
    found = {named(t): list(look(config, example, named(t))) for t in example.rows}
    assert found == {named(t): [named(row) for row in rows] for t, rows in example.rows.items()}


def _encoded(
    example: Example, topic: str, registry: SchemaRegistry, value: Fields | bytes | None
) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    options = {"schema.registry.url": registry.url}
    made = create(example.value, options, is_key=False, where="value.converter").for_topic(topic)
    written: bytes = made.encode(pa.array([value]))[0].as_py()
    return written
