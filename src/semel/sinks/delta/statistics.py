"""Column statistics of data files, which let readers and merges skip files.

semel writes those of its own files. delta-rs writes those of merges and compaction, where a
decimal's bounds pass through a double. So a table names the columns that get statistics, and leaves
such decimals out.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as is_

from semel.sinks.parquet import LAST_CHARACTER

_COLUMNS = 32
"""How many columns Delta indexes unless a table says otherwise."""
PROPERTY = "delta.dataSkippingStatsColumns"
"""The table property that names the columns that get statistics."""
_TEXT = 32


def indexed(configuration: Mapping[str, str]) -> int | None:
    """How many columns a table wants statistics of; None for all."""
    if PROPERTY in configuration:
        return None  # readers look only at those that it names
    count = configuration.get("delta.dataSkippingNumIndexedCols", "")
    if count.strip() == "-1":
        return None
    return max(_COLUMNS, int(count)) if count.strip().isdecimal() else _COLUMNS


def of(
    metadata: pq.FileMetaData,
    schema: pa.Schema,
    unbounded: Collection[str] = (),
    most: int | None = _COLUMNS,
) -> str:
    """A file's statistics as Delta's JSON.

    If the bounds of any column are unknown, none are written: in an Arrow dataset, delta-rs
    reads a missing bound as null if others are given, and no value satisfies null.

    Args:
        metadata: what Parquet's writer has noted.
        schema: the columns of the file.
        unbounded: columns whose extremes say nothing.
        most: how many columns to describe.
    """
    places = {
        metadata.schema.column(i).path: i
        for i in range(metadata.num_columns)
        if "." not in metadata.schema.column(i).path
    }
    least: dict[str, str] = {}
    greatest: dict[str, str] = {}
    nulls: dict[str, int] = {}
    complete = True
    flat = [f for f in schema if f.name in places and not is_.is_nested(f.type)]
    for field in flat[:most]:
        column = places[field.name]
        groups = [
            metadata.row_group(g).column(column).statistics for g in range(metadata.num_row_groups)
        ]
        if any(s is None or not s.has_null_count for s in groups):
            complete = False
            continue
        nulls[field.name] = sum(s.null_count for s in groups)
        filled = [s for s in groups if s.num_values]
        if not filled or not _ordered(field.type):
            continue
        bounds = None if field.name in unbounded else _bounds(field.type, filled)
        if bounds is None:
            complete = False
        else:
            least[field.name], greatest[field.name] = bounds
    written = {"numRecords": str(metadata.num_rows)}
    if complete:
        written |= {"minValues": _object(least), "maxValues": _object(greatest)}
    return _object({**written, "nullCount": _plain(nulls)})


def _object(members: Mapping[str, str]) -> str:
    """A JSON object of members that are JSON already: decimals must not become doubles."""
    return "{" + ", ".join(f"{_plain(name)}: {text}" for name, text in members.items()) + "}"


def _plain(value: Any) -> str:
    """As JSON without escapes: delta-rs reads some surrogate pairs as another character."""
    return json.dumps(value, ensure_ascii=False)


def _bounds(kind: pa.DataType, groups: Sequence[Any]) -> tuple[str, str] | None:
    """The bounds of a column, by the statistics of its row groups."""
    if not all(s.has_min_max for s in groups):
        return (_plain(""), _plain(LAST_CHARACTER)) if is_.is_string(kind) else None
    try:
        low, high = min(s.min for s in groups), max(s.max for s in groups)
    except (ValueError, OverflowError):  # a time that Python cannot represent
        return None
    if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):
        return None
    return _written(low, up=False), _written(high, up=True)


def named(
    columns: pa.Schema, partitioned_by: Collection[str], configuration: Mapping[str, str]
) -> str | None:
    """The value that a table's :data:`PROPERTY` should have: the present one, unless delta-rs would
    then write wrong bounds."""
    configured = configuration.get(PROPERTY)
    wrong = [path for field in columns for path in _inexact(field.type, (field.name,))]
    if configured is None:
        if not wrong:
            return None
        plain = [f.name for f in list(columns)[: indexed(configuration)] if _listed(f.type)]
        left_out = {*partitioned_by, *(path[0] for path in wrong)}
        # A name with a backtick cannot be listed; having no bounds does no harm.
        return ",".join(f"`{n}`" for n in plain if n not in left_out and "`" not in n)
    entries = re.findall(r"(?:`[^`]*`|[^,`])+", configured)
    right = [e for e in entries if not any(_covers(e, path) for path in wrong)]
    return configured if right == entries else ",".join(right)


def _inexact(kind: pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The decimals that change when they pass through a double, or through its text with an
    exponent."""
    if is_.is_struct(kind):
        for field in kind:
            yield from _inexact(field.type, (*path, field.name))
    elif is_.is_decimal(kind) and (kind.precision > 15 or kind.scale > 5):
        yield path


def _covers(entry: str, path: tuple[str, ...]) -> bool:
    """Whether an entry of :data:`PROPERTY` names this column, or a struct around it."""
    parts = tuple(a or b.strip() for a, b in re.findall(r"`([^`]*)`|([^.`]+)", entry.strip()))
    return parts == path[: len(parts)]


def _listed(kind: pa.DataType) -> bool:
    """Whether Spark takes a column of this type into :data:`PROPERTY`."""
    return _ordered(kind) and not is_.is_boolean(kind)


def _ordered(kind: pa.DataType) -> bool:
    return bool(
        is_.is_integer(kind)
        or is_.is_floating(kind)
        or is_.is_decimal(kind)
        or is_.is_boolean(kind)
        or is_.is_string(kind)
        or is_.is_date(kind)
        or is_.is_timestamp(kind)
    )


def _written(value: Any, *, up: bool) -> str:
    """A bound in Delta's JSON; if that is coarser, the result is still a bound."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, str):
        return _plain(_shortened(value, up=up))
    if isinstance(value, dt.datetime):
        if up:
            # At the last possible time, readers must allow for the cut, as they do for Spark.
            with contextlib.suppress(OverflowError):
                value += dt.timedelta(microseconds=-value.microsecond % 1000)
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return _plain(f"{text}Z" if value.tzinfo else text)
    if isinstance(value, dt.date):
        return _plain(value.isoformat())
    return _plain(value)


def _shortened(text: str, *, up: bool) -> str:
    if len(text) <= _TEXT or not up:
        return text[:_TEXT]
    end = _TEXT
    while end < len(text) and text[end] == LAST_CHARACTER:
        end += 1  # nothing is greater than this one
    return text if end == len(text) else text[:end] + LAST_CHARACTER
