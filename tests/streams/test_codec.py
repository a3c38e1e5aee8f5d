"""Values survive as bytes, whatever their types are, and bytes of keys say which keys are equal."""

from __future__ import annotations

import random
import string
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from semel.converters.json.columns import JSON
from semel.core.errors import SemelError
from semel.streams import codec
from semel.streams.codec import behind, binary, joined, pack, pack_keys, unpack
from semel.streams.records import concatenated

COLUMNS = [
    pa.nulls(3),
    pa.array([], pa.string()),
    pa.array([True, None, False]),
    *(
        pa.array([1, None, 100], getattr(pa, f"{s}int{w}")())
        for s in ("", "u")
        for w in (8, 16, 32)
    ),
    pa.array([-(2**63), None, 2**63 - 1]),
    pa.array([0, 2**64 - 1], pa.uint64()),
    pa.array([1.5, None, float("inf")], pa.float32()),
    pa.array([-0.1, None, 1e300]),
    pa.array(["a", None, "", "ö\0"]),
    pa.array([b"\0", None, b""]),
    pa.array([date(1, 1, 1), None, date(9999, 12, 31)]),
    pa.array([time(1, 2, 3), None]),
    pa.array([datetime(2020, 1, 1, tzinfo=UTC), None], pa.timestamp("ns", "UTC")),
    pa.array([datetime(1901, 1, 1), None], pa.timestamp("s")),
    pa.array([-5, None], pa.duration("us")),
    pa.array([Decimal("-1.25"), None, Decimal("99.10")]),
    pa.array(
        [[("a", [Decimal("1.5")])], None], pa.map_(pa.string(), pa.list_(pa.decimal128(3, 1)))
    ),
    pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "zz"}]),
    pa.array([{}, None], pa.struct([])),
    pa.array([[1, 2], [], None, [None, 5]]),
    pa.array([[["a"], []], [], None, [[None]]]),
    pa.array([[{"a": "q"}], [{"a": None}], []]),
    pa.array([[("a", 1)], None, [], [("b", None), ("c", 3)]], pa.map_(pa.string(), pa.int64())),
    pa.ExtensionArray.from_storage(JSON, pa.array(['{"a":1}', None], JSON.storage_type)),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_a_column_comes_back_as_it_was(column: pa.Array) -> None:
    for given in (column, column.slice(1), column.slice(0, 1)):
        found = unpack(pack(given))
        assert found.to_pylist() == given.to_pylist()
    assert unpack(pack(column)).type == column.type or not len(column)


def value(draw: random.Random, depth: int) -> Any:
    kind = draw.randrange(6 if depth else 3)
    if kind == 0:
        return "".join(draw.choices(string.printable, k=draw.randrange(5)))
    if kind < 3:
        return draw.choice(["", "x" * 300, None])
    if kind == 3:
        return {name: value(draw, depth - 1) for name in "ab"}
    return None


def test_columns_of_generated_structs_come_back() -> None:
    draw = random.Random(1)
    for _ in range(50):
        given = pa.array([{"a": value(draw, 0), "b": {"c": value(draw, 0)}} for _ in range(20)])
        assert unpack(pack(given)).to_pylist() == given.to_pylist()


def test_a_column_may_change_its_fields_and_numbers() -> None:
    given = [[{"a": 1}], [{"a": 1.5, "b": "x"}], [{"b": "y"}]]
    packed = pa.concat_arrays([pack(pa.array(part)) for part in given])
    a, b = "a", "b"
    assert unpack(packed).to_pylist() == [{a: 1.0, b: None}, {a: 1.5, b: "x"}, {a: None, b: "y"}]


def document(text: str) -> pa.Array:
    return pa.ExtensionArray.from_storage(JSON, pa.array([text]))


def test_equal_keys_have_equal_bytes_whatever_their_type() -> None:
    for one, other in (
        (pa.array([7], pa.int8()), pa.array([7])),
        (pa.array(["a"], pa.large_string()), pa.array(["a"])),
        (pa.array(["a", "a"]).dictionary_encode().slice(1), pa.array(["a"])),
        (pa.array([{"a": None}]), pa.array([{"a": None}], pa.struct([("a", pa.string())]))),
        (pa.array([{"a": 1}], pa.struct([("a", pa.int16())])), pa.array([{"a": 1}])),
        (pa.array([{"a": 1, "b": None}]), pa.array([{"a": 1}])),
        (pa.array([{"a": 1, "b": {"c": 2, "d": 3}}]), pa.array([{"b": {"d": 3, "c": 2}, "a": 1}])),
        (pa.array([[{"a": 1, "b": None}]]), pa.array([[{"a": 1}]])),
        (pa.array([[7]], pa.list_(pa.int8())), pa.array([[7]])),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.5"), Decimal("10.5")])[:1]),
        (document("7"), pa.array([7])),
        (pa.array([7], pa.uint64()), pa.array([7])),
        (document(str(2**64 - 1)), pa.array([2**64 - 1, 1], pa.uint64())[:1]),
        (document('{"b": [1.5], "a": "x"}'), pa.array([{"a": "x", "b": [1.5]}])),
    ):
        assert pack_keys(one).equals(pack_keys(other))
    assert not pack_keys(pa.array(["1"])).equals(pack_keys(pa.array([1])))
    assert pack_keys(pa.array([None, 1])).null_count == 1
    mixed = pa.array([{"b": 1, "a": None}, None, {"a": "x", "b": 2}, {"b": 3}])
    assert unpack(pack_keys(mixed)).to_pylist() == [
        {"a": None, "b": 1},
        None,
        {"a": "x", "b": 2},
        {"a": None, "b": 3},
    ]
    assert unpack(pack_keys(pa.array([2**64 - 1], pa.uint64())))[0].as_py() == 2**64 - 1
    for text in ("0.12345678901234567", "123456789012345678901234567890", '[1, "x"]'):
        assert unpack(pack_keys(document(text)))[0].as_py() == text


def test_numbers_are_ordered_like_their_bytes() -> None:
    draw = random.Random(1)
    numbers = sorted({draw.randint(-(2**62), 2**62) for _ in range(100)})
    packed = pack_keys(pa.array(numbers)).to_pylist()
    assert packed == sorted(packed)


def test_what_functions_return_may_be_of_several_types(monkeypatch: pytest.MonkeyPatch) -> None:
    join = Mock(side_effect=concatenated)
    monkeypatch.setattr(codec, "concatenated", join)
    values = [{"a": value, "b": {"c": value}} for value in (1, "a", None, True)] * 50
    assert codec.objects(codec.column(values)) == values
    assert join.call_count == 2, "one for each field, however many values there are"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([float("nan"), "a"], "NaN or infinity beside values of other types"),
        ([{"a": 1}, {"a": [1]}], "cannot mix list and non-list"),
        ([{"a": 1}, "x"], "cannot mix struct and non-struct"),
        ([2**63, -1], "overflow: a whole number does not fit into 64 bits with a sign"),
        ([2**63, "a"], "overflow: a whole number does not fit into 64 bits with a sign"),
    ],
)
def test_what_functions_return_is_refused_by_name(values: list[Any], message: str) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError), match=message):
        codec.column(values)


def test_functions_take_no_text_that_is_not_utf_8() -> None:
    with pytest.raises(pa.ArrowInvalid, match="cannot take the text: 'utf-8' codec can't decode"):
        codec.objects(pa.array([b"\xff"]).view(pa.string()))


def test_more_bytes_than_a_column_can_have_are_refused() -> None:
    mebibyte = b"x" * 2**20
    with pytest.raises(SemelError, match=r"more than 2 GiB. Set max.poll.records"):
        joined(mebibyte, pa.array([b"a"] * 2048))
    with pytest.raises(SemelError, match="more than 2 GiB"):
        binary(np.broadcast_to(np.zeros(1, np.uint8), (2048, 2**20)))
    with pytest.raises(SemelError, match="more than 2 GiB"):
        codec._gathered(np.zeros(0, np.uint8), np.zeros(3, np.int64), np.full(3, 2**30))


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(SemelError, match="cannot store values of the type month_day_nano_interval"):
        pack(pa.nulls(1, pa.month_day_nano_interval()))


def test_bytes_without_their_first_ones() -> None:
    given = pa.array([b"abcd", None, b"ab", b"abcde"])
    assert behind(given, 2).to_pylist() == [b"cd", None, b"", b"cde"]
