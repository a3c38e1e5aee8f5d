"""The types of a Delta table's columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as is_

from semel.sinks import convert

COMMENT = "comment"


def column_type(kind: pa.DataType) -> pa.DataType:
    """The type of a new column that holds values of ``kind``. Delta has no type for times of day:
    they become text."""
    return convert.column_type(kind, convert.common_type)


def new_column(field: pa.Field) -> pa.Field:
    """A new column for this field, which may be null."""
    comment = convert.text_column(field, COMMENT)
    return pa.field(field.name, column_type(field.type), metadata=comment)


def partitions(kind: pa.DataType) -> bool:
    """Whether a table may be partitioned by a column of this type: the log holds partition values
    as text, and bytes are not text."""
    return not (is_.is_nested(kind) or is_.is_binary(kind))


def names_no_feature(kind: pa.DataType) -> bool:
    """Whether delta-rs would omit the table feature that a column needs, so that nobody could open
    the table. It does so for nested timestamps without a zone."""
    if not is_.is_nested(kind):
        return False
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return any((is_.is_timestamp(i) and i.tz is None) or names_no_feature(i) for i in inner)
