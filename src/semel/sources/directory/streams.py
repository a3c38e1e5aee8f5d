"""The content of a file: decompressed, in UTF-8 where that is needed, and in whole records."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa

from semel.sources.lines import LARGEST, ends_of

_COMPRESSED = {"gz": "gzip", "bz2": "bz2", "lz4": "lz4", "zst": "zstd", "zstd": "zstd"}
BLOCK = 8 * 1024 * 1024


class TooLarge(Exception):
    """A record has no end within the limit."""


class ByteStream(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def compression_of(name: str) -> str | None:
    """The compression of a file, by its extension."""
    return _COMPRESSED.get(name.rpartition(".")[2].lower())


def opened(file: BinaryIO, name: str, charset: str, position: int = 0) -> ByteStream:
    """The content from a position onwards. Positions count the bytes of this content, not of the
    file."""
    kind = compression_of(name)
    plain = is_ascii_compatible(charset)
    if kind is None and plain:
        file.seek(position)
        return file
    file.seek(0)
    content: ByteStream = file
    if kind is not None:
        content = pa.CompressedInputStream(pa.PythonFile(_LentFile(file), "r"), kind)
    if not plain:
        content = _TranscodedStream(content, charset)
    while position:
        passed = len(content.read(min(position, BLOCK)))
        if not passed:
            break
        position -= passed
    return content


def is_ascii_compatible(charset: str) -> bool:
    """Whether line ends, quotes and separators are single bytes, as in ASCII."""
    ascii_text = "".join(map(chr, range(9, 127)))
    try:
        return ascii_text.encode(charset) == ascii_text.encode("ascii")
    except UnicodeError:
        return False


class _LentFile(io.RawIOBase):
    """A file that stays open when pyarrow closes it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _TranscodedStream:
    """Content of another character set as UTF-8."""

    def __init__(self, content: ByteStream, charset: str) -> None:
        self._content = content
        self._decoder = codecs.getincrementaldecoder(charset)()
        self._charset = charset

    def read(self, size: int, /) -> bytes:
        while True:
            block = self._content.read(size)
            text = self._decoder.decode(block, final=not block)
            if text or not block:
                return text.encode()


Ends = Callable[[bytes], np.ndarray]
"""Where each whole record at the beginning of a block ends."""


def not_blank(ends: Ends) -> Ends:
    """``ends`` without those of blank lines, which belong to the record that follows."""

    def record_ends(block: bytes) -> np.ndarray:
        behind = ends(block)
        data = np.frombuffer(block, np.uint8)
        at = np.concatenate(([0], behind[:-1]))
        feeds = (data[at] == 10) | (data[at] == 13)
        return np.asarray(behind[~(feeds & (behind - at <= 2) & (data[behind - 1] <= 13))])

    return record_ends


_SPACE = np.isin(np.arange(256), list(b" \t\r\n"))
_QUOTE, _BACKSLASH = 34, 92


def value_ends(block: bytes) -> np.ndarray:
    """A JSON value is a record, with the white space after it. It may have many lines, and a line
    may have many values."""
    data = np.frombuffer(block, np.uint8)
    lines = _objects(block, data)
    if len(lines):
        return lines
    quotes = data == _QUOTE
    if b"\\" in block:
        at = np.flatnonzero(quotes)
        others = np.maximum.accumulate(np.where(data == _BACKSLASH, -1, np.arange(len(data))))
        before = np.where(at > 0, others[at - 1], -1)
        quotes[at[(at - 1 - before) % 2 == 1]] = False  # escaped
    outside = ~np.logical_xor.accumulate(quotes)
    kinds = data & 0xDF  # brackets and braces alike
    opens = outside & (kinds == ord("["))
    closes = outside & (kinds == ord("]"))
    marks = np.flatnonzero(opens | closes)
    depths = np.cumsum(np.where(opens[marks], 1, -1))
    first = marks[(depths == 1) & opens[marks]]
    last = marks[(depths == 0) & closes[marks]]
    if len(last) and len(first) >= len(last) and depths.min() >= 0:
        following = np.append(first[1:], len(data))[: len(last)]
        lengths = following - last - 1
        shifts = last + 1 - np.cumsum(lengths) + lengths
        between = np.repeat(shifts, lengths) + np.arange(lengths.sum())
        if _SPACE[data[between]].all() and _SPACE[data[: first[0]]].all():
            return following
    # Texts, numbers or nonsense outside of all brackets.
    depth = np.cumsum(opens.astype(np.int8) - closes, dtype=np.int32)
    ended = (closes | (quotes & outside)) & (depth == 0)
    bare = outside & (depth == 0) & ~(closes | quotes | _SPACE[data])
    ended[:-1] |= bare[:-1] & ~bare[1:]
    solid = np.append(np.flatnonzero(~_SPACE[data]), len(data))
    return np.asarray(solid[np.searchsorted(solid, np.flatnonzero(ended) + 1)])


_SEVERAL = re.compile(rb"\}[ \t]*[^,\}\]\s]")


def _objects(block: bytes, data: np.ndarray) -> np.ndarray:
    """The ends of lines if each is one JSON object and nothing else, or not JSON at all; none if
    that may be otherwise."""
    behind = ends_of(block)
    if not len(behind) or int(behind[0]) < 2:
        return behind[:0]
    last = behind - 2
    last = last - (data[last] == ord("\r"))
    first = np.append(0, behind[:-1])
    alone = (data[first] == ord("{")) & (data[last] == ord("}")) & (last > first)
    return behind if alone.all() and not _SEVERAL.search(block, 0, int(behind[-1])) else behind[:0]


def blocks(
    content: ByteStream,
    ends: Ends,
    *,
    blank: bool = True,
    space: bytes = b"\r\n",
    largest: int = LARGEST,
) -> Iterator[tuple[bytes, np.ndarray]]:
    """Whole records with the end of each. The last one may lack its line end. ``blank`` lines are
    records too; otherwise ``space`` at the end is none."""
    rest, size, largest = b"", BLOCK, min(largest, LARGEST)
    while block := content.read(size):
        rest = rest + block if rest else block
        positions = ends(rest)
        if not len(positions):
            if len(rest) > largest:
                raise TooLarge(f"it has more than {largest:,} bytes. Is a quote not closed?")
            # Read more at a time, so that a long record is not searched again for every block.
            size = min(2 * max(size, len(rest)), largest)
            continue
        size = BLOCK
        until = int(positions[-1])
        yield rest[:until], positions
        rest = rest[until:]
    if rest if blank else rest.strip(space):
        positions = ends(rest)  # a last CR, or a row whose quote is never closed
        if not len(positions) or int(positions[-1]) < len(rest):
            positions = np.append(positions, len(rest))
        yield rest, positions
