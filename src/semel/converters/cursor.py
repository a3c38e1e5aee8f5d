"""Reads many Avro or Protobuf values at once, with a position in each.

A value's bytes do not say where a field begins: it begins where the one before it ends. But at any
moment many values of one schema are about to read the same thing. So what is read for one is read
for all: numpy gathers the next bytes of each value, and each place moves by what it has read.

No value reads beyond its own end. One that would, or whose content is doubtful, is marked as
*unsure* and read again alone (the module ``rows`` of its format), which decides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.bytestrings import elements

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

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
