"""Arrow types to the nearest types that Spark has, and back.

A DataFrame transform sees the *carried* type: JSON and times of day as strings, unsigned integers
in the next wider type, timestamps in microseconds. A column that keeps its name and its carried
type in the transform gets its own type back, so that the sink gets the same as from the direct
engine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from semel.core.records import lists_like

_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
_EXACT = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.null(): pa.string(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def carried_type(t: pa.DataType) -> pa.DataType:
    """The Arrow type of the Spark type that carries ``t``."""
    kinds = pa.types
    if t in _EXACT:
        return _EXACT[t]
    if isinstance(t, pa.BaseExtensionType):
        return carried_type(t.storage_type)
    if kinds.is_dictionary(t):
        return carried_type(t.value_type)
    if kinds.is_time(t):
        return pa.string()
    if kinds.is_timestamp(t):
        return pa.timestamp("us", "UTC" if t.tz else None)
    if kinds.is_duration(t):
        return pa.duration("us")
    if kinds.is_fixed_size_binary(t):
        return pa.binary()
    if kinds.is_decimal(t):
        fits = t.precision <= 38 and 0 <= t.scale <= t.precision
        return pa.decimal128(t.precision, t.scale) if fits else pa.string()
    if kinds.is_struct(t):
        return pa.struct([pa.field(f.name, carried_type(f.type)) for f in t])
    if kinds.is_map(t):
        return pa.map_(carried_type(t.key_type), carried_type(t.item_type))
    if any(f(t) for f in (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)):
        return pa.list_(carried_type(t.value_type))
    return t


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema of the DataFrame that carries records of an Arrow schema."""
    carried = pa.schema([pa.field(f.name, carried_type(f.type)) for f in schema])
    return from_arrow_schema(carried, prefer_timestamp_ntz=True)


def exact_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that ``mapInArrow`` must return for a DataFrame's schema, to the letter."""
    return to_arrow_schema(schema)


def carry(rows: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows in Spark's types, with the columns of ``schema``; a missing one is null.

    Raises:
        pa.ArrowInvalid: a value that its carried type cannot hold.
    """
    exact = exact_schema(spark_schema(schema))
    columns = []
    for own, target in zip(schema, exact, strict=True):
        if own.name not in rows.column_names:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, target.type)]))
            continue
        values = rows.column(own.name)
        if values.type != own.type and not isinstance(own.type, pa.BaseExtensionType):
            values = values.cast(own.type)
        columns.append(_cast(_stored(values), target.type))
    batches: list[pa.RecordBatch] = pa.table(columns, schema=exact).combine_chunks().to_batches()
    return batches


def restore(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return columns with unchanged names and types to the types they had before Spark."""
    for index, name in enumerate(rows.column_names):
        position = schema.get_field_index(name)
        values = rows.column(index)
        if position < 0 or not _same(values.type, carried_type(schema.field(position).type)):
            continue
        own = schema.field(position).type
        with suppress(*_UNFIT):  # the transform has put other values there
            rows = rows.set_column(index, name, _restored(values, own))
    return rows


def _restored(values: pa.ChunkedArray, own: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_null(own) or own == values.type:
        return values
    if isinstance(own, pa.BaseExtensionType):
        stored = values.cast(own.storage_type)
        return pa.chunked_array(
            [pa.ExtensionArray.from_storage(own, chunk) for chunk in stored.chunks], own
        )
    if pa.types.is_time(own):  # Arrow reads a time of day only after a date
        moments = pc.binary_join_element_wise("1970-01-01", values, " ")
        return moments.cast(pa.timestamp(own.unit)).cast(own)
    if pa.types.is_list(own):
        return _each(values, lambda elements: _restored(elements, own.value_type))
    return values.cast(own)


def _each(
    values: pa.ChunkedArray, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> pa.ChunkedArray:
    """Change the elements of lists."""
    lists = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    elements = change(pa.chunked_array([pc.list_flatten(lists)]))
    return pa.chunked_array([lists_like(lists, pa.concat_arrays(elements.chunks))])


def _same(data_type: pa.DataType, carried: pa.DataType) -> bool:
    """Whether a type is the carried one; names and nullability inside lists do not matter."""
    kinds = pa.types
    if kinds.is_timestamp(data_type) and kinds.is_timestamp(carried):
        return bool(data_type.tz) == bool(carried.tz)
    if kinds.is_large_string(data_type) or kinds.is_large_binary(data_type):
        return _same(_EXACT[data_type], carried)
    if kinds.is_list(data_type) and kinds.is_list(carried):
        return _same(data_type.value_type, carried.value_type)
    return bool(data_type == carried)


def _stored(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(values.type, pa.BaseExtensionType):
        return pa.chunked_array([c.storage for c in values.chunks], values.type.storage_type)
    return values


def _cast(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if values.type == target:
        return values
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if pa.types.is_list(values.type) and pa.types.is_list(target):
        inner = target.value_type
        return _each(values, lambda elements: _cast(_stored(elements), inner)).cast(target)
    finer = pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type)
    try:
        return values.cast(target, safe=not (finer and values.type.unit == "ns"))
    except pa.ArrowNotImplementedError:  # a nested type with something rare inside
        return pa.chunked_array([pa.array(values.to_pylist(), target)])
