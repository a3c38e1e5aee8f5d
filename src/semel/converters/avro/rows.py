"""Avro values one at a time: those that the column reader marks as unsure, and recursive types."""

from __future__ import annotations

import base64
import decimal
import struct
from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa

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
from semel.converters.binary import Json, compact, mask, offsets, shown
from semel.core.quoting import in_field

DEEPEST = 200
"""The most levels of a value."""
_EXACT = decimal.Context(prec=100)


class Damaged(Exception):
    """Why bytes are not a value of their schema."""


class Reader:
    """Reads one value into Python objects: records as tuples, maps and unions as pairs."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._path: list[str] = []

    def whole(self, node: Node) -> Any:
        """The value that takes all of the bytes.

        Raises:
            Damaged: names the field and what is wrong there.
        """
        value = self._read(node)
        remaining = len(self._data) - self._at
        if remaining:
            self._refuse(f"{remaining} bytes are left after the value")
        return value

    def _refuse(self, why: str) -> NoReturn:
        path = ".".join(filter(None, self._path)).replace(".[]", "[]")
        raise Damaged(f"{in_field(path)}{why}")

    def _take(self, size: int) -> bytes:
        if size < 0:
            self._refuse(f"a length of {size} bytes")
        content = self._data[self._at : self._at + size]
        if len(content) < size:
            self._refuse(f"the record ends {size - len(content)} bytes too early")
        self._at += size
        return content

    def _long(self) -> int:
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= 70:
                self._refuse("a number of more than ten bytes")
        if number >= 2**64:
            self._refuse("a number of more than 64 bits")
        return (number >> 1) ^ -(number & 1)

    def _index(self, count: int, what: str) -> int:
        index = self._long()
        if not 0 <= index < count:
            self._refuse(f"there is no {what} {index}")
        return index

    def _text(self) -> str:
        value = self._take(self._long())
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            self._refuse(f"not UTF-8: byte 0x{value[error.start]:02x} at position {error.start}")

    def _read(self, node: Node) -> Any:
        match node:
            case Primitive():
                return self._primitive(node)
            case Record():
                return tuple(self._inside(f.name, f.node) for f in node.fields)
            case Union():
                branch = self._index(len(node.branches), "branch")
                return branch, self._read(node.branches[branch])
            case Decimal():
                return self._decimal(node)
            case Fixed(size):
                return self._take(size)
            case Enum(symbols):
                return symbols[self._index(len(symbols), "symbol")]
            case Array(item):
                items = self._items(item)
                return list(dict(items).items()) if node.entries is not None else items
            case Map():
                return list(dict(self._items(node.entry)).items())
            case Recursion():
                inner = node.named[node.name]
                value = self._inside("", inner)
                try:
                    return compact(plain(inner, value))
                except ValueError as error:  # a time that is none, or too far away; NaN
                    self._refuse(str(error))
        raise AssertionError(node)

    def _inside(self, name: str, node: Node) -> Any:
        self._path.append(name)
        if len(self._path) > DEEPEST:
            self._refuse(f"nested more than {DEEPEST} levels deep")
        value = self._read(node)
        self._path.pop()
        return value

    def _primitive(self, node: Primitive) -> Any:
        kind = node.kind
        value: Any = None
        if kind in ("int", "long"):
            value = self._long()
            low, high = node.within or (-(2**31), 2**31 - 1)
            if (kind == "int" or node.within) and not low <= value <= high:
                self._refuse(f"{value} is not within {low} and {high}")
        elif kind in ("float", "double"):
            layout = "<f" if kind == "float" else "<d"
            value = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        elif kind == "boolean":
            byte = self._take(1)[0]
            if byte > 1:
                self._refuse(f"a boolean of {byte}")
            value = byte == 1
        elif kind == "bytes":
            value = self._take(self._long())
        elif kind == "string":
            value = self._text()
            if node.known is not None:
                self._check(node, value)
        return value

    def _check(self, node: Primitive, text: str) -> None:
        try:
            node.finish(pa.array([text]))
        except pa.ArrowInvalid as error:
            self._refuse(str(error).splitlines()[0])

    def _decimal(self, node: Decimal) -> decimal.Decimal:
        digits = self._take(self._long() if node.size is None else node.size)
        if not digits:
            self._refuse("a decimal of no bytes")
        number = int.from_bytes(digits, "big", signed=True)
        if abs(number) >= 10**node.precision:
            self._refuse(f"{number} has more than {node.precision} digits, scale {node.scale}")
        return decimal.Decimal(number).scaleb(-node.scale, _EXACT)

    def _items(self, node: Node) -> list[Any]:
        items: list[Any] = []
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # the block's size, for readers that skip it
            remaining = len(self._data) - self._at
            if not node.smallest and count > MOST_EMPTY:
                self._refuse(f"a block of {count} items that take no bytes; {MOST_EMPTY} may be")
            if count * node.smallest > remaining:
                self._refuse(f"a block of {count} items, but only {remaining} bytes are left")
            items += [self._inside("[]", node) for _ in range(count)]
        return items


def arrow(node: Node, values: Sequence[Any]) -> pa.Array:
    """The result of :class:`Reader`, in Arrow. In a null, None stands for values of any type."""
    match node:
        case Primitive():
            return node.finish(pa.array(values, node.physical))
        case Record():
            return _struct(node, values)
        case Union():
            return _union(node, values)
        case Array() if node.entries is not None:
            return _map(node.entries, values)
        case Array(item):
            flat = [element for v in values for element in v or ()]
            return pa.ListArray.from_arrays(offsets(values), arrow(item, flat), mask=mask(values))
        case Map():
            return _map(node.entry, values)
        case Recursion():
            return pa.ExtensionArray.from_storage(node.type, pa.array(values, pa.string()))
    return pa.array(values, node.type)


def _struct(node: Record, values: Sequence[Any]) -> pa.Array:
    arrays = [
        f.filled(arrow(f.node, [None if v is None else v[n] for v in values]))
        for n, f in enumerate(node.fields)
    ]
    if not arrays:
        return pa.array([None if v is None else {} for v in values], pa.struct([]))
    fields = [f.arrow for f in node.fields]
    return node.finish(pa.StructArray.from_arrays(arrays, fields=fields, mask=mask(values)))


def _union(node: Union, values: Sequence[Any]) -> pa.Array:
    columns = [
        arrow(node.branches[n], [v[1] if v is not None and v[0] == n else None for v in values])
        for n in node.values
    ]
    if len(columns) == 1:
        return columns[0]
    if not columns:
        return pa.nulls(len(values))
    empty = pa.array([v is None or v[0] == node.null for v in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(node.type), mask=empty)


def _map(entry: Record, values: Sequence[Any]) -> pa.Array:
    flat = [pair for v in values for pair in v or ()]
    keys = arrow(entry.fields[0].node, [k for k, _ in flat])
    items = arrow(entry.fields[1].node, [v for _, v in flat])
    return pa.MapArray.from_arrays(offsets(values), keys, items, mask=mask(values))


def plain(node: Node, value: Any) -> Any:
    """A value as JSON shows it."""
    if value is None:
        return None
    match node:
        case Record() if node.known is not None and pa.types.is_string(node.type):
            return arrow(node, [value])[0].as_py()
        case Record():
            return {f.name: plain(f.node, v) for f, v in zip(node.fields, value, strict=True)}
        case Union():
            branch, inner = value
            content = plain(node.branches[branch], inner)
            several = len(node.values) > 1 and branch != node.null
            return {node.names[branch]: content} if several else content
        case Array() if node.entries is not None:
            key, item = (f.node for f in node.entries.fields)
            return [[plain(key, k), plain(item, v)] for k, v in value]
        case Array(item):
            return [plain(item, v) for v in value]
        case Map(item):
            return {k: plain(item, v) for k, v in value}
        case Recursion():
            return Json(value)
        case Decimal():
            return value
        case Primitive() if node.logical is not None and not isinstance(value, str):
            return shown(arrow(node, [value]))
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def read(node: Node, values: Sequence[bytes]) -> tuple[pa.Array, list[int], dict[int, str]]:
    """Values in Arrow with their indices, and the reasons why the others cannot be read."""
    decoded, rows, refused = [], [], {}
    for row, value in enumerate(values):
        try:
            decoded.append(Reader(value).whole(node))
            rows.append(row)
        except Damaged as error:
            refused[row] = str(error)
    return arrow(node, decoded), rows, refused
