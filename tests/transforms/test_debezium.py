"""Debezium's transforms: ExtractNewRecordState and ByLogicalTableRouter."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.transforms import chain_of, routed
from semel.transforms.base import Batch
from tests.transforms.records import applied, batch, refusals, rows, values

DEBEZIUM = "io.debezium.transforms."
ROW = {
    "type": "struct",
    "optional": True,
    "name": "s.Value",
    "fields": [
        {"field": "id", "type": "int32", "optional": False},
        {"field": "name", "type": "string", "optional": True},
    ],
}
SOURCE = {
    "type": "struct",
    "optional": False,
    "fields": [
        {"field": "lsn", "type": "int32", "optional": False},
        {"field": "ts_ms", "type": "int64", "optional": True},
        {"field": "table", "type": "string", "optional": True},
    ],
}
ENVELOPE = {
    "type": "struct",
    "optional": False,
    "name": "s.Envelope",
    "fields": [
        {**ROW, "field": "before"},
        {**ROW, "field": "after"},
        {**SOURCE, "field": "source"},
        {"field": "op", "type": "string", "optional": True},
        {"field": "ts_ms", "type": "int64", "optional": True},
    ],
}
CREATED = {"after": {"id": 1, "name": "a"}, "op": "c"}
CHANGED = {"before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": None}, "op": "u"}
DELETED = {"before": {"id": 1, "name": "b"}, "op": "d"}
TRUNCATED: dict[str, Any] = {"op": "t"}
ALL = [CREATED, CHANGED, DELETED, None, TRUNCATED]
FIRST, SECOND, LAST = {"id": 1, "name": "a"}, {"id": 1, "name": None}, {"id": 1, "name": "b"}


def events(found: list[dict[str, Any] | None], *, schemas: bool = True, **more: Any) -> Batch:
    texts = []
    for event in found:
        whole = event and {
            "before": None,
            "after": None,
            "source": {"lsn": 7, "ts_ms": 8, "table": "t"},
            "ts_ms": 9,
            **event,
        }
        text = {"schema": ENVELOPE, "payload": whole} if schemas else whole
        texts.append(None if event is None else json.dumps(text).encode())
    converter = JsonConverter(schemas_enable=schemas)
    converter.keep_text()
    values = converter.decode(pa.array(texts, pa.binary())).values
    return batch(values, has_schema=schemas, **more)


def unwrap(**options: Any) -> dict[str, str]:
    given = {f"transforms.t.{k.replace('_', '.')}": str(v) for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": f"{DEBEZIUM}ExtractNewRecordState", **given}


def with_flag(row: dict[str, Any], flag: str) -> dict[str, Any]:
    return {**row, "__deleted": flag}


@pytest.mark.parametrize("schemas", [True, False])
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [FIRST, SECOND, None]),
        ({"delete_tombstone_handling_mode": "drop"}, [FIRST, SECOND]),
        ({"delete_tombstone_handling_mode": "delete-to-tombstone"}, [FIRST, SECOND, None]),
        (
            {"delete_tombstone_handling_mode": "rewrite"},
            [with_flag(FIRST, "false"), with_flag(SECOND, "false"), with_flag(LAST, "true")],
        ),
        (
            {"delete_tombstone_handling_mode": "rewrite-with-tombstone"},
            [with_flag(FIRST, "false"), with_flag(SECOND, "false"), with_flag(LAST, "true"), None],
        ),
        ({"drop_tombstones": "true"}, [FIRST, SECOND]),
        ({"drop_tombstones": "false"}, [FIRST, SECOND, None]),
        ({"drop_tombstones": "false", "delete_handling_mode": "none"}, [FIRST, SECOND, None, None]),
        (
            {"delete_handling_mode": "rewrite"},
            [with_flag(FIRST, "false"), with_flag(SECOND, "false"), with_flag(LAST, "true")],
        ),
    ],
)
def test_an_event_becomes_its_row_and_a_delete_what_the_mode_says(
    options: dict[str, str], left: list[Any], schemas: bool
) -> None:
    assert rows(unwrap(**options), events(ALL, schemas=schemas)) == left


def test_native_structs_are_unwrapped_like_json() -> None:
    before = pa.struct([("id", pa.int32()), ("name", pa.string())])
    kind = pa.struct(
        [
            ("before", before),
            ("after", before),
            ("source", pa.struct([("lsn", pa.int32())])),
            ("op", pa.string()),
        ]
    )
    found = pa.array(
        [{"after": FIRST, "source": {"lsn": 1}, "op": "r"}, {"before": LAST, "op": "d"}], kind
    )
    config = unwrap(delete_tombstone_handling_mode="rewrite", add_fields="lsn")
    assert rows(config, batch(found, has_schema=True)) == [
        {**with_flag(FIRST, "false"), "__lsn": 1},
        {**with_flag(LAST, "true"), "__lsn": None},
    ]


def test_other_records_pass_and_only_tombstones_go() -> None:
    assert rows(unwrap(), batch([{"a": 1}, None])) == [{"a": 1}]
    assert rows(unwrap(drop_tombstones="false"), batch([{"a": 1}, None])) == [{"a": 1}, None]
    assert rows(unwrap(), batch([None])) == []


def test_a_field_of_the_event_does_not_replace_one_of_the_row() -> None:
    config = unwrap(add_fields="op:name", add_fields_prefix="")
    (why,) = refusals(config, batch([CHANGED | {"source": {}}], has_schema=True))
    assert why.endswith("field name duplication name")


def test_only_text_names_a_topic() -> None:
    config = unwrap(route_by_field="id")
    assert refusals(config, events([CREATED])) == ["transforms.t: Field 'id' is not of type STRING"]


def test_a_field_of_json_is_dropped_where_a_header_says_so() -> None:
    event = b'{"before":null,"after":{"id":1,"x":[1,"a"]},"source":{},"op":"c"}'
    converter = JsonConverter(schemas_enable=False)
    converter.keep_text()
    given = converter.decode(pa.array([event, event])).values
    records = batch(given, headers=[[("h", b"x")], []])
    config = unwrap(drop_fields_header_name="h")
    assert values(config, records) == [{"id": 1}, {"id": 1, "x": '[1,"a"]'}]


def test_fields_of_the_event_are_added() -> None:
    config = unwrap(
        add_fields="op,lsn,source.ts_ms,table:from,ts_ms,missing,transaction.id",
        delete_tombstone_handling_mode="rewrite",
    )
    own = {"__lsn": 7, "__source_ts_ms": 8, "__from": "t", "__ts_ms": 9}
    found = rows(config, events([CREATED, DELETED]))
    assert found == [
        {**with_flag(FIRST, "false"), "__op": "c", **own},
        {**with_flag(LAST, "true"), "__op": "d", **own},
    ]
    config = unwrap(add_fields="op", add_fields_prefix="m.")
    assert rows(config, events([CREATED])) == [{**FIRST, "m.op": "c"}]


def test_headers_of_the_event_are_added() -> None:
    config = unwrap(add_headers="op,source.lsn", drop_tombstones="false")
    records = events([CREATED, None], headers=[[("old", b"1")], []])
    found = applied(config, records).batch.headers.to_pylist()
    assert [[(h["key"], h["value"]) for h in each] for each in found] == [
        [("old", b"1"), ("__op", b"c"), ("__source_lsn", b"7")],
        [("__op", b"d")],
    ]


def test_a_field_of_the_row_names_the_topic() -> None:
    config = unwrap(route_by_field="name", delete_handling_mode="none")
    outcome = applied(config, events([CREATED, CHANGED, DELETED]))
    assert outcome.batch.topics.to_pylist() == ["a", "orders", "b"]
    (why,) = refusals(unwrap(route_by_field="z"), events([CREATED]))
    assert why.endswith("z is not a valid field name")


def test_headers_list_the_fields_that_each_record_loses() -> None:
    lists = [b'["name"]', b'["id","name"]', b"[]"]
    headers = [[("drop", text)] for text in lists]
    records = events([CREATED, CHANGED, CREATED], headers=headers)
    config = unwrap(drop_fields_header_name="drop")
    assert values(config, records) == [{"id": 1}, {"id": 1}, {"id": 1, "name": "a"}]


LOGICAL = {
    "transforms": "t",
    "transforms.t.type": f"{DEBEZIUM}ByLogicalTableRouter",
    "transforms.t.topic.regex": "(.*)_shard_.*",
    "transforms.t.topic.replacement": "$1_all",
}


def test_shards_go_to_one_table_and_their_keys_stay_apart() -> None:
    records = batch([{"a": 1}, None], [{"id": 5}, {"id": 6}], topic="x_shard_1")
    made = applied(LOGICAL, records).batch
    assert made.topics.to_pylist() == ["x_all"] * 2
    name = "__dbz__physicalTableIdentifier"
    assert made.keys.array.to_pylist() == [{"id": n, name: "x_shard_1"} for n in (5, 6)]
    assert routed(LOGICAL, "x_shard_1") == "x_all"
    more = {
        "transforms.t.key.field.regex": ".*_shard_(.*)",
        "transforms.t.key.field.replacement": "number $1",
        "transforms.t.key.field.name": "shard",
    }
    made = applied(LOGICAL | more, records).batch
    assert made.keys.array.to_pylist() == [{"id": n, "shard": "number 1"} for n in (5, 6)]
    made = applied(LOGICAL | {"transforms.t.key.enforce.uniqueness": "false"}, records).batch
    assert made.keys.array.to_pylist() == [{"id": 5}, {"id": 6}]


def test_other_topics_and_null_keys_stay() -> None:
    made = applied(LOGICAL, batch([{"a": 1}], [{"id": 5}], topic="y")).batch
    assert (made.topics.to_pylist(), made.keys.array.to_pylist()) == (["y"], [{"id": 5}])
    made = applied(LOGICAL, batch([{"a": 1}], topic="x_shard_1")).batch
    assert (made.topics.to_pylist(), made.keys.array.to_pylist()) == (["x_all"], [None])


def test_a_regex_for_keys_needs_a_replacement() -> None:
    with pytest.raises(ConfigError, match="must be non-empty"):
        chain_of(LOGICAL | {"transforms.t.key.field.regex": "x"})


VALUE = {
    "type": "struct",
    "optional": True,
    "name": "products.Value",
    "fields": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "price", "type": "float", "optional": False},
    ],
}
PRODUCTS = {
    "type": "struct",
    "optional": False,
    "name": "products.Envelope",
    "fields": [
        {**VALUE, "field": "before"},
        {**VALUE, "field": "after"},
        {"field": "source", "type": "string", "optional": True},
        {"field": "op", "type": "string", "optional": True},
    ],
}


def products(*events: dict[str, Any] | None, headers: list[list[tuple[str, bytes]]]) -> Batch:
    nothing = dict.fromkeys(("before", "after", "source", "op"))
    wholes = [e and {"schema": PRODUCTS, "payload": {**nothing, **e}} for e in events]
    texts = [None if whole is None else json.dumps(whole).encode() for whole in wholes]
    converter = JsonConverter(schemas_enable=True)
    converter.keep_text()
    values = converter.decode(pa.array(texts, pa.binary())).values
    return batch(values, has_schema=True, headers=headers)


def headers_of(config: dict[str, str], given: Batch) -> list[list[tuple[str, bytes]]]:
    headers = applied(config, given).batch.headers
    assert headers is not None
    return [[(h["key"], h["value"]) for h in each] for each in headers.to_pylist()]


def to_value(headers: str, fields: str, operation: str = "copy") -> dict[str, str]:
    return {
        "transforms": "t",
        "transforms.t.type": f"{DEBEZIUM}HeaderToValue",
        "transforms.t.headers": headers,
        "transforms.t.fields": fields,
        "transforms.t.operation": operation,
    }


ADDED = {"op": "c", "after": {"id": 101, "price": 20.0}}
H1, H2, H4 = ("h1", b"one"), ("h2", b"2"), ("h4", b"four")


def test_a_header_becomes_a_field_of_the_records_that_have_it() -> None:
    given = products(ADDED, ADDED, None, headers=[[H1, H2, H4], [H4], [H1]])
    made = applied(to_value("h1,h2", "f1, f2"), given).batch
    found = made.values.array.to_pylist()
    assert [row and (row["f1"], row["f2"]) for row in found] == [("one", "2"), (None, None), None]
    assert made.headers == given.headers
    move = to_value("h1,h2,h3", "f1,f2,f3", "move")
    assert applied(move, given).batch.values.array.to_pylist()[0]["f2"] == "2"
    assert headers_of(move, given) == [[H4], [H4], [H1]], "a tombstone keeps its headers"


def test_a_header_leaves_the_same_field_of_other_records_alone() -> None:
    rows = [{"x": "5"}, {"x": "6"}]
    config, headers = to_value("h1", "x"), [[], [H1]]
    assert values(config, batch(rows, headers=headers)) == [{"x": "5"}, {"x": "one"}]
    outcome = applied(config, batch(rows, headers=headers, has_schema=True))
    assert outcome.batch.values.array.to_pylist() == rows[:1]
    assert "field name duplication x" in outcome.refused[0].message


def test_a_header_becomes_a_nested_field_where_there_is_one() -> None:
    given = products(ADDED, headers=[[H1, H2]])
    (row,) = applied(to_value("h1,h2,h3", "f1,after.f2,source.f3"), given).batch.values.array
    assert row["f1"].as_py() == "one"
    assert row["after"].as_py() == {"id": 101, "price": 20.0, "f2": "2"}
    same = applied(to_value("h1,h3", "parent.f1,f3"), given).batch.values.array
    assert same.to_pylist() == given.values.array.to_pylist()


def test_a_header_that_no_field_can_hold_is_refused() -> None:
    given = products(ADDED, ADDED, headers=[[H1, H1], [("h1", b"\xff")]])
    duplicate, unreadable = refusals(to_value("h1", "f1"), given)
    assert duplicate.endswith(": Duplicate key h1")
    assert unreadable.endswith(": header h1 is not UTF-8")
    (taken,) = refusals(to_value("h1", "op"), products(ADDED, headers=[[H1]]))
    assert taken.endswith("Cannot create field because of field name duplication op")
    for config, why in (
        (to_value("h1,h2", "f1"), "must have the same number of elements"),
        (to_value("h1", "f1", "invalid"), "move, copy"),
        (to_value("", "f1"), "headers"),
    ):
        with pytest.raises(ConfigError, match=why):
            chain_of(config)


def test_headers_list_what_an_update_changes() -> None:
    config = {
        "transforms": "t",
        "transforms.t.type": f"{DEBEZIUM}ExtractChangedRecordState",
        "transforms.t.header.changed.name": "Changed",
    }
    given = events(ALL, headers=[[] for _ in ALL])
    assert headers_of(config, given)[1] == [("Changed", b'["name"]')]
    config["transforms.t.header.unchanged.name"] = "Unchanged"
    found = headers_of(config, given)
    assert found[1] == [("Changed", b'["name"]'), ("Unchanged", b'["id"]')]
    assert not any(found[:1] + found[2:])


@pytest.mark.parametrize(
    "name", ["PartitionRouting", "TimezoneConverter", "ContentBasedRouter", "Filter", "Other"]
)
def test_a_transform_that_is_not_there_is_refused_with_a_way_out(name: str) -> None:
    config = {"transforms": "t", "transforms.t.type": f"io.debezium.transforms.{name}"}
    with pytest.raises(ConfigError, match=rf"type={DEBEZIUM}{name}: .*([Uu]se|set|Set) "):
        chain_of(config)
