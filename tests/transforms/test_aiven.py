"""Aiven's transforms of texts: the cases of their unit tests, and what these leave out."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.errors import ConfigError
from semel.transforms import chain_of
from tests.transforms.records import applied, batch
from tests.transforms.test_others import AIVEN, one

BOTH = pytest.mark.parametrize("has_schema", [True, False])


def filtered(values: list[Any], *, has_schema: bool = False, **options: str) -> list[int]:
    """The records that are left."""
    config = one(f"{AIVEN}FilterByFieldValue$Value", **options)
    return list(applied(config, batch(values, has_schema=has_schema)).batch.rows.tolist())


@BOTH
def test_fields_are_joined_with_a_placeholder_for_missing_ones(has_schema: bool) -> None:
    config = one(
        f"{AIVEN}ConcatFields$Value",
        field_names="test,foo,none,age",
        output_field_name="combined",
        delimiter="-",
        field_replace_missing="*",
    )
    values = [{"test": "a", "foo": None, "age": 7}, {"test": "b", "foo": True, "age": None}, None]
    outcome = applied(config, batch(values, has_schema=has_schema))
    assert outcome.batch.values.array.field("combined").to_pylist() == ["a-*-*-7", "b-true-*-*"]
    assert [r.index for r in outcome.refused] == [2]


def test_a_field_of_this_name_is_replaced_in_a_map_only() -> None:
    config = one(f"{AIVEN}ConcatFields$Value", field_names="a,b", output_field_name="a")
    values = [{"a": "x", "b": 1.5}]
    made = applied(config, batch(values)).batch
    assert made.values.array.to_pylist() == [{"a": "x1.5", "b": 1.5}]
    (refused,) = applied(config, batch(values, has_schema=True)).refused
    assert "name duplication a" in refused.message


@BOTH
def test_the_case_of_texts_changes(has_schema: bool) -> None:
    config = one(f"{AIVEN}CaseTransform$Value", field_names="a, n, none", case="upper")
    outcome = applied(config, batch([{"a": "straße", "n": True}], has_schema=has_schema))
    (made,) = outcome.batch.values.array.to_pylist()
    more = {"n": True} if has_schema else {"n": "TRUE", "none": None}
    assert made == {"a": "STRASSE", **more}
    lower = config | {"transforms.t.case": "lower"}
    made = applied(lower, batch([{"a": "ABC", "n": None}], has_schema=True)).batch.values
    assert made.array.to_pylist() == [{"a": "abc", "n": None}]


@BOTH
def test_records_are_kept_or_dropped_by_the_text_of_a_field(has_schema: bool) -> None:
    values = [{"op": "r"}, None, {"op": "u"}]
    kept = {"field_name": "op", "field_value": "r"}
    assert filtered(values, has_schema=has_schema, **kept) == [0, 1]
    assert filtered(values, has_schema=has_schema, **kept, field_value_matches="false") == [1, 2]


@pytest.mark.parametrize(
    ("pattern", "left"), [("Java", [0, 1]), ("^Java$", []), (".*script", [0]), ("^4", [2])]
)
def test_a_pattern_is_searched_in_the_text(pattern: str, left: list[int]) -> None:
    values = [{"l": "Javascript"}, {"l": "Java 1"}, {"l": "42"}, {"l": None}]
    options = {"field_name": "l", "field_value_pattern": pattern}
    assert filtered(values, **options) == left
    rest = [n for n in range(4) if n not in left]
    assert filtered(values, **options, field_value_matches="false") == rest


def test_numbers_and_wholes_have_a_text_too() -> None:
    assert filtered([{"n": 41}, {"n": 42}], field_name="n", field_value_pattern="^42$") == [1]
    assert filtered(["A42", "43"], field_value="A42") == [0]
    assert filtered([{"b": True}, {"b": False}], field_name="b", field_value="true") == [0]


def test_a_null_equals_nothing_and_is_refused() -> None:
    config = one(f"{AIVEN}FilterByFieldValue$Value", field_name="op", field_value="r")
    outcome = applied(config, batch([{"op": "r"}, {"op": None}, {}]))
    assert [r.index for r in outcome.refused] == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Either field.value or field.value.pattern"),
        ({"field_value": "a", "field_value_pattern": "b"}, "Either field.value or"),
        ({"field_value": "42"}, r"Set field.value.pattern=\^"),
        ({"field_value_pattern": "("}, "is not a regular expression"),
    ],
)
def test_what_cannot_be_filtered_by_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chain_of(one(f"{AIVEN}FilterByFieldValue$Value", **options))
