"""Messages that represent values of other types, in columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.binary import Cursor, Longs
from semel.converters.protobuf.schema import LogicalMessage

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999."""
_NANOS = 1_000_000_000
_DIGITS = 16
_WIDEST = 38


def of(node: LogicalMessage, values: pa.StructArray, cursor: Cursor) -> pa.Array:
    """Convert these messages to values; those without a valid value are unsure."""
    if node.kind == "Decimal":
        return _decimals(node, values, cursor)
    parts = [values.field(n).to_numpy().astype(np.int64) for n in range(values.type.num_fields)]
    match node.kind:
        case "Timestamp":
            return _timestamps(node, parts, cursor)
        case "Date":
            return _dates(parts, cursor)
    return _times(node, parts, cursor)


def _timestamps(node: LogicalMessage, parts: list[Longs], cursor: Cursor) -> pa.Array:
    seconds, nanos = parts
    wrong = (seconds < FIRST_SECOND) | (seconds > LAST_SECOND) | (nanos < 0) | (nanos >= _NANOS)
    cursor.doubt(wrong)
    millis = np.where(wrong, 0, seconds) * 1000 + np.where(wrong, 0, nanos) // 1_000_000
    return pa.array(millis).cast(node.type)


def _dates(parts: list[Longs], cursor: Cursor) -> pa.Array:
    year, month, day = parts
    wrong = (year < 1) | (year > 9999) | (month < 1) | (month > 12) | (day < 1) | (day > 31)
    months = np.where(wrong, 0, (year - 1970) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]").astype(np.int64)
    after = (months + 1).astype("M8[D]").astype(np.int64)
    dates = days + np.where(wrong, 0, day - 1)
    cursor.doubt(wrong | (dates >= after))
    return pa.array(dates.astype(np.int32)).cast(pa.date32())


def _times(node: LogicalMessage, parts: list[Longs], cursor: Cursor) -> pa.Array:
    hours, minutes, seconds, nanos = parts
    wrong = np.zeros(len(cursor), np.bool_)
    for part, most in ((hours, 23), (minutes, 59), (seconds, 59), (nanos, _NANOS - 1)):
        wrong |= (part < 0) | (part > most)
    cursor.doubt(wrong)
    millis = ((hours * 60 + minutes) * 60 + seconds) * 1000 + nanos // 1_000_000
    return pa.array(np.where(wrong, 0, millis).astype(np.int32)).cast(node.type)


def _decimals(node: LogicalMessage, values: pa.StructArray, cursor: Cursor) -> pa.Array:
    digits, sizes = _little_endian(values.field(0))
    precision = values.field(1).to_numpy()
    scale = values.field(2).to_numpy()
    wrong = (sizes < 1) | (sizes > _DIGITS) | (scale < 0) | (scale > _WIDEST)
    wrong |= _too_long(digits, precision)
    digits[wrong] = 0
    decimals = pa.nulls(len(values), node.type)
    for common_scale in np.unique(scale[~wrong]).tolist():
        has_scale = ~wrong & (scale == common_scale)
        buffers = [None, pa.py_buffer(np.where(has_scale[:, None], digits, 0).astype(np.uint8))]
        unscaled = pa.Array.from_buffers(pa.decimal128(_WIDEST, common_scale), len(values), buffers)
        try:
            cast = unscaled.cast(node.type)
        except pa.ArrowInvalid:  # more digits than the type
            wrong |= has_scale
            continue
        if has_scale.all():
            return cast
        decimals = pc.if_else(pa.array(has_scale), cast, decimals)
    cursor.doubt(wrong)
    return decimals


def _little_endian(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Longs]:
    """Big-endian two's complement, which Arrow stores little-endian in 16 bytes."""
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    content = np.concatenate([content, np.zeros(1, np.uint8)])
    starts = places[:-1].astype(np.int64)
    sizes = np.diff(places).astype(np.int64)
    at = (starts + np.minimum(sizes, _DIGITS))[:, None] - 1 - np.arange(_DIGITS)
    present = at >= starts[:, None]
    sign = np.where((content[starts] >= 0x80) & (sizes > 0), 0xFF, 0).astype(np.uint8)
    digits = np.where(present, content[np.where(present, at, 0)], sign[:, None])
    return np.ascontiguousarray(digits.astype(np.uint8)), sizes


def _too_long(
    digits: npt.NDArray[np.uint8], precision: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """The numbers that have more digits than they declare."""
    halves = digits.view("<i8")
    low, high = halves[:, 0], halves[:, 1]
    small = high == np.where(low < 0, -1, 0)  # it fits into the lower half
    bound = 10 ** np.minimum(precision, 18)
    claimed = (precision > 0) & (precision < 19)
    wrong: npt.NDArray[np.bool_] = small & claimed & ((low >= bound) | (low <= -bound))
    for row in np.flatnonzero(~small).tolist():
        number = abs(int.from_bytes(digits[row].tobytes(), "little", signed=True))
        wrong[row] = number >= 10 ** min(int(precision[row]) or _WIDEST, _WIDEST)
    return wrong
