"""Records of several schemas in one batch, in all formats with a registry: each is read by its own,
what they hold is united, and order is kept."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.avro import AvroConverter
from semel.converters.jsonschema import JsonSchemaConverter
from semel.converters.protobuf import ProtobufConverter
from semel.converters.protobuf.link import ReadOptions
from tests.converters.registries import Memory

Make = Callable[[Any], Any]
FORMATS: dict[str, Make] = {
    "avro": lambda registry: AvroConverter(registry, "value.converter"),
    "json": lambda registry: JsonSchemaConverter(registry, "value.converter"),
    "protobuf": lambda registry: ProtobufConverter(
        registry, "value.converter", read_options=ReadOptions(optional_for_nullables=True)
    ),
}
DAY = datetime.date(2024, 2, 29)


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest) -> Any:
    return FORMATS[request.param](Memory()).for_topic("orders")


def written(made: Any, kind: pa.DataType, *values: Any) -> list[bytes]:
    found = made.encode(pa.array([{"v": v} for v in values], pa.struct([("v", kind)])))
    return list(found.to_pylist())


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ((pa.int8(), -5), (pa.int32(), 2**31 - 1), pa.int32()),
        ((pa.int16(), -5), (pa.int64(), 2**62), pa.int64()),
        ((pa.int32(), -(2**31)), (pa.int64(), 2**62), pa.int64()),
        ((pa.int64(), 2**62), (pa.int32(), 7), pa.int64()),
        ((pa.float32(), 0.5), (pa.float64(), 0.1), pa.float64()),
        ((pa.int32(), 7), (pa.float64(), 0.5), pa.float64()),
        (
            (pa.decimal128(9, 2), Decimal("1.50")),
            (pa.decimal128(20, 2), Decimal("12345678901234567.25")),
            pa.decimal128(20, 2),
        ),
        ((pa.list_(pa.int32()), [1, 2]), (pa.list_(pa.int64()), [2**40]), pa.list_(pa.int64())),
    ],
)
def test_numbers_are_widened(
    made: Any, old: tuple[Any, Any], new: tuple[Any, Any], wanted: pa.DataType
) -> None:
    first, second = written(made, *old), written(made, *new)
    decoded = made.decode(pa.array([first[0], None, second[0], first[0]], pa.binary()))
    assert not decoded.failures
    assert decoded.values.type.field("v").type == wanted
    found = [row and row["v"] for row in decoded.values.to_pylist()]
    assert found == [old[1], None, new[1], old[1]]


def test_fields_come_and_go_at_every_level(made: Any) -> None:
    old = pa.struct([("a", pa.int32()), ("in", pa.struct([("x", pa.int32())]))])
    new = pa.struct(
        [("in", pa.struct([("y", pa.string()), ("x", pa.int64())])), ("b", pa.date32())]
    )
    one = made.encode(pa.array([{"a": 1, "in": {"x": 2}}, {"a": 3, "in": None}], old)).to_pylist()
    two = made.encode(pa.array([{"in": {"y": "z", "x": 2**40}, "b": DAY}], new)).to_pylist()
    assert one[0][1:5] != two[0][1:5]
    decoded = made.decode(pa.array([one[0], two[0], one[1]]))
    assert not decoded.failures
    assert [present(row) for row in decoded.values.to_pylist()] == [
        {"a": 1, "in": {"x": 2}},
        {"in": {"x": 2**40, "y": "z"}, "b": DAY},
        {"a": 3},
    ]
    inner = decoded.values.type.field("in").type
    if pa.types.is_struct(inner):  # JSON stays text below the first level
        assert {f.name: f.type for f in inner} == {"x": pa.int64(), "y": pa.string()}


def present(row: Any) -> Any:
    """What is not null, also inside."""
    if isinstance(row, str) and row.startswith("{"):
        row = json.loads(row)
    if not isinstance(row, dict):
        return row
    return {k: present(v) for k, v in row.items() if v is not None}


def test_schemas_that_contradict_are_bad_records_of_the_later_one(made: Any) -> None:
    number, text = written(made, pa.int32(), 1), written(made, pa.string(), "x")
    decoded = made.decode(pa.array([number[0], text[0], number[0]]))
    assert [row and row["v"] for row in decoded.values.to_pylist()] == [1, None, 1]
    (failure,) = decoded.failures
    assert failure.index == 1
    assert "its schema conflicts with other records'" in failure.message


def test_an_unknown_id_among_several_is_bad_alone(made: Any) -> None:
    old, new = written(made, pa.int32(), 1, 2), written(made, pa.int64(), 3)
    unknown = b"\0\0\0\0\x63" + old[0][5:]
    decoded = made.decode(pa.array([old[0], unknown, new[0], old[1]]))
    assert [row and row["v"] for row in decoded.values.to_pylist()] == [1, None, 3, 2]
    assert [f.index for f in decoded.failures] == [1]
