"""Rows of a bulk load, compared with what python-tds writes value by value."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytds import tds_base
from pytds.tds_types import SerializerFactory

from semel.databases.sqlserver.client import _type
from semel.databases.sqlserver.rows import Unsendable, rows

TEXT = st.text(st.characters(codec="utf-8"), max_size=9)
TIMES = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59))


def whole(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    """Without 0, which python-tds writes as a negative number."""
    most = 10**precision - 1
    return st.one_of(st.integers(-most, -1), st.integers(1, most)).map(
        lambda n: decimal.Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale))
    )


def integers(kind: pa.DataType) -> st.SearchStrategy[int]:
    bits = kind.bit_width
    if pa.types.is_unsigned_integer(kind):
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{k: integers(k) for k in (pa.uint8(), pa.int16(), pa.int32(), pa.int64())},
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32, allow_nan=False, allow_infinity=False),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.decimal128(4, 2): whole(4, 2),
    pa.decimal128(10, 0): whole(10, 0),
    pa.decimal128(20, 20): whole(20, 20),
    pa.decimal128(38, 9): whole(38, 9),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): TIMES,
    pa.timestamp("us", "UTC"): TIMES.map(lambda t: t.replace(tzinfo=datetime.UTC)),
    pa.string(): TEXT,
}


class Writer:
    """Gathers what a serializer writes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data

    def pack(self, form: Any, *values: Any) -> None:
        self.data += form.pack(*values)

    def __getattr__(self, name: str) -> Any:
        width, signed = {
            "put_byte": (1, False),
            "put_smallint": (2, True),
            "put_int": (4, True),
            "put_uint": (4, False),
            "put_int8": (8, True),
            "put_uint8": (8, False),
        }[name]
        return lambda n: self.write(int(n).to_bytes(width, "little", signed=signed))


def as_python_tds_writes(table: pa.Table) -> bytes:
    factory, writer = SerializerFactory(tds_base.TDS74), Writer()
    serializers = [factory.serializer_by_type(_type(f.type)) for f in table.schema]
    for row in table.to_pylist():
        writer.write(b"\xd1")
        for serializer, value in zip(serializers, row.values(), strict=True):
            serializer.write(writer, value)
    return bytes(writer.data[1:])


@settings(max_examples=50)
@given(
    st.lists(st.tuples(*(st.none() | values for values in KINDS.values())), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_values_are_encoded_as_the_client_does(values: list[tuple[Any, ...]], first: int) -> None:
    columns = zip(*values, strict=True)
    arrays = {str(k): pa.array(c, k) for k, c in zip(KINDS, columns, strict=True)}
    part = pa.table(arrays).slice(first % len(values))
    assert rows(part) == as_python_tds_writes(part)


def test_chunks_are_rows_one_after_another() -> None:
    table = pa.table({"a": pa.chunked_array([[1, None], [], [3]]), "b": ["x", "", None]})
    assert rows(table) == as_python_tds_writes(table)
    assert rows(table.slice(0, 0)) == b""


def test_bytes_go_in_chunks_of_an_unknown_length_in_all() -> None:
    """The client sends the length, which SQL Server's bulk load mistakes for the value's start."""
    unknown, null = b"\xfe" + b"\xff" * 7, b"\xff" * 8
    expected = unknown + b"\2\0\0\0a\0" + bytes(4) + b"\xd1" + null + b"\xd1" + unknown + bytes(4)
    values = pa.array([b"x", b"a\0", None, b""])
    assert rows(pa.table({"a": values}).slice(1)) == expected
    assert rows(pa.table({"a": values.cast(pa.large_binary())}).slice(1)) == expected


def test_zero_is_not_negative() -> None:
    zeros = pa.table({"a": pa.array([decimal.Decimal("0.0")], pa.decimal128(2, 1))})
    assert rows(zeros) == b"\x11\1" + bytes(16)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([1.0, float("nan")]), "column v: .*neither NaN nor infinity"),
        (pa.array([float("-inf")], pa.float32()), "column v: .*neither NaN nor infinity"),
        (pa.array([2932897], pa.date32()), "column v: .*the years 1 to 9999"),
        (pa.array([-(10**17)], pa.timestamp("us")), "column v: .*the years 1 to 9999"),
    ],
)
def test_a_value_that_sql_server_lacks_is_refused(values: pa.Array, said: str) -> None:
    with pytest.raises(Unsendable, match=said):
        rows(pa.table({"v": values}))
