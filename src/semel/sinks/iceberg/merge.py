"""Changes by key: the last one of each key replaces the table's row, by one commit.

The files that hold a changed key are rewritten without it (copy on write), so every reader
understands the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as is_
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask

from semel.core.errors import ServiceError, TransientError
from semel.sinks.iceberg.catalog import reading, reason
from semel.sinks.iceberg.files import FileWriter, StagedFile
from semel.sinks.iceberg.table import Table
from semel.sinks.rows import CHANGE_DELETES, OWN, last_changes


def merge(
    table: Table, files: Sequence[StagedFile], moved: Mapping[str, str], mark: str = ""
) -> None:
    """Write the last change of each key, remove what it replaces, and set properties.

    Raises:
        CommitConflict, TransientError: see :meth:`Table.commit`.
    """
    key = files[0].key
    with reading(table.where):
        parts = [pq.read_table(table.io.new_input(f.path).open()) for f in files]
    changes = last_changes(pa.concat_tables(parts, promote_options="permissive"), key)
    kept = changes.filter(pc.invert(changes.column(CHANGE_DELETES)))
    kept = kept.drop_columns([n for n in OWN if n in kept.column_names])
    writer = FileWriter(table, "semel-merged-")
    try:
        replaced = _rewrite(table, changes.select(list(key)), writer)
        if kept.num_rows:
            writer.write(_as(table.columns, kept))
        new = writer.finish()
        table.commit([f.data_file() for f in new], moved, replaced=replaced, mark=mark)
    except BaseException as error:
        # After an unknown outcome the files may be part of the table.
        if not _unknown(error):
            writer.discard()
        raise


def _rewrite(table: Table, keys: pa.Table, writer: FileWriter) -> list[DataFile]:
    """Rewrite, without the keys' rows, the files that hold any of them; returns the old files."""
    replaced = []
    schema = table.metadata.schema()
    for task in _candidates(table, keys):
        held = table.read(schema.select(*keys.column_names), task)
        left = _without(held, keys)
        if len(left) == held.num_rows:
            continue
        replaced.append(task.file)
        if len(left):
            whole = table.read(schema, task)
            writer.write(_as(table.columns, whole.take(pa.array(left))))
    return replaced


def _candidates(table: Table, keys: pa.Table) -> list[FileScanTask]:
    """The files whose statistics do not rule the keys out."""
    if table.snapshot_id is None:
        return []
    bounds = [b for name in keys.column_names for b in _bounds(name, keys.column(name))]
    where: BooleanExpression = AlwaysTrue()
    for bound in bounds:
        where = And(where, bound)
    with reading(table.where):
        try:
            scan = table.raw.scan(row_filter=where, snapshot_id=table.snapshot_id)
            return list(scan.plan_files())
        except ValueError as error:
            raise ServiceError(f"Iceberg table {table.where}: {reason(error)}") from None


def _bounds(name: str, values: pa.ChunkedArray) -> list[BooleanExpression]:
    kind = values.type
    if not (is_.is_integer(kind) or is_.is_string(kind) or is_.is_date(kind)):
        return []
    least, greatest = pc.min_max(values).as_py().values()
    if is_.is_date(kind):
        least, greatest = least.isoformat(), greatest.isoformat()
    # pydantic hides PyIceberg's own constructors from mypy
    low = GreaterThanOrEqual(name, least)  # type: ignore[arg-type, call-arg]
    return [low, LessThanOrEqual(name, greatest)]  # type: ignore[arg-type, call-arg]


def _without(held: pa.Table, keys: pa.Table) -> np.ndarray:
    """The indices of the rows whose key is not among ``keys``."""
    names = keys.column_names
    if len(names) == 1:
        wanted = keys.column(0).combine_chunks()
        found = pc.is_in(held.column(0).cast(wanted.type), value_set=wanted)
        return np.flatnonzero(~found.to_numpy())
    index = pa.array(np.arange(held.num_rows))
    plain = held.select(names).cast(keys.schema).append_column("__index", index)
    left = plain.join(keys, names, join_type="left anti", use_threads=False)
    return np.sort(left.column("__index").to_numpy())


def _as(columns: pa.Schema, rows: pa.Table) -> pa.Table:
    """Rows in the table's columns; a column that the table has gained meanwhile is null."""
    missing = [f.name for f in columns if f.name not in rows.column_names]
    for name in missing:
        rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.select(columns.names).cast(columns)


def _unknown(error: BaseException) -> bool:
    return isinstance(error, TransientError) or not isinstance(error, Exception)
