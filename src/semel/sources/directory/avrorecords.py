"""The records of a block of an Avro file.

A block does not say where its records end. So each record is first skipped field by field, and then
all are read in columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from semel.converters.avro import contents
from semel.converters.avro.schema import (
    MOST_EMPTY,
    Array,
    Decimal,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Recursion,
    Union,
)
from semel.converters.registry import FramedMessages
from semel.core.quoting import named

Skip = Callable[[bytes, int], int]
"""Returns where a value ends, given where it begins."""

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def records(node: Node, count: int, block: bytes) -> pa.Array:
    """The records of a block.

    Raises:
        ValueError: the block does not hold them.
    """
    if count > (len(block) // node.smallest if node.smallest else MOST_EMPTY):
        raise ValueError(f"a block of {len(block)} bytes cannot hold {count} records")
    skip = skipper(node)
    places, at = [0] * (count + 1), 0
    try:
        for number in range(count):
            at = skip(block, at)
            places[number + 1] = at
    except IndexError:
        raise ValueError("a block ends within a record") from None
    except RecursionError:
        raise ValueError("a record is nested too deeply") from None
    if at != len(block):
        raise ValueError("a block holds more than its records")
    bounds = np.array(places)
    data = np.frombuffer(block, np.uint8)
    read = contents(node, FramedMessages(0, np.arange(count), data, bounds[:-1], bounds[1:]))
    if read.refused:
        raise ValueError(next(iter(read.refused.values())))
    return read.values


def skipper(node: Node) -> Skip:
    """A function that skips the values of a node."""
    if isinstance(node, Primitive):
        if node.kind in _SIZES:
            return _constant(_SIZES[node.kind])
        return _number if node.kind in ("int", "long") else _sized
    if isinstance(node, Fixed):
        return _constant(node.size)
    if isinstance(node, Decimal):
        return _sized if node.size is None else _constant(node.size)
    if isinstance(node, Enum):
        return _number
    if isinstance(node, Record):
        return _sequence([skipper(field.node) for field in node.fields])
    if isinstance(node, Union):
        return _one_of([skipper(branch) for branch in node.branches])
    if isinstance(node, Array):
        return _blocks(skipper(node.item))
    if isinstance(node, Map):
        return _blocks(_sequence([_sized, skipper(node.value)]))
    assert isinstance(node, Recursion)
    cached: list[Skip] = []

    def inside(block: bytes, at: int) -> int:
        if not cached:
            cached.append(skipper(node.named[node.name]))
        return cached[0](block, at)

    return inside


def _constant(size: int) -> Skip:
    return lambda _block, at: at + size


def _number(block: bytes, at: int) -> int:
    while block[at] > 0x7F:
        at += 1
    return at + 1


def _sized(block: bytes, at: int) -> int:
    size = block[at]
    if size < 0x80:
        return at + 1 + (size >> 1)
    size, at = _long(block, at)
    if size < 0:
        raise ValueError("a length is negative")
    return at + size


def _long(block: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        byte = block[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than ten bytes")


def _sequence(skips: Sequence[Skip]) -> Skip:
    def skip(block: bytes, at: int) -> int:
        for step in skips:
            at = step(block, at)
        return at

    return skip


def _one_of(skips: Sequence[Skip]) -> Skip:
    def skip(block: bytes, at: int) -> int:
        branch, at = _long(block, at)
        if not 0 <= branch < len(skips):
            raise ValueError(f"a union has no branch {named(branch)}: it has {len(skips)}")
        return skips[branch](block, at)

    return skip


def _blocks(item: Skip) -> Skip:
    def skip(block: bytes, at: int) -> int:
        while True:
            count, at = _long(block, at)
            if not count:
                return at
            if count < 0:  # the size in bytes follows
                size, at = _long(block, at)
                if size < 0:
                    raise ValueError("a length is negative")
                at += size
                continue
            begin = at
            for number in range(count):
                at = item(block, at)
                if at == begin and number == MOST_EMPTY:
                    raise ValueError(f"a list has {count} items that take no bytes")

    return skip
