"""Casts that keep the value, and the others refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal as D
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.sinks import jsontext
from semel.sinks.casts import UNFIT, cast, without_json, without_text
from semel.sinks.sql.convert import json_text, text_of

UTC = pa.timestamp("us", "UTC")
NS = pa.timestamp("ns")


def chunks(value: Any, kind: pa.DataType | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([None, value], kind), pa.array([value], kind)])


FITS = [
    (" 7 ", None, pa.int64(), 7),
    ("+7", None, pa.int8(), 7),
    ("1e3", None, pa.float64(), 1000.0),
    ("-Infinity", None, pa.float32(), float("-inf")),
    ("inf", None, pa.float64(), float("inf")),
    (str(UUID(int=7)).upper(), None, pa.uuid(), UUID(int=7)),
    ("0.0", None, pa.float64(), 0.0),
    ("9007199254740994", None, pa.float64(), 2.0**53 + 2),
    ("1.50", None, pa.decimal128(10, 1), D("1.5")),
    ("1.5e3", None, pa.decimal128(10, 1), D("1500.0")),
    ("0e37", None, pa.decimal128(10, 2), D("0.00")),
    ("0e-99999999", None, pa.decimal128(10, 2), D("0.00")),
    ("true", None, pa.bool_(), True),
    (1, None, pa.bool_(), True),
    ("2024-01-01", None, pa.date32(), dt.date(2024, 1, 1)),
    ("10:20:30.123456789", None, pa.time64("us"), dt.time(10, 20, 30, 123456)),
    ("2024-01-01T10:00+02:00", None, pa.timestamp("us"), dt.datetime(2024, 1, 1, 8)),
    ("2024-01-01 10:00", None, UTC, dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)),
    ("2024-01-01", None, pa.timestamp("s"), dt.datetime(2024, 1, 1)),
    ("2024-01-01T10:00:00.1234567Z", None, UTC, dt.datetime(2024, 1, 1, 10, 0, 0, 123456, dt.UTC)),
    ("1969-12-31T23:59:59.0000001", None, UTC, dt.datetime(1969, 12, 31, 23, 59, 59, 0, dt.UTC)),
    (-1, NS, UTC, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)),
    (2**53 + 2, None, pa.float64(), 2.0**53 + 2),
    (2**64 - 2**12, pa.uint64(), pa.float64(), 2.0**64 - 2**12),
    (D("0.1"), None, pa.float64(), 0.1),
    (0.1, None, pa.float32(), pa.scalar(0.1, pa.float32()).as_py()),
    (0.1, None, pa.decimal128(10, 2), D("0.10")),
    (1e20, None, pa.decimal128(38, 2), D("1e20").quantize(D("1.00"))),
    (7.0, None, pa.int32(), 7),
    (D("7.00"), None, pa.int32(), 7),
    (dt.datetime(2024, 1, 1), None, pa.date32(), dt.date(2024, 1, 1)),
    (1_704_067_200_123_456_789, NS, pa.timestamp("us"), dt.datetime(2024, 1, 1, 0, 0, 0, 123456)),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "target", "becomes"), FITS, ids=str)
def test_what_fits_keeps_its_value(
    value: Any, kind: pa.DataType | None, target: pa.DataType, becomes: Any
) -> None:
    assert cast(chunks(value, kind), target).to_pylist() == [None, becomes, becomes]


MISFITS = [
    ("0x10", None, pa.int64()),
    ("1_0", None, pa.int64()),
    ("1.0", None, pa.int64()),
    ("128", None, pa.int8()),
    ("0x10", None, pa.float64()),
    ("1e400", None, pa.float64()),
    ("1e-400", None, pa.float64()),
    ("1e300", None, pa.float32()),
    ("9007199254740993", None, pa.float64()),
    ("1.255", None, pa.decimal128(10, 2)),
    ("1e30", None, pa.decimal128(38, 18)),
    ("1e-99999999", None, pa.decimal128(38, 18)),
    ("1" * 30, None, pa.decimal128(38, 18)),
    ("1" * 70, None, pa.decimal128(38, 18)),
    ("nan", None, pa.decimal128(10, 2)),
    ("2", None, pa.bool_()),
    ("2024-01-01T10:00", None, pa.date32()),
    ("24:00:00", None, pa.time64("us")),
    (UUID(int=7).hex, None, pa.uuid()),
    ("2016-12-31T23:59:60Z", None, pa.timestamp("us")),
    ("2024-01-01T10:00:00.5", None, pa.timestamp("s")),
    (2, None, pa.bool_()),
    (-1, None, pa.bool_()),
    (0.5, None, pa.bool_()),
    (1e300, None, pa.float32()),
    (-1e-50, None, pa.float32()),
    (2**53 + 1, None, pa.float64()),
    (2**24 + 1, pa.int32(), pa.float32()),
    (D(2**53 + 1), None, pa.float64()),
    (1.5, None, pa.int64()),
    (D("1.5"), None, pa.int64()),
    (300, None, pa.int8()),
    (0.1 + 0.2, None, pa.decimal128(10, 2)),
    (float("nan"), None, pa.decimal128(10, 2)),
    (D("1.255"), None, pa.decimal128(10, 2)),
    (dt.datetime(2024, 1, 1, 10), None, pa.date32()),
    (dt.datetime(1960, 1, 1, 10), None, pa.date32()),
    (dt.datetime(2024, 1, 1, 10), None, pa.time64("us")),
    (dt.datetime(2024, 1, 1, 0, 0, 0, 5), None, pa.timestamp("ms")),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "target"), MISFITS, ids=str)
def test_what_does_not_fit_is_refused(
    value: Any, kind: pa.DataType | None, target: pa.DataType
) -> None:
    with pytest.raises(UNFIT):
        cast(chunks(value, kind), target)


def test_nothing_but_nulls_fits_everywhere() -> None:
    for source in (pa.string(), pa.int64(), pa.float64(), pa.timestamp("us"), pa.decimal128(5, 2)):
        for target in (pa.int8(), pa.float32(), pa.decimal128(10, 2), pa.bool_(), pa.string()):
            if pa.types.is_temporal(source) and target != pa.string():
                continue
            for nulls in (pa.chunked_array([pa.nulls(2, source)]), pa.chunked_array([], source)):
                assert pc.all(pc.is_null(cast(nulls, target))).as_py() is not False


# What text and JSON cannot hold, named row by row

FAR = [
    *((pa.timestamp(unit, "UTC"), 2**62) for unit in ("s", "ms")),
    *((pa.timestamp(unit), 2**63 - 1) for unit in ("s", "ms", "us")),
    (pa.timestamp("ms"), -(2**62)),
    (pa.date32(), 2**31 - 1),
    (pa.date32(), -20_000_000),
]
NEAR = [
    (pa.timestamp("s"), 971_890_963_199),
    (pa.timestamp("ns"), 2**63 - 1),
    (pa.date32(), 11248737),
]


@pytest.mark.parametrize(("kind", "count"), FAR, ids=str)
def test_a_time_that_no_text_can_hold_is_no_text(kind: pa.DataType, count: int) -> None:
    values = pa.array([0, count, None], kind)
    both = pa.table({"t": values, "s": pa.StructArray.from_arrays([values], ["in"])})
    for column in both.columns:
        assert list(without_json(pa.table({"c": column}))) == [1]
        with pytest.raises(pa.ArrowInvalid, match="its year is beyond 32767"):
            json_text(column)
    assert list(without_text(both)) == [1]
    for write in (jsontext.text, text_of, lambda v: cast(v, pa.string())):
        with pytest.raises(pa.ArrowInvalid, match="its year is beyond 32767"):
            write(values if write is jsontext.text else pa.chunked_array([values]))


@pytest.mark.parametrize(("kind", "count"), NEAR, ids=str)
def test_a_time_that_text_can_hold_is_written(kind: pa.DataType, count: int) -> None:
    (text,) = jsontext.text(pa.array([count], kind)).to_pylist()
    assert text.startswith(('"32767-12-31', '"2262-04-11'))


def test_a_number_that_json_lacks_is_found_however_deep() -> None:
    kind = pa.struct([("d", pa.list_(pa.map_(pa.string(), pa.float64())))])
    rows = [{"d": [[("a", 1.5)]]}, None, {"d": [None, [("a", None), ("b", float("nan"))]]}]
    table = pa.table({"s": pa.array(rows, kind), "f": [1.5, float("inf"), None]})
    assert without_json(table) == {
        1: "column f: JSON has no inf",
        2: "column s: JSON has no NaN and no infinities",
    }
