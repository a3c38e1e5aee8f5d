"""Protobuf messages of one type to Arrow, a field at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.binary import Content, Cursor, Longs, elements, repeating, texts, zigzag
from semel.converters.json.text import place
from semel.converters.protobuf import known_values
from semel.converters.protobuf.scan import Spans, scan
from semel.converters.protobuf.schema import (
    BYTES,
    FIXED32,
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
            return known_values.of(node, _message(node.message, cursor), cursor)
        case Wrapper():
            return _message(node.message, cursor).field(0)
    raise AssertionError(node)


def _message(node: Message, cursor: Cursor) -> pa.StructArray:
    begins = cursor.at
    cursor.at = begins.copy()
    by_tag = scan(cursor, node.tags)
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
    oneof: Oneof, by_tag: Mapping[int, Spans], cursor: Cursor, begins: Longs
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


def _field(field: Field, by_tag: Mapping[int, Spans], cursor: Cursor, begins: Longs) -> pa.Array:
    if field.repeated:
        return _repeated(field, by_tag, cursor)
    spans = by_tag.get(_tag(field))
    count = len(cursor)
    if spans is None:
        none = np.empty(0, np.int64)
        varints = np.empty(0, np.uint64) if field.node.wire == VARINT else None
        spans = Spans(none, none, none, varints)
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
            spans, absent = Spans(np.arange(count), starts, ends, None), None
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


def _spread(field: Field, spans: Spans, absent: npt.NDArray[np.bool_], cursor: Cursor) -> pa.Array:
    """Numbers at their rows; the other rows get the number that stands for an absent one."""
    some = _numbers(field.node, spans, cursor)
    every = np.full(len(cursor), field.default or 0, some.dtype)
    every[spans.rows] = some
    where = Spans(np.arange(len(cursor)), spans.starts, spans.ends, None)
    values = _shown(field.node, every, where, cursor)
    if not field.explicit:
        return values
    return pc.if_else(pa.array(absent), pa.scalar(None, values.type), values)


def _flags(rows: Longs, count: int) -> npt.NDArray[np.bool_]:
    flags = np.zeros(count, np.bool_)
    flags[rows] = True
    return flags


def _values(node: Node, spans: Spans, cursor: Cursor) -> pa.Array:
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


def _numbers(node: Node, spans: Spans, cursor: Cursor) -> npt.NDArray[Any]:
    if not isinstance(node, Scalar) or spans.numbers is not None:
        assert spans.numbers is not None
        kind = node.kind if isinstance(node, Scalar) else "int32"
        return of_varints(kind, spans.numbers)
    return loaded(node.kind, spans.starts, cursor.content)


def of_varints(kind: str, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
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


def loaded(kind: str, starts: Longs, content: Content) -> npt.NDArray[Any]:
    """Numbers of a fixed size."""
    numbers: npt.NDArray[Any] = content.load(_LOADED[kind], starts)
    return numbers.astype(np.int64) if kind == "fixed32" else numbers


def _shown(node: Node, numbers: npt.NDArray[Any], spans: Spans, cursor: Cursor) -> pa.Array:
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


def _names(node: Enum, numbers: npt.NDArray[Any], spans: Spans, cursor: Cursor) -> pa.Array:
    declared = np.array(sorted(node.names), np.int32)
    at = np.minimum(np.searchsorted(declared, numbers), len(declared) - 1)
    strange = declared[at] != numbers
    if strange.any() and (node.closed or not node.as_number):
        cursor.doubt(_flags(spans.rows[strange], len(cursor)))
    if node.as_number:
        return pa.array(numbers, pa.int32())
    names = pa.array([node.names[number] for number in declared.tolist()], pa.string())
    return names.take(pa.array(at))


def _text(content: pa.Array, spans: Spans, cursor: Cursor) -> pa.Array:
    text, bad = texts(content)
    if bad is not None:
        cursor.doubt(_flags(spans.rows[bad], len(cursor)))
    return text


def _repeated(field: Field, by_tag: Mapping[int, Spans], cursor: Cursor) -> pa.Array:
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


def _unpacked(node: Node, packed: Spans, cursor: Cursor) -> Spans:
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
        return Spans(packed.rows[indices], places, places + size, None)
    ahead = first[indices] + numbers
    places = np.where(numbers == 0, starts[indices], last[np.maximum(ahead - 1, 0)] + 1)
    inner = Cursor(cursor.content, places, last[ahead] + 1)
    values = inner.varint()
    if inner.unsure.any():
        cursor.doubt(_flags(packed.rows[indices[inner.unsure]], len(cursor)))
    return Spans(packed.rows[indices], places, inner.at, values)


def _map(node: Map, spans: Spans | None, owners: Longs, cursor: Cursor) -> pa.Array:
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
