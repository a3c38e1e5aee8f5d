"""Protobuf messages of one type to Arrow, a field at a time.

A message is a sequence of tags, each with its value; absent fields have no tag. :func:`_scan`
locates the fields of many messages. Programs write fields in the order of their numbers. So each
step reads on in all messages whose next tag is the smallest one, while the others wait: a field
that all of them have is read in one step, wherever it is in each message. Fields in another order
only take more steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.binary import Content, Cursor, Longs, elements, repeating, texts, zigzag
from semel.converters.json.text import place
from semel.converters.protobuf.schema import (
    BYTES,
    FIRST_SECOND,
    FIXED32,
    FIXED64,
    LAST_SECOND,
    VARINT,
    Enum,
    Field,
    LogicalMessage,
    Map,
    Message,
    Node,
    Oneof,
    Scalar,
    Wrapper,
)

_LOADED = {
    "double": "<f8",
    "float": "<f4",
    "fixed32": "<u4",
    "fixed64": "<i8",
    "sfixed32": "<i4",
    "sfixed64": "<i8",
}
_LOW = np.uint64(0xFFFFFFFF)
_STEPS = 1000
"""The most steps. Messages that take more, such as those with long unpacked lists, are read
alone."""
_DONE = 2**62
_LARGEST = np.uint64(2**31 - 1)
_LARGEST_TAG = np.uint64(2**32 - 1)
_NANOS = 1_000_000_000
_DIGITS = 16
_WIDEST = 38


def read(node: Node, content: Content, at: Longs, end: Longs) -> tuple[pa.Array, Longs]:
    """All values, and the rows that must be read one by one."""
    cursor = Cursor(content, at.copy(), end)
    values = _inside(node, cursor)
    return values, np.flatnonzero(cursor.unsure)


def _inside(node: Node, cursor: Cursor) -> pa.Array:
    """Convert messages to the values that they represent."""
    match node:
        case Message():
            return node.finish(_message(node, cursor))
        case LogicalMessage():
            return _known(node, _message(node.message, cursor), cursor)
        case Wrapper():
            return _message(node.message, cursor).field(0)
    raise AssertionError(node)


def _message(node: Message, cursor: Cursor) -> pa.StructArray:
    begins = cursor.at
    cursor.at = begins.copy()
    by_tag = _scan(cursor, node.tags)
    arrays = []
    for column in node.columns:
        if isinstance(column, Oneof):
            arrays.append(_oneof(column, by_tag, cursor, begins))
        else:
            arrays.append(column.finish(_field(column, by_tag, cursor, begins)))
    if not arrays:
        return pa.array([{}] * len(cursor), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=[c.arrow for c in node.columns])


def _oneof(
    oneof: Oneof, by_tag: Mapping[int, _Spans], cursor: Cursor, begins: Longs
) -> pa.StructArray:
    counts = np.zeros(len(cursor), np.int64)
    for field in oneof.fields:
        spans = by_tag.get(_tag(field))
        if spans is not None:
            counts[spans.rows] += 1
    cursor.doubt(counts > 1)  # the last one counts
    arrays = [field.finish(_field(field, by_tag, cursor, begins)) for field in oneof.fields]
    mask = pa.array(counts == 0)
    fields = [f.arrow for f in oneof.fields]
    if not arrays:
        return pa.nulls(len(cursor), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _tag(field: Field) -> int:
    return field.number << 3 | field.wire


def _field(field: Field, by_tag: Mapping[int, _Spans], cursor: Cursor, begins: Longs) -> pa.Array:
    if field.repeated:
        return _repeated(field, by_tag, cursor)
    spans = by_tag.get(_tag(field))
    count = len(cursor)
    if spans is None:
        none = np.empty(0, np.int64)
        varints = np.empty(0, np.uint64) if field.node.wire == VARINT else None
        spans = _Spans(none, none, none, varints)
    elif len(spans) > 1 and (spans.rows[1:] == spans.rows[:-1]).any():
        first = np.concatenate([[True], spans.rows[1:] != spans.rows[:-1]])
        cursor.doubt(_flags(spans.rows[~first], count))
        spans = spans.only(first)
    absent = None
    if len(spans) < count:
        absent = ~_flags(spans.rows, count)
        if field.required:
            cursor.doubt(absent)
        if field.always:  # an empty message
            starts, ends = begins.copy(), begins.copy()
            starts[spans.rows], ends[spans.rows] = spans.starts, spans.ends
            spans, absent = _Spans(np.arange(count), starts, ends, None), None
    if absent is None:
        return _values(field.node, spans, cursor)
    if isinstance(field.node, (Scalar, Enum)) and field.node.wire != BYTES:
        return _spread(field, spans, absent, cursor)
    values = _values(field.node, spans, cursor)
    values = place(values, pa.array(spans.rows), count)
    return (
        values
        if field.explicit
        else pc.fill_null(values, pa.scalar(field.default, field.node.type))
    )


def _spread(field: Field, spans: _Spans, absent: npt.NDArray[np.bool_], cursor: Cursor) -> pa.Array:
    """Numbers at their rows; the other rows get the number that stands for an absent one."""
    some = _numbers(field.node, spans, cursor)
    every = np.full(len(cursor), field.default or 0, some.dtype)
    every[spans.rows] = some
    where = _Spans(np.arange(len(cursor)), spans.starts, spans.ends, None)
    values = _shown(field.node, every, where, cursor)
    if not field.explicit:
        return values
    return pc.if_else(pa.array(absent), pa.scalar(None, values.type), values)


def _flags(rows: Longs, count: int) -> npt.NDArray[np.bool_]:
    flags = np.zeros(count, np.bool_)
    flags[rows] = True
    return flags


def _values(node: Node, spans: _Spans, cursor: Cursor) -> pa.Array:
    """One value for each occurrence that was found."""
    if isinstance(node, Scalar) and node.wire == BYTES:
        values = elements(cursor.content.bytes, spans.starts, spans.ends)
        return _text(values, spans, cursor) if node.kind == "string" else values
    if isinstance(node, (Scalar, Enum)):
        return _shown(node, _numbers(node, spans, cursor), spans, cursor)
    inner = Cursor(cursor.content, spans.starts.copy(), spans.ends)
    values = _inside(node, inner)
    if inner.unsure.any():
        cursor.doubt(_flags(spans.rows[inner.unsure], len(cursor)))
    return values


def _numbers(node: Node, spans: _Spans, cursor: Cursor) -> npt.NDArray[Any]:
    if not isinstance(node, Scalar) or spans.numbers is not None:
        assert spans.numbers is not None
        kind = node.kind if isinstance(node, Scalar) else "int32"
        return _of_varints(kind, spans.numbers)
    return _loaded(node.kind, spans.starts, cursor.content)


def _of_varints(kind: str, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Convert varints to values. Types of 32 bits drop the higher bits."""
    match kind:
        case "int32":
            return numbers.astype(np.uint32).view(np.int32)
        case "uint32":
            return (numbers & _LOW).view(np.int64)
        case "sint32":
            return zigzag(numbers & _LOW).astype(np.int32)
        case "sint64":
            return zigzag(numbers)
        case "bool":
            booleans: npt.NDArray[np.bool_] = numbers != 0
            return booleans
    return numbers.view(np.int64)


def _loaded(kind: str, starts: Longs, content: Content) -> npt.NDArray[Any]:
    """Numbers of a fixed size."""
    numbers: npt.NDArray[Any] = content.load(_LOADED[kind], starts)
    return numbers.astype(np.int64) if kind == "fixed32" else numbers


def _shown(node: Node, numbers: npt.NDArray[Any], spans: _Spans, cursor: Cursor) -> pa.Array:
    if isinstance(node, Enum):
        return _names(node, numbers, spans, cursor)
    assert isinstance(node, Scalar)
    if node.narrow is not None:
        most = 2 ** (node.narrow.bit_width - 1)
        outside = (numbers < -most) | (numbers >= most)
        if outside.any():
            cursor.doubt(_flags(spans.rows[outside], len(cursor)))
            numbers = np.where(outside, 0, numbers)
        return pa.array(numbers, pa.int32()).cast(node.narrow)
    return pa.array(numbers)


def _names(node: Enum, numbers: npt.NDArray[Any], spans: _Spans, cursor: Cursor) -> pa.Array:
    declared = np.array(sorted(node.names), np.int32)
    at = np.minimum(np.searchsorted(declared, numbers), len(declared) - 1)
    strange = declared[at] != numbers
    if strange.any() and (node.closed or not node.as_number):
        cursor.doubt(_flags(spans.rows[strange], len(cursor)))
    if node.as_number:
        return pa.array(numbers, pa.int32())
    names = pa.array([node.names[number] for number in declared.tolist()], pa.string())
    return names.take(pa.array(at))


def _text(content: pa.Array, spans: _Spans, cursor: Cursor) -> pa.Array:
    text, bad = texts(content)
    if bad is not None:
        cursor.doubt(_flags(spans.rows[bad], len(cursor)))
    return text


def _repeated(field: Field, by_tag: Mapping[int, _Spans], cursor: Cursor) -> pa.Array:
    node, count = field.node, len(cursor)
    single = by_tag.get(_tag(field))
    packed = None
    if node.wire != BYTES:
        packed = by_tag.get(field.number << 3 | BYTES)
        if packed is not None:
            packed = _unpacked(node, packed, cursor)
    if single is None or packed is None:
        spans = single or packed
        owners = spans.rows if spans is not None else np.empty(0, np.int64)
        if isinstance(node, Map):
            return _map(node, spans, owners, cursor)
        items = _values(node, spans, cursor) if spans is not None else pa.nulls(0, node.type)
    else:
        starts = np.concatenate([single.starts, packed.starts])
        order = np.argsort(starts, kind="stable")
        owners = np.concatenate([single.rows, packed.rows])[order]
        both = [_values(node, single, cursor), _values(node, packed, cursor)]
        items = pa.concat_arrays(both).take(pa.array(order))
    return pa.ListArray.from_arrays(_offsets(owners, count), items)


def _offsets(owners: Longs, count: int) -> pa.Array:
    counts = np.bincount(owners, minlength=count)
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def _unpacked(node: Node, packed: _Spans, cursor: Cursor) -> _Spans:
    """The items of packed lists."""
    starts, ends = packed.starts, packed.ends
    if node.wire == VARINT:
        last = cursor.content.last_bytes
        first, beyond = cursor.content.last_before(starts), cursor.content.last_before(ends)
        wrong = (ends > starts) & (cursor.content.bytes[ends - 1] >= 0x80)
    else:
        size = 4 if node.wire == FIXED32 else 8
        first, beyond = np.zeros(len(starts), np.int64), (ends - starts) // size
        wrong = (ends - starts) % size != 0
    if wrong.any():
        cursor.doubt(_flags(packed.rows[wrong], len(cursor)))
    counts = np.where(wrong, 0, beyond - first)
    indices = np.repeat(np.arange(len(starts)), counts)
    numbers = np.arange(len(indices)) - np.repeat(np.cumsum(counts) - counts, counts)
    if node.wire != VARINT:
        places = starts[indices] + numbers * size
        return _Spans(packed.rows[indices], places, places + size, None)
    ahead = first[indices] + numbers
    places = np.where(numbers == 0, starts[indices], last[np.maximum(ahead - 1, 0)] + 1)
    inner = Cursor(cursor.content, places, last[ahead] + 1)
    values = inner.varint()
    if inner.unsure.any():
        cursor.doubt(_flags(packed.rows[indices[inner.unsure]], len(cursor)))
    return _Spans(packed.rows[indices], places, inner.at, values)


def _map(node: Map, spans: _Spans | None, owners: Longs, cursor: Cursor) -> pa.Array:
    offsets = _offsets(owners, len(cursor))
    if spans is None:
        none = pa.nulls(0, node.type.key_type), pa.nulls(0, node.type.item_type)
        return pa.MapArray.from_arrays(offsets, *none)
    inner = Cursor(cursor.content, spans.starts.copy(), spans.ends)
    entries = _message(node.entry, inner)
    if inner.unsure.any():
        cursor.doubt(_flags(spans.rows[inner.unsure], len(cursor)))
    keys, values = entries.field(0), entries.field(1)
    counts = np.bincount(owners, minlength=len(cursor))
    cursor.doubt(repeating(owners, keys, counts))
    return pa.MapArray.from_arrays(offsets, keys, values)


@dataclass(slots=True)
class _Spans:
    """The values of one tag: their messages, their places and, if they are numbers, the numbers."""

    rows: Longs
    starts: Longs
    ends: Longs
    numbers: npt.NDArray[np.uint64] | None

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, which: npt.NDArray[np.generic]) -> _Spans:
        """Some of them."""
        numbers = None if self.numbers is None else self.numbers[which]
        return _Spans(self.rows[which], self.starts[which], self.ends[which], numbers)


def _scan(cursor: Cursor, wanted_tags: frozenset[int]) -> dict[int, _Spans]:
    """The values of these tags, each in the order of the messages."""
    tags = np.full(len(cursor), _DONE, np.int64)
    _read_next(cursor, tags, None)
    steps: dict[int, list[_Spans]] = {}
    for _ in range(_STEPS):
        tag = int(tags.min(initial=_DONE))
        if tag == _DONE:
            break
        chosen = tags == tag
        rows = np.flatnonzero(chosen)
        every = len(rows) == len(cursor)
        inner = cursor if every else cursor.take(rows)
        spans = _read_value(inner, rows, tag)
        if tag in wanted_tags:
            steps.setdefault(tag, []).append(spans)
        _read_next(inner, tags, None if every else rows)
        if not every:
            cursor.put(rows, inner)
    else:
        cursor.doubt(tags != _DONE)
    return {tag: _spans_joined(parts) for tag, parts in steps.items()}


def _read_next(cursor: Cursor, tags: Longs, rows: Longs | None) -> None:
    """Read the next tags. Without ``rows``, the cursor covers all messages."""
    more = (cursor.at < cursor.end) & ~cursor.unsure
    if more.all():
        following = _read_tag(cursor)
    else:
        following = np.full(len(cursor), _DONE, np.int64)
        which = np.flatnonzero(more)
        if len(which):
            some = cursor.take(which)
            following[which] = _read_tag(some)
            cursor.put(which, some)
    if rows is None:
        tags[:] = following
    else:
        tags[rows] = following


def _read_tag(cursor: Cursor) -> Longs:
    numbers = cursor.varint()
    wrong = (numbers > _LARGEST_TAG) | (numbers < np.uint64(8))  # there is no field 0
    cursor.doubt(wrong)
    tags: Longs = np.where(cursor.unsure, _DONE, numbers.astype(np.int64))
    return tags


def _read_value(cursor: Cursor, rows: Longs, tag: int) -> _Spans:
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
    return _Spans(rows, starts, cursor.at.copy(), numbers)


def _spans_joined(parts: list[_Spans]) -> _Spans:
    if len(parts) == 1:
        return parts[0]
    numbers = None
    if parts[0].numbers is not None:
        numbers = np.concatenate([p.numbers for p in parts if p.numbers is not None])
    both = _Spans(
        np.concatenate([p.rows for p in parts]),
        np.concatenate([p.starts for p in parts]),
        np.concatenate([p.ends for p in parts]),
        numbers,
    )
    return both.only(np.argsort(both.starts, kind="stable"))


def _known(node: LogicalMessage, values: pa.StructArray, cursor: Cursor) -> pa.Array:
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
