"""Arrow to Avro values of one schema: each field of all values, then the fields joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.avro.derive import scrubbed
from semel.converters.avro.schema import (
    Array,
    Decimal,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
)
from semel.converters.binary import SchemaMismatch, fitted, of_numbers, unscaled, varints
from semel.converters.json.columns import JSON
from semel.converters.semantic import counts
from semel.core.quoting import all_named, in_field

Piece = Any
"""The bytes of each value (a binary array), or the bytes that all values share (a scalar)."""
_EMPTY = pa.scalar(b"", pa.binary())
_END = pa.scalar(b"\0", pa.binary())


def write(node: Node, values: pa.Array) -> pa.Array:
    """The bytes of each value, none of which is null.

    Raises:
        SchemaMismatch: names the field and what does not fit.
    """
    return _joined(_pieces(node, values, ""), len(values))


def _joined(pieces: Sequence[Piece], count: int) -> pa.Array:
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        return pa.repeat(pa.scalar(b"".join(p.as_py() for p in pieces), pa.binary()), count)
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _EMPTY)


def _pieces(node: Node, values: pa.Array, path: str) -> list[Piece]:
    kind = values.type
    if values.null_count and not isinstance(node, Union) and node != Primitive("null"):
        raise SchemaMismatch(f"{in_field(path)}null, but its schema requires a value")
    match node:
        case Union():
            return _nullable(node, values, path)
        case Record() if pa.types.is_struct(kind):
            return _record(node, values, path)
        case Primitive():
            return _primitive(node, values, path)
        case Decimal() if pa.types.is_decimal(kind):
            digits = unscaled(fitted(values, node.type, path))
            if node.size is not None:
                return [_widened(digits, node.size)]
            return [_lengths(digits), digits]
        case Fixed(size) if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return [fitted(values, pa.binary(size), path).cast(pa.binary())]
        case Enum(symbols):
            indices = pc.index_in(fitted(values, pa.string(), path), pa.array(symbols))
            if indices.null_count:
                other = values.filter(indices.is_null())[0]
                raise SchemaMismatch(f"{in_field(path)}{other} is not one of {all_named(symbols)}")
            return [longs(indices.to_numpy())]
        case Map() if pa.types.is_map(kind):
            return _entries(node.entry, values, path)
        case Array() if node.entries is not None and pa.types.is_map(kind):
            return _entries(node.entries, values, path)
        case Array(item) if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return _list(values, _joined_items(item, values.flatten(), path))
    raise SchemaMismatch(f"{in_field(path)}{kind} cannot be written as {node.type}")


def _record(node: Record, values: pa.StructArray, path: str) -> list[Piece]:
    names = [f.name for f in values.type]
    columns = values.flatten()
    by_name = dict(zip(map(scrubbed, names), columns, strict=True))
    by_name |= dict(zip(names, columns, strict=True))
    pieces: list[Piece] = []
    for field in node.fields:
        inner = f"{path}.{field.name}".strip(".")
        column = by_name.get(field.name)
        if column is None:
            column = _missing(field.node, field.written_default, len(values), inner)
        pieces += _pieces(field.node, column, inner)
    return pieces or [_EMPTY]


def _missing(node: Node, default: pa.Scalar | None, count: int, path: str) -> pa.Array:
    if default is not None:
        return pa.repeat(default, count)
    if isinstance(node, Union) and node.null is not None:
        return pa.nulls(count, node.type)
    raise SchemaMismatch(f"{in_field(path)}it is missing, and the schema has no default for it")


def _nullable(node: Union, values: pa.Array, path: str) -> list[Piece]:
    only_nulls = pa.types.is_null(values.type) or 0 < values.null_count == len(values)
    if node.null is None or (len(node.values) != 1 and not only_nulls):
        why = f"a union of {all_named(node.names)} cannot be written"
        raise SchemaMismatch(f"{in_field(path)}{why}")
    if only_nulls:
        return [_tag(node.null)]
    (branch,) = node.values
    if not values.null_count:
        return [_tag(branch), *_pieces(node.branches[branch], values, path)]
    present = values.drop_null()
    inner = _joined([_tag(branch), *_pieces(node.branches[branch], present, path)], len(present))
    return [pc.replace_with_mask(pa.repeat(_tag(node.null), len(values)), values.is_valid(), inner)]


def _tag(branch: int) -> pa.Scalar:
    return longs(np.array([branch], np.int64))[0]


def _primitive(node: Primitive, values: pa.Array, path: str) -> list[Piece]:
    if node.kind == "null":
        return [_EMPTY]
    if isinstance(values, pa.ExtensionArray) and values.type == JSON:
        values = values.storage
    values = _physical(node, values, path)
    if node.kind in ("int", "long"):
        return [longs(values.to_numpy())]
    if node.kind in ("float", "double"):
        return [of_numbers(values.to_numpy(), 4 if node.kind == "float" else 8)]
    if node.kind == "boolean":
        return [of_numbers(values.cast(pa.uint8()).to_numpy(), 1)]
    content = values.cast(pa.binary())
    return [_lengths(content), content]


def _physical(node: Primitive, values: pa.Array, path: str) -> pa.Array:
    """Convert logical values to numbers. Kafka Connect's times have milliseconds: finer ones are
    cut."""
    if node.logical is None or node.logical == JSON or pa.types.is_string(node.physical):
        if pa.types.is_temporal(values.type):
            values = counts(values)
        return fitted(values, node.physical, path)
    if pa.types.is_temporal(values.type):
        zone = getattr(node.logical, "tz", None)
        if pa.types.is_timestamp(values.type) and values.type.tz != zone:
            values = values.cast(pa.timestamp(values.type.unit, zone))
        if pa.types.is_timestamp(values.type) and node.logical.unit == "ms":
            values = pc.floor_temporal(values, unit="millisecond")
        values = values.cast(node.logical, safe=False)
    else:
        values = fitted(values, node.logical, path)
    return values.cast(node.physical)


def longs(numbers: npt.NDArray[Any]) -> pa.Array:
    """Numbers of variable length (zigzag)."""
    signed = numbers.astype(np.int64)
    return varints(((signed << 1) ^ (signed >> 63)).view(np.uint64))


def _lengths(values: pa.Array) -> pa.Array:
    return longs(pc.binary_length(values).to_numpy())


def _widened(digits: pa.Array, size: int) -> pa.Array:
    widened = [
        int.from_bytes(d, "big", signed=True).to_bytes(size, "big", signed=True)
        for d in digits.to_pylist()
    ]
    return pa.array(widened, pa.binary())


def _joined_items(node: Node, items: pa.Array, path: str) -> pa.Array:
    return _joined(_pieces(node, items, f"{path}[]"), len(items))


def _entries(entry: Record, values: pa.MapArray, path: str) -> list[Piece]:
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    columns = [values.keys[first:last], values.items[first:last]]
    pairs = pa.StructArray.from_arrays(columns, names=["key", "value"])
    return _list(values, _joined_items(entry, pairs, path))


def _list(values: pa.Array, items: pa.Array) -> list[Piece]:
    """One block of all items, and the end; a list without items is only an end."""
    counts = np.diff(values.offsets.to_numpy()).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), _EMPTY)
    if (counts > 0).all():
        return [longs(counts), joined, _END]
    begin = pc.if_else(pa.array(counts > 0), longs(counts), _EMPTY)
    return [begin, joined, _END]
