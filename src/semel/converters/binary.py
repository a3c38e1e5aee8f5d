"""What the converters of binary formats share: many Avro or Protobuf values read at once with a
:class:`Cursor`, arrays of bytes from numbers, and parts of nested arrays from Python values.

A value's bytes do not say where a field begins: it begins where the one before it ends. But at any
moment many values of one schema are about to read the same thing. So what is read for one is read
for all: numpy gathers the next bytes of each value, and each place moves by what it has read.

No value reads beyond its own end. One that would, or whose content is doubtful, is marked as
*unsure* and read again alone (the module ``rows`` of its format), which decides.
"""

from __future__ import annotations

import base64
import json
import math
import re
import string
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import in_field, typed
from semel.core.records import check_years

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_INVALID = re.compile(r"[^A-Za-z0-9_]")
_SPARE = 16
"""Padding after the last value: bytes that may be loaded, but are not used."""
_CONTINUED = np.uint64(0x8080808080808080)
_SEVENS = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)


class Content:
    """The contiguous bytes of all values."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.bytes = np.concatenate([data, np.zeros(_SPARE, np.uint8)])
        self.length = len(data)
        self._last_bytes: Longs | None = None
        self._last_before: Longs | None = None

    def load(self, kind: str, at: Longs) -> npt.NDArray[np.generic]:
        """The numbers of this type that begin at these places."""
        size = np.dtype(kind).itemsize
        window = np.lib.stride_tricks.sliding_window_view(self.bytes, size)
        return window[at].view(kind).ravel()

    @property
    def last_bytes(self) -> Longs:
        """Where variable-length numbers end, if they follow one another directly."""
        if self._last_bytes is None:
            self._last_bytes = np.flatnonzero(self.bytes[: self.length] < 0x80)
        return self._last_bytes

    def last_before(self, at: Longs) -> Longs:
        """How many bytes that may end a variable-length number are before each of these places."""
        if self._last_before is None:
            counts = np.cumsum(self.bytes[: self.length] < 0x80, dtype=np.int64)
            self._last_before = np.concatenate([np.zeros(1, np.int64), counts])
        return self._last_before[at]


class Cursor:
    """The position in each value. Values are in ascending order and do not overlap."""

    __slots__ = ("at", "content", "end", "unsure")

    def __init__(self, content: Content, at: Longs, end: Longs) -> None:
        self.content = content
        self.at = at
        self.end = end
        self.unsure: Flags = np.zeros(len(at), np.bool_)

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Longs) -> Cursor:
        """A cursor over some of the values."""
        return Cursor(self.content, self.at[rows], self.end[rows])

    def put(self, rows: Longs, moved: Cursor) -> None:
        """Move these values to the positions of another cursor."""
        self.at[rows] = moved.at
        self.unsure[rows] |= moved.unsure

    def doubt(self, wrong: Flags) -> None:
        """Mark values as unsure. They are still read, so that all columns keep one length."""
        self.unsure |= wrong

    def skip(self, sizes: Longs) -> Longs:
        """Skip this many bytes of each value. Returns how many were skipped: none if the value has
        fewer."""
        wrong = (sizes < 0) | (sizes > self.end - self.at)
        if wrong.any():
            self.doubt(wrong)
            sizes = np.where(wrong, 0, sizes)
        self.at = self.at + sizes
        return sizes

    def byte(self) -> npt.NDArray[np.uint8]:
        """Read one byte of each value."""
        values = self.content.bytes[self.at]
        self.skip(np.ones(len(self), np.int64))
        return values

    def fixed(self, kind: str) -> npt.NDArray[np.generic]:
        """Read a fixed-size number from each value."""
        numbers = self.content.load(kind, self.at)
        self.skip(np.full(len(self), np.dtype(kind).itemsize, np.int64))
        return numbers

    def long(self) -> Longs:
        """Read a variable-length number from each value, signed as in Avro."""
        return zigzag(self.varint())

    def varint(self) -> npt.NDArray[np.uint64]:
        """Read an unsigned variable-length number from each value."""
        first = self.content.bytes[self.at]
        longer = np.flatnonzero(first >= 0x80)
        if not len(longer):
            self.skip(np.ones(len(self), np.int64))
            return first.astype(np.uint64)
        if len(longer) > len(self) // 2:
            return self._long()
        numbers = first.astype(np.uint64)
        some = self.take(longer)
        numbers[longer] = some._long()
        sizes = np.ones(len(self), np.int64)
        sizes[longer] = some.at - self.at[longer]
        self.unsure[longer] |= some.unsure
        self.skip(sizes)
        return numbers

    def _long(self) -> npt.NDArray[np.uint64]:
        """Like :meth:`varint`, for when many of the numbers have several bytes."""
        words = self.content.load("<u8", self.at).astype(np.uint64, copy=False)
        ends = ~words & _CONTINUED
        lowest = ends & (~ends + _ONE)
        within = (lowest << _ONE) - _ONE
        numbers = _packed(words & within & _SEVENS)
        sizes = (np.bitwise_count(within) >> 3).astype(np.int64)
        longer = np.flatnonzero(ends == 0)
        if len(longer):
            numbers[longer], sizes[longer] = self._longer(longer, numbers[longer])
        self.skip(sizes)
        return numbers

    def _longer(
        self, rows: Longs, begun: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.uint64], Longs]:
        """Numbers of nine or ten bytes."""
        ninth = self.content.bytes[self.at[rows] + 8].astype(np.uint64)
        tenth = self.content.bytes[self.at[rows] + 9].astype(np.uint64)
        ten = ninth >= 0x80
        wrong = np.zeros(len(self), np.bool_)
        wrong[rows] = ten & (tenth > 1)
        self.doubt(wrong)
        numbers = begun | ((ninth & np.uint64(0x7F)) << np.uint64(56))
        numbers |= np.where(ten, tenth << np.uint64(63), np.uint64(0))
        return numbers, np.where(ten, 10, 9).astype(np.int64)

    def binary(self, sizes: Longs) -> pa.Array:
        """Read this many bytes of each value."""
        starts = self.at
        sizes = self.skip(sizes)
        return elements(self.content.bytes, starts, starts + sizes)


def zigzag(numbers: npt.NDArray[np.uint64]) -> Longs:
    """Signed numbers from zigzag encoding, which keeps the sign in the lowest bit."""
    return ((numbers >> _ONE) ^ (~(numbers & _ONE) + _ONE)).view(np.int64)


def texts(values: pa.Array) -> tuple[pa.Array, Flags | None]:
    """Bytes as text, and which of them are not UTF-8, if any: those are empty."""
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        bad = np.array([not _is_utf8(v) for v in values.to_pylist()], np.bool_)
        return pc.if_else(pa.array(bad), b"", values).cast(pa.string()), bad


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def repeating(owners: Longs, keys: pa.Array, sizes: Longs) -> Flags:
    """The maps of these sizes in which a key stands twice; ``owners`` has the map of each key. The
    last of equal keys counts, which is for the reader of single values to find."""
    if sizes.max(initial=0) > 1:
        table = pa.table({"row": owners, "key": keys})
        distinct = table.group_by(["row", "key"], use_threads=False).aggregate([])
        if distinct.num_rows < len(owners):
            counts = np.bincount(distinct.column("row").to_numpy(), minlength=len(sizes))
            return counts < sizes
    return np.zeros(len(sizes), np.bool_)


def _packed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Eight groups of seven bits without the gaps between them."""
    for low, high, gap in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    ):
        words = (words & np.uint64(low)) | ((words & np.uint64(high)) >> np.uint64(gap))
    return words


def of_bytes(content: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]) -> pa.Array:
    """Values of these sizes from contiguous bytes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def of_numbers(numbers: npt.NDArray[Any], size: int) -> pa.Array:
    """The bytes of numbers of this size, as they are in memory."""
    content = np.ascontiguousarray(numbers).view(np.uint8)
    return of_bytes(content, np.full(len(numbers), size, np.int64))


def varints(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    """Numbers of variable length: seven bits in each byte, the lowest first."""
    sizes = np.ones(len(numbers), np.int64)
    for shift in range(7, 64, 7):
        longer = numbers >= np.uint64(1 << shift)
        if not longer.any():
            break
        sizes += longer
    width = int(sizes.max(initial=1))
    places = np.arange(width)
    groups = (numbers[:, None] >> (places * 7).astype(np.uint64)).astype(np.uint8)
    more = np.where(places < sizes[:, None] - 1, 0x80, 0)
    content: npt.NDArray[np.uint8] = ((groups & 0x7F) | more).astype(np.uint8)
    return of_bytes(content[places < sizes[:, None]], sizes)


def unscaled(decimals: pa.Array) -> pa.Array:
    """The fewest bytes that hold each decimal's unscaled number, two's complement, big-endian;
    arbitrary ones for null."""
    _, data = decimals.buffers()
    width = decimals.type.byte_width
    first = decimals.offset * width
    content = np.frombuffer(data, np.uint8)[first : first + len(decimals) * width]
    digits = content.reshape(-1, width)[:, ::-1]
    sign: npt.NDArray[np.uint8] = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    spare = (digits[:, :-1] == sign) & ((digits[:, 1:] ^ sign) < 0x80)
    sizes = width - np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    return of_bytes(digits[np.arange(width) >= (width - sizes)[:, None]], sizes)


def elements(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> pa.Array:
    """The bytes between these places, which ascend. An Arrow array needs an offset for each end, so
    the values, and the unwanted bytes between them, become alternating elements of an array that
    shares the bytes; the values are then taken from it."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[::2] = starts
    offsets[1::2] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


class SchemaMismatch(ValueError):
    """Values that do not fit their schema."""


def fitted(values: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    """The values of a field in another type, if it can hold them.

    Raises:
        SchemaMismatch: it does not.
    """
    if values.type == target:
        return values
    try:
        return values.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        why = f"{typed(values.type)} does not fit {typed(target)}: {reason}"
        raise SchemaMismatch(f"{in_field(path)}{why}") from None


def scrubbed(name: str, not_first: str = string.digits) -> str:
    """A name with characters that Avro and Protobuf allow, as Kafka Connect's converters make it:
    encoded as in URLs, and then with underscores. It begins with an x if it begins with one of
    ``not_first``."""
    encoded = quote_plus(name, safe="*-._").replace("~", "%7E")
    return _INVALID.sub("_", f"x{encoded}" if name and name[0] in not_first else encoded)


def offsets(values: Sequence[Any]) -> pa.Array:
    """Where each list or map begins among all items, and where the last one ends."""
    return pa.array(accumulate((len(v or ()) for v in values), initial=0), pa.int32())


def mask(values: Sequence[Any]) -> pa.Array:
    """Which values are null."""
    return pa.array([v is None for v in values], pa.bool_())


class Json(str):
    """A text that is JSON already."""


def shown(values: pa.Array) -> Any:
    """The only one of these values, for :func:`compact`."""
    if pa.types.is_temporal(values.type):
        check_years(values)
        return values.cast(pa.string())[0].as_py().replace(" ", "T")
    value = values[0].as_py()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def compact(value: Any) -> str:
    """A value as JSON, without white space.

    Raises:
        ValueError: NaN or an infinity inside, which JSON does not have.
    """
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} inside, which JSON does not have")
        case Json():
            return value
        case Decimal():
            return format(value, "f")
        case dict():
            return f"{{{','.join(f'{compact(str(k))}:{compact(v)}' for k, v in value.items())}}}"
        case list():
            return f"[{','.join(map(compact, value))}]"
    return json.dumps(value, ensure_ascii=False)
