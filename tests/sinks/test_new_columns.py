"""New columns say what the schema of their field says: its default, whether it may be null, and
what it is."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.core.records import Commit, ConnectRecords, Records
from semel.sinks import sink_class
from semel.sinks.flatten import flattened
from tests import databases
from tests.sinks.target import Target as Postgres
from tests.sinks.target import metadata

CONNECT = "org.apache.kafka.connect.data."
DEFAULTS: Mapping[str, dict[str, Any]] = {
    "i8": {"type": "int8", "default": -8},
    "i64": {"type": "int64", "default": -(2**63)},
    "f32": {"type": "float", "default": 0.5},
    "f64": {"type": "double", "default": 1e300},
    "yes": {"type": "boolean", "default": True},
    "no": {"type": "boolean", "default": False},
    "text": {"type": "string", "default": 'it\'s \\ a "quote", ä€😀 %s {x} $1'},
    "empty": {"type": "string", "default": ""},
    "raw": {"type": "bytes", "default": base64.b64encode(b"\x00'\\\xff").decode()},
    "amount": {
        "type": "bytes",
        "name": f"{CONNECT}Decimal",
        "version": 1,
        "parameters": {"scale": "2"},
        "default": base64.b64encode((-12345).to_bytes(2, "big", signed=True)).decode(),
    },
    "day": {"type": "int32", "name": f"{CONNECT}Date", "version": 1, "default": -1},
    "noon": {"type": "int32", "name": f"{CONNECT}Time", "version": 1, "default": 43_200_123},
    "at": {
        "type": "int64",
        "name": f"{CONNECT}Timestamp",
        "version": 1,
        "default": 1_700_000_000_001,
    },
    "local": {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "default": 1_234_567},
    "doc": {"type": "string", "name": "io.debezium.data.Json", "default": '{"a": ["it\'s"]}'},
}


class Target:
    """A connector to a new database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.system = url.split(":")[1] if url.startswith("jdbc:") else "postgresql"
        raw = {"name": "c", "connector.class": self.system, "bootstrap.servers": "nowhere:9092"}
        raw |= {"topics": "t", "connection.url": url, "auto.create": "true", "auto.evolve": "true"}
        self.sink = sink_class(self.system)(read(ConnectorConfig, raw))

    def put(self, *fields: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
        schema = {"type": "struct", "optional": False, "fields": fields}
        text = json.dumps({"schema": schema, "payload": payload}).encode()
        decoded = JsonConverter().decode(pa.array([text]))
        assert not decoded.failures
        origin = pa.table(metadata("t", [0])).drop_columns(["__connect_key"])
        made = ConnectRecords("t", origin, pa.nulls(1), decoded.values, None)
        found: Records = flattened(made, deletes=False)
        self.sink.prepare([])
        self.sink.write(Commit([found]))  # type: ignore[attr-defined]

    def query(self, statement: str) -> list[Any]:
        if self.system == "postgresql":
            direct = Postgres(self._url)
            try:
                if statement.startswith("SELECT"):
                    return direct.tuples(statement)
                direct.execute(statement)
                return []
            finally:
                direct.close()
        return databases.query(self._url, statement)


@pytest.fixture
def target(database_url: str) -> Iterator[Target]:
    made = Target(database_url)
    yield made
    made.sink.close()


ID = {"field": "id", "type": "int32", "optional": False}


def test_a_new_table_fills_in_the_defaults_that_records_get(target: Target) -> None:
    fields = [{**kind, "field": name, "optional": True} for name, kind in DEFAULTS.items()]
    target.put(ID, *fields, payload={"id": 1})
    target.query("INSERT INTO t (id) VALUES (2)")
    columns = {n: f'count(DISTINCT "{n}") AS a_{n}, count("{n}") AS b_{n}' for n in DEFAULTS}
    counts = {n: target.query(f"SELECT {text} FROM t")[0] for n, text in columns.items()}
    assert counts == dict.fromkeys(DEFAULTS, (1, 2))


def test_a_new_column_fills_in_its_default_where_rows_are(target: Target) -> None:
    target.put(ID, payload={"id": 1})
    text = {"field": "text", "type": "string", "optional": False, "default": "it's"}
    target.put(ID, text, payload={"id": 2, "text": "b"})
    assert [tuple(r) for r in target.query("SELECT id, text FROM t ORDER BY id")] == [
        (1, "it's"),
        (2, "b"),
    ]


def test_a_required_column_is_not_null_and_is_refused_where_rows_are(target: Target) -> None:
    text = {"field": "text", "type": "string", "optional": False}
    target.put(ID, text, payload={"id": 1, "text": "a"})
    with pytest.raises(Exception, match=r"(?i)null"):
        target.query("INSERT INTO t (id, text) VALUES (2, NULL)")
    other = {"field": "other", "type": "int32", "optional": False}
    with pytest.raises(ConfigError, match="field other of topic t is required and has no default"):
        target.put(ID, text, other, payload={"id": 3, "text": "b", "other": 1})
    target.query("DELETE FROM t")
    target.put(ID, text, other, payload={"id": 3, "text": "b", "other": 1})
    assert [tuple(r) for r in target.query("SELECT id, text, other FROM t")] == [(3, "b", 1)]


def test_a_required_column_whose_default_sql_cannot_write_is_refused_where_rows_are(
    target: Target,
) -> None:
    target.put(ID, payload={"id": 1})
    ratio = {"field": "ratio", "type": "double", "optional": False, "default": "NaN"}
    if target.system == "postgresql":  # which writes it
        target.put(ID, ratio, payload={"id": 2, "ratio": 0.5})
        rows = target.query("SELECT id, ratio::text FROM t ORDER BY id")
        assert [tuple(r) for r in rows] == [(1, "NaN"), (2, "0.5")]
        return
    with pytest.raises(ConfigError, match="field ratio of topic t is required and has no default"):
        target.put(ID, ratio, payload={"id": 2, "ratio": 0.5})


COMMENTS = {
    "postgresql": "SELECT col_description('t'::regclass, 2)",
    "mariadb": "SELECT column_comment FROM information_schema.columns WHERE column_name = 'text'",
    "duckdb": "SELECT comment FROM duckdb_columns() WHERE column_name = 'text'",
    "sqlserver": "SELECT CAST(value AS nvarchar(200)) AS v FROM sys.extended_properties",
}


def test_what_a_schema_says_of_a_field_is_the_comment_of_its_column(target: Target) -> None:
    text = {"field": "text", "type": "string", "optional": True, "doc": "what it's for \\ ä"}
    target.put(ID, text, payload={"id": 1, "text": "a"})
    if target.system in COMMENTS:
        assert target.query(COMMENTS[target.system])[0][0] == "what it's for \\ ä"
