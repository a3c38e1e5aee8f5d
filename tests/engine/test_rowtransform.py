"""A program's transform between converters and sink: what it sees, and what it cannot change."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.core.errors import ConfigError
from semel.core.records import KEY, OFFSET, PARTITION, TOPIC, ConnectRecords
from semel.sinks.flatten import flattened
from semel.tasks.transform import transformed

JSON = {b"semel:known": b"json"}


def records(values: list[dict[str, object] | None]) -> ConnectRecords:
    """Records of one partition from offset 10 on, with an integer and a text that is JSON."""
    count = len(values)
    fields = [pa.field("n", pa.int64()), pa.field("doc", pa.string(), metadata=JSON)]
    origin = {
        TOPIC: pa.array(["orders"] * count),
        PARTITION: pa.array([3] * count, pa.int32()),
        OFFSET: pa.array(range(10, 10 + count), pa.int64()),
    }
    keys = pa.array([f"k{i}" for i in range(count)])
    return ConnectRecords("orders", pa.table(origin), keys, pa.array(values, pa.struct(fields)))


def test_it_sees_fields_as_columns_and_tombstones_pass_by_it() -> None:
    given = records([{"n": 1, "doc": "{}"}, None, {"n": 3, "doc": "[]"}])
    seen = []

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch.set_column(0, "n", pc.multiply(batch.column("n"), 2))

    flat = flattened(transformed("orders", doubled, given).records, deletes=True)
    assert seen == [2]
    assert flat.rows.column("n").to_pylist() == [2, 6]
    assert flat.rows.column(OFFSET).to_pylist() == [10, 12]
    assert flat.tombstones is not None
    assert flat.tombstones.column(OFFSET).to_pylist() == [11]
    assert flat.tombstones.column(KEY).to_pylist() == ["k1"]


def test_a_fields_metadata_is_kept_by_a_transform_that_builds_a_new_batch() -> None:
    def rebuilt(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [*batch.schema.names, "more"]
        more = pa.nulls(batch.num_rows, pa.int32())
        return pa.RecordBatch.from_arrays([*batch.columns, more], names=names)

    rows = flattened(
        transformed("orders", rebuilt, records([{"n": 1, "doc": "{}"}])).records, deletes=False
    )
    assert rows.rows.schema.field("doc").metadata == JSON
    assert not rows.rows.schema.field("more").metadata


def test_where_records_come_from_keeps_its_types() -> None:
    """Other libraries give back long strings, say."""

    def elsewhere(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.names.index(TOPIC)
        return batch.set_column(at, TOPIC, batch.column(TOPIC).cast(pa.large_string()))

    given = records([{"n": 1, "doc": "{}"}])
    assert transformed("orders", elsewhere, given).records.origin.schema == given.origin.schema


def test_it_cannot_say_that_they_come_from_nowhere() -> None:
    def lost(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.names.index(OFFSET)
        return batch.set_column(at, OFFSET, pa.array(["?"] * batch.num_rows))

    with pytest.raises(ConfigError, match="changed the metadata column __connect_offset"):
        transformed("orders", lost, records([{"n": 1, "doc": "{}"}]))


@pytest.mark.parametrize(
    ("name", "values"),
    [(TOPIC, ["payments"]), (PARTITION, pa.array([4], pa.int32())), (OFFSET, [11])],
)
def test_it_cannot_say_that_they_come_from_elsewhere(name: str, values: object) -> None:
    """Counts, positions and dead letters go by it."""

    def elsewhere(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(batch.schema.names.index(name), name, values)

    with pytest.raises(ConfigError, match=f"connector orders: the transform changed .*{name}"):
        transformed("orders", elsewhere, records([{"n": 1, "doc": "{}"}]))


def test_keys_of_another_type_than_those_of_tombstones_are_refused() -> None:
    def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = pa.array(range(batch.num_rows), pa.int64())
        return batch.set_column(batch.schema.names.index(KEY), KEY, numbers)

    with pytest.raises(ConfigError) as refusal:
        transformed("orders", numbered, records([{"n": 1, "doc": ""}, None]))
    assert str(refusal.value).startswith(
        "connector orders: the transform changed the type of __connect_key from string to int64, "
        "but tombstones pass the transform unchanged"
    )
    assert "Return __connect_key as string" in str(refusal.value)


def test_a_record_it_raises_for_is_named_by_its_place_and_the_others_are_kept() -> None:
    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("n"), 13)).as_py():
            raise ValueError("unlucky")
        return batch

    values: list[dict[str, object] | None] = [{"n": i, "doc": ""} for i in range(20)]
    made = transformed("orders", picky, records([None, *values]))
    assert [(f.index, f.exception, f.message) for f in made.failed] == [
        (14, "ValueError", "unlucky")
    ]
    kept = np.sort(made.records.origin.column(OFFSET).to_numpy())
    assert kept.tolist() == [o for o in range(10, 31) if o != 24]


def test_it_may_leave_out_all_of_them_and_all_columns() -> None:
    def none(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 0)

    def bare(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select([n for n in batch.schema.names if n not in ("n", "doc")])

    given = records([{"n": 1, "doc": ""}, None])
    assert len(transformed("orders", none, given).records) == 1
    flat = flattened(transformed("orders", bare, given).records, deletes=True)
    assert flat.rows.num_rows == 1
    assert flat.rows.column_names == [TOPIC, PARTITION, OFFSET, KEY]
