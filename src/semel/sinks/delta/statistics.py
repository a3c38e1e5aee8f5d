"""Column statistics of data files: readers, and merges, skip files by them.

semel writes those of its own files. Those of files that delta-rs writes (merges, compaction) are as
delta-rs makes them: a decimal's extremes pass through a double there, so a table names the columns
that are to have statistics, and leaves such decimals out.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as is_

_COLUMNS = 32
"""How many columns Delta indexes unless a table says otherwise."""
PROPERTY = "delta.dataSkippingStatsColumns"
"""The table's property that names the columns which are to have statistics."""
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


def named(columns: pa.Schema, partitioned_by: Collection[str], given: str | None) -> str | None:
    """What a table's :data:`PROPERTY` is to be, where it stands at ``given``.

    The same, unless delta-rs would then write bounds that are none.
    """
    wrong = [path for field in columns for path in _inexact(field.type, (field.name,))]
    if given is None:
        if not wrong:
            return None
        plain = [f.name for f in list(columns)[:_COLUMNS] if _comparable(f.type)]
        left_out = {*partitioned_by, *(path[0] for path in wrong)}
        return ",".join(f"`{n}`" for n in plain if n not in left_out)
    entries = re.findall(r"(?:`[^`]*`|[^,`])+", given)
    right = [e for e in entries if not any(_covers(e, path) for path in wrong)]
    return given if right == entries else ",".join(right)


def _inexact(kind: pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The decimals that a double, or its text with an exponent, does not carry unchanged."""
    if is_.is_struct(kind):
        for field in kind:
            yield from _inexact(field.type, (*path, field.name))
    elif is_.is_decimal(kind) and (kind.precision > 15 or kind.scale > 5):
        yield path


def _covers(entry: str, path: tuple[str, ...]) -> bool:
    """Whether an entry of :data:`PROPERTY` names this column, or a struct around it."""
    parts = tuple(a or b.strip() for a, b in re.findall(r"`([^`]*)`|([^.`]+)", entry.strip()))
    return parts == path[: len(parts)]


def _comparable(kind: pa.DataType) -> bool:
    """Whether Spark takes a column of this type into :data:`PROPERTY`."""
    return _ordered(kind) or bool(is_.is_decimal(kind))


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
