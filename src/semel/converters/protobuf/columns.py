"""Protobuf messages of one type to Arrow, a field at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.bytestrings import elements
from semel.converters.cursor import Content, Cursor, Longs, repeating, texts, zigzag
from semel.converters.json.text import place
from semel.converters.protobuf import known_values
from semel.converters.protobuf.scan import Found, scan
from semel.converters.protobuf.schema import (
    BYTES,
    FIXED32,
    VARINT,
    Enum,
    Field,
    Known,
    Map,
    Message,
    Node,
    Oneof,
    Scalar,
    Wrapped,
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
    found = _inside(node, cursor)
    return found, np.flatnonzero(cursor.unsure)


def _inside(node: Node, cursor: Cursor) -> pa.Array:
    """Convert messages to the values that they represent."""
    match node:
        case Message():
            return node.finish(_message(node, cursor))
        case Known():
            return known_values.of(node, _message(node.message, cursor), cursor)
        case Wrapped():
            return _message(node.message, cursor).field(0)
    raise AssertionError(node)


def _message(node: Message, cursor: Cursor) -> pa.StructArray:
    begins = cursor.at
    cursor.at = begins.copy()
    found = scan(cursor, node.tags)
    arrays = []
    for column in node.columns:
        if isinstance(column, Oneof):
            arrays.append(_oneof(column, found, cursor, begins))
        else:
            arrays.append(column.finish(_field(column, found, cursor, begins)))
    if not arrays:
        return pa.array([{}] * len(cursor), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=[c.arrow for c in node.columns])


def _oneof(
    oneof: Oneof, found: Mapping[int, Found], cursor: Cursor, begins: Longs
) -> pa.StructArray:
    counts = np.zeros(len(cursor), np.int64)
    for field in oneof.fields:
        here = found.get(_tag(field))
        if here is not None:
            counts[here.rows] += 1
    cursor.doubt(counts > 1)  # the last one counts
    arrays = [field.finish(_field(field, found, cursor, begins)) for field in oneof.fields]
    mask = pa.array(counts == 0)
    fields = [f.arrow for f in oneof.fields]
    if not arrays:
        return pa.nulls(len(cursor), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _tag(field: Field) -> int:
    return field.number << 3 | field.wire


def _field(field: Field, found: Mapping[int, Found], cursor: Cursor, begins: Longs) -> pa.Array:
    if field.repeated:
        return _repeated(field, found, cursor)
    here = found.get(_tag(field))
    count = len(cursor)
    if here is None:
        none = np.empty(0, np.int64)
        varints = np.empty(0, np.uint64) if field.node.wire == VARINT else None
        here = Found(none, none, none, varints)
    elif len(here) > 1 and (here.rows[1:] == here.rows[:-1]).any():
        first = np.concatenate([[True], here.rows[1:] != here.rows[:-1]])
        cursor.doubt(_flags(here.rows[~first], count))
        here = here.only(first)
    absent = None
    if len(here) < count:
        absent = ~_flags(here.rows, count)
        if field.required:
            cursor.doubt(absent)
        if field.always:  # an empty message
            starts, ends = begins.copy(), begins.copy()
            starts[here.rows], ends[here.rows] = here.starts, here.ends
            here, absent = Found(np.arange(count), starts, ends, None), None
    if absent is None:
        return _values(field.node, here, cursor)
    if isinstance(field.node, (Scalar, Enum)) and field.node.wire != BYTES:
        return _spread(field, here, absent, cursor)
    values = _values(field.node, here, cursor)
    values = place(values, pa.array(here.rows), count)
    return (
        values
        if field.explicit
        else pc.fill_null(values, pa.scalar(field.default, field.node.type))
    )


def _spread(field: Field, here: Found, absent: npt.NDArray[np.bool_], cursor: Cursor) -> pa.Array:
    """Numbers at their rows; the other rows get the number that stands for an absent one."""
    some = _numbers(field.node, here, cursor)
    every = np.full(len(cursor), field.default or 0, some.dtype)
    every[here.rows] = some
    where = Found(np.arange(len(cursor)), here.starts, here.ends, None)
    made = _shown(field.node, every, where, cursor)
    if not field.explicit:
        return made
    return pc.if_else(pa.array(absent), pa.scalar(None, made.type), made)


def _flags(rows: Longs, count: int) -> npt.NDArray[np.bool_]:
    found = np.zeros(count, np.bool_)
    found[rows] = True
    return found


def _values(node: Node, here: Found, cursor: Cursor) -> pa.Array:
    """One value for each occurrence that was found."""
    if isinstance(node, Scalar) and node.wire == BYTES:
        values = elements(cursor.content.bytes, here.starts, here.ends)
        return _text(values, here, cursor) if node.kind == "string" else values
    if isinstance(node, (Scalar, Enum)):
        return _shown(node, _numbers(node, here, cursor), here, cursor)
    inner = Cursor(cursor.content, here.starts.copy(), here.ends)
    values = _inside(node, inner)
    if inner.unsure.any():
        cursor.doubt(_flags(here.rows[inner.unsure], len(cursor)))
    return values


def _numbers(node: Node, here: Found, cursor: Cursor) -> npt.NDArray[Any]:
    if not isinstance(node, Scalar) or here.numbers is not None:
        assert here.numbers is not None
        kind = node.kind if isinstance(node, Scalar) else "int32"
        return of_varints(kind, here.numbers)
    return loaded(node.kind, here.starts, cursor.content)


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
            found: npt.NDArray[np.bool_] = numbers != 0
            return found
    return numbers.view(np.int64)


def loaded(kind: str, starts: Longs, content: Content) -> npt.NDArray[Any]:
    """Numbers of a fixed size."""
    found: npt.NDArray[Any] = content.load(_LOADED[kind], starts)
    return found.astype(np.int64) if kind == "fixed32" else found


def _shown(node: Node, numbers: npt.NDArray[Any], here: Found, cursor: Cursor) -> pa.Array:
    if isinstance(node, Enum):
        return _names(node, numbers, here, cursor)
    assert isinstance(node, Scalar)
    if node.narrow is not None:
        most = 2 ** (node.narrow.bit_width - 1)
        outside = (numbers < -most) | (numbers >= most)
        if outside.any():
            cursor.doubt(_flags(here.rows[outside], len(cursor)))
            numbers = np.where(outside, 0, numbers)
        return pa.array(numbers, pa.int32()).cast(node.narrow)
    return pa.array(numbers)


def _names(node: Enum, numbers: npt.NDArray[Any], here: Found, cursor: Cursor) -> pa.Array:
    known = np.array(sorted(node.names), np.int32)
    at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    strange = known[at] != numbers
    if strange.any() and (node.closed or not node.as_number):
        cursor.doubt(_flags(here.rows[strange], len(cursor)))
    if node.as_number:
        return pa.array(numbers, pa.int32())
    names = pa.array([node.names[number] for number in known.tolist()], pa.string())
    return names.take(pa.array(at))


def _text(found: pa.Array, here: Found, cursor: Cursor) -> pa.Array:
    text, bad = texts(found)
    if bad is not None:
        cursor.doubt(_flags(here.rows[bad], len(cursor)))
    return text


def _repeated(field: Field, found: Mapping[int, Found], cursor: Cursor) -> pa.Array:
    node, count = field.node, len(cursor)
    single = found.get(_tag(field))
    packed = None
    if node.wire != BYTES:
        packed = found.get(field.number << 3 | BYTES)
        if packed is not None:
            packed = _unpacked(node, packed, cursor)
    if single is None or packed is None:
        here = single or packed
        owners = here.rows if here is not None else np.empty(0, np.int64)
        if isinstance(node, Map):
            return _map(node, here, owners, cursor)
        items = _values(node, here, cursor) if here is not None else pa.nulls(0, node.type)
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


def _unpacked(node: Node, packed: Found, cursor: Cursor) -> Found:
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
    each = np.repeat(np.arange(len(starts)), counts)
    numbers = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
    if node.wire != VARINT:
        places = starts[each] + numbers * size
        return Found(packed.rows[each], places, places + size, None)
    ahead = first[each] + numbers
    places = np.where(numbers == 0, starts[each], last[np.maximum(ahead - 1, 0)] + 1)
    inner = Cursor(cursor.content, places, last[ahead] + 1)
    values = inner.varint()
    if inner.unsure.any():
        cursor.doubt(_flags(packed.rows[each[inner.unsure]], len(cursor)))
    return Found(packed.rows[each], places, inner.at, values)


def _map(node: Map, here: Found | None, owners: Longs, cursor: Cursor) -> pa.Array:
    offsets = _offsets(owners, len(cursor))
    if here is None:
        none = pa.nulls(0, node.type.key_type), pa.nulls(0, node.type.item_type)
        return pa.MapArray.from_arrays(offsets, *none)
    inner = Cursor(cursor.content, here.starts.copy(), here.ends)
    entries = _message(node.entry, inner)
    if inner.unsure.any():
        cursor.doubt(_flags(here.rows[inner.unsure], len(cursor)))
    keys, values = entries.field(0), entries.field(1)
    counts = np.bincount(owners, minlength=len(cursor))
    cursor.doubt(repeating(owners, keys, counts))
    return pa.MapArray.from_arrays(offsets, keys, values)
