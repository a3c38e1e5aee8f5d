"""Avro's JSON encoding, to and from its binary one: unions name their branch, bytes are Latin-1."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NoReturn

from semel.converters.avro.rows import DEEPEST, Reader
from semel.converters.avro.schema import (
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
from semel.core.quoting import in_field, named

_WIDTHS = {"int": 31, "long": 63}
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LEAVES = (Primitive, Enum, Fixed, Decimal)


class JsonReader(Reader):
    """Reads one value into what JSON can hold."""

    def _read(self, node: Node) -> Any:
        match node:
            case Record():
                return {f.name: self._inside(f.name, f.node) for f in node.fields}
            case Union():
                branch = self._index(len(node.branches), "branch")
                value = self._inside("", node.branches[branch])
                return None if branch == node.null else {_tag(node, branch): value}
            case Decimal():
                return self._take(self._long() if node.size is None else node.size).decode("latin1")
            case Fixed(size):
                return self._take(size).decode("latin1")
            case Array(item):
                return self._items(item)
            case Map():
                return {entry["key"]: entry["value"] for entry in self._items(node.entry)}
            case Recursion():
                return self._inside("", node.named[node.name])
            case Primitive() if node.kind == "bytes":
                return self._take(self._long()).decode("latin1")
            case Primitive() if node.kind in ("float", "double"):
                number = self._primitive(node)
                return number if math.isfinite(number) else _word(number)
        return super()._read(node)


def encoded(node: Node, value: Any) -> bytes:
    """A value, as Avro's JSON encoding has it, in binary.

    Raises:
        ValueError: names the field, and what is wrong there.
    """
    out = bytearray()
    _Writer(out).write(node, value)
    return bytes(out)


class _Writer:
    def __init__(self, out: bytearray) -> None:
        self._out = out
        self._path: list[str] = []

    def write(self, node: Node, value: Any) -> None:
        if len(self._path) > DEEPEST:
            self._refuse(f"nested more than {DEEPEST} levels deep")
        match node:
            case Primitive():
                self._primitive(node.kind, value)
            case Record():
                self._record(node, value)
            case Union():
                self._union(node, value)
            case Enum(symbols):
                if value not in symbols:
                    self._refuse(f"{named(value)} is not one of {', '.join(symbols[:20])}")
                self._long(symbols.index(value))
            case Fixed(size) | Decimal(size=int() as size):
                data = self._bytes(value)
                if len(data) != size:
                    self._refuse(f"{len(data)} bytes, but its size is {size}")
                self._out += data
            case Decimal():
                self._sized(self._bytes(value))
            case Array(item):
                items = self._of(list, "an array", value)
                self._block(items, lambda each: self._inside("[]", item, each))
            case Map(inner):
                entries = self._of(dict, "an object", value)
                self._block(entries.items(), lambda each: self._entry(inner, *each))
            case Recursion():
                self._inside("", node.named[node.name], value)

    def _record(self, node: Record, value: Any) -> None:
        fields = self._of(dict, "an object", value)
        for field in node.fields:
            if field.name not in fields:
                self._refuse(f"it has no field {named(field.name)}")
            self._inside(field.name, field.node, fields[field.name])
        unknown = fields.keys() - {field.name for field in node.fields}
        if unknown:
            self._refuse(f"its schema has no field {named(min(unknown))}")

    def _union(self, node: Union, value: Any) -> None:
        tags = [_tag(node, branch) for branch in range(len(node.branches))]
        if value is None and node.null is not None:
            self._long(node.null)
            return
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in tags:
            tag, inner = next(iter(value.items()))
            branch = tags.index(tag)
        elif len(node.values) == 1 and isinstance(node.branches[node.values[0]], _LEAVES):
            branch, inner = node.values[0], value  # as most people write it
        else:
            choices = " or ".join(f'{{"{tags[n]}": ...}}' for n in node.values[:5])
            self._refuse(f"a union: write {choices}{' or null' if node.null is not None else ''}")
        self._long(branch)
        self._inside("", node.branches[branch], inner)

    def _primitive(self, kind: str, value: Any) -> None:
        match kind:
            case "null":
                if value is not None:
                    self._refuse("must be null")
            case "boolean":
                self._out.append(self._of(bool, "true or false", value))
            case "int" | "long":
                limit = 1 << _WIDTHS[kind]
                if isinstance(value, bool) or not isinstance(value, int):
                    self._refuse(f"must be a whole number, not {_shown(value)}")
                if not -limit <= value < limit:
                    self._refuse(f"{named(value)} is no {kind}")
                self._long(value)
            case "float" | "double":
                self._float("<f" if kind == "float" else "<d", value)
            case "bytes":
                self._sized(self._bytes(value))
            case "string":
                self._sized(self._of(str, "a string", value).encode())

    def _float(self, layout: str, value: Any) -> None:
        number = _WORDS.get(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            self._refuse(f"must be a number, not {_shown(value)}")
        try:
            self._out += struct.pack(layout, number)
        except OverflowError:
            self._refuse(f"{named(value)} is too large")

    def _entry(self, inner: Node, name: str, value: Any) -> None:
        self._sized(name.encode())
        self._inside(name, inner, value)

    def _block(self, items: Any, write: Any) -> None:
        if items:
            self._long(len(items))
            for each in items:
                write(each)
        self._long(0)

    def _bytes(self, value: Any) -> bytes:
        try:
            return bytes(self._of(str, "a string of Latin-1 characters", value).encode("latin1"))
        except UnicodeEncodeError:
            self._refuse("bytes are written as Latin-1: no character above \\u00ff")

    def _sized(self, data: bytes) -> None:
        self._long(len(data))
        self._out += data

    def _long(self, number: int) -> None:
        rest = (number << 1) ^ (number >> 63)
        while rest > 0x7F:
            self._out.append(rest & 0x7F | 0x80)
            rest >>= 7
        self._out.append(rest)

    def _of(self, kind: type, what: str, value: Any) -> Any:
        if not isinstance(value, kind):
            self._refuse(f"must be {what}, not {_shown(value)}")
        return value

    def _inside(self, name: str, node: Node, value: Any) -> None:
        self._path.append(name)
        self.write(node, value)
        self._path.pop()

    def _refuse(self, why: str) -> NoReturn:
        path = ".".join(filter(None, self._path)).replace(".[]", "[]")
        raise ValueError(f"{in_field(path)}{why}")


def _tag(node: Union, branch: int) -> str:
    inner = node.branches[branch]
    return inner.name if isinstance(inner, Record | Recursion) else node.names[branch]


def _word(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _shown(value: Any) -> str:
    return named(json.dumps(value) if value is None or isinstance(value, bool) else value)
