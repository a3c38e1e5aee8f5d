"""Lines of text in blocks of bytes, many at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LF, _CR = 10, 13
LARGEST = 256 * 1024 * 1024
"""The most bytes that a record may have; it is held in memory."""
ENDS = (b"\n", b"\r")
"""The last byte of a line ending, whichever it is."""


def split(block: bytes, most: int, charset: str = "UTF-8") -> Iterator[tuple[pa.Array, int]]:
    """The whole lines at the beginning of a block, at most ``most`` at a time, without their ends,
    and how many bytes each batch of lines takes up, including the ends.

    A line ends with LF, CR LF or CR. A CR at the very end of the block does not end a line yet,
    because an LF may follow. The character set must be ASCII-compatible.
    """
    ends = ends_of(block)
    begin = 0
    for first in range(0, len(ends), most):
        count = min(most, len(ends) - first)
        end = int(ends[first + count - 1])
        yield _lines(block[begin:end], count, charset), end - begin
        begin = end


def text(line: bytes, charset: str = "UTF-8") -> str:
    """Bytes as a string; invalid ones become U+FFFD, as in Java."""
    return line.decode(charset, "replace")


def ends_of(block: bytes) -> np.ndarray:
    """The position after each whole line."""
    data = np.frombuffer(block, np.uint8)
    if b"\r" not in block:
        return np.flatnonzero(data == _LF) + 1
    feeds, returns = data == _LF, data == _CR
    returns[:-1] &= ~feeds[1:]
    returns[-1] = False
    return np.flatnonzero(feeds | returns) + 1


def _lines(block: bytes, count: int, charset: str) -> pa.Array:
    """The lines of a block that ends with a line's end."""
    whole = None
    if charset.upper() in ("UTF-8", "UTF8"):
        with contextlib.suppress(pa.ArrowInvalid):
            whole = pa.array([block], pa.binary()).cast(pa.string())
    if whole is None:
        whole = pa.array([text(block, charset)], pa.string())
    if b"\r" in block:
        pieces = pc.split_pattern_regex(whole, "\r\n|\r|\n")
    else:
        pieces = pc.split_pattern(whole, "\n")
    return pieces.flatten().slice(0, count)
