"""Columns to JSON, and back by the same converter."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.converters.base import Converter
from semel.converters.bytearray import ByteArrayConverter
from semel.converters.json import JsonConverter
from semel.converters.string import StringConverter
from semel.errors import ConfigError

PLAIN = JsonConverter(schemas_enable=False)


def struct(**columns: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def written(values: pa.Array, converter: Converter = PLAIN) -> list[Any]:
    """What a JSON reader that knows nothing of semel makes of it."""
    texts = converter.encode(values).to_pylist()
    return [None if t is None else json.loads(t, parse_float=Decimal) for t in texts]


def test_numbers_keep_their_digits() -> None:
    values = struct(
        whole=pa.array([2**63 - 1, None]),
        exact=pa.array([Decimal("12345678901234567890.10"), None], pa.decimal128(22, 2)),
        fraction=pa.array([0.1, 1e300]),
        small=pa.array([1, -1], pa.int8()),
        yes=pa.array([True, None]),
    )
    first, second = PLAIN.encode(values).to_pylist()
    assert first == (
        b'{"whole":9223372036854775807,"exact":12345678901234567890.10,"fraction":0.1,"small":1,'
        b'"yes":true}'
    )
    assert json.loads(second) == {
        "whole": None,
        "exact": None,
        "fraction": 1e300,
        "small": -1,
        "yes": None,
    }


def test_what_json_has_no_number_for_is_null() -> None:
    values = struct(x=pa.array([float("nan"), float("inf"), -float("inf"), 1.0]))
    assert written(values) == [{"x": None}, {"x": None}, {"x": None}, {"x": 1}]


def test_times_are_numbers_as_kafka_connect_writes_them() -> None:
    values = struct(
        at=pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC")),
        on=pa.array([dt.date(1970, 1, 11)]),
        clock=pa.array([dt.time(0, 0, 1, 500_000)], pa.time64("us")),
        raw=pa.array([b"\x00\xff"]),
    )
    assert written(values) == [{"at": 1_700_000_000_123, "on": 10, "clock": 1500, "raw": "AP8="}]


def test_json_that_was_kept_as_text_is_put_in_untouched() -> None:
    text = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1e2, "b":0.10}', None]))
    assert PLAIN.encode(struct(j=text)).to_pylist() == [
        b'{"j":{"a": 1e2, "b":0.10}}',
        b'{"j":null}',
    ]


def test_nested_values() -> None:
    values = struct(
        many=pa.array([[1, None]], pa.list_(pa.int64())),
        inner=pa.array([{"b": b"x", "f": float("nan")}]),
        map=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    )
    assert written(values) == [
        {"many": [1, None], "inner": {"b": "eA==", "f": None}, "map": {"k": 1}}
    ]


@given(st.lists(st.fixed_dictionaries({'n"é': st.integers(-(2**63), 2**63 - 1), "t": st.text()})))
def test_any_text_and_number_can_be_read_again(rows: list[dict[str, Any]]) -> None:
    kind = pa.struct([('n"é', pa.int64()), ("t", pa.string())])
    assert written(pa.array(rows, kind)) == rows


def test_an_envelope_carries_the_types() -> None:
    values = struct(
        id=pa.array([1, None], pa.int32()),
        amount=pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        at=pa.array([0, None], pa.timestamp("ms", "UTC")),
        raw=pa.array([b"\x01", None]),
        many=pa.array([["a"], None]),
        text=pa.array(["ü", None]),
    )
    converter = JsonConverter()
    decoded = converter.decode(converter.encode(values))
    assert not decoded.failures
    assert decoded.values.to_pylist() == values.to_pylist()
    assert decoded.values.type.field("id").type == pa.int32()


def test_nulls_stay_null_and_primitives_need_no_object() -> None:
    assert written(pa.array([1, None])) == [1, None]
    assert StringConverter().encode(pa.array([1, None])).to_pylist() == [b"1", None]
    assert StringConverter().encode(struct(value=pa.array(["ü"]))).to_pylist() == ["ü".encode()]


def test_a_text_with_its_schema_is_kafka_connects_to_the_byte() -> None:
    """What its FileStreamSource writes with its default converter."""
    assert JsonConverter().encode(pa.array(['a "b"', None])).to_pylist() == [
        b'{"schema":{"type":"string","optional":false},"payload":"a \\"b\\""}',
        None,
    ]


def test_a_converter_that_cannot_write_says_so() -> None:
    with pytest.raises(ConfigError, match="ByteArrayConverter writes bytes as they are"):
        ByteArrayConverter().encode(struct(a=pa.array([1]), b=pa.array([2])))
    with pytest.raises(ConfigError, match="field m: map"):
        JsonConverter().encode(struct(m=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))))
