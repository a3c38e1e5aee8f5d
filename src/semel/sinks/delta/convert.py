"""The types of a Delta table's columns."""

from __future__ import annotations

import pyarrow as pa

from semel.sinks import convert


def column_type(kind: pa.DataType) -> pa.DataType:
    """The type of a new column that holds values of ``kind``. Delta has no type for times of a day:
    they become text."""
    return convert.column_type(kind, convert.common_type)
