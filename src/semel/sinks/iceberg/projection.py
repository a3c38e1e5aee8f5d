"""Reading a data file's rows through PyIceberg, with the nulls that it loses."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io import pyarrow as by_arrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import ListType, MapType


class _Projection(by_arrow.ArrowProjectionVisitor):
    """PyIceberg (0.12) turns a null list of structs, or a null map, into an empty one."""

    def list(
        self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
    ) -> pa.Array | None:
        return _nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> pa.Array | None:
        return _nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def read_rows(metadata: TableMetadata, io: FileIO, columns: Schema, task: FileScanTask) -> pa.Table:
    """Columns of a file's rows, except rows that delete files remove."""
    by_arrow.ArrowProjectionVisitor = _Projection  # type: ignore[misc]
    return by_arrow.ArrowScan(metadata, io, columns, AlwaysTrue()).to_table([task])


def _nulls_of(before: pa.Array | None, after: pa.Array | None) -> pa.Array | None:
    if before is None or after is None or before.null_count == after.null_count:
        return after
    rows = pa.array(np.arange(len(after)), mask=~before.is_valid().to_numpy(zero_copy_only=False))
    return after.take(rows)
