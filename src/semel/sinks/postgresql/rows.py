"""From converted records to the exact columns of a table, in Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.records import KEY, OFFSET, PARTITION, Records, Rejected

SEQUENCE = "__semel_sequence"


def cast_column(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Convert to ``target`` without losing anything.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: some value does not fit.
    """
    source = values.type
    if source.equals(target):
        return values
    if isinstance(target, pa.JsonType):
        return _as_json(values)
    if isinstance(source, pa.JsonType):
        values = pa.chunked_array([c.storage for c in values.chunks], source.storage_type)
    if pa.types.is_string(target) and pa.types.is_nested(source):
        return _as_json(values).cast(pa.string())
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target) and not target.tz:
        # timestamp without time zone: the UTC wall clock, cut to microseconds only if exact
        values = values.cast(pa.timestamp(source.unit))
    return values.cast(target)


def _as_json(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(values.type, pa.JsonType):
        return values
    if pa.types.is_string(values.type):
        # text going into a json column must itself be JSON; the server checks it
        texts = values
    else:
        column = pa.table({"v": values})
        with duckdb.connect() as session:
            session.register("input", column)
            result = session.sql("SELECT CAST(to_json(v) AS VARCHAR) AS v FROM input")
            texts = result.to_arrow_table().column("v").cast(pa.string())
        texts = pc.if_else(values.is_null(), pa.scalar(None, pa.string()), texts)
    return pa.chunked_array(
        [pa.ExtensionArray.from_storage(pa.json_(), c) for c in texts.chunks], pa.json_()
    )


def unfit_rows(values: pa.ChunkedArray, target: pa.DataType) -> list[tuple[int, str]]:
    """Which rows cannot be converted, by halving; each with the reason."""
    try:
        cast_column(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if len(values) == 1:
            return [(0, str(error))]
        middle = len(values) // 2
        left = unfit_rows(values.slice(0, middle), target)
        right = unfit_rows(values.slice(middle), target)
        return left + [(middle + index, reason) for index, reason in right]
    return []


def rejected(records: Records, rows: Sequence[tuple[int, str]], exception: str) -> list[Rejected]:
    """Name the records behind row indices."""
    partitions, offsets = records.rows.column(PARTITION), records.rows.column(OFFSET)
    return [
        Rejected(
            records.topic, partitions[index].as_py(), offsets[index].as_py(), exception, reason
        )
        for index, reason in rows
    ]


def key_columns(table: pa.Table, fields: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """The columns that the record key provides: a struct's fields, or one primitive."""
    keys = table.column(KEY)
    if pa.types.is_struct(keys.type):
        wanted = fields or [f.name for f in keys.type]
        return {name: pc.struct_field(keys, name) for name in wanted}
    return {fields[0]: keys}


def last_of_each(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Keep the last row of each key; ``table`` is in the order the changes happened."""
    last = (
        table.select(list(keys))
        .append_column(SEQUENCE, pa.array(np.arange(table.num_rows, dtype=np.int64)))
        .group_by(list(keys), use_threads=False)
        .aggregate([(SEQUENCE, "max")])
        .column(f"{SEQUENCE}_max")
    )
    return table if len(last) == table.num_rows else table.take(last)
