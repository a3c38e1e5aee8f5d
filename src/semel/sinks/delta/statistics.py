"""Column statistics of a data file, for its add action: readers skip files by them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as is_

_COLUMNS = 32
"""How many columns Delta indexes unless a table says otherwise."""
_TEXT = 32
_LAST_CHARACTER = "\U0010ffff"


def of(metadata: pq.FileMetaData, schema: pa.Schema, inexact: Iterable[str] = ()) -> str:
    """A file's statistics as Delta's JSON.

    Args:
        metadata: what Parquet's writer has noted.
        schema: the columns of the file.
        inexact: columns whose extremes say nothing (they hold NaN).
    """
    places = {
        metadata.schema.column(i).path: i
        for i in range(metadata.num_columns)
        if "." not in metadata.schema.column(i).path
    }
    without = set(inexact)
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(schema)[:_COLUMNS]:
        if field.name not in places or is_.is_nested(field.type):
            continue
        column = places[field.name]
        groups = [
            metadata.row_group(g).column(column).statistics for g in range(metadata.num_row_groups)
        ]
        if any(s is None or not s.has_null_count for s in groups):
            continue
        nulls[field.name] = sum(s.null_count for s in groups)
        if field.name in without or not _ordered(field.type):
            continue
        filled = [s for s in groups if s.num_values]
        if not filled or not all(s.has_min_max for s in filled):
            continue
        try:
            low, high = min(s.min for s in filled), max(s.max for s in filled)
        except (ValueError, OverflowError):  # a time that Python does not have
            continue
        least[field.name] = _written(low, up=False)
        greatest[field.name] = _written(high, up=True)
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": least,
            "maxValues": greatest,
            "nullCount": nulls,
        }
    )


def _ordered(kind: pa.DataType) -> bool:
    return bool(
        is_.is_integer(kind)
        or is_.is_floating(kind)
        or is_.is_string(kind)
        or is_.is_date(kind)
        or is_.is_timestamp(kind)
    )


def _written(value: Any, *, up: bool) -> Any:
    """A bound in Delta's JSON; where that is coarser it stays a bound."""
    if isinstance(value, str):
        short = value[:_TEXT]
        return short + _LAST_CHARACTER if up and len(value) > _TEXT else short
    if isinstance(value, dt.datetime):
        if up:
            value += dt.timedelta(microseconds=-value.microsecond % 1000)
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, dt.date):
        return value.isoformat()
    return value
