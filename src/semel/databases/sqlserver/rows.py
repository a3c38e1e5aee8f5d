"""Arrow tables as the rows of a bulk load in TDS, SQL Server's protocol. Vectorised.

Each value becomes its bytes on the wire, and a row is their concatenation. The client itself would
make a Python call for each value.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import named
from semel.core.records import one_array
from semel.databases.columns import is_binary

_ROW = b"\xd1"
_DAY = 86_400_000_000  # microseconds
_YEAR_1 = 719_162  # days from there to 1970
_LAST_DAY = 3_652_058  # 9999-12-31
_UNKNOWN = b"\xfe" + b"\xff" * 7  # an unknown length: the value follows in chunks
_NULL = b"\xff" * 8
_END = b"\0" * 4


class Unsendable(ValueError):
    """SQL Server cannot hold this value."""


def rows(table: pa.Table) -> bytes:
    """All rows, without the first one's token (which the client writes).

    Raises:
        Unsendable.
    """
    if not table.num_rows:
        return b""
    parts = [pa.array([_ROW], pa.large_binary()).take(pa.array(np.zeros(table.num_rows, "i8")))]
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            parts.append(_encoded(one_array(column)))
        except Unsendable as error:
            raise Unsendable(f"column {named(name)}: {error}") from None
    encoded = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    return _content(encoded)[1:]


def _encoded(values: pa.Array) -> pa.Array:
    kind = values.type
    if is_binary(kind):
        return _chunked(values.cast(pa.large_binary()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _chunked(_utf16(values.cast(pa.large_string())))
    return _fixed(values, _FIXED[_family(kind)](values.fill_null(_zero(kind))))


def _zero(kind: pa.DataType) -> pa.Scalar:
    exact = pa.types.is_decimal(kind)
    return pa.scalar(Decimal(0) if exact else False if kind == pa.bool_() else 0, kind)


# Values of one width


def _integer(values: pa.Array) -> np.ndarray:
    return _bytes_of(values.to_numpy(zero_copy_only=False), values.type.bit_width // 8)


def _boolean(values: pa.Array) -> np.ndarray:
    return _bytes_of(values.cast(pa.uint8()).to_numpy(zero_copy_only=False), 1)


def _floating(values: pa.Array) -> np.ndarray:
    numbers = values.to_numpy(zero_copy_only=False)
    if not np.isfinite(numbers).all():
        raise Unsendable("SQL Server has neither NaN nor infinity")
    return _bytes_of(numbers, values.type.bit_width // 8)


def _decimal(values: pa.Array) -> np.ndarray:
    """Sign and magnitude, in the bytes of the highest precision, as Babelfish requires."""
    halves = np.frombuffer(values.buffers()[1], "<u8").reshape(-1, 2)
    halves = halves[values.offset : values.offset + len(values)].copy()
    negative = halves[:, 1] >> np.uint64(63) == 1
    halves[negative] = ~halves[negative]
    carry = negative & (halves[:, 0] == np.iinfo(np.uint64).max)
    halves[negative, 0] += np.uint64(1)
    halves[carry, 1] += np.uint64(1)
    sign = (~negative).astype(np.uint8)[:, None]
    return np.hstack([sign, halves.view(np.uint8)])


def _date(values: pa.Array) -> np.ndarray:
    return _days(values.cast(pa.int32()).to_numpy(zero_copy_only=False).astype(np.int64))


def _days(since_1970: np.ndarray) -> np.ndarray:
    days = since_1970 + _YEAR_1
    if len(days) and (days.min() < 0 or days.max() > _LAST_DAY):
        raise Unsendable("SQL Server has the years 1 to 9999 only")
    return _bytes_of(days, 8)[:, :3]


def _time(values: pa.Array) -> np.ndarray:
    times = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return _bytes_of(times, 8)[:, :5]


def _timestamp(values: pa.Array) -> np.ndarray:
    days, times = np.divmod(values.cast(pa.int64()).to_numpy(zero_copy_only=False), _DAY)
    parts = [_bytes_of(times, 8)[:, :5], _days(days)]
    if values.type.tz:  # in UTC: an offset of no minutes
        parts.append(np.zeros((len(values), 2), np.uint8))
    return np.hstack(parts)


def _bytes_of(numbers: np.ndarray, width: int) -> np.ndarray:
    little = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(len(numbers), width)


def _family(kind: pa.DataType) -> str:
    for matches, name in (
        (pa.types.is_integer, "integer"),
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_floating, "floating"),
        (pa.types.is_decimal128, "decimal"),
        (pa.types.is_date32, "date"),
        (pa.types.is_time64, "time"),
        (pa.types.is_timestamp, "timestamp"),
    ):
        if matches(kind):
            return name
    raise TypeError(f"{kind} cannot be sent")


_FIXED: dict[str, Callable[[pa.Array], Any]] = {
    "integer": _integer,
    "boolean": _boolean,
    "floating": _floating,
    "decimal": _decimal,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
}


def _fixed(values: pa.Array, raw: np.ndarray) -> pa.Array:
    """A byte of length, then the value; for null a length of 0 and nothing."""
    width = raw.shape[1]
    framed = np.hstack([np.full((len(raw), 1), width, np.uint8), raw])
    if not values.null_count:
        return _from_lengths(np.full(len(raw), width + 1), framed.tobytes())
    there = values.is_valid().to_numpy(zero_copy_only=False)
    framed[~there, 0] = 0
    keep = np.ones(framed.shape, bool)
    keep[~there, 1:] = False
    return _from_lengths(np.where(there, width + 1, 1), framed[keep].tobytes())


# Values of any length


def _chunked(values: pa.Array) -> pa.Array:
    """An unknown total length, one chunk with its length (none if empty), and an end."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    sizes = _from_lengths(np.full(len(values), 4), lengths.astype("<u4").tobytes())
    nothing = pa.scalar(b"", pa.large_binary())
    sizes = pc.if_else(pa.array(lengths > 0), sizes, nothing)
    whole = pc.binary_join_element_wise(
        pa.scalar(_UNKNOWN, pa.large_binary()),
        sizes,
        pc.fill_null(values, nothing),
        pa.scalar(_END, pa.large_binary()),
        nothing,
    )
    if not values.null_count:
        return whole
    return pc.if_else(values.is_valid(), whole, pa.scalar(_NULL, pa.large_binary()))


def _utf16(text: pa.Array) -> pa.Array:
    """Text as bytes in UTF-16. A character's first byte in UTF-8 says how many these are."""
    data = _content(text)
    ends = _ends(text)
    first = np.frombuffer(data, np.uint8)
    width = 2 * ((first & 0xC0) != 0x80).astype(np.int64) + 2 * (first >= 0xF0)
    places = np.concatenate([[0], np.cumsum(width)])[ends - ends[0]]
    encoded = data.decode().encode("utf-16-le")
    bare = _from_lengths(np.diff(places), encoded)
    if not text.null_count:
        return bare
    return pc.if_else(text.is_valid(), bare, pa.scalar(None, pa.large_binary()))


def _ends(values: pa.Array) -> np.ndarray:
    offsets = np.frombuffer(values.buffers()[1], np.int64)
    return offsets[values.offset : values.offset + len(values) + 1]


def _content(values: pa.Array) -> bytes:
    """The bytes of all values, one after another."""
    data, ends = values.buffers()[2], _ends(values)
    return data.slice(ends[0], ends[-1] - ends[0]).to_pybytes() if data else b""


def _from_lengths(lengths: np.ndarray, data: bytes) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
