"""Columns to JSON, and back by the same converter."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.converters import create
from semel.converters.base import Converter
from semel.converters.json.converter import JsonConverter
from semel.converters.primitives import ByteArrayConverter, StringConverter
from semel.core.errors import ConfigError

PLAIN = JsonConverter(schemas_enable=False, numeric=True)


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


@pytest.mark.parametrize(
    "kind", [pa.decimal128(38, 3), pa.decimal128(4, -2), pa.decimal256(60, 3)], ids=str
)
def test_decimals_are_base64_unless_numbers_are_asked_for(kind: pa.DataType) -> None:
    """Java's ``BigDecimal.unscaledValue().toByteArray()``, as KIP-481 has it."""
    numbers = [0, 1, -1, 127, 128, -128, -129, 9_900, 10 ** (kind.precision - 1), None]
    unscaled = [n if n is None else Decimal(n).scaleb(-kind.scale, Context(80)) for n in numbers]
    values = struct(d=pa.array(unscaled, kind))[1:]
    expected = [
        n
        if n is None
        else n.to_bytes((n if n >= 0 else ~n).bit_length() // 8 + 1, "big", signed=True)
        for n in numbers[1:]
    ]
    found = [row["d"] for row in written(values, JsonConverter(schemas_enable=False))]
    assert [d if d is None else base64.b64decode(d) for d in found] == expected


@pytest.mark.parametrize("numeric", [True, False])
def test_decimals_of_both_forms_are_read(numeric: bool) -> None:
    values = struct(d=pa.array([Decimal("-1.50"), None], pa.decimal128(9, 2)))
    decoded = JsonConverter().decode(JsonConverter(numeric=numeric).encode(values))
    assert decoded.values.to_pylist() == values.to_pylist()


def test_the_form_of_decimals_is_configured() -> None:
    name = "org.apache.kafka.connect.json.JsonConverter"

    def converter(given: str) -> Converter:
        config = {"schemas.enable": "false", "decimal.format": given}
        return create(name, config, is_key=False, where="value.converter")

    values = pa.array([Decimal("1.5")], pa.decimal128(9, 1))
    assert converter("numeric").encode(values).to_pylist() == [b"1.5"]
    assert converter("").encode(values).to_pylist() == [b'"Dw=="']
    with pytest.raises(ConfigError, match=r"decimal\.format='TEXT' must be BASE64 or"):
        converter("TEXT")


def test_what_json_has_no_number_for_is_text_as_kafka_connect_writes_it() -> None:
    values = struct(x=pa.array([float("nan"), float("inf"), -float("inf"), 1.0]))
    assert written(values) == [{"x": "NaN"}, {"x": "Infinity"}, {"x": "-Infinity"}, {"x": 1}]


def test_times_are_numbers_as_kafka_connect_writes_them() -> None:
    values = struct(
        at=pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC")),
        on=pa.array([dt.date(1970, 1, 11)]),
        clock=pa.array([dt.time(0, 0, 1, 500_000)], pa.time64("us")),
        before=pa.array([-500], pa.timestamp("us", "UTC")),
        first=pa.array([-(2**63)], pa.timestamp("us", "UTC")),
        raw=pa.array([b"\x00\xff"]),
    )
    assert written(values) == [
        {
            "at": 1_700_000_000_123,
            "on": 10,
            "clock": 1500,
            "before": -1,
            "first": -9_223_372_036_854_776,
            "raw": "AP8=",
        }
    ]


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
        {"many": [1, None], "inner": {"b": "eA==", "f": "NaN"}, "map": {"k": 1}}
    ]


NESTED = pa.struct(
    [
        ("inner", pa.struct([("n", pa.int64()), ("many", pa.list_(pa.string()))])),
        ("named", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("numbered", pa.map_(pa.int64(), pa.struct([("t", pa.string())]))),
    ]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ROWS = st.lists(
    some(
        st.fixed_dictionaries(
            {
                "inner": some(
                    st.fixed_dictionaries(
                        {"n": some(NUMBERS), "many": some(st.lists(some(st.text()), max_size=3))}
                    )
                ),
                "named": some(st.dictionaries(st.text(), some(st.lists(NUMBERS)), max_size=3)),
                "numbered": some(
                    st.dictionaries(NUMBERS, st.fixed_dictionaries({"t": st.text()}), max_size=3)
                ),
            }
        )
    ),
    max_size=6,
)


@given(ROWS, st.integers(0, 2))
def test_any_nested_value_can_be_read_again(rows: list[Any], skipped: int) -> None:
    """Maps are objects, or lists of pairs where their keys are no strings."""

    def changed(row: Any, name: str, change: Callable[[Any], Any]) -> Any:
        return row if row is None or row[name] is None else {**row, name: change(row[name])}

    def pairs(found: dict[Any, Any]) -> list[list[Any]]:
        return [list(pair) for pair in found.items()]

    given = [changed(row, "named", lambda found: list(found.items())) for row in rows]
    given = [changed(row, "numbered", lambda found: list(found.items())) for row in given]
    values = pa.array(given, NESTED)[skipped:]
    assert written(values) == [changed(row, "numbered", pairs) for row in rows[skipped:]]


def test_fields_that_cannot_be_null_are_not_optional() -> None:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())]
    values = pa.StructArray.from_arrays([pa.array([1]), pa.array(["a"])], fields=fields)
    (found,) = written(values, JsonConverter(schemas_enable=True))
    assert [f["optional"] for f in found["schema"]["fields"]] == [False, True]


def test_nested_types_are_named_as_kafka_connect_names_them() -> None:
    kind = pa.struct(
        [
            ("inner", pa.struct([("n", pa.int32())])),
            ("named", pa.map_(pa.string(), pa.int64())),
        ]
    )
    (text,) = JsonConverter().encode(pa.array([{"inner": {"n": 1}, "named": [("k", 2)]}], kind))
    inner = [{"field": "n", "optional": True, "type": "int32"}]
    assert json.loads(text.as_py()) == {
        "schema": {
            "type": "struct",
            "optional": False,
            "fields": [
                {"field": "inner", "optional": True, "type": "struct", "fields": inner},
                {
                    "field": "named",
                    "optional": True,
                    "type": "map",
                    "keys": {"type": "string", "optional": False},
                    "values": {"type": "int64", "optional": True},
                },
            ],
        },
        "payload": {"inner": {"n": 1}, "named": {"k": 2}},
    }


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
    with pytest.raises(ConfigError, match=r"field m: .*duration"):
        JsonConverter().encode(struct(m=pa.array([1], pa.duration("s"))))
