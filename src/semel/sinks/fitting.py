"""Which values of a column do not fit where they are to go: each is judged by itself.

A batch's column has one type for all of its records. If it cannot be converted as a whole, that
says nothing about a single record: a null fits wherever nulls do, and JSON of several kinds is
taken apart, so that each value is converted as it would be in a batch of its own kind.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.converters.json.infer import of_one_kind
from semel.converters.json.text import place
from semel.core.quoting import named
from semel.core.records import check_years, one_array
from semel.sinks import jsontext
from semel.sinks.casts import UNFIT

__all__ = ["UNFIT", "by_kind", "only_null", "unfit_rows"]

Convert = Callable[[pa.ChunkedArray], object]


def unfit_rows(values: pa.ChunkedArray, convert: Convert) -> list[tuple[int, str]]:
    """The rows whose value ``convert`` refuses with one of UNFIT, each with the reason."""
    rows = pc.indices_nonzero(values.is_valid())
    unfit = _unfit(values.take(rows) if values.null_count else values, convert)
    return [(rows[place].as_py(), why) for place, why in unfit]


def _unfit(values: pa.ChunkedArray, convert: Convert) -> list[tuple[int, str]]:
    """The same for values without nulls, by bisection."""
    if not len(values):
        return []
    try:
        convert(values)
    except UNFIT as error:
        if len(values) == 1:
            return [(0, str(error).splitlines()[0])]
        middle = len(values) // 2
        left = _unfit(values.slice(0, middle), convert)
        right = _unfit(values.slice(middle), convert)
        return left + [(middle + place, why) for place, why in right]
    return []


def without_json(rows: pa.Table, *, years: bool = True) -> dict[int, str]:
    """The rows with a value that JSON cannot hold, each with the column and the reason: a NaN or an
    infinity and, with ``years``, a time too far away."""

    def fits(values: pa.ChunkedArray) -> None:
        jsontext.check(one_array(values), years=years)

    problems: dict[int, str] = {}
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        if is_.is_floating(values.type):
            for row in pc.indices_nonzero(pc.invert(pc.is_finite(values))).to_pylist():
                problems.setdefault(row, f"column {named(name)}: JSON has no {values[row].as_py()}")
            continue
        for row, why in unfit_rows(values, fits):
            problems.setdefault(row, f"column {named(name)}: {why}")
    return problems


def without_text(rows: pa.Table) -> dict[int, str]:
    """The rows with a date or a time that no text can hold, each with the column and the reason."""
    return {
        row: f"column {named(name)}: {why}"
        for name, values in zip(rows.column_names, rows.columns, strict=True)
        for row, why in unfit_rows(values, check_years)
    }


def only_null(values: pa.ChunkedArray) -> bool:
    """Whether no value has to fit."""
    return bool(values.null_count == len(values))


def by_kind(
    values: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> pa.ChunkedArray:
    """JSON values, each kind converted from its own type as without the others; as text if that
    gives several types. What is nested, or has no type of its own, is converted as JSON."""
    text = one_array(values)
    text = text.storage if isinstance(text.type, pa.BaseExtensionType) else text
    parts = [(rows, convert(pa.chunked_array([piece]))) for rows, piece in of_one_kind(text)]
    if not parts:
        return convert(pa.chunked_array([pa.nulls(len(text))]))
    several = len({part.type for _, part in parts}) > 1
    joined = [one_array(part.cast(pa.string()) if several else part) for _, part in parts]
    rows = pa.concat_arrays([rows for rows, _ in parts])
    return pa.chunked_array([place(pa.concat_arrays(joined), rows, len(text))])
