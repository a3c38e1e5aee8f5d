"""Columns of a database in the types of Kafka Connect."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from semel.sources.jdbc.database import Column

INSTANT = pa.timestamp("us", "UTC")
"""The type of all timestamps in records."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _EARLIEST_DATE = -210_866_803_200_000_000, -2_440_588
"""The first moment and day that PostgreSQL has. Its client gives infinities as earlier ones."""
_DAY = 86_400_000_000
_MOST_INTEGER_DIGITS = 18
_ISO = "%Y-%m-%dT%H:%M:%S"


def numeric_type(precision: int, scale: int, mapping: str) -> pa.DataType:
    """The type for NUMERIC(precision, scale), by Confluent's ``numeric.mapping``."""
    small = precision <= _MOST_INTEGER_DIGITS
    if small and (scale == 0 if mapping == "precision_only" else scale < 1) and mapping != "none":
        return _integer(precision)
    if scale > 0 and (mapping == "best_fit_eager_double" or (mapping == "best_fit" and small)):
        return pa.float64()
    if precision <= 38 and 0 <= scale <= precision:
        return pa.decimal128(precision, scale)
    if precision <= 76 and 0 <= scale <= precision:
        return pa.decimal256(precision, scale)
    return pa.string()  # Arrow has no such decimal; the text is exact


def unbounded_type(mapping: str) -> pa.DataType:
    """The type for NUMERIC without a precision: each value has its own number of digits."""
    return pa.float64() if mapping.startswith("best_fit") else pa.string()


def _integer(precision: int) -> pa.DataType:
    for most, kind in ((2, pa.int8()), (4, pa.int16()), (9, pa.int32())):
        if precision <= most:
            return kind
    return pa.int64()


def converted(values: pa.Array, column: Column, timezone: str, exact: bool = False) -> pa.Array:
    """A column's values in the type that records have. ``exact`` times are those that a position is
    made of.

    Raises:
        ArrowInvalid: a value does not fit, is infinite, or is an exact time that does not exist in
            the time zone.
    """
    _check_finite(values)
    if pa.types.is_string(column.arrow) or pa.types.is_list(column.arrow):
        values.validate(full=True)  # not all databases check that text is UTF-8
    if pa.types.is_timestamp(values.type) and column.arrow == INSTANT and not values.type.tz:
        values = values.cast(pa.timestamp("us"), safe=False)
        if timezone.upper() not in ("UTC", "Z"):
            missing = "raise" if exact else "earliest"
            values = pc.assume_timezone(values, timezone, ambiguous="earliest", nonexistent=missing)
    if pa.types.is_date32(column.arrow) and pa.types.is_integer(values.type):
        values = values.cast(pa.int32())  # days since 1970
    if values.type == column.arrow:
        return values
    if pa.types.is_floating(column.arrow) and pa.types.is_floating(values.type):
        return values.cast(column.arrow, safe=False)
    return values.cast(column.arrow)


def _check_finite(values: pa.Array) -> None:
    kind = values.type
    if pa.types.is_struct(kind):
        for field in values.flatten():
            _check_finite(field)
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        _check_finite(values.flatten())
    elif pa.types.is_map(kind):
        within = values.drop_null()
        _check_finite(pa.ListArray.from_arrays(within.offsets, within.items).flatten())
    elif pa.types.is_time(kind) and (pc.max(values.cast(pa.int64())).as_py() or 0) >= _DAY:
        raise pa.ArrowInvalid("it is not within a day")
    if not (pa.types.is_timestamp(kind) or kind == pa.date32()):
        return
    is_date = kind == pa.date32()
    counts = values.cast(pa.int32() if is_date else pa.int64())
    earliest = _EARLIEST_DATE if is_date else _EARLIEST
    latest = 2**31 - 1 if is_date else 2**63 - 1
    bounds = pc.min_max(counts).as_py()
    if (bounds["min"] or 0) < earliest or bounds["max"] == latest:
        raise pa.ArrowInvalid("it is infinity")


def shown(values: pa.Array, granularity: str) -> pa.Array:
    """Timestamps in the form of ``timestamp.granularity``; other values unchanged.

    Raises:
        ArrowInvalid: a time cannot be written so.
    """
    if granularity == "connect_logical" or not pa.types.is_timestamp(values.type):
        return values
    unit, _, form = granularity.partition("_")
    if form == "iso_datetime_string":
        bounds = pc.min_max(pc.year(values)).as_py()
        if (bounds["min"] or 1) < 1 or (bounds["max"] or 1) > 9999:
            raise pa.ArrowInvalid("its year does not have four digits")
        text = pc.strftime(values, format=_ISO)  # with the fraction
        zeros = "000" if unit == "nanos" else ""
        return pc.binary_join_element_wise(text, zeros, "") if zeros else text
    count = values.cast(pa.int64())
    if unit == "nanos":
        try:
            count = pc.multiply_checked(count, 1000)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(
                "it is before 1677 or after 2262, which timestamp.granularity="
                f"{granularity} cannot express. Set it to micros_long"
            ) from None
    return count if form == "long" else count.cast(pa.string())


def struct(arrays: Sequence[pa.Array], columns: Sequence[Column]) -> pa.StructArray:
    """Rows as one value each."""
    fields = [
        pa.field(c.name, a.type, nullable=c.nullable or bool(c.zero))
        for a, c in zip(arrays, columns, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def wall(microseconds: int, timezone: str | None) -> str:
    """A time since 1970 as a date and time of day; in UTC without a time zone."""
    moment = _EPOCH + timedelta(microseconds=microseconds)
    if timezone is not None:
        moment = moment.astimezone(ZoneInfo(timezone))
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
