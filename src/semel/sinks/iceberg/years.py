"""Dates and times outside the years 1 to 9999: PyIceberg cannot write the bounds of their files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.core.quoting import named

_DAYS = -719_162, 2_932_896
_MICROSECONDS = -62_135_596_800_000_000, 253_402_300_799_999_999


def beyond(rows: pa.Table) -> dict[int, str]:
    """The rows that hold such a value, each with the column."""
    found: dict[int, str] = {}
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        for row in _rows(values):
            found.setdefault(row, f"column {named(name)}: the year is not between 1 and 9999")
    return found


def _rows(values: pa.ChunkedArray) -> list[int]:
    """The rows, found by bisection."""
    if not any(map(_any, values.chunks)):
        return []
    if len(values) == 1:
        return [0]
    middle = len(values) // 2
    return _rows(values.slice(0, middle)) + [middle + n for n in _rows(values.slice(middle))]


def _any(values: pa.Array) -> bool:
    kind = values.type
    if is_.is_date32(kind):
        return _outside(values.cast(pa.int32()), _DAYS)
    if is_.is_timestamp(kind):
        return _outside(values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()), _MICROSECONDS)
    if is_.is_struct(kind):
        return any(map(_any, values.flatten()))
    if is_.is_map(kind):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return _any(values.keys[first:last]) or _any(values.items[first:last])
    if is_.is_list(kind):
        return _any(values.flatten())
    return False


def _outside(counts: pa.Array, bounds: tuple[int, int]) -> bool:
    least, greatest = pc.min_max(counts).as_py().values()
    return least is not None and (least < bounds[0] or greatest > bounds[1])
