"""What is made by an Avro schema with ``arg.properties``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.sources.datagen import values
from semel.sources.datagen.quickstarts import QUICKSTARTS
from semel.sources.datagen.schema import Unusable, records_of
from semel.sources.datagen.values import Block

ROWS = 2000


def record(kind: Any, **rules: Any) -> str:
    if rules and isinstance(kind, str):
        kind = {"type": kind}
    if rules:
        kind = {**kind, "arg.properties": rules}
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]})


def made(text: str, rows: int = ROWS, first: int = 0, seed: int = 1) -> pa.Array:
    numbers = np.arange(first, first + rows, dtype=np.uint64)
    found = records_of(text).values(Block(numbers, seed))
    found.validate(full=True)
    return found.field(0) if found.type.num_fields == 1 else found


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [("int", 1, 10), ("long", -(2**40), 2**40), ("double", 0.1, 0.2), ("float", -1, 1)],
)
def test_a_range_includes_its_min_and_excludes_its_max(kind: str, least: Any, most: Any) -> None:
    found = made(record(kind, range={"min": least, "max": most})).to_numpy()
    assert found.min() >= least
    assert found.max() < most
    assert len(set(found.tolist())) >= min(most - least, 9) or kind == "int"
    if kind == "int":
        assert {*found.tolist()} == {*range(1, 10)}


@pytest.mark.parametrize("kind", ["int", "long"])
def test_without_a_range_all_of_a_types_numbers_may_come(kind: str) -> None:
    found = made(record(kind)).to_numpy()
    size = 2 ** (31 if kind == "int" else 63)
    assert found.min() < -size * 0.9
    assert found.max() > size * 0.9


@pytest.mark.parametrize(
    ("kind", "iteration", "expected"),
    [
        ("int", {"start": 5}, [5, 6, 7, 8, 9, 10]),
        ("long", {"start": 1, "step": 10}, [1, 11, 21, 31, 41, 51]),
        ("long", {"start": 1, "restart": 4}, [1, 2, 3, 1, 2, 3]),
        ("int", {"start": 3, "restart": 0}, [3, 2, 1, 3, 2, 1]),
        ("int", {"start": 0, "restart": 10, "step": 4, "initial": 8}, [8, 2, 6, 0, 4, 8]),
        ("double", {"start": 0, "step": 0.5}, [0, 0.5, 1, 1.5, 2, 2.5]),
        ("int", {"start": 2**31 - 3}, [2**31 - 3, 2**31 - 2] * 3),
        ("string", {"start": 7}, ["7", "8", "9", "10", "11", "12"]),
        ("boolean", {"start": True}, [True, False, True, False, True, False]),
    ],
)
def test_an_iteration_counts_as_its_numbers_say(
    kind: str, iteration: dict[str, Any], expected: list[Any]
) -> None:
    assert made(record(kind, iteration=iteration), 6).to_pylist() == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "User_[1-9]",
        "Item_[1-9][0-9]{0,2}",
        r"[A-Z]{2}\d{6}[A-Z]",
        "(ab|c?)+x*",
        "[^a-z]{3}",
        r"\[[0-9]{2},\w\S\]",
        "a.b?",
        "^fixed$",
        "",
    ],
)
def test_texts_match_their_regular_expression(pattern: str) -> None:
    found = made(record("string", regex=pattern)).to_pylist()
    assert all(re.fullmatch(pattern, text) for text in found)
    if re.search(r"[\[\\(.?*+]", pattern):
        assert len(set(found)) > 5


def test_alternatives_without_random_parts_take_no_memory_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "_whole", None)  # a column of one alternative
    words = [f"word{n}x" for n in range(1000)]
    found = made(record("string", regex=f"(?:{'|'.join(words)})!")).to_pylist()
    assert {text.removesuffix("!") for text in found} <= {*words}


def test_options_are_chosen_for_any_type() -> None:
    assert {*made(record("string", options=["a", "b"])).to_pylist()} == {"a", "b"}
    lists = {"type": "array", "items": "string"}
    found = made(record(lists, options=[["a"], ["b", "c"]])).to_pylist()
    assert {tuple(v) for v in found} == {("a",), ("b", "c")}
    maps = {"type": "map", "values": "int"}
    assert made(record(maps, options=[{"x": 1}])).to_pylist()[0] == [("x", 1)]
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    assert {str(v) for v in made(record(amount, options=[1.5, 20])).to_pylist()} == {
        "1.50",
        "20.00",
    }
    whole = {
        **json.loads(record("int")),
        "arg.properties": {"options": [{"f": 1}, {"f": 2}]},
    }
    assert {*made(json.dumps(whole)).to_pylist()} == {1, 2}
    symbols = {"type": "enum", "name": "e", "symbols": ["ON", "OFF"]}
    assert {*made(record(symbols)).to_pylist()} == {"ON", "OFF"}


def test_the_longest_option_bounds_a_record() -> None:
    assert records_of(record("string", options=[*"abc", "d" * 1000])).most > 1000


@pytest.mark.parametrize("content", ['["cat", "dog"]', '"cat"\n"dog"'])
def test_options_are_read_from_a_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "nouns.json"
    path.write_text(content)
    options = {"file": str(path), "encoding": "json"}
    assert {*made(record("string", options=options)).to_pylist()} == {"cat", "dog"}


def test_logical_types_have_their_range_in_their_own_unit() -> None:
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    found = made(record(amount, range={"min": 10, "max": 50})).to_pylist()
    assert 10 <= min(found) < 11
    assert 49 < max(found) < 50
    assert made(record({**amount, "precision": 9}, range={"min": -5, "max": -1})).to_pylist()[0] < 0
    day = made(record({"type": "int", "logicalType": "date"}, iteration={"start": 18_000}), 2)
    assert [d.isoformat() for d in day.to_pylist()] == ["2019-04-14", "2019-04-15"]
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    found = made(record(moment, iteration={"start": 1_600_000_000_000}), 1).to_pylist()
    assert found[0].isoformat() == "2020-09-13T12:26:40+00:00"


def test_arrays_and_texts_have_lengths_within_their_bounds() -> None:
    lists = {"type": "array", "items": "int"}
    found = made(record(lists, length={"min": 1, "max": 4})).to_pylist()
    assert {len(v) for v in found} == {1, 2, 3}
    assert len({n for v in found for n in v}) > ROWS
    assert {len(v) for v in made(record("string")).to_pylist()} == {*range(8, 16)}
    assert {len(v) for v in made(record("bytes", length=3)).to_pylist()} == {3}
    assert len(made(record({"type": "map", "values": "int"})).to_pylist()[0]) >= 8


def test_optional_values_are_null_sometimes() -> None:
    found = made(record(["null", "int"]))
    assert 0.4 * ROWS < found.null_count < 0.6 * ROWS
    assert not made(record(["int"])).null_count


def test_comments_and_named_types_are_understood() -> None:
    schema = """
    // users, see https://example.com
    {"type": "record", "name": "pair", "fields": [ /* two */
      {"name": "a", "type": {"type": "record", "name": "point", "fields": [
        {"name": "x", "type": {"type": "int", "arg.properties": {"iteration": {"start": 1}}}}]}},
      {"name": "b", "type": "point"}]}
    """
    assert made(schema, 2).to_pylist() == [{"a": {"x": n}, "b": {"x": n}} for n in (1, 2)]


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_each_quickstart_makes_the_same_records_from_any_number_on(name: str) -> None:
    schema = QUICKSTARTS[name]
    whole = made(schema.avro, 100)
    assert whole.slice(37, 20).equals(made(schema.avro, 20, first=37))
    assert schema.keyfield in [f.name for f in whole.type]
    if "options" not in json.loads(schema.avro).get("arg.properties", {}):
        assert len({str(v) for v in whole.to_pylist()}) > 50


def test_another_seed_makes_other_records() -> None:
    users = QUICKSTARTS["users"].avro
    assert not made(users, 10).equals(made(users, 10, seed=2))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "is not JSON: .* at line 1, column 2"),
        ("[" * 100_000, "cannot be read: maximum recursion depth"),
        ("/*" * 200_000, "is not JSON"),
        ('"\\"' * 200_000, "is not a type"),
        ('{"type": "record", "name": {}, "fields": 1}', "must have fields"),
        ('"string"', "must be a record"),
        (record("strin"), "field f: strin is not a type"),
        (record(["int", "string"]), "field f: a union may be of null and one type only"),
        (record("int", range={"min": 5, "max": 5}), r"range.max=5 must be more than range.min=5"),
        (record("int", range={"min": "a"}), 'range.min="a" must be a number'),
        (record("int", range={"max": 2**40}), "is beyond int"),
        (record("int", range={"min": 0.5}), "range.min=0.5 must be a whole number"),
        (record("float", range={"max": 1e300}), "is beyond float"),
        (record("double", range={"min": -1.7e308, "max": 1.7e308}), "is beyond double"),
        (record("double", range={"max": 10**400}), "range.max is too large"),
        (record("double", range={"min": float("nan")}), "is not JSON: NaN is no number"),
        (record("boolean", odds=5), "odds=5 must be from 0 to 1"),
        (record("int", iteration={"start": 2**31}), "iteration.start=2147483648 is too large"),
        (record("long", iteration={"start": 0, "step": 2**70}), "is too large for int64"),
        (record("long", iteration={"start": -(2**63), "restart": 0}), "is too far from"),
        (record("int", iteration={"step": 1}), "iteration must have a start"),
        (
            record("int", iteration={"start": 1, "restart": 5, "step": -1}),
            "never leads",
        ),
        (record("string", regex="[a"), r"field f: regex '\[a' is not a regular expression"),
        (record("string", regex="(?=a)b"), "has assert, for which no text can be made"),
        (record("string", regex="a{9999}"), "makes strings that are too long"),
        (record("string", regex="a", length=3), "regex and length exclude each other"),
        (record("int", options=[]), "options must be a list that is not empty"),
        (record("int", options=["a"]), "an option is not of type int"),
        (record("int", options=[2.5]), "not of type int: 2.5 is not a whole number"),
        (record("double", options=["2.5"]), "not of type double: '2.5' is not a number"),
        (record("string", options=[None]), "an option is not of type string"),
        (record("bytes", options=["\u20ac"]), "field f: an option is not of type bytes"),
        (record({"type": "enum", "name": "e", "symbols": ["A"]}, options=["B"]), "not a symbol"),
        (
            record({"type": "fixed", "name": "x", "size": 4}, options=["abc"]),
            "3 bytes instead of 4",
        ),
        (record("int", options=[1], range={"min": 1}), "options and range exclude each other"),
        (record("string", prefix="\ud800"), "field f: prefix=.* has half of a character"),
        (
            record(
                {"type": "array", "items": {"type": "array", "items": "int"}}, length=1_048_575
            ).replace('"int"', '"string"'),
            "makes records of up to 235,929,375 characters, bytes and members",
        ),
        (
            record({"type": "array", "items": "string"}, length=1_000_000).replace(
                '"string"', '{"type": "string", "arg.properties": {"regex": "(a|[a-z]{9})+"}}'
            ),
            "makes records of up to 99,000,000 characters",
        ),
        (record("string", regex="(?:" + "a" * 1000 + "){4000}"), "makes strings that are too long"),
        (record("int", iteration={"start": 2**31 - 2}), "leaves one int only"),
        (record("int", options={"file": "no", "encoding": "json"}), "cannot be read"),
        (
            record(
                {"type": "array", "items": {"type": "int", "arg.properties": {"iteration": {}}}}
            ),
            r"field f.\[\]: iteration within an array",
        ),
        (
            record({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}),
            "at most 18 digits",
        ),
        (
            '{"type":"record","name":"n","fields":[{"name":"n","type":"n"}]}',
            "contains itself endlessly",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_field(schema: str, message: str) -> None:
    with pytest.raises(Unusable, match=message):
        records_of(schema)
