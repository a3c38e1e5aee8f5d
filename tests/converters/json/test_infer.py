"""Fields found in plain JSON, and how they may change later."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.converter import JsonConverter
from tests.converters.json.test_plain import messages, plain, rows


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([1.5], pa.float64()),
        ([True, None], pa.bool_()),
        (["a"], pa.string()),
        ([None], pa.string()),
        (["2013-01-01", "2014-12-31"], pa.date32()),
        (["2013-01-01", "2013-01-01T10:00:00Z"], pa.timestamp("us", "UTC")),
        (["2013-01-01T10:00:00.123456+02:00"], pa.timestamp("us", "UTC")),
        (["2013-01-01 10:00"], pa.timestamp("us", "UTC")),
        (["2013-02-30"], pa.string()),
        (["2013-01-01", "soon"], pa.string()),
        (["2013"], pa.string()),
        ([[1, 2], [None], []], pa.list_(pa.int64())),
        ([[1], [2.5]], pa.list_(pa.float64())),
        ([["a"], None], pa.list_(pa.string())),
        ([[]], pa.json_()),
        ([{"a": 1}], pa.json_()),
        ([{}], pa.json_()),
        ([[{"a": 1}]], pa.json_()),
        ([[[1]]], pa.json_()),
        ([1, "a"], pa.json_()),
        ([True, 1], pa.json_()),
        ([[1], 1], pa.json_()),
        ([[1, "a"]], pa.json_()),
        ([2**63], pa.json_()),
        ([-(2**63)], pa.int64()),
    ],
    ids=str,
)
def test_the_type_of_a_field_is_found(values: list[Any], wanted: pa.DataType) -> None:
    sample = rows(*({"x": v} for v in values))
    converter = plain()
    assert converter.infer(sample) == pa.schema([("x", wanted)])
    found = converter.decode(sample)
    assert found.failures == []
    assert found.values.type.field("x").type == wanted


def test_conflicting_values_are_kept_as_they_are_written() -> None:
    found = plain().decode(rows({"x": 1}, {"x": "a"}, {"x": None}))
    assert found.values.to_pylist() == [{"x": "1"}, {"x": '"a"'}, {"x": None}]


def test_bad_records_do_not_disturb_inference() -> None:
    sample = rows(b"{", None, b"\xff", {"a": 1}, b"[]", {"b": "x"})
    assert plain().infer(sample) == pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_values_that_are_no_objects_have_no_fields() -> None:
    assert plain().infer(rows(b"1", b"2")) is None
    assert plain().infer(rows(None)) is None


def test_a_declared_schema_is_what_is_found() -> None:
    declared = pa.schema([pa.field("a", pa.int16(), nullable=False), ("s", pa.struct([]))])
    found = JsonConverter(schema=declared).infer(rows({"a": 1, "b": 2}))
    assert found == pa.schema([pa.field("a", pa.int16(), nullable=False), ("s", pa.json_())])


@pytest.mark.parametrize(
    ("first", "later", "wanted"),
    [
        (1, 1.5, pa.float64()),
        (None, 1, pa.int64()),
        (None, {"a": 1}, pa.json_()),
        (None, "a", pa.string()),
        ("2013-01-01", "2013-01-01T10:00:00Z", pa.timestamp("us", "UTC")),
        ([1], [1.5], pa.list_(pa.float64())),
        ([], [1], pa.list_(pa.int64())),
    ],
)
def test_a_found_type_widens_when_nothing_is_lost(
    first: Any, later: Any, wanted: pa.DataType
) -> None:
    converter = plain()
    converter.decode(rows({"x": first}))
    found = converter.decode(rows({"x": first}, {"x": later}))
    assert messages(found) == {}
    assert found.values.type.field("x").type == wanted


@pytest.mark.parametrize(
    ("first", "later"), [(1, "a"), ("a", 1), ([1], [[1]]), ("2013-01-01", "soon")]
)
def test_any_other_change_of_a_found_type_fails_the_record(first: Any, later: Any) -> None:
    converter = plain()
    converter.decode(rows({"x": first}))
    found = converter.decode(rows({"x": first}, {"x": later}))
    assert sorted(messages(found)) == [1]


def test_an_expected_type_never_widens() -> None:
    found = plain().decode(rows({"x": 1.5}), pa.schema([("x", pa.int64())]))
    assert messages(found) == {0: "field x: 1.5 is not a whole number"}


def test_evolve_adds_fields_to_those_found_first() -> None:
    converter = plain(evolve=True)
    converter.decode(rows({"a": 1}))
    found = converter.decode(rows({"a": 2, "b": "x"}))
    assert found.values.to_pylist() == [{"a": 2, "b": "x"}]
