"""Which columns records have, without a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError
from semel.core.records import (
    HEADERS,
    HEADERS_TYPE,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    Commit,
    Records,
    RowsRejected,
)
from semel.sinks import sink_class
from semel.sinks.jdbc import DEBEZIUM
from semel.sinks.layout import layout
from semel.sinks.sql.config import PostgresConfig
from semel.sinks.sql.sqlite import SqliteSink
from semel.tasks.pipeline import Pipeline
from tests import databases
from tests.polled import polled
from tests.sinks.target import records

BASE = {"name": "c", "bootstrap.servers": "nowhere:9092", "topics": "t", "provenance": "true"}
SQL = {**BASE, "connector.class": "sqlite", "connection.url": "jdbc:sqlite:/nowhere"}


def config(**keys: str) -> PostgresConfig:
    return read(PostgresConfig, SQL | {k.replace("_", "."): v for k, v in keys.items()})


def test_provenance_overwrites_no_field_of_the_value() -> None:
    with pytest.raises(ConfigError, match=r"provenance.timestamp.column=at: at is a field of"):
        layout(config(), {TIMESTAMP: "at"}, records([{"at": 1}]), deletes=False)
    left_out = config(field_exclude_list="at")
    found = layout(left_out, {TIMESTAMP: "at"}, records([{"at": 1}]), deletes=False)
    assert found.columns["at"].type == pa.timestamp("ms", "UTC")


def test_provenance_overwrites_no_key() -> None:
    keyed = config(pk_mode="record_key", pk_fields="id")
    batch = records([{"n": 1}], keys=["k"])
    with pytest.raises(ConfigError, match=r"provenance.topic.column=id: id is part of the key"):
        layout(keyed, {TOPIC: "id"}, batch, deletes=False)


def test_provenance_is_folded_before_it_is_compared() -> None:
    folding = config(connector_class=DEBEZIUM)
    with pytest.raises(ConfigError, match=r"provenance.topic.column=Topic: topic is a field"):
        layout(folding, {TOPIC: "Topic"}, records([{"topic": 1}]), deletes=False)
    keys = {"provenance.topic.column": "Place", "provenance.offset.column": "place"}
    with pytest.raises(ConfigError, match="a column of its own"):
        read(ConnectorConfig, SQL | keys)


def test_coordinates_may_be_key_and_provenance_at_once() -> None:
    keyed = config(pk_mode="kafka", pk_fields="a,b,c")
    batch = records([{"n": 1}])
    assert layout(keyed, {TOPIC: "a"}, batch, deletes=False).key == ["a", "b", "c"]
    with pytest.raises(ConfigError, match=r"provenance.partition.column=a"):
        layout(keyed, {PARTITION: "a"}, batch, deletes=False)


ICEBERG = {"iceberg.catalog.type": "sql", "iceberg.catalog.uri": "sqlite://"}
ICEBERG |= {"iceberg.tables.upsert-mode-enabled": "true", "iceberg.tables": "db.t"}
KEYED = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "ID"}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("sqlite", KEYED | {"connection.url": "jdbc:sqlite:/nowhere"}),
        ("postgresql", KEYED | {"connection.url": "postgresql://nowhere/db"}),
        ("delta", KEYED | {"delta.table.path": "/nowhere"}),
        ("iceberg", ICEBERG | {"iceberg.tables.default-id-columns": "ID"}),
        ("iceberg", ICEBERG | {"iceberg.table.db.t.id-columns": "ID"}),
    ],
)
def test_validation_knows_the_key(name: str, keys: dict[str, str]) -> None:
    raw = BASE | {"connector.class": name, "provenance.topic.column": "ID"} | keys
    connector = read(ConnectorConfig, raw)
    with pytest.raises(ConfigError, match=r"provenance.topic.column=ID: .* has the key ID"):
        sink_class(name)(connector)


def test_values_may_not_hold_what_provenance_is_called() -> None:
    raw = SQL | {"value.converter.schemas.enable": "false"}
    connector = read(ConnectorConfig, raw)
    pipeline = Pipeline(connector, SqliteSink(connector), target=lambda _: None)

    def given(value: bytes) -> Any:
        return pipeline.convert("t", polled([value])).records

    with pytest.raises(ConfigError, match=r"provenance.topic.column=__connect_topic: .* a field"):
        given(b'{"__connect_topic": "x"}')
    assert given(b'{"__connect_topic": null, "n": 1}').rows.num_rows == 1


@pytest.mark.parametrize("written", [json.dumps, lambda v: json.dumps(v, separators=(" , ", " :"))])
@pytest.mark.parametrize("enveloped", [False, True])
def test_a_record_with_more_fields_than_the_target_can_have_columns_is_a_bad_one(
    written: Callable[[Any], str], enveloped: bool
) -> None:
    """The other records of its batch do not get its columns."""
    raw = SQL | {"value.converter.schemas.enable": str(enveloped).lower(), "auto.evolve": "true"}
    connector = read(ConnectorConfig, raw)
    pipeline = Pipeline(connector, SqliteSink(connector), target=lambda _: None)

    def value(fields: dict[str, int]) -> bytes:
        kinds = [{"field": name, "type": "int64", "optional": True} for name in fields]
        schema = {"type": "struct", "fields": kinds}
        return written({"schema": schema, "payload": fields} if enveloped else fields).encode()

    table = polled([value({f"k{n}": n for n in range(30_000)}), value({"n": 1}), None])
    schema = pipeline.infer("t", table)
    assert schema is not None
    assert schema.names == ["n"]
    found = pipeline.convert("t", table)
    ((failed),) = found.failed
    assert failed.index == 0
    assert failed.message == "it has 30,000 fields, and the target has 2,000 columns at most"
    assert found.records.rows.column("n").to_pylist() == [1]
    assert "k1" not in found.records.rows.column_names


def test_headers_are_the_key(tmp_path: Path) -> None:
    headers = [
        [("k", b"1"), ("k", b"2"), ("other", b"x")],
        [("k", b"2")],
        [("k", b"3"), ("other", None)],
    ]
    raw = SQL | {
        "connection.url": f"jdbc:sqlite:{tmp_path}/db",
        "primary.key.mode": "record_header",
        "primary.key.fields": "k",
        "insert.mode": "upsert",
        "auto.create": "true",
    }
    sink = SqliteSink(read(ConnectorConfig, raw))
    sink.prepare(["t"])
    assert HEADERS in sink.capabilities.carries
    batch = records([{"v": n} for n in range(3)])
    column = pa.array([[{"key": k, "value": v} for k, v in each] for each in headers], HEADERS_TYPE)
    sink.write(Commit([Records("t", batch.rows.append_column(HEADERS, column))]))
    sink.close()
    found = databases.query(raw["connection.url"], "SELECT k, v FROM t ORDER BY k")
    assert found == [("2", 1), ("3", 2)]


def test_a_record_without_its_header_is_bad(tmp_path: Path) -> None:
    raw = SQL | {
        "connection.url": f"jdbc:sqlite:{tmp_path}/db",
        "pk.mode": "record_header",
        "pk.fields": "k",
        "auto.create": "true",
    }
    sink = SqliteSink(read(ConnectorConfig, raw))
    sink.prepare(["t"])
    batch = records([{"v": n} for n in range(4)])
    given = [[("k", b"1")], [("K", b"1")], None, [("k", b"\xff")]]
    column = pa.array([e and [{"key": k, "value": v} for k, v in e] for e in given], HEADERS_TYPE)
    with pytest.raises(RowsRejected) as caught:
        sink.write(Commit([Records("t", batch.rows.append_column(HEADERS, column))]))
    sink.close()
    assert [r.offset for r in caught.value.rejected] == [1, 2, 3]
    assert caught.value.rejected[0].message == "column k of the key is null"
