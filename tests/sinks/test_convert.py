"""Arrow values to the types of a lake's columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.sinks.casts import UNFIT
from semel.sinks.convert import convert, unfit_rows

PAIR = pa.struct([("x", pa.int64()), ("y", pa.int64())])
X = pa.struct([("x", pa.int32())])


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (pa.array([{"x": 1, "y": 2}], PAIR), X),
        (pa.array([[{"x": 1, "y": 2}]], pa.list_(PAIR)), pa.list_(X)),
        (pa.array([[("k", {"x": 1, "y": 2})]], pa.map_("string", PAIR)), pa.map_("string", X)),
        (pa.array([{"o": {"x": 1, "y": 2}}]), pa.struct([("o", X)])),
    ],
)
def test_no_field_of_a_struct_is_dropped(values: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(UNFIT, match=r"holds a field y, which struct<x: int32> lacks"):
        convert(pa.chunked_array([values]), target)


def test_nested_values_fit_field_by_field() -> None:
    null = pa.array([{"y": None, "x": 1}, None], pa.struct([("y", pa.int8()), ("x", pa.int64())]))
    wider = pa.struct([("x", pa.int32()), ("z", pa.string())])
    assert convert(pa.chunked_array([null]), wider).to_pylist() == [{"x": 1, "z": None}, None]
    lists = pa.chunked_array([pa.array([[{"x": 1, "y": 2}], None, [None]], pa.list_(PAIR))])
    assert convert(lists.slice(1), pa.list_(X)).to_pylist() == [None, [None]]
    kind = pa.map_(pa.string(), PAIR)
    maps = pa.chunked_array([pa.array([[("a", {"x": 1, "y": 2})], None, [("b", None)]], kind)])
    found = convert(maps.slice(1), pa.map_(pa.string(), X))
    assert found.to_pylist() == [None, [("b", None)]]
    items = pa.list_(pa.field("item", pa.int32(), nullable=False))
    assert unfit_rows(pa.chunked_array([[[1], [None], None]]), items)[0][0] == 1
