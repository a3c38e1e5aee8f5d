"""Data files: tasks write them, and no reader sees them until a commit adds or merges them.

Changes by key are merged by one commit: the last one of each key replaces the table's row. The
files that hold a changed key are rewritten without it (copy on write), so every reader understands
the result.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.quoting import named
from semel.sinks.iceberg.catalog import reading
from semel.sinks.iceberg.table import Table
from semel.sinks.lake import delete
from semel.sinks.parquet import ParquetFile, RollingWriter, bare, split
from semel.sinks.rows import CHANGE_DELETES, OWN, last_changes

_LONGEST = 255
"""The length of a folder's name on most disks, and a quarter of an object's."""


class Partition(tuple[Any, ...]):
    """A file's partition: one value for each field of the table's partition spec. As in Iceberg,
    -0.0 is not 0.0, and NaN is equal to itself."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __ne__(self, other: object) -> bool:  # a tuple's own would compare the values
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete file that waits for its commit, or holds changes to merge."""

    table: str
    path: str
    size: int
    schema_id: int
    spec_id: int = 0
    sort_order_id: int | None = None
    partition: Partition = Partition()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[str, ...] = ()

    def data_file(self) -> DataFile:
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*self.partition),
            file_size_in_bytes=self.size,
            sort_order_id=self.sort_order_id,
            equality_ids=None,
            key_metadata=None,
            **self.statistics,
        )
        file.spec_id = self.spec_id
        return file


class FileWriter(RollingWriter[Partition, StagedFile, ParquetFile]):
    """Writes one table's rows: a file for each partition, and another one when it is full.

    Changes by key are written unchanged, below the table's data, and never become part of it.
    """

    def __init__(self, table: Table, prefix: str, key: tuple[str, ...] = ()) -> None:
        properties = table.properties
        self._table = table
        self._prefix = prefix
        self._key = key
        self._spec = table.metadata.spec()
        order = table.metadata.sort_order()
        self._order = None if order.is_unsorted or key else order
        provider = load_location_provider(table.metadata.location, dict(properties))
        self._location = provider.new_data_location
        self._options = _options(properties)
        self._schema_ids: dict[Partition, int] = {}
        target = property_as_int(
            dict(properties),
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        super().__init__(target or TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT)

    def write(self, rows: pa.Table) -> None:
        """Add rows in the table's types; with a key, changes."""
        if self._key:
            self._write(iter([(Partition(), rows)]))
        else:
            self._write(_partitioned(rows, self._spec, self._table.metadata.schema()))

    def _new(self, values: Partition, schema: pa.Schema) -> ParquetFile:
        name = f"{self._prefix}{uuid.uuid4().hex[:12]}.parquet"
        if values:
            path = self._spec.partition_to_path(Record(*values), self._table.metadata.schema())
            if len(path) <= _LONGEST:  # the folder is for people: no reader depends on it
                name = f"{path}/{name}"
        self._schema_ids[values] = self._table.metadata.current_schema_id
        location = self._location(name)
        stream = self._table.io.new_output(location).create()
        fields = self._table.metadata.schema()
        order = None
        if self._order is not None:
            order = functools.partial(arranged, order=self._order, schema=fields)
        return ParquetFile(
            location,
            stream,
            schema,
            order=order,
            **self._options,
        )

    def _described(self, values: Partition, file: ParquetFile) -> StagedFile:
        size = len(self._table.io.new_input(file.path))
        if self._key:
            return StagedFile(
                self._table.where, file.path, size, self._schema_ids[values], key=self._key
            )
        fields = self._table.metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            file.metadata,
            compute_statistics_plan(fields, dict(self._table.properties)),
            parquet_path_to_id_mapping(fields),
        )
        return StagedFile(
            self._table.where,
            file.path,
            size,
            self._schema_ids[values],
            self._spec.spec_id,
            self._order.order_id if self._order else None,
            values,
            statistics.to_serialized_dict(),
        )

    def _delete(self, paths: list[str]) -> None:
        delete(self._table.io.delete, paths)

    def _path(self, done: StagedFile) -> str:
        return done.path

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return reading(self._table.where)


def _partitioned(
    rows: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[Partition, pa.Table]]:
    """Rows by the table's partition."""
    if spec.is_unpartitioned():
        yield Partition(), rows
        return
    by = {f.name: transformed(rows, f.source_id, f.transform, schema) for f in spec.fields}
    for values, part in split(rows, pa.table(by)):
        stored = [_stored(f, v, schema) for f, v in zip(spec.fields, values, strict=True)]
        yield Partition(stored), part


def _stored(field: PartitionField, value: Any, schema: Schema) -> Any:
    """A partition value as Iceberg stores it: identity's dates and times become numbers."""
    if value is None or not isinstance(field.transform, IdentityTransform):
        return value
    return partition_record_value(field, value, schema)


def transformed(
    rows: pa.Table, source_id: int, transform: Transform[Any, Any], schema: Schema
) -> pa.ChunkedArray:
    """A column, perhaps a field of a struct, as a transform changes it."""
    name = schema.find_column_name(source_id) or ""
    first, *rest = _path(rows, name)
    values = rows.column(first)
    for part in rest:
        values = pc.struct_field(values, part)
    kind = schema.find_field(source_id).field_type
    if isinstance(transform, IdentityTransform):
        return values
    if isinstance(transform, VoidTransform):
        return pa.chunked_array([pa.nulls(rows.num_rows)])
    try:
        return transform.pyarrow_transform(kind)(values)
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"partition or order by {transform} needs the package {missing.name}: "
            "pip install 'semel[iceberg]'"
        ) from None
    except NotImplementedError:
        raise ServiceError(
            f"PyIceberg does not know {transform!r}, by which column {named(name)} partitions or "
            "orders the table. Replace that partition field or sort order"
        ) from None


def _path(rows: pa.Table, name: str) -> list[str]:
    """The parts of a full name; a column's own name may hold dots."""
    return [name] if name in rows.column_names else name.split(".")


def arranged(rows: pa.Table, *, order: SortOrder, schema: Schema) -> pa.Table:
    """Rows in the table's sort order."""
    keys: dict[str, Any] = {}
    ways = []
    for n, f in enumerate(order.fields):
        values = bare(transformed(rows, f.source_id, f.transform, schema))
        first = f.null_order == NullOrder.NULLS_FIRST
        keys[f"null {n}"] = values.is_null()
        keys[f"{n}"] = values
        ways.append((f"null {n}", "descending" if first else "ascending"))
        ways.append((f"{n}", "ascending" if f.direction == SortDirection.ASC else "descending"))
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=ways))


def _options(properties: Mapping[str, str]) -> dict[str, Any]:
    codec = properties.get(
        TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT
    ).lower()
    level = properties.get(TableProperties.PARQUET_COMPRESSION_LEVEL)
    return {
        "compression": "none" if codec == "uncompressed" else codec,
        "compression_level": int(level) if level else None,
        "store_decimal_as_integer": True,
    }


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
        stored = table.read(schema.select(*keys.column_names), [task])
        remaining = _without(stored, keys)
        if len(remaining) == stored.num_rows:
            continue
        replaced.append(task.file)
        if len(remaining):
            whole = table.read(schema, [task])
            writer.write(_as(table.columns, whole.take(pa.array(remaining))))
    return replaced


def _candidates(table: Table, keys: pa.Table) -> list[FileScanTask]:
    """The files whose statistics do not rule the keys out."""
    bounds = [b for name in keys.column_names for b in _bounds(name, keys.column(name))]
    where: BooleanExpression = AlwaysTrue()
    for bound in bounds:
        where = And(where, bound)
    return table.tasks(where)


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


def _without(rows: pa.Table, keys: pa.Table) -> np.ndarray:
    """The indices of the rows whose key is not among ``keys``."""
    names = keys.column_names
    if len(names) == 1:
        values = bare(keys.column(0)).combine_chunks()
        matches = pc.is_in(bare(rows.column(0)).cast(values.type), value_set=values)
        return np.flatnonzero(~matches.to_numpy())
    index = pa.array(np.arange(rows.num_rows))
    plain = rows.select(names).cast(keys.schema).append_column("__index", index)
    remaining = plain.join(keys, names, join_type="left anti", use_threads=False)
    return np.sort(remaining.column("__index").to_numpy())


def _as(columns: pa.Schema, rows: pa.Table) -> pa.Table:
    """Rows in the table's columns; a column that the table has gained meanwhile is null."""
    missing = [f.name for f in columns if f.name not in rows.column_names]
    for name in missing:
        rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.select(columns.names).cast(columns)


def _unknown(error: BaseException) -> bool:
    return isinstance(error, TransientError) or not isinstance(error, Exception)
