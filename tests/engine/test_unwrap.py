"""Debezium's change events in Debezium's class: rows and deletes, as its own sink makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.converters.json.converter import JsonConverter
from semel.converters.registry import converter
from semel.core.errors import ConfigError
from semel.sinks import create
from semel.tasks.pipeline import Pipeline
from semel.transforms.debezium import Unwrapper, are_change_events
from tests.conftest import MakeTopic, Produce
from tests.converters.registries import Memory, framed
from tests.engine.conftest import Configure
from tests.engine.harness import caught_up, sql
from tests.polled import polled

Row = dict[str, Any]

_ID: Row = {"field": "id", "type": "int64", "optional": False}
_NAME: Row = {"field": "name", "type": "string", "optional": True}
_AT: Row = {
    "field": "at",
    "type": "int64",
    "optional": True,
    "name": "io.debezium.time.MicroTimestamp",
}
_MICROS = 1_700_000_000_000_000


def event(op: str | None, before: Row | None, after: Row | None, *columns: Row) -> bytes:
    """A change event as Debezium's PostgreSQL connector writes it, with the parts that matter."""
    row = {"type": "struct", "fields": list(columns or (_ID, _NAME)), "optional": True}
    schema = {
        "type": "struct",
        "name": "shop.public.orders.Envelope",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {
                "type": "struct",
                "fields": [{"field": "lsn", "type": "int64", "optional": True}],
                "field": "source",
            },
            {"type": "string", "optional": True, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
    }
    payload = {"before": before, "after": after, "source": {"lsn": 7}, "op": op, "ts_ms": 1}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def record_key(id_: int) -> bytes:
    schema = {"type": "struct", "fields": [_ID]}
    return json.dumps({"schema": schema, "payload": {"id": id_}}).encode()


def unwrapped(*values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    decoded = JsonConverter().decode(pa.array(values, pa.binary()))
    assert not decoded.failures
    assert are_change_events(decoded.values)
    assert isinstance(decoded.values, pa.StructArray)
    rows, failures = Unwrapper("c").unwrap(decoded.values)
    return rows.to_pylist(), {f.index: f.message for f in failures}


def test_what_is_left_is_the_row_after_each_change() -> None:
    one, other = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    rows, failures = unwrapped(
        event("r", None, one),
        event("c", None, one),
        event("u", one, other),
        event("d", other, None),
        None,
        event("t", None, None),
    )
    assert rows == [one, one, other, None, None, None]
    assert not failures


def test_a_batch_of_deletes_alone_has_no_rows() -> None:
    rows, failures = unwrapped(event("d", {"id": 1, "name": "a"}, None), None)
    assert rows == [None, None]
    assert not failures


def test_rows_of_several_schemas_are_united() -> None:
    rows, _ = unwrapped(
        event("c", None, {"id": 1}, _ID),
        event("c", None, {"id": 2, "name": "b", "at": _MICROS}, _ID, _NAME, _AT),
    )
    assert [row["id"] for row in rows] == [1, 2]
    assert [row["name"] for row in rows] == [None, "b"]
    assert [row["at"] and row["at"].timestamp() for row in rows] == [None, 1_700_000_000]


def test_an_event_without_op_is_a_bad_record() -> None:
    rows, failures = unwrapped(event("c", None, {"id": 1, "name": "a"}), event(None, None, None))
    assert rows[1] is None
    assert list(failures) == [1]
    assert "has no op" in failures[1]


def test_a_row_that_its_schema_does_not_describe_is_a_bad_record() -> None:
    good = event("c", None, {"id": 1, "name": "a"})
    rows, failures = unwrapped(good, event("c", None, {"id": "two", "name": "b"}), good)
    assert [row and row["id"] for row in rows] == [1, None, 1]
    assert list(failures) == [1]
    assert failures[1].startswith("after: ")


def test_events_without_schemas_are_refused() -> None:
    value = json.dumps({"before": None, "after": {"id": 1}, "source": {}, "op": "c"}).encode()
    values = JsonConverter(schemas_enable=False).decode(pa.array([value])).values
    assert isinstance(values, pa.StructArray)
    with pytest.raises(ConfigError, match=r"without schemas.*value\.converter\.schemas\.enable"):
        Unwrapper("c").unwrap(values)


@pytest.mark.parametrize(
    ("vendor", "name"), [("debezium.connector", None), ("confluent.connect", "new")]
)
def test_a_null_of_avro_stays_null_as_in_debeziums_sink(
    vendor: str, name: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory = Memory()
    monkeypatch.setattr(converter, "registry", lambda *_: memory)
    text: Row = {"type": "string", "connect.default": "new"}
    field = {"name": "name", "type": [text, "null"], "default": "new"}
    number = memory.add("AVRO", json.dumps({"type": "record", "name": "r", "fields": [field]}))
    raw = {
        "name": "c",
        "topics": "t",
        "bootstrap.servers": "nowhere:9092",
        "connector.class": f"io.{vendor}.jdbc.JdbcSinkConnector",
        "connection.url": f"jdbc:sqlite:{tmp_path / 'db'}",
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": memory.url,
    }
    connector = read(ConnectorConfig, raw)
    sink = create(connector)
    made = Pipeline(connector, sink, target=lambda _: None).convert(
        "t", polled([framed(number, b"\2")])
    )
    assert made.records.rows.column("name").to_pylist() == [name]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("deletes", "left"),
    [(True, [[1, "b"]]), pytest.param(False, [[1, "b"], [2, "x"]], marks=pytest.mark.long)],
)
def test_a_table_follows_the_one_that_the_events_come_from(
    topic: MakeTopic, produce: Produce, configure: Configure, *, deletes: bool, left: list[Any]
) -> None:
    source = topic()
    one, two = {"id": 1, "name": "a"}, {"id": 2, "name": "x"}
    produce(
        source,
        [
            event("r", None, one),
            event("c", None, two),
            event("u", one, {"id": 1, "name": "b"}),
            event("d", two, None),
            None,
            event("t", None, None),
        ],
        [record_key(1), record_key(2), record_key(1), record_key(2), record_key(2), None],
        partition=0,
    )
    config = configure(
        source,
        {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "insert.mode": "upsert",
            "primary.key.mode": "record_key",
            "primary.key.fields": "id",
            "delete.enabled": str(deletes).lower(),
            "schema.evolution": "basic",
            "auto.create": None,
            "value.converter.schemas.enable": None,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        },
    )
    caught_up(config)
    rows = sql(config["connection.url"], f'SELECT id, name FROM "{source}" ORDER BY id')
    assert [list(row) for row in rows] == left
