"""Avro values of one schema to Arrow, a field at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.converters.avro.schema import (
    MOST_EMPTY,
    Array,
    Decimal,
    Enum,
    Field,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
)
from semel.converters.binary import Content, Cursor, Longs, repeating, texts
from semel.converters.json.text import place
from semel.core.quoting import named

_ROUNDS = 500
"""Items that are read one after the other; lists that hold more are read alone."""
_LONGEST = 16
"""Bytes of the longest decimal."""


def read(node: Node, content: Content, at: Longs, end: Longs) -> tuple[pa.Array, Longs]:
    """All values, and the rows that must be read one by one."""
    cursor = Cursor(content, at.copy(), end)
    values = _read(node, cursor)
    cursor.doubt(cursor.at != end)
    return values, np.flatnonzero(cursor.unsure)


def _read(node: Node, cursor: Cursor) -> pa.Array:
    match node:
        case Primitive():
            return node.finish(_primitive(node, cursor))
        case Record():
            arrays = [_field(f, cursor) for f in node.fields]
            fields = [f.arrow for f in node.fields]
            return node.finish(struct_array(arrays, fields, len(cursor)))
        case Union():
            return _union(node, cursor)
        case Decimal():
            return _decimal(node, cursor)
        case Fixed(size):
            return cursor.binary(np.full(len(cursor), size, np.int64))
        case Enum(symbols):
            return _choice(cursor, pa.array(symbols, pa.string()))
        case Array() if node.entries is not None:
            return _map(node.entries, cursor)
        case Array(item):
            offsets, items = _items(item, cursor)
            return pa.ListArray.from_arrays(offsets, items)
        case Map():
            return _map(node.entry, cursor)
    raise AssertionError(node)


def _field(field: Field, cursor: Cursor) -> pa.Array:
    try:
        return field.filled(_read(field.node, cursor))
    except ValueError as error:
        raise ValueError(f"field {named(field.name)}: {error}") from None


def struct_array(arrays: list[pa.Array], fields: list[pa.Field], length: int) -> pa.Array:
    """A struct of these columns; there may be none."""
    if not arrays:
        return pa.array([{}] * length, pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _primitive(node: Primitive, cursor: Cursor) -> pa.Array:
    kind = node.kind
    if kind in ("int", "long"):
        numbers = cursor.long()
        low, high = node.within or (-(2**31), 2**31 - 1)
        if kind == "int" or node.within:
            outside = (numbers < low) | (numbers > high)
            if outside.any():
                cursor.doubt(outside)
                numbers = np.where(outside, 0, numbers)
        return pa.array(numbers.astype(np.int32) if kind == "int" else numbers)
    if kind in ("float", "double"):
        return pa.array(cursor.fixed("<f4" if kind == "float" else "<f8"))
    if kind == "boolean":
        bits = cursor.byte()
        cursor.doubt(bits > 1)
        return pa.array(bits == 1)
    if kind == "null":
        return pa.nulls(len(cursor))
    content = cursor.binary(cursor.long())
    return _text(content, cursor) if kind == "string" else content


def _text(content: pa.Array, cursor: Cursor) -> pa.Array:
    text, bad = texts(content)
    if bad is not None:
        cursor.doubt(bad)
    return text


def _choice(cursor: Cursor, symbols: pa.Array) -> pa.Array:
    return symbols.take(pa.array(_index(cursor, len(symbols))))


def _index(cursor: Cursor, count: int) -> Longs:
    indices = cursor.long()
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        cursor.doubt(wrong)
        indices = np.where(wrong, 0, indices)
    return indices


def _union(node: Union, cursor: Cursor) -> pa.Array:
    branch = _index(cursor, len(node.branches))
    columns = [_branch(node.branches[n], cursor, branch == n) for n in node.values]
    if len(columns) == 1:
        return columns[0]
    if not columns:
        return pa.nulls(len(cursor))
    mask = pa.array(branch == node.null) if node.null is not None else None
    return pa.StructArray.from_arrays(columns, fields=list(node.type), mask=mask)


def _branch(node: Node, cursor: Cursor, chosen: npt.NDArray[np.bool_]) -> pa.Array:
    """The values of this branch, null where another one was chosen."""
    if chosen.all():
        return _read(node, cursor)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return pa.nulls(len(cursor), node.type)
    inner = cursor.take(rows)
    values = _read(node, inner)
    cursor.put(rows, inner)
    return place(values, pa.array(rows), len(cursor))


def _decimal(node: Decimal, cursor: Cursor) -> pa.Array:
    """Big-endian two's complement, which Arrow stores little-endian in 16 bytes."""
    sizes = cursor.long() if node.size is None else np.full(len(cursor), node.size, np.int64)
    starts = cursor.at
    wrong = (sizes < 1) | (sizes > _LONGEST)
    if wrong.any():
        cursor.doubt(wrong)
        sizes = np.where(wrong, 0, sizes)
    sizes = cursor.skip(sizes)
    content = cursor.content.bytes
    wide = int(sizes.max(initial=1))
    places = (starts + sizes)[:, None] - 1 - np.arange(wide)
    present = places >= starts[:, None]
    sign = np.where((content[starts] >= 0x80) & (sizes > 0), 0xFF, 0).astype(np.uint8)
    digits = np.empty((len(cursor), _LONGEST), np.uint8)
    digits[:, :wide] = np.where(present, content[np.where(present, places, 0)], sign[:, None])
    digits[:, wide:] = sign[:, None]
    cursor.doubt(_too_long(digits, node.precision))
    return pa.Array.from_buffers(node.type, len(cursor), [None, pa.py_buffer(digits)])


def _too_long(digits: npt.NDArray[np.uint8], precision: int) -> npt.NDArray[np.bool_]:
    """The numbers that have more digits than the type."""
    halves = digits.view("<i8")
    low, high = halves[:, 0], halves[:, 1]
    small = high == np.where(low < 0, -1, 0)  # it fits into the lower half
    if precision >= 19:
        wrong = np.zeros(len(digits), np.bool_)
    else:
        wrong = small & ((low >= 10**precision) | (low <= -(10**precision)))
    for row in np.flatnonzero(~small).tolist():
        number = int.from_bytes(digits[row].tobytes(), "little", signed=True)
        wrong[row] = abs(number) >= 10**precision
    return wrong


def _map(entry: Record, cursor: Cursor) -> pa.Array:
    offsets, entries = _items(entry, cursor)
    keys, values = entries.field(0), entries.field(1)
    sizes = np.diff(offsets.to_numpy())
    rows = np.repeat(np.arange(len(sizes)), sizes)
    cursor.doubt(repeating(rows, keys, sizes))
    return pa.MapArray.from_arrays(offsets, keys, values)


def _items(node: Node, cursor: Cursor) -> tuple[pa.Array, pa.Array]:
    """The offsets of lists, and their items. Items come in blocks, each preceded by its number of
    items; an empty block is the end."""
    parts: list[pa.Array] = []
    owners: list[Longs] = []
    rows = np.arange(len(cursor))
    rounds = 0
    while len(rows):
        inner = cursor.take(rows)
        counts = inner.long()
        sized = counts < 0
        if sized.any():  # the block's size in bytes follows
            which = np.flatnonzero(sized)
            sizes = inner.take(which)
            sizes.long()
            inner.put(which, sizes)
            counts = np.abs(counts)
        remaining = inner.end - inner.at
        too_many = counts * node.smallest > remaining if node.smallest else counts > MOST_EMPTY
        too_many |= (counts < 0) | (counts > inner.content.length)
        inner.doubt(too_many)
        counts = np.where(inner.unsure, 0, counts)
        rounds += 1
        ahead = _ahead(node)
        if ahead is None:
            inner.doubt(counts + rounds > _ROUNDS)
            counts = np.where(inner.unsure, 0, counts)
            rounds += _one_by_one(node, inner, counts, rows, parts, owners)
        else:
            places, ends = ahead(inner, counts)
            counts = np.where(inner.unsure, 0, counts)
            indices = np.repeat(np.arange(len(rows)), counts)
            items = Cursor(inner.content, places, inner.end[indices])
            parts.append(_read(node, items))
            owners.append(rows[indices])
            inner.at = np.where(counts > 0, ends, inner.at)
            inner.doubt(np.bincount(indices[items.unsure], minlength=len(rows)) > 0)
        cursor.put(rows, inner)
        rows = rows[counts > 0]
        if rounds > _ROUNDS and len(rows):
            wrong = np.zeros(len(cursor), np.bool_)
            wrong[rows] = True
            cursor.doubt(wrong)
            break
    owner = np.concatenate([np.empty(0, np.int64), *owners])
    values = pa.concat_arrays(parts) if parts else pa.nulls(0, node.type)
    if len(parts) > 1:
        values = values.take(pa.array(np.argsort(owner, kind="stable")))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(cursor)))])
    return pa.array(offsets.astype(np.int32)), values


def _one_by_one(
    node: Node,
    inner: Cursor,
    counts: Longs,
    rows: Longs,
    parts: list[pa.Array],
    owners: list[Longs],
) -> int:
    """Read the first item of each list, then the second ones, and so on. Returns how many times."""
    for number in range(int(counts.max(initial=0))):
        which = np.flatnonzero(counts > number)
        items = inner.take(which)
        parts.append(_read(node, items))
        owners.append(rows[which])
        inner.put(which, items)
    return int(counts.max(initial=0))


_Ahead = Callable[[Cursor, Longs], tuple[Longs, Longs]]


def _ahead(node: Node) -> _Ahead | None:
    """How to find the items of a block without reading them; None if that is impossible."""
    size = _size(node)
    if size is not None:

        def by_size(cursor: Cursor, counts: Longs) -> tuple[Longs, Longs]:
            places = np.repeat(cursor.at, counts) + _numbers(counts) * size
            return places, cursor.at + counts * size

        return by_size
    if isinstance(node, Primitive) and node.kind in ("int", "long"):
        return _by_last_bytes
    return None


def _size(node: Node) -> int | None:
    if isinstance(node, Fixed) and node.size:
        return node.size
    sizes = {"float": 4, "double": 8, "boolean": 1}
    return sizes.get(node.kind) if isinstance(node, Primitive) else None


def _by_last_bytes(cursor: Cursor, counts: Longs) -> tuple[Longs, Longs]:
    last = cursor.content.last_bytes
    first = np.searchsorted(last, cursor.at)
    ends = last[np.minimum(first + counts - 1, len(last) - 1)] + 1 if len(last) else cursor.at
    beyond = (first + counts > len(last)) | (ends > cursor.end)
    cursor.doubt(beyond & (counts > 0))
    counts[cursor.unsure] = 0
    numbers = _numbers(counts)
    before = (
        last[np.maximum(np.repeat(first, counts) + numbers - 1, 0)] + 1 if len(last) else numbers
    )
    return np.where(numbers == 0, np.repeat(cursor.at, counts), before), ends


def _numbers(counts: Longs) -> Longs:
    """0, 1, 2, ... for each list."""
    begins = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(begins, counts)
