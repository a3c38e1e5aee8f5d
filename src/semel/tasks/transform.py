"""Transforms of records in a task: a connector's chain on converted records, and the function of a
Python program, ``semel.run(transform=...)``, on the direct and the bounded engine: it takes Arrow
batches whose columns are the fields of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ConfigError
from semel.core.quoting import named, typed
from semel.core.records import (
    HEADERS,
    KEY,
    METADATA,
    METADATA_TYPES,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    ConnectRecords,
)
from semel.sinks.flatten import flattened, unflattened
from semel.transforms import Chain
from semel.transforms.base import Batch, Contents

Transform = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
"""An Arrow batch in, an Arrow batch out, with at most one row for each record."""

_PLACE = (TOPIC, PARTITION, OFFSET)


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that could not be converted or transformed, by its index in what was given."""

    index: int
    stage: str
    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class TransformedRecords:
    """What a transform made of records, in order, and those that it raised for."""

    records: ConnectRecords
    failed: Sequence[FailedRecord] = ()


def transformed(
    connector: str, transform: Transform, records: ConnectRecords
) -> TransformedRecords:
    """Apply ``transform`` to all records but tombstones, which keep their keys as they are.

    If the transform raises, bisecting the batch finds the records that it raises for.

    Raises:
        ConfigError: the transform's result is not a batch of these records.
    """
    try:
        return _transformed(transform, records)
    except ConfigError as error:
        raise ConfigError(f"connector {connector}: {error}") from None


def _transformed(transform: Transform, records: ConnectRecords) -> TransformedRecords:
    null = records.values.is_null().to_numpy(zero_copy_only=False)
    present = np.flatnonzero(~null)
    if not len(present):
        return TransformedRecords(records)
    valid = records.take(pa.array(present)) if null.any() else records
    rows = flattened(valid, deletes=False).rows
    failed: list[FailedRecord] = []
    result = unflattened(_applied(transform, rows, present, failed), valid)
    if null.any():
        result = _with_tombstones(result, records.take(pa.array(np.flatnonzero(null))))
    return TransformedRecords(result, failed)


def _with_tombstones(result: ConnectRecords, gone: ConnectRecords) -> ConnectRecords:
    nothing = pa.nulls(len(gone), result.values.type)
    return replace(
        result,
        origin=pa.concat_tables([result.origin, gone.origin.cast(result.origin.schema)]),
        keys=_concatenated(KEY, result.keys, gone.keys),
        values=pa.concat_arrays([result.values, nothing]),
        headers=None
        if result.headers is None
        else _concatenated(HEADERS, result.headers, gone.headers),
    )


def _concatenated(name: str, result: pa.Array, gone: pa.Array) -> pa.Array:
    try:
        return pa.concat_arrays([result, gone.cast(result.type)])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"the transform changed the type of {name} from {typed(gone.type)} to "
            f"{typed(result.type)}, but tombstones pass the transform unchanged, and theirs cannot "
            f"be cast: {error}. Return {name} as {typed(gone.type)}, and put what you make of it "
            "into a column of its own"
        ) from None


def _applied(
    transform: Transform, rows: pa.Table, index: np.ndarray, failed: list[FailedRecord]
) -> pa.Table:
    try:
        return _apply(transform, rows)
    except ConfigError:
        raise
    except Exception as error:
        if rows.num_rows == 1:
            failed.append(
                FailedRecord(int(index[0]), "TRANSFORMATION", _full_name(error), str(error))
            )
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
            f"the transform dropped the metadata column {named(missing[0])}; let the columns that "
            "start with __connect_ pass"
        )
    restored = _with_origin(result, batch.schema)
    _check_origin(pa.Table.from_batches([batch]), restored)
    return _with_known(restored, batch.schema)


def _check_origin(source: pa.Table, result: pa.Table) -> None:
    """Check that each row names exactly one record's origin, and that no record is named twice."""
    if result.select(_PLACE).equals(source.select(_PLACE)):
        return
    before, after = _places(source), _places(result)
    if pc.count_distinct(after, mode="all").as_py() < len(after):
        raise ConfigError(
            "the transform repeats a record; on the direct engine one record makes at most "
            "one row. Use a DataFrame transform with engine=micro-batch"
        )
    topics = pc.equal(result.column(TOPIC), source.column(TOPIC)[0])
    known = pc.and_(topics, pc.is_in(after, before.combine_chunks()))
    if not pc.all(known, skip_nulls=False, min_count=0).as_py():
        raise ConfigError(
            f"the transform changed {', '.join(_PLACE[:-1])} or {_PLACE[-1]}, which say where a "
            "record was read; let the columns that start with __connect_ pass"
        )


def _places(rows: pa.Table) -> pa.ChunkedArray:
    """Partitions and offsets as one number each."""
    partitions = pc.shift_left(rows.column(PARTITION).cast(pa.int64()), 48)
    return pc.bit_wise_or(partitions, rows.column(OFFSET))


def _with_origin(result: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast metadata columns back to their own types: other libraries use other types for strings
    and times."""
    for name in METADATA_TYPES:
        if name in schema.names and result.schema.field(name).type != schema.field(name).type:
            try:
                column = result.column(name).cast(schema.field(name).type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConfigError(
                    f"the transform changed the metadata column {named(name)}: {error}; let the "
                    "columns that start with __connect_ pass"
                ) from None
            result = result.set_column(result.column_names.index(name), name, column)
    return result


def _with_known(result: pa.Table, schema: pa.Schema) -> pa.Table:
    """Keep a field's Connect schema metadata if the transform has rebuilt the field with the same
    name and type."""
    fields = [
        schema.field(f.name)
        if not f.metadata and f.name in schema.names and schema.field(f.name).type == f.type
        else f
        for f in result.schema
    ]
    return pa.Table.from_arrays(result.columns, schema=pa.schema(fields))


def _full_name(error: Exception) -> str:
    """An exception's class as Python shows it, with its module unless that is Python's own."""
    kind = type(error)
    inner = kind.__module__ == "builtins"
    return kind.__qualname__ if inner else f"{kind.__module__}.{kind.__qualname__}"


def chained(
    chain: Chain,
    records: ConnectRecords,
    index: np.ndarray,
    keyed: bool,
    typed: bool,
    *,
    stamps: bool = False,
    takes_apart: bool = True,
    by_number: bool = False,
) -> tuple[ConnectRecords, np.ndarray, list[FailedRecord], pa.Array | None]:
    """Run a connector's chain on converted records.

    Args:
        chain: the transforms.
        records: what was read from one topic.
        index: the index of each record in the raw batch.
        keyed: whether keys come with schemas.
        typed: whether values come with schemas.
        stamps: whether the times and partitions that transforms set replace the origin's, as they
            do where the origin is not a record in Kafka.
        takes_apart: see :meth:`semel.transforms.Chain.apply`.
        by_number: see there.

    Returns:
        the records that are left, their indices in the raw batch, those that were refused, and
        where each goes, unless the topic alone decides it.

    Raises:
        Mixed: see :meth:`semel.transforms.Chain.apply`.
    """
    batch = Batch(
        records.origin,
        Contents(records.keys, keyed, records.key_facts),
        Contents(records.values, typed, records.value_facts),
        pa.repeat(pa.scalar(records.topic), len(records)),
        np.arange(len(records)),
        records.headers,
    )
    outcome = chain.apply(batch, takes_apart=takes_apart, by_fields=stamps, by_number=by_number)
    failed = [
        FailedRecord(int(index[r.index]), "TRANSFORMATION", r.exception, r.message)
        for r in outcome.refused
    ]
    result = outcome.batch
    values = result.values.array
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), records.values.type)
    origin = result.origin
    for name, chosen in ((TIMESTAMP, result.times), (PARTITION, result.places)):
        if stamps and chosen is not None:
            if name in origin.column_names:
                origin = origin.drop_columns([name])
            origin = origin.append_column(name, chosen)
    remaining = ConnectRecords(
        records.topic,
        origin,
        result.keys.array,
        values,
        result.headers,
        result.keys.facts,
        result.values.facts,
    )
    return remaining, index[result.rows], failed, None if chain.goes_by_topic else result.topics


def by_topic(records: ConnectRecords, topics: pa.Array) -> list[ConnectRecords]:
    """Records grouped by the topic they go to."""
    encoded = topics.dictionary_encode()
    places = np.asarray(encoded.indices)
    return [
        replace(records.take(pa.array(np.flatnonzero(places == number))), topic=topic)
        for number, topic in enumerate(encoded.dictionary.to_pylist())
    ]
