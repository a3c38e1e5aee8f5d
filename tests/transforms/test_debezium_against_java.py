"""The same change events through Debezium's own classes and through semel: the same results."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.converter import JsonConverter
from semel.transforms import chain_of
from semel_lab.jars import CONNECT, DEBEZIUM_JDBC
from tests.transforms.records import STAMP, batch
from tests.transforms.test_against_java import answers, maybe, same, shown
from tests.transforms.test_debezium import DEBEZIUM, ENVELOPE
from tests.transforms.test_outbox import ENVELOPE as OUTBOX_ENVELOPE
from tests.transforms.test_outbox import inserted

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROWS = 200
KEY = {"type": "struct", "name": "s.Key", "fields": [{"field": "id", "type": "int32"}]}
EXTRACT = "ExtractNewRecordState"
ROUTER = {"topic.regex": "(.*)_shard_.*", "topic.replacement": "$1_all"}
CASES: list[tuple[str, dict[str, str]]] = [
    *(
        (EXTRACT, {"delete.tombstone.handling.mode": mode, **more})
        for mode in ("drop", "tombstone", "rewrite", "rewrite-with-tombstone")
        for more in (
            {},
            {"add.fields": "op,source.ts_ms,table:from,lsn", "add.headers": "op,source.table"},
        )
    ),
    (EXTRACT, {"add.fields": "op", "add.fields.prefix": "m_"}),
    (EXTRACT, {"route.by.field": "name"}),
    ("ByLogicalTableRouter", ROUTER),
    ("ByLogicalTableRouter", {**ROUTER, "key.enforce.uniqueness": "false"}),
    (
        "ByLogicalTableRouter",
        {
            **ROUTER,
            "key.field.name": "shard",
            "key.field.regex": ".*_shard_(.*)",
            "key.field.replacement": "number $1",
        },
    ),
]


def row(r: random.Random) -> dict[str, Any]:
    return {"id": r.randrange(9), "name": maybe(r, r.choice(["a", "b", ""]))}


def event(r: random.Random) -> dict[str, Any] | None:
    op = r.choice("cuurddt0")
    if op == "0":
        return None
    return {
        "before": row(r) if op in "ud" else None,
        "after": row(r) if op in "cur" else None,
        "source": {"lsn": r.randrange(99), "ts_ms": maybe(r, r.randrange(99)), "table": "t"},
        "op": op,
        "ts_ms": r.randrange(99),
    }


def records(seed: int) -> list[dict[str, Any]]:
    r = random.Random(seed)
    found = []
    for offset in range(ROWS):
        value = event(r)
        found.append(
            {
                "topic": "x_shard_1",
                "partition": 3,
                "offset": 10 + offset,
                "timestamp": STAMP,
                "key": json.dumps({"schema": KEY, "payload": {"id": r.randrange(9)}}),
                "value": value and json.dumps({"schema": ENVELOPE, "payload": value}),
                "headers": [["a", "1"]] * r.randrange(2),
            }
        )
    return found


@pytest.fixture(scope="module")
def java() -> list[Any]:
    """What Debezium makes of all cases."""
    asked = [
        {
            "chain": [{"type": DEBEZIUM + name, "config": config}],
            "schemas": True,
            "records": records(n),
        }
        for n, (name, config) in enumerate(CASES)
    ]
    return answers(asked, CONNECT, DEBEZIUM_JDBC)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{n}({c})" for n, c in CASES])
def test_results_are_those_of_debeziums_classes(number: int, java: list[Any]) -> None:
    name, options = CASES[number]
    given = records(number)
    sides = []
    for side in ("key", "value"):
        converter = JsonConverter(schemas_enable=True)
        made = converter.decode(
            pa.array([g[side] and g[side].encode() for g in given], pa.binary())
        )
        assert not made.failures
        sides.append(made.values)
    headers = [[(k, v.encode()) for k, v in g["headers"]] for g in given]
    config = {"transforms": "t", "transforms.t.type": DEBEZIUM + name}
    config |= {f"transforms.t.{k}": v for k, v in options.items()}
    outcome = chain_of(config).apply(
        batch(sides[1], sides[0], has_schema=True, topic="x_shard_1", headers=headers)
    )
    assert not outcome.refused
    left = {int(at): n for n, at in enumerate(outcome.batch.rows)}
    keys, values = shown(outcome.batch.keys.array), shown(outcome.batch.values.array)
    for at, wanted in enumerate(java[number]):
        where = (at, given[at]["value"], wanted)
        assert "exception" not in wanted, where
        assert (at not in left) == wanted.get("dropped", False), where
        if at not in left:
            continue
        n = left[at]
        assert outcome.batch.topics[n].as_py() == wanted["topic"], where
        assert same(keys[n], wanted["key"]), (keys[n], *where)
        assert same(values[n], wanted["value"]), (values[n], *where)
        found = [[h["key"], (h["value"] or b"").decode()] for h in outcome.batch.headers[n].as_py()]
        assert found == [[k, v or ""] for k, v in wanted["headers"]], where


OUTBOX = "outbox.EventRouter"
PLACED = "table.fields.additional.placement"
MESSAGES: list[dict[str, str]] = [
    {},
    {"table.field.event.timestamp": "at", "route.tombstone.on.empty.payload": "true"},
    {PLACED: "type:envelope:kind,number:header,number:envelope"},
    {PLACED: "type:envelope", "route.tombstone.on.empty.payload": "true"},
    {"table.op.invalid.behavior": "fatal", "table.field.event.key": "number"},
    {"route.topic.regex": "(.)ser", "route.topic.replacement": "all.$1"},
    {PLACED: "gone:header"},
    {"table.field.event.timestamp": "plain"},
    {"table.field.event.timestamp": "id"},
    {"table.field.event.payload": "gone"},
    {"table.field.event.id": "gone"},
    {"table.field.event.key": "gone"},
    {"route.by.field": "gone"},
]
EXPANDED = {"table.expand.json.payload": "true", "route.tombstone.on.empty.payload": "true"}


def message(r: random.Random, *, expand: bool) -> dict[str, Any] | None:
    op = r.choice("cccccrrrudt0")
    if op == "0":
        return None
    texts = ["", None, '{"a": "x", "b": 1.5, "c": true}', '{"a": "y"}']
    found = inserted(
        id=r.choice("abc"),
        aggregatetype=r.choice(["User", "Bill", ""]),
        aggregateid=maybe(r, r.choice("kl")),
        type=maybe(r, "made"),
        payload=r.choice(texts if expand else [*texts, " ", "text"]),
        number=maybe(r, r.randrange(9)),
        at=maybe(r, r.randrange(-(10**15), 10**15)),
        plain=r.randrange(9),
    )
    row = found["after"]
    return {
        **found,
        "before": row if op in "ud" else None,
        "after": row if op in "cur" else None,
        "op": op,
        "ts_ms": maybe(r, r.randrange(99)),
    }


@pytest.fixture(scope="module")
def routed_by_java() -> list[tuple[dict[str, str], list[dict[str, Any]], Any]]:
    """What Debezium's EventRouter makes of outbox tables. It takes only records of a source."""
    asked = []
    for n, config in enumerate([*MESSAGES, EXPANDED]):
        r = random.Random(100 + n)
        found = []
        for record in records(n):
            value = message(r, expand=config is EXPANDED)
            text = value and json.dumps({"schema": OUTBOX_ENVELOPE, "payload": value})
            found.append({**record, "value": text, "source": True})
        chain = [{"type": DEBEZIUM + OUTBOX, "config": config}]
        asked.append({"chain": chain, "schemas": True, "records": found})
    javas = answers(asked, CONNECT, DEBEZIUM_JDBC)
    return [(a["chain"][0]["config"], a["records"], j) for a, j in zip(asked, javas, strict=True)]


@pytest.mark.parametrize("number", range(len(MESSAGES) + 1))
def test_messages_are_those_of_debeziums_event_router(
    number: int, routed_by_java: list[tuple[dict[str, str], list[dict[str, Any]], Any]]
) -> None:
    options, given, java = routed_by_java[number]
    values = JsonConverter(schemas_enable=True).decode(
        pa.array([g["value"] and g["value"].encode() for g in given], pa.binary())
    )
    assert not values.failures
    headers = [[(k, v.encode()) for k, v in g["headers"]] for g in given]
    config = {"transforms": "t", "transforms.t.type": DEBEZIUM + OUTBOX}
    config |= {f"transforms.t.{k}": v for k, v in options.items()}
    outcome = chain_of(config).apply(batch(values.values, has_schema=True, headers=headers))
    made = outcome.batch
    refused = {r.index: r for r in outcome.refused}
    left = {int(at): n for n, at in enumerate(made.rows)}
    keys, rows = shown(made.keys.array), shown(made.values.array)
    times = made.timestamps.cast(pa.int64()).to_pylist()
    seen = set()
    for at, wanted in enumerate(java):
        where = (at, given[at]["value"], wanted, refused.get(at))
        if "exception" in wanted:
            seen.add("refused")
            assert refused[at].exception == wanted["exception"], where
            ours = refused[at].message.partition(": ")[2]
            assert ours[:30] == wanted["message"][:30], where
            continue
        assert at not in refused, where
        assert (at not in left) == wanted.get("dropped", False), where
        if at not in left:
            continue
        n = left[at]
        seen.add("made")
        assert made.topics[n].as_py() == wanted["topic"], where
        assert times[n] == wanted["timestamp"], where
        assert same(keys[n], wanted["key"]), (keys[n], *where)
        assert same(rows[n], wanted["value"]), (rows[n], *where)
        found = [[h["key"], (h["value"] or b"").decode()] for h in made.headers[n].as_py()]
        assert found == [[k, v or ""] for k, v in wanted["headers"]], where
    assert seen
