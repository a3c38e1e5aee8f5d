"""Arrow types on their way through Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from semel.core.records import OFFSET, PARTITION, TOPIC
from semel.tasks.microbatch import frames
from semel.tasks.microbatch.commit import arranged

MOMENT = datetime(2024, 2, 29, 12, 30, 0, 123456)
TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), -8),
    (pa.uint8(), 255),
    (pa.uint16(), 65535),
    (pa.uint32(), 1 << 31),
    (pa.uint64(), (1 << 64) - 1),
    (pa.float16(), 1.5),
    (pa.float32(), 1.5),
    (pa.bool_(), True),
    (pa.string(), "ä"),
    (pa.large_string(), "ä"),
    (pa.string_view(), "ä"),
    (pa.binary(), b"\0"),
    (pa.binary(2), b"\0\1"),
    (pa.date32(), date(2024, 2, 29)),
    (pa.date64(), date(2024, 2, 29)),
    (pa.time32("s"), time(12, 30)),
    (pa.time32("ms"), time(12, 30, 0, 5000)),
    (pa.time64("us"), time(23, 59, 59, 999999)),
    (pa.time64("ns"), time(23, 59, 59, 999999)),
    (pa.timestamp("ms"), MOMENT.replace(microsecond=5000)),
    (pa.timestamp("us"), MOMENT),
    (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us", "Europe/Berlin"), MOMENT.replace(tzinfo=UTC)),
    (pa.decimal128(10, 2), Decimal("1.50")),
    (pa.decimal256(50, 2), Decimal("1.50")),
    (pa.duration("us"), timedelta(seconds=5)),
    (pa.json_(), '{"a": 1}'),
    (pa.uuid(), UUID(int=5)),
    (pa.list_(pa.int32()), [1, None]),
    (pa.list_(pa.uint8()), [1, 2]),
    (pa.list_(pa.time64("us")), [time(1), None]),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": "x"}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (pa.dictionary(pa.int8(), pa.string()), "x"),
]


@pytest.mark.parametrize(("kind", "value"), TYPES, ids=[str(t) for t, _ in TYPES])
def test_values_and_the_types_that_the_sink_looks_at_are_kept(
    kind: pa.DataType, value: Any
) -> None:
    array = pa.array([value, None], kind)
    schema = pa.schema([("x", kind)])
    (batch,) = frames.carry(pa.table({"x": array}), schema)
    assert batch.schema == frames.exact_schema(frames.spark_schema(schema))
    found = frames.restore(pa.Table.from_batches([batch]), schema).column("x")
    assert found.to_pylist() == array.to_pylist()
    assert found.type == kind


def test_missing_columns_are_null_and_narrower_ones_are_widened() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.json_()), ("c", pa.null())])
    (batch,) = frames.carry(pa.table({"a": pa.array([1], pa.int32())}), schema)
    assert batch.to_pylist() == [{"a": 1, "b": None, "c": None}]


def test_what_a_transform_has_put_in_the_place_of_a_value_stays_as_it_is() -> None:
    schema = pa.schema([("t", pa.time64("us")), ("n", pa.uint8()), ("x", pa.int64())])
    made = pa.table({"t": ["noon"], "n": pa.array([300], pa.int16()), "x": ["text"]})
    assert frames.restore(made, schema) == made


def test_lists_of_json_pass() -> None:
    texts = pa.array(["1", "2", "{}"])
    lists = pa.ListArray.from_arrays(
        [0, 2, 2, 3], pa.ExtensionArray.from_storage(pa.json_(), texts)
    )
    schema = pa.schema([("x", lists.type)])
    (batch,) = frames.carry(pa.table({"x": lists}), schema)
    assert batch.column(0).to_pylist() == [["1", "2"], [], ["{}"]]
    assert frames.restore(pa.Table.from_batches([batch]), schema).column("x").type == lists.type


def test_rows_say_where_their_records_were_read_whatever_the_transform_made_of_it() -> None:
    rows = pa.table({"n": [1, 2], TOPIC: ["elsewhere", None], OFFSET: pa.array([4, 5], pa.int64())})
    made = arranged(rows, rows.schema, "orders", [], partition=3)
    assert made.rows.column(TOPIC).to_pylist() == ["orders", "orders"]
    assert made.rows.column(PARTITION).to_pylist() == [3, 3]
    assert made.rows.column(OFFSET).to_pylist() == [4, 5]
