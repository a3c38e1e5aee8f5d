"""The transform of a Python program, ``semel.run(transform=...)``, on the direct and the bounded
engine: a function of Arrow batches whose columns are the fields of the values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from semel.errors import ConfigError
from semel.records import METADATA, METADATA_TYPES, OFFSET, PARTITION, ConnectRecords
from semel.sinks.flatten import flattened, unflattened

Transform = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
"""An Arrow batch in, an Arrow batch out, one record at a time."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A record that could not be converted or transformed, by its index in what was given."""

    index: int
    stage: str
    exception: str
    message: str


@dataclass(slots=True)
class Transformed:
    """What a transform made of records, in order, and those that it raised for."""

    records: ConnectRecords
    failed: list[Failed] = field(default_factory=list)


def transformed(transform: Transform, records: ConnectRecords) -> Transformed:
    """Apply ``transform`` to the records that are no tombstones; those pass by it.

    Where it raises, the records that it raises for are found by halving.

    Raises:
        ConfigError: it returns what it may not.
    """
    null = records.values.is_null().to_numpy(zero_copy_only=False)
    present = np.flatnonzero(~null)
    if not len(present):
        return Transformed(records)
    given = records.take(pa.array(present)) if null.any() else records
    rows = flattened(given, deletes=False).rows
    failed: list[Failed] = []
    made = unflattened(_applied(transform, rows, present, failed), given)
    if null.any():
        made = _with_tombstones(made, records.take(pa.array(np.flatnonzero(null))))
    return Transformed(made, failed)


def _with_tombstones(made: ConnectRecords, gone: ConnectRecords) -> ConnectRecords:
    nothing = pa.nulls(len(gone), made.values.type)
    return ConnectRecords(
        made.topic,
        pa.concat_tables([made.origin, gone.origin.cast(made.origin.schema)]),
        _concatenated(made.keys, gone.keys),
        pa.concat_arrays([made.values, nothing]),
        None if made.headers is None else _concatenated(made.headers, gone.headers),
    )


def _concatenated(first: pa.Array, second: pa.Array) -> pa.Array:
    return pa.concat_arrays([first, second.cast(first.type)])


def _applied(
    transform: Transform, rows: pa.Table, index: np.ndarray, failed: list[Failed]
) -> pa.Table:
    try:
        return _apply(transform, rows)
    except ConfigError:
        raise
    except Exception as error:
        if rows.num_rows == 1:
            failed.append(Failed(int(index[0]), "TRANSFORMATION", _full_name(error), str(error)))
            return rows.slice(0, 0)
    middle = rows.num_rows // 2
    parts = [
        _applied(transform, rows.slice(0, middle), index[:middle], failed),
        _applied(transform, rows.slice(middle), index[middle:], failed),
    ]
    whole = [p for p in parts if p.num_rows]
    return pa.concat_tables(whole, promote_options="permissive") if whole else parts[0]


def _apply(transform: Transform, rows: pa.Table) -> pa.Table:
    batch = rows.combine_chunks().to_batches()[0]
    try:
        result = transform(batch)
    except AttributeError as error:
        if error.obj is not batch:
            raise
        raise ConfigError(
            f"the transform asks for {error.name}, which a pyarrow.RecordBatch does not have. "
            "To be given a Spark DataFrame, set engine=micro-batch, or annotate it with "
            "DataFrame"
        ) from None
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table):
        raise ConfigError(
            f"the transform must return a pyarrow RecordBatch or Table, not {type(result).__name__}"
        )
    missing = [n for n in METADATA if n in batch.schema.names and n not in result.column_names]
    if missing:
        raise ConfigError(
            f"the transform dropped the metadata column {missing[0]}; let the columns that "
            "start with __connect_ pass"
        )
    coordinates = result.select([PARTITION, OFFSET])
    distinct = coordinates.group_by(coordinates.column_names, use_threads=False).aggregate([])
    if distinct.num_rows < result.num_rows:
        raise ConfigError(
            "the transform repeats a record; on the direct engine one record makes at most "
            "one row. Use a DataFrame transform with engine=micro-batch"
        )
    return _with_known(_with_origin(result, batch.schema), batch.schema)


def _with_origin(result: pa.Table, given: pa.Schema) -> pa.Table:
    """The metadata columns in their own types: other libraries have other strings and times."""
    for name in METADATA_TYPES:
        if name in given.names and result.schema.field(name).type != given.field(name).type:
            try:
                column = result.column(name).cast(given.field(name).type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConfigError(
                    f"the transform changed the metadata column {name}: {error}; let the columns "
                    "that start with __connect_ pass"
                ) from None
            result = result.set_column(result.column_names.index(name), name, column)
    return result


def _with_known(result: pa.Table, given: pa.Schema) -> pa.Table:
    """What Connect's schema says of a field stays with it, though the transform has built a new
    one of the same name and type."""
    fields = [
        given.field(f.name)
        if not f.metadata and f.name in given.names and given.field(f.name).type == f.type
        else f
        for f in result.schema
    ]
    return pa.Table.from_arrays(result.columns, schema=pa.schema(fields))


def _full_name(error: Exception) -> str:
    """An exception's class as Python shows it, with its module unless that is Python's own."""
    kind = type(error)
    inner = kind.__module__ == "builtins"
    return kind.__qualname__ if inner else f"{kind.__module__}.{kind.__qualname__}"
