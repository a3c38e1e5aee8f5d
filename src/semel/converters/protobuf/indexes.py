"""Message indexes: a list before each value names its message, the first index among the messages
of the file, the next one among those inside that message, and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from semel.converters.binary import Content, Cursor, elements
from semel.converters.registry import FramedMessages

FIRST = (0,)
DAMAGED = (-1,)
"""Stands in for indexes that cannot be read."""
_DEEPEST = 100
_LONGEST = 120
"""The most bytes of a name."""


def split(group: FramedMessages) -> list[FramedMessages]:
    """Values by their messages, without the indexes."""
    present = group.starts < group.ends
    if present.all() and not group.data[group.starts].any():  # by far the most: the first message
        return [replace(group, starts=group.starts + 1, message=FIRST)]
    cursor = Cursor(Content(group.data), group.starts.copy(), group.ends)
    counts = cursor.long()
    cursor.doubt((counts < 0) | (counts > _DEEPEST))
    counts = np.where(cursor.unsure, 0, counts)
    for number in range(int(counts.max(initial=0))):
        which = np.flatnonzero((counts > number) & ~cursor.unsure)
        inner = cursor.take(which)
        inner.long()
        cursor.put(which, inner)
    return _apart(group, cursor, _indexes)


def _apart(
    group: FramedMessages, cursor: Cursor, message_of: Callable[[bytes], tuple[int, ...] | str]
) -> list[FramedMessages]:
    groups = []
    written = elements(cursor.content.bytes, group.starts, cursor.at).dictionary_encode()
    codes = written.indices.to_numpy()
    for code, value in enumerate(written.dictionary.to_pylist()):
        rows = np.flatnonzero((codes == code) & ~cursor.unsure)
        if len(rows):
            some = replace(group.only(rows), starts=cursor.at[rows], message=message_of(value))
            groups.append(some)
    damaged = np.flatnonzero(cursor.unsure)
    if len(damaged):
        groups.append(replace(group.only(damaged), message=DAMAGED))
    return groups


def split_by_name(group: FramedMessages) -> list[FramedMessages]:
    """Values by their messages. Before each value is the name of its message, as Apicurio's
    serializer writes it: a length, then a Protobuf message with one string."""
    cursor = Cursor(Content(group.data), group.starts.copy(), group.ends)
    sizes = cursor.varint()
    cursor.doubt(sizes > np.uint64(_LONGEST))
    cursor.skip(np.where(cursor.unsure, np.uint64(0), sizes).astype(np.int64))
    return _apart(group, cursor, _name)


def _name(written: bytes) -> str | tuple[int, ...]:
    size = 1 if written[0] < 0x80 else 2
    if written[size : size + 1] != b"\n" or len(written) - size < 2:
        return DAMAGED
    try:
        return written[size + 2 :].decode()
    except UnicodeDecodeError:
        return DAMAGED


def _indexes(written: bytes) -> tuple[int, ...]:
    data = np.frombuffer(written, np.uint8)
    cursor = Cursor(Content(data), np.zeros(1, np.int64), np.full(1, len(data)))
    count = int(cursor.long()[0])
    return tuple(int(cursor.long()[0]) for _ in range(count)) or FIRST


def prefix(message: Sequence[int]) -> bytes:
    """The bytes of indexes."""
    if tuple(message) == FIRST:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(message), *message))


def name_prefix(name: str) -> bytes:
    """The bytes of a name, as Apicurio's serializer writes them."""
    text = name.encode()
    inner = b"\n" + _varint(len(text)) + text
    return _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
