"""Locates the fields of many messages.

A message is a sequence of tags, each with its value; absent fields have no tag. Programs write
fields in the order of their numbers. So each step reads on in all messages whose next tag is the
smallest one, while the others wait: a field that all of them have is read in one step, wherever it
is in each message. Fields in another order only take more steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semel.converters.binary import Cursor, Longs
from semel.converters.protobuf.schema import BYTES, FIXED32, FIXED64, VARINT

_STEPS = 1000
"""The most steps. Messages that take more, such as those with long unpacked lists, are read
alone."""
_DONE = 2**62
_LARGEST = np.uint64(2**31 - 1)
_LARGEST_TAG = np.uint64(2**32 - 1)


@dataclass(slots=True)
class Spans:
    """The values of one tag: their messages, their places and, if they are numbers, the numbers."""

    rows: Longs
    starts: Longs
    ends: Longs
    numbers: npt.NDArray[np.uint64] | None

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, which: npt.NDArray[np.generic]) -> Spans:
        """Some of them."""
        numbers = None if self.numbers is None else self.numbers[which]
        return Spans(self.rows[which], self.starts[which], self.ends[which], numbers)


def scan(cursor: Cursor, wanted_tags: frozenset[int]) -> dict[int, Spans]:
    """The values of these tags, each in the order of the messages."""
    tags = np.full(len(cursor), _DONE, np.int64)
    _next(cursor, tags, None)
    steps: dict[int, list[Spans]] = {}
    for _ in range(_STEPS):
        tag = int(tags.min(initial=_DONE))
        if tag == _DONE:
            break
        chosen = tags == tag
        rows = np.flatnonzero(chosen)
        every = len(rows) == len(cursor)
        inner = cursor if every else cursor.take(rows)
        spans = _value(inner, rows, tag)
        if tag in wanted_tags:
            steps.setdefault(tag, []).append(spans)
        _next(inner, tags, None if every else rows)
        if not every:
            cursor.put(rows, inner)
    else:
        cursor.doubt(tags != _DONE)
    return {tag: _joined(parts) for tag, parts in steps.items()}


def _next(cursor: Cursor, tags: Longs, rows: Longs | None) -> None:
    """Read the next tags. Without ``rows``, the cursor covers all messages."""
    more = (cursor.at < cursor.end) & ~cursor.unsure
    if more.all():
        next_tags = _tag(cursor)
    else:
        next_tags = np.full(len(cursor), _DONE, np.int64)
        which = np.flatnonzero(more)
        if len(which):
            some = cursor.take(which)
            next_tags[which] = _tag(some)
            cursor.put(which, some)
    if rows is None:
        tags[:] = next_tags
    else:
        tags[rows] = next_tags


def _tag(cursor: Cursor) -> Longs:
    numbers = cursor.varint()
    wrong = (numbers > _LARGEST_TAG) | (numbers < np.uint64(8))  # there is no field 0
    cursor.doubt(wrong)
    tags: Longs = np.where(cursor.unsure, _DONE, numbers.astype(np.int64))
    return tags


def _value(cursor: Cursor, rows: Longs, tag: int) -> Spans:
    wire = tag & 7
    starts = cursor.at
    numbers = None
    if wire == VARINT:
        numbers = cursor.varint()
    elif wire in (FIXED32, FIXED64):
        cursor.skip(np.full(len(cursor), 4 if wire == FIXED32 else 8, np.int64))
    elif wire == BYTES:
        sizes = cursor.varint()
        starts = cursor.at
        cursor.doubt(sizes > _LARGEST)
        cursor.skip(np.where(cursor.unsure, np.uint64(0), sizes).astype(np.int64))
    else:  # a group, or not a value
        cursor.doubt(np.ones(len(cursor), np.bool_))
    return Spans(rows, starts, cursor.at.copy(), numbers)


def _joined(parts: list[Spans]) -> Spans:
    if len(parts) == 1:
        return parts[0]
    numbers = None
    if parts[0].numbers is not None:
        numbers = np.concatenate([p.numbers for p in parts if p.numbers is not None])
    both = Spans(
        np.concatenate([p.rows for p in parts]),
        np.concatenate([p.starts for p in parts]),
        np.concatenate([p.ends for p in parts]),
        numbers,
    )
    return both.only(np.argsort(both.starts, kind="stable"))
