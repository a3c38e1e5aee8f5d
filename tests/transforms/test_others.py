"""Confluent's and Aiven's transforms."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.transforms.records import applied, batch

CONFLUENT, AIVEN = "io.confluent.connect.transforms.", "io.aiven.kafka.connect.transforms."
ROWS = [{"a": "x", "n": 1}, None, {"a": None, "n": 3}]


def one(name: str, **options: Any) -> dict[str, str]:
    given = {f"transforms.t.{k.replace('_', '.')}": str(v) for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": name, **given}


@pytest.mark.parametrize(("prefix", "field"), [(CONFLUENT, "field"), (AIVEN, "field.name")])
def test_a_field_or_the_whole_names_the_topic(prefix: str, field: str) -> None:
    config = one(f"{prefix}ExtractTopic$Value", **{field: "a"})
    outcome = applied(config, batch(ROWS))
    assert outcome.batch.topics.to_pylist() == ["x"]
    assert [r.index for r in outcome.refused] == [1, 2]
    made = applied(config | {"transforms.t.skip.missing.or.null": "true"}, batch(ROWS)).batch
    assert made.topics.to_pylist() == ["x", "orders", "orders"]
    made = applied(one(f"{prefix}ExtractTopic$Key"), batch(ROWS, [1, 2, 3])).batch
    assert made.topics.to_pylist() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("prefix", "behavior", "left"),
    [
        (CONFLUENT, "ignore", 2),
        (CONFLUENT, "warn", 2),
        (CONFLUENT, "fail", 2),
        (AIVEN, "drop_silent", 2),
        (AIVEN, "drop_warn", 2),
        (AIVEN, "fail", 2),
    ],
)
def test_tombstones_are_dropped_or_refused(prefix: str, behavior: str, left: int) -> None:
    outcome = applied(one(f"{prefix}TombstoneHandler", behavior=behavior), batch(ROWS))
    assert len(outcome.batch) == left
    assert [r.index for r in outcome.refused] == ([1] if behavior == "fail" else [])


def test_keys_and_values_become_null() -> None:
    keys = applied(one(f"{CONFLUENT}Drop$Key"), batch(ROWS, [1, 2, 3])).batch
    assert keys.keys.array.to_pylist() == [None] * 3
    assert keys.values.array.to_pylist() == ROWS
    for name in (f"{CONFLUENT}Drop$Value", f"{AIVEN}MakeTombstone"):
        assert applied(one(name), batch(ROWS)).batch.values.array.to_pylist() == [None] * 3


@pytest.mark.parametrize("function", ["md5", "sha1", "sha256"])
def test_a_text_is_hashed(function: str) -> None:
    config = one(f"{AIVEN}Hash$Value", function=function, **{"field.name": "a"})
    outcome = applied(config, batch(ROWS))
    hashed = hashlib.new(function, b"x").hexdigest()
    assert outcome.batch.values.array.to_pylist() == [{"a": hashed, "n": 1}]
    assert [r.index for r in outcome.refused] == [1, 2]
    made = applied(config | {"transforms.t.skip.missing.or.null": "true"}, batch(ROWS)).batch
    assert made.values.array.to_pylist() == [{"a": hashed, "n": 1}, None, ROWS[2]]
