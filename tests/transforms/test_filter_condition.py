"""Confluent's Filter, and the predicates of JSON paths."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.transforms import chain_of
from tests.transforms.records import applied, batch

FILTER = "io.confluent.connect.transforms.Filter$"
ROWS = [
    {"id": 1, "name": "Dry Stout", "amount": 41.5, "big": False, "in": {"a": "x"}},
    {"id": 2, "name": "Pale Ale", "amount": 42.0, "big": True, "in": {"a": None}},
    {"id": 3, "name": None, "amount": None, "big": None, "in": None},
    {"id": 4, "name": "7", "amount": -7.0, "big": True, "in": {"a": "y"}},
]


def config(condition: str, side: str = "Value", **options: str) -> dict[str, str]:
    given = {"filter.condition": condition, "filter.type": "include"}
    given |= {k.replace("_", "."): v for k, v in options.items()}
    return {
        "transforms": "f",
        "transforms.f.type": FILTER + side,
        **{f"transforms.f.{k}": v for k, v in given.items()},
    }


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("$[?(@.name =~ /.*Stout/)]", [1]),
        ("$[?(@.name =~ /.*stout/i)]", [1]),
        ("$[?(@.name =~ /Stout/)]", []),  # the whole text must match
        ("$[?(@.amount < 42)]", [1, 4]),
        ("$[?(42 > @.amount)]", [1, 4]),
        ("$[?(@.amount >= 42.0)]", [2]),
        ("$[?(@.name == 'Pale Ale' || @.id == 4)]", [2, 4]),
        ("$[?(@.id == 1 || @.id == 2 && @.big == false)]", [1]),  # && binds closer
        ("$[?((@.id == 1 || @.id == 2) && @.big == true)]", [2]),
        ("$[?(!(@.big == true))]", [1, 3]),
        ("$[?(@.name != 'Pale Ale')]", [1, 3, 4]),  # what is null equals nothing
        ("$[?(@.name == null)]", [3]),
        ("$[?(@.name)]", [1, 2, 4]),
        ("$[?(@.id in [1, 3])]", [1, 3]),
        ("$[?(@.name nin ['7', \"Pale Ale\"])]", [1, 3]),
        ("$[?(@.in.a == 'x')]", [1]),
        ("$[?(@['in']['a'] == 'y')]", [4]),
        ("$.[?(@.id == 4)]", [4]),
        ("$[?(@.name == 7)]", [4]),  # a text equals the number that reads the same
        ("$[?(@.id == '2')]", [2]),
        ("$[?(@.id == 'two')]", []),
        ("$[?(@.name < 5)]", []),  # there is no order between a text and a number
        ("$[?(@.none == 1)]", []),
        ("$[?(@.none != 1)]", [1, 2, 3, 4]),
        ("$[?(@.none == null)]", [1, 2, 3, 4]),  # whatever else is in the batch
        ("$[?(@.none != null)]", []),
        ("$[?(@.id < 1000000000000000000000)]", [1, 2, 3, 4]),
        ("$[?(@.id > 1.00000000000000000000000001)]", [2, 3, 4]),
        ("$[?(@.id == '1e999999999' || @.id == 'NaN')]", []),
    ],
)
def test_a_predicate_chooses_records(condition: str, left: list[int]) -> None:
    found = applied(config(condition), batch(ROWS)).batch.values.array
    assert found.field("id").to_pylist() == left
    others = applied(config(condition, filter_type="exclude"), batch(ROWS)).batch.values.array
    assert others.field("id").to_pylist() == [r["id"] for r in ROWS if r["id"] not in left]


@pytest.mark.parametrize(("behavior", "left"), [("include", [1, 2, 3]), ("exclude", [1])])
def test_the_object_that_is_asked_may_be_missing(behavior: str, left: list[int]) -> None:
    condition = config("$.in[?(@.a == 'x')]", missing_or_null_behavior=behavior)
    rows = [ROWS[0], ROWS[2] | {"id": 2}, ROWS[2], ROWS[3]]
    outcome = applied(condition, batch(rows))
    assert outcome.batch.values.array.field("id").to_pylist() == left
    refusing = applied(config("$.in[?(@.a == 'x')]"), batch(rows))
    assert [r.index for r in refusing.refused] == [1, 2]
    assert "value.in is missing or null" in refusing.refused[0].message


def test_keys_and_tombstones() -> None:
    outcome = applied(config("$[?(@.k > 1)]", "Key"), batch(ROWS[:2], [{"k": 1}, {"k": 2}]))
    assert outcome.batch.values.array.field("id").to_pylist() == [2]
    kept = config("$[?(@.id == 9)]", missing_or_null_behavior="include")
    assert applied(kept, batch([None, ROWS[0]])).batch.values.array.to_pylist() == [None]


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.decimal128(9, 2), Decimal("1.50")), (pa.float32(), 1.5)]
)
def test_numbers_of_every_type_are_compared(kind: pa.DataType, value: Any) -> None:
    rows = pa.array([{"v": value}], pa.struct([("v", kind)]))
    for condition, count in (("== 1.5", 1), ("> 1.49", 1), ("< 1", 0)):
        found = applied(config(f"$[?(@.v {condition})]"), batch(rows, has_schema=True))
        assert len(found.batch) == count


def test_a_number_without_a_sign_may_have_64_bits() -> None:
    rows = pa.array([{"v": 2**64 - 1}, {"v": 1}], pa.struct([("v", pa.uint64())]))
    found = applied(config("$[?(@.v > 1)]"), batch(rows, has_schema=True))
    assert found.batch.values.array.to_pylist() == [{"v": 2**64 - 1}]


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("@.f == 'a'", [0]),
        ("@.f == 5", [1]),
        ("@.f > 4", [1]),
        ("@.f =~ /[ab]/", [0]),
        ("@.f.x == 1", [2]),
        ("@.f == null", [3]),
        ("@.f", [0, 1, 2]),
    ],
)
def test_each_value_is_compared_as_its_own_type(condition: str, left: list[int]) -> None:
    texts = [b'{"id":0,"f":"a"}', b'{"id":1,"f":5}', b'{"id":2,"f":{"x":1}}', b'{"id":3}']
    converter = JsonConverter(schemas_enable=False)
    converter.keep_text()
    records = batch(converter.decode(pa.array(texts)).values)
    found = applied(config(f"$[?({condition})]"), records).batch.values.array
    assert found.field("id").to_pylist() == left


@pytest.mark.parametrize(
    "condition",
    [
        "$.a",
        "$..a[?(@.b == 1)]",
        "$[?(@.a.size() == 1)]",
        "$[?(@.a == 1) && ]",
        "$[?(@.a == @.b)]",
        "$[?(1 == 1)]",
        "$[?(@.a =~ 'x')]",
        "value.op == 'c'",
        "$[?(" + "(" * 5000 + "@.a)]",
        "$[?(" + "!" * 5000 + "@.a)]",
        "$[?(@.a" + " || @.a" * 100_000 + ")]",
        "$[?(@.a == 1e99999999999999999999)]",
    ],
)
def test_what_it_does_not_know_is_reported_before_the_start(condition: str) -> None:
    with pytest.raises(ConfigError, match=r"transforms\.f\.filter\.condition"):
        chain_of(config(condition))


def test_the_short_name_is_kafkas_filter() -> None:
    chain_of({"transforms": "f", "transforms.f.type": "Filter"})
    short = config("$[?(@.a == 1)]") | {"transforms.f.type": "Filter$Value"}
    chain_of(short)
