"""Checks of values against a JSON Schema end in time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from semel.converters.registry.client import JSON, Schema
from semel.proxy import json_schema
from semel.proxy.bodies import written
from semel.proxy.errors import Refusal
from semel.proxy.json_schema import checker, is_quick, parts_of
from semel.tasks import expendable
from tests.patience import PATIENCE

_NUMBER = {"type": "integer"}
_POINT = {"properties": {"x": _NUMBER}}
_TREE = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": _NUMBER}}
_X = {"allOf": [{"$ref": "#/x"}]}
_TWICE = {"allOf": [{"properties": {"a": {"$ref": "#"}}}] * 2}


def _schema(what: Any) -> Schema:
    others = {"other.json": _POINT, "back.json": {"items": {"$ref": "#"}}}
    return Schema(JSON, json.dumps(what), tuple((k, json.dumps(v)) for k, v in others.items()))


def _nested(depth: int) -> Any:
    return {"a": _nested(depth - 1)} if depth else 1


def _doubled(levels: int) -> dict[str, Any]:
    """Each level asks twice for the next one."""
    two = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**two, f"d{levels}": _NUMBER}, "$ref": "#/$defs/d0"}


def _chained(length: int) -> dict[str, Any]:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"$defs": {**chain, f"d{length}": _NUMBER}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "bounded"),
    [
        (True, True),
        ({"$defs": {"p": _POINT}, "items": {"$ref": "#/$defs/p"}}, True),
        ({"definitions": {"a/b": _POINT}, "items": {"$ref": "#/definitions/a~1b"}}, True),
        (_doubled(5), True),
        (_TREE, False),
        (_TWICE, False),
        ({"items": [_POINT, {"$ref": "#/items/0"}]}, True),
        ({"properties": {"$ref": _NUMBER}}, True),
        ({"$ref": "other.json"}, True),
        ({"$ref": "back.json"}, False),
        ({"$ref": "nowhere.json"}, False),
        ({"$ref": "nowhere.json#/items", "items": _NUMBER}, False),
        ({"$anchor": "a", "a": _NUMBER, "items": {"$ref": "#a"}}, False),
        ({"x": _NUMBER, "items": {"$id": "b.json", "x": {"$ref": "b.json"}, **_X}}, False),
        ({"$id": "b.json", "properties": {"id": _NUMBER}}, True),
        (_chained(5), True),
        (_chained(1000), False),
    ],
)
def test_a_schema_is_bounded_if_it_ends_with_its_references_written_out(
    schema: Any, bounded: bool
) -> None:
    assert math.isfinite(parts_of(_schema(schema))) == bounded


def test_a_value_of_a_schema_without_end_is_checked_all_the_same() -> None:
    check = checker(_schema(_TREE))
    check(
        {"left": {"n": 1}, "right": {"left": {"n": 2}}},
        b'{"left":{"n":1},"right":{"left":{"n":2}}}',
    )
    with pytest.raises(ValueError, match='"x" is not of type "integer"'):
        check({"left": {"right": {"n": "x"}}}, b'{"left":{"right":{"n":"x"}}}')


def test_a_value_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = replace(json_schema._LIMITS, patience=PATIENCE)  # 2 s of a CPU may take long
    monkeypatch.setattr(json_schema, "_LIMITS", patient)
    with pytest.raises(ValueError, match="takes too long to check"):
        checker(_schema(_TWICE))(_nested(60), written(_nested(60)))


def _unevaluated(depth: int) -> Any:
    inner = _unevaluated(depth - 1) if depth else _NUMBER
    return {"allOf": [inner], "unevaluatedProperties": False}


_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_FLAT = {"properties": {f"f{n}": {"type": "string", "maxLength": 100} for n in range(300)}}
_ZEROS = {"properties": [0] * 100_000}
_MANY = {"items": {"allOf": [{"minimum": 0}] * 300}}


@pytest.mark.parametrize(
    ("schema", "value", "apart"),
    [
        (_MANY, [1] * 1000, False),
        (_MANY, [1] * 100_000, True),
        ({"patternProperties": {f"a.*{n}": {} for n in range(500)}}, {"a" * 9000: 1}, True),
        ({"pattern": "^[A-Z]{2}([0-9]{4} ?){1,8}$"}, "DE" + "1234 " * 8, False),
        ({"pattern": r"(\p{L}{50}){50}"}, "a", True),
        ({"uniqueItems": True}, [*range(1000)], False),
        ({"uniqueItems": True}, [*range(100_000)], True),
        (_unevaluated(3), 1, False),
        (_unevaluated(30), 1, True),
        (_doubled(5), 1, False),
        (_doubled(30), 1, True),
        ({"pattern": r"a{9}{9}{9}{9}{9}b"}, "a" * 3000, True),
        ({"pattern": r"(a{50})+{50}{50}b"}, "a", True),
        ({"pattern": r"(?x)(a{50}) {5 0}"}, "a", True),
        ({"properties": {f"id{n}": {"pattern": _UUID} for n in range(200)}}, {}, False),
        (_FLAT, {f"f{n}": "x" * 100 for n in range(300)}, False),
        ({"allOf": [_FLAT, {"properties": {"properties": _MANY}}]}, _ZEROS, True),
        ({"patternProperties": {"properties": _MANY}}, _ZEROS, True),
    ],
)
def test_what_may_take_long_is_checked_apart(
    schema: Any, value: Any, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(expendable, "call", lambda *arguments: asked.append(arguments))
    checker(_schema(schema))(value, written(value))
    assert bool(asked) == apart


def test_a_schema_is_quick_only_if_its_patterns_are_compiled_here() -> None:
    document = json.dumps({"x": _NUMBER, "y": {"pattern": ".{20000}"}})
    schema = Schema(JSON, '{"$ref":"d.json#/x"}', (("d.json", document),))
    assert parts_of(schema) < 10
    assert not is_quick(schema, 1)


def test_so_many_values_are_checked_apart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.proxy.json_schema._at_once", Mock(**{"acquire.return_value": False}))
    with pytest.raises(Refusal, match="take too long now"):
        checker(_schema(_TREE))({}, b"{}")
