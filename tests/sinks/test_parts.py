"""A commit whose records have different schemas ends as if each had come alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.converters.json.converter import JsonConverter
from semel.core.records import Commit, RowsRejected
from semel.sinks import create
from semel.sources.jdbc.sqlserver import _is_balanced
from semel.tasks.pipeline import Pipeline
from tests.polled import polled

BASE = {
    "name": "c",
    "bootstrap.servers": "nowhere:9092",
    "topics": "t",
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "errors.tolerance": "all",
}
PLAIN = {"value.converter.schemas.enable": "false"}
INT = {"type": "int64", "optional": True}
TEXT = {"type": "string", "optional": True}
SMT = "org.apache.kafka.connect.transforms."
ODD = {
    "transforms.x.predicate": "p",
    "predicates": "p",
    "predicates.p.type": f"{SMT}predicates.HasHeaderKey",
    "predicates.p.name": "odd",
}
UNCHANGED = {"transforms": "x", "transforms.x.type": f"{SMT}InsertField$Value"}
UNCHANGED |= {"transforms.x.static.field": "s", "transforms.x.static.value": "v"}
Values = Sequence[tuple[Any, Any]]


def enveloped(payload: Mapping[str, Any], **kinds: Mapping[str, Any]) -> dict[str, Any]:
    fields = [{"field": name, **kind} for name, kind in kinds.items()]
    return {"schema": {"type": "struct", "fields": fields}, "payload": payload}


def raw(values: Values, first: int) -> pa.Table:
    """Records of these keys and values; every second one has the header ``odd``."""
    numbers = range(first, first + len(values))
    keys, texts = (
        [None if v is None else json.dumps(v).encode() for v in each]
        for each in zip(*values, strict=True)
    )
    headers = [[{"key": "odd", "value": b"x"}] if n % 2 else [] for n in numbers]
    return polled(texts, keys, offsets=numbers, headers=headers)


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[..., tuple[list[dict[str, Any]], int]]:
    """What is in the table, and how many records are bad, if the values come in batches of a
    size."""

    def made(
        values: Values, size: int, before: str = "", **keys: str
    ) -> tuple[list[dict[str, Any]], int]:
        path = tmp_path / f"{size}.db"
        with sqlite3.connect(path) as connection:
            connection.executescript(before)
        config = {**BASE, "connection.url": f"jdbc:sqlite:{path}"}
        connector = read(
            ConnectorConfig, config | {k.replace("_", "."): v for k, v in keys.items()}
        )
        sink = create(connector)
        sink.prepare(["t"])
        pipeline = Pipeline(connector, sink, target=sink.schema)
        bad = 0
        for at in range(0, len(values), size):
            part = raw(values[at : at + size], at)
            while True:
                converted = pipeline.convert("t", part)
                try:
                    sink.write(Commit([p for p in converted.parts if p.count]))
                    break
                except RowsRejected as refused:
                    gone = {r.offset for r in refused.rejected}
                    bad += len(gone)
                    kept = [n not in gone for n in part.column("offset").to_pylist()]
                    part = part.filter(pa.array(kept))
            bad += len(converted.failed)
        sink.close()
        with sqlite3.connect(path) as connection:
            connection.row_factory = sqlite3.Row
            found = [dict(row) for row in connection.execute("SELECT * FROM t")]
        return sorted(found, key=repr), bad

    return made


ALTERNATING = [
    (1, enveloped({"b": n, "c": n}, b=INT, c=INT) if n % 2 else enveloped({"b": n}, b=INT))
    for n in range(80)
]


@pytest.mark.parametrize(
    ("values", "before", "keys"),
    [
        pytest.param(
            [
                (1, enveloped({"id": 1, "c": 5}, id=INT, c=INT)),
                (1, enveloped({"id": 2, "c": "x"}, id=INT, c=TEXT)),
                (1, enveloped({"id": 3, "c": "7"}, id=INT, c=TEXT)),
            ],
            *("", {"insert_mode": "insert", "auto_create": "true"}),
            id="a column of two types",
        ),
        pytest.param(
            [
                (1, enveloped({"id": 1, "v": 1}, id=INT, v=INT)),
                (1, enveloped({"id": "2", "v": 2}, id=TEXT, v=INT)),
            ],
            "",
            {"auto_create": "true", "pk_mode": "record_value", "pk_fields": "id"},
            id="a key of two types",
        ),
        pytest.param(
            [
                (1, enveloped({"id": 1, "a": "x"}, id=INT, a={"type": "string"})),
                (1, enveloped({"id": 2, "a": None, "b": "y"}, id=INT, a=TEXT, b=TEXT)),
            ],
            "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)",
            {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "id"},
            id="a field that is required and optional",
        ),
        pytest.param(
            [*ALTERNATING, (1, enveloped({"b": None}, b=INT))],
            "CREATE TABLE t (id INTEGER PRIMARY KEY, b BIGINT DEFAULT 77, c BIGINT)",
            {"insert_mode": "upsert", "pk_mode": "record_key", "pk_fields": "id"},
            id="a key that alternates",
        ),
        pytest.param(
            [(1, enveloped({"b": None, "c": 1}, b=INT, c=INT)), (2, None)],
            "CREATE TABLE t (id INTEGER PRIMARY KEY, b BIGINT DEFAULT 77, c BIGINT)",
            {
                "insert_mode": "insert",
                "delete_enabled": "true",
                "pk_mode": "record_key",
                "pk_fields": "id",
            },
            id="a default beside a tombstone",
        ),
        pytest.param(
            [(n % 2, None if n % 7 == 0 else value) for n, (_, value) in enumerate(ALTERNATING)],
            "CREATE TABLE t (id INTEGER PRIMARY KEY, b BIGINT DEFAULT 77, c BIGINT)",
            {
                **{"insert_mode": "upsert", "delete_enabled": "true"},
                **{"pk_mode": "record_key", "pk_fields": "id"},
            },
            id="keys that alternate and are deleted",
        ),
        pytest.param(
            [(1, value) for value in (5, {"id": 1}, "x", [1], {"id": 2}, True, {"id": 3})],
            *("", {"insert_mode": "insert", "auto_create": "true", **PLAIN}),
            id="values that are no objects",
        ),
        pytest.param(
            [(1, value) for value in ({"no": 1}, {"id": 1}, {"no": 2, "v": 3}, {}, {"v": None}, 5)],
            "CREATE TABLE t (id INTEGER, v INTEGER)",
            {"connector_class": "sqlite", **PLAIN, **UNCHANGED},
            id="fields that the table lacks, after a transform",
        ),
        pytest.param(
            [(1, {"t": v, "j": v, "n": v}) for v in (1, 2.5, None, 3, 12345678901, 0.1)],
            "CREATE TABLE t (t TEXT, j JSON, n DECIMAL(20, 2))",
            {"connector_class": "sqlite", **PLAIN, **UNCHANGED},
            id="whole numbers and fractions, after a transform",
        ),
        pytest.param(
            [({"a": 1}, {"id": n}) for n in range(4)],
            "CREATE TABLE t (line JSON)",
            {
                **{"transforms": "x,y", "transforms.x.type": f"{SMT}InsertField$Value"},
                **{"transforms.x.static.field": "s", "transforms.x.static.value": "v", **ODD},
                **{"transforms.y.type": f"{SMT}HoistField$Value", "transforms.y.field": "line"},
                **PLAIN,
            },
            id="a field inside that some get",
        ),
    ],
)
def test_the_rows_are_those_of_records_that_come_one_by_one(
    rows_of: Callable[..., Any], values: Values, before: str, keys: Mapping[str, str]
) -> None:
    together = rows_of(values, len(values), before, **keys)
    assert together == rows_of(values, 1, before, **keys)


def test_a_key_that_alternates_makes_few_parts() -> None:
    values: list[tuple[int, Any]] = [(1, value) for _, value in ALTERNATING * 20]
    values[200] = (1, None)
    keys = {"connection.url": "jdbc:sqlite:nowhere", "insert.mode": "upsert"}
    keys |= {"pk.mode": "record_key", "pk.fields": "id", "delete.enabled": "true"}
    connector = read(ConnectorConfig, BASE | keys)
    converted = Pipeline(connector, create(connector), target=lambda _: None).convert(
        "t", raw(values, 0)
    )
    assert sum(part.count for part in converted.parts) == len(values)
    assert len(converted.parts) <= 8


def test_a_required_field_that_a_later_schema_makes_optional_is_created_so(
    rows_of: Callable[..., Any],
) -> None:
    values = [
        (1, enveloped({"id": 1, "a": "x"}, id=INT, a={"type": "string"})),
        (1, enveloped({"id": 2, "a": None, "b": "y"}, id=INT, a=TEXT, b=TEXT)),
    ]
    found, bad = rows_of(values, 2, auto_create="true", insert_mode="insert")
    assert (len(found), bad) == (2, 0)


def test_a_record_whose_schema_lacks_the_key_is_a_bad_one(rows_of: Callable[..., Any]) -> None:
    values = [
        (1, enveloped({"id": 1, "v": 1}, id=INT, v=INT)),
        (1, enveloped({"v": 2}, v=INT)),
        (1, enveloped({"id": 3, "v": 3}, id=INT, v=INT)),
    ]
    made = "CREATE TABLE t (id INTEGER PRIMARY KEY, v BIGINT)"
    keys = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "id"}
    for size in (3, 1):
        found, bad = rows_of(values, size, made, **keys)
        assert ([row["id"] for row in found], bad) == ([1, 3], 1)


def test_a_name_that_semel_keeps_for_itself_makes_its_record_a_bad_one() -> None:
    names = [r"\u0000absent:a", r"\u0000\u0061bsent:a", r"\u0000other"]
    values = [f'{{"a":2,"{name}":true}}'.encode() for name in names] + [b'{"a":1}']
    decoded = JsonConverter(schemas_enable=False).decode(pa.array(values, pa.binary()))
    assert [f.index for f in decoded.failures] == [0, 1]
    assert [v and v["a"] for v in decoded.values.to_pylist()] == [None, None, 2, 1]
    fields = [{"field": "\0absent:a", "type": "boolean"}, {"field": "a", "type": "int64"}]
    value = {"schema": {"type": "struct", "fields": fields}, "payload": {"a": 2}}
    decoded = JsonConverter().decode(pa.array([json.dumps(value).encode()], pa.binary()))
    assert "begins with a NUL" in decoded.failures[0].message


@pytest.mark.parametrize(
    ("query", "balanced"),
    [
        ("SELECT 1 AS [a]](]", True),
        ("SELECT 1 AS a /* /* */ ( */", True),
        ("SELECT 1 AS [a]]--]) AS x; DROP TABLE t; SELECT * FROM (SELECT 1 AS b", False),
        ("SELECT 1 AS a /* /* */ ' */ ) AS x; DROP TABLE t; SELECT (1 /* ' */", False),
        ("SELECT 1 /* /* */", False),
    ],
)
def test_names_and_comments_of_sql_server_hide_no_parenthesis(query: str, balanced: bool) -> None:
    assert _is_balanced(query) is balanced
