"""Protobuf messages one at a time, to Arrow and JSON: those that the column reader marks as unsure,
and recursive types."""

from __future__ import annotations

import base64
import datetime
import decimal
import struct
from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa

from semel.converters.binary import Json, compact, mask, offsets, shown
from semel.converters.protobuf.schema import (
    BYTES,
    END_GROUP,
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
    Recursion,
    Scalar,
    Wrapper,
)
from semel.core.quoting import named

_DEEPEST = 100
_LAYOUT = {
    "double": "<d",
    "float": "<f",
    "fixed32": "<I",
    "fixed64": "<q",
    "sfixed32": "<i",
    "sfixed64": "<q",
}
_NUMERIC = {VARINT, FIXED32, FIXED64}
_NANOS = 1_000_000_000

Pieces = dict[int, list[Any]]
"""What a message holds, by field number: values or, for messages, their bytes."""


class Damaged(Exception):
    """Why bytes are not a message of their type."""


class Reader:
    """Reads messages into Python objects: messages as tuples of their columns, oneofs as tuples of
    their members, maps as pairs."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._nested = 0
        self._defaults = False

    def whole(self, node: Node, data: bytes) -> Any:
        """The value of a message.

        Raises:
            Damaged: names the field and what is wrong there.
        """
        match node:
            case Message():
                return self._message(node, data)
            case LogicalMessage():
                return self._known(node, self._message(node.message, data))
            case Wrapper():
                return self._message(node.message, data)[0]
            case Recursion():
                inner = node.named[node.name]
                message = self._message(inner, data)
                try:
                    return compact(_plain(inner, message))
                except ValueError as error:  # a time that is none, or too far away; NaN
                    self._refuse(str(error))
        raise AssertionError(node)

    def _refuse(self, why: str) -> NoReturn:
        path = ".".join(self._path)
        raise Damaged(f"field {named(path)}: {why}" if path else why)

    def _message(self, node: Message, data: bytes) -> tuple[Any, ...]:
        self._nested += 1
        if self._nested > _DEEPEST:
            self._refuse(f"nested more than {_DEEPEST} levels deep")
        pieces = self._pieces(node, data)
        values = []
        for column in node.columns:
            if isinstance(column, Oneof):
                present = [f for f in column.fields if f.number in pieces]
                members = tuple(
                    self._field(f, pieces) if f in present else None for f in column.fields
                )
                values.append(members if present else None)
            else:
                values.append(self._field(column, pieces))
        self._nested -= 1
        return tuple(values)

    def _field(self, field: Field, pieces: Pieces) -> Any:
        self._path.append(field.name)
        value = self._value(field, pieces.get(field.number))
        self._path.pop()
        return value

    def _value(self, field: Field, pieces: list[Any] | None) -> Any:
        node = field.node
        if isinstance(node, Map):
            entries = [self._message(node.entry, data) for data in pieces or ()]
            return list(dict(entries).items())
        if field.repeated:
            return [self._shown(field, value) for value in pieces or ()]
        if pieces is None:
            if field.required and not self._defaults:
                self._refuse("required, but missing")
            if field.always:
                return self._empty(node)
            return None if field.explicit else self._shown(field, field.default)
        if not field.is_message:
            return self._shown(field, pieces[-1])
        if len(pieces) > 1:  # they are merged as if concatenated; each must be complete
            for data in pieces:
                self._checked(node, data)
        return self.whole(node, b"".join(pieces))

    def _empty(self, node: Node) -> Any:
        """A message that is absent but not null: none of its fields is required."""
        before, self._defaults = self._defaults, True
        value = self.whole(node, b"")
        self._defaults = before
        return value

    def _checked(self, node: Node, data: bytes) -> None:
        message = node.message if isinstance(node, (LogicalMessage, Wrapper)) else node
        if isinstance(message, Recursion):
            message = message.named[message.name]
        assert isinstance(message, Message)
        pieces = self._pieces(message, data)
        for field in message.fields:
            if field.is_message and not isinstance(field.node, Map):
                for inner in pieces.get(field.number, ()):
                    self._checked(field.node, inner)

    def _shown(self, field: Field, value: Any) -> Any:
        node = field.node
        if isinstance(node, Enum):
            return node.shown(value)
        if isinstance(node, Scalar):
            if node.narrow is not None:
                most = 2 ** (node.narrow.bit_width - 1)
                if not -most <= value < most:
                    self._refuse(f"{value} is not within {-most} and {most - 1}")
            return value
        return self.whole(node, value)

    def _pieces(self, node: Message, data: bytes) -> Pieces:
        pieces: Pieces = {}
        at = 0
        while at < len(data):
            number, wire, at = self._tag(data, at)
            field = node.by_number.get(number)
            matches = field is not None and field.wire == wire
            packed = (
                field is not None
                and field.repeated
                and wire == BYTES
                and field.node.wire in _NUMERIC
            )
            if field is None or not (matches or packed):
                at = self._skip(data, at, number, wire)
                continue
            self._path.append(field.name)
            if packed:
                values, at = self._packed(field.node, data, at)
            elif field.group:
                value, at = self._group(data, at, number)
                values = [value]
            else:
                value, at = self._one(field.node, data, at)
                values = [value]
            if isinstance(field.node, Enum) and field.node.closed:
                values = [v for v in values if v in field.node.names]
            self._path.pop()
            if values or packed:
                if field.oneof is not None:
                    others = [f for f in node.fields if f.oneof == field.oneof and f is not field]
                    for other in others:
                        pieces.pop(other.number, None)
                pieces.setdefault(number, []).extend(values)
        return pieces

    def _tag(self, data: bytes, at: int) -> tuple[int, int, int]:
        tag, at = self._varint(data, at)
        if tag >= 2**32 or tag < 8:
            self._refuse(f"there is no tag {tag}")
        return tag >> 3, tag & 7, at

    def _skip(self, data: bytes, at: int, number: int, wire: int) -> int:
        match wire:
            case 0:
                at = self._varint(data, at)[1]
            case 1 | 5:
                at = self._take(data, at, 8 if wire == FIXED64 else 4)[1]
            case 2:
                at = self._bytes(data, at)[1]
            case 3:
                at = self._group(data, at, number)[1]
            case 4:
                self._refuse(f"group {number} ends, but did not begin")
            case _:
                self._refuse(f"there is no wire type {wire}")
        return at

    def _group(self, data: bytes, at: int, number: int) -> tuple[bytes, int]:
        """What stands before the tag that ends a group."""
        self._nested += 1
        if self._nested > _DEEPEST:
            self._refuse(f"nested more than {_DEEPEST} levels deep")
        begin = end = at
        while True:
            inner, wire, at = self._tag(data, end)
            if wire == END_GROUP:
                break
            end = self._skip(data, at, inner, wire)
        self._nested -= 1
        if inner != number:
            self._refuse(f"group {number} ends as group {inner}")
        return data[begin:end], at

    def _varint(self, data: bytes, at: int) -> tuple[int, int]:
        number = 0
        for count in range(11):
            if count == 10:
                self._refuse("a number of more than ten bytes")
            if at + count >= len(data):
                self._refuse("the record ends too early")
            byte = data[at + count]
            number |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                break
        return number & (2**64 - 1), at + count + 1

    def _take(self, data: bytes, at: int, size: int) -> tuple[bytes, int]:
        if at + size > len(data):
            self._refuse(f"the record ends {at + size - len(data)} bytes too early")
        return data[at : at + size], at + size

    def _bytes(self, data: bytes, at: int) -> tuple[bytes, int]:
        size, at = self._varint(data, at)
        if size > 2**31 - 1:
            self._refuse(f"a length of {size} bytes")
        return self._take(data, at, size)

    def _packed(self, node: Node, data: bytes, at: int) -> tuple[list[Any], int]:
        inside, at = self._bytes(data, at)
        values, place = [], 0
        while place < len(inside):
            value, place = self._one(node, inside, place)
            values.append(value)
        return values, at

    def _one(self, node: Node, data: bytes, at: int) -> tuple[Any, int]:
        if isinstance(node, Enum):
            number, at = self._varint(data, at)
            return _signed(number, 32), at
        if not isinstance(node, Scalar):
            return self._bytes(data, at)
        if node.wire == VARINT:
            number, at = self._varint(data, at)
            return _of_varint(node.kind, number), at
        if node.wire == BYTES:
            value, at = self._bytes(data, at)
            return self._text(value) if node.kind == "string" else value, at
        layout = _LAYOUT[node.kind]
        value, at = self._take(data, at, struct.calcsize(layout))
        return struct.unpack(layout, value)[0], at

    def _text(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            self._refuse(f"not UTF-8: byte 0x{value[error.start]:02x} at position {error.start}")

    def _known(self, node: LogicalMessage, parts: tuple[Any, ...]) -> Any:
        match node.kind:
            case "Timestamp":
                seconds, nanos = parts
                if not FIRST_SECOND <= seconds <= LAST_SECOND or not 0 <= nanos < _NANOS:
                    self._refuse(f"{seconds} seconds and {nanos} nanoseconds are not a timestamp")
                return seconds * 1000 + nanos // 1_000_000
            case "Date":
                try:
                    return (datetime.date(*parts) - datetime.date(1970, 1, 1)).days
                except (ValueError, OverflowError):
                    self._refuse("year {}, month {}, day {} are not a date".format(*parts))
            case "TimeOfDay":
                hours, minutes, seconds, nanos = parts
                try:
                    datetime.time(hours, minutes, seconds)
                except (ValueError, OverflowError):
                    nanos = -1
                if not 0 <= nanos < _NANOS:
                    self._refuse(
                        "hours {}, minutes {}, seconds {}, nanos {} are not a time of day".format(
                            *parts
                        )
                    )
                return ((hours * 60 + minutes) * 60 + seconds) * 1000 + nanos // 1_000_000
        return self._decimal(node, *parts)

    def _decimal(
        self, node: LogicalMessage, digits: bytes, precision: int, scale: int
    ) -> decimal.Decimal:
        if not digits:
            self._refuse("a decimal of no bytes")
        number = decimal.Decimal(int.from_bytes(digits, "big", signed=True))
        if abs(scale) > 10_000 or len(digits) > 1000:
            self._refuse(f"a decimal of {len(digits)} bytes with the scale {scale}")
        exact = decimal.Context(prec=20_000)
        value = number.scaleb(-scale, exact)
        if precision:  # Java rounds to the digits that a decimal claims to have
            rounding = decimal.ROUND_HALF_UP
            value = decimal.Context(prec=precision, rounding=rounding).plus(value)
        kind = node.logical
        try:
            shown = value.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=exact)
        except decimal.InvalidOperation:
            shown = decimal.Decimal("NaN")
        if shown != value or len(shown.as_tuple().digits) > kind.precision:
            self._refuse(
                f"{value} does not fit {kind}. Declare precision and scale of the field in "
                "(confluent.field_meta)"
            )
        return shown


def _signed(number: int, bits: int) -> int:
    number &= 2**bits - 1
    return number - 2**bits if number >> (bits - 1) else number


def _of_varint(kind: str, number: int) -> int | bool:
    match kind:
        case "int32":
            return _signed(number, 32)
        case "uint32":
            return number & (2**32 - 1)
        case "sint32":
            number &= 2**32 - 1
            return (number >> 1) ^ -(number & 1)
        case "sint64":
            return (number >> 1) ^ -(number & 1)
        case "bool":
            return number != 0
    return _signed(number, 64)


def read(node: Node, values: Sequence[bytes]) -> tuple[pa.Array, list[int], dict[int, str]]:
    """Values in Arrow with their indices, and the reasons why the others cannot be read."""
    decoded, rows, refused = [], [], {}
    for row, value in enumerate(values):
        try:
            decoded.append(Reader().whole(node, value))
            rows.append(row)
        except Damaged as error:
            refused[row] = str(error)
    return _arrow(node, decoded), rows, refused


def _arrow(node: Node, values: Sequence[Any]) -> pa.Array:
    """The result of a reader, in Arrow. Inside a null, None stands for values of any type."""
    match node:
        case Message():
            columns = [
                _column(column, [None if v is None else v[n] for v in values])
                for n, column in enumerate(node.columns)
            ]
            return node.finish(_struct(columns, [c.arrow for c in node.columns], values))
        case Wrapper():
            return _column(node.value, values)
        case Map():
            flat = [element for v in values for element in v or ()]
            keys, items = (
                _column(field, [pair[n] for pair in flat])
                for n, field in enumerate(node.entry.fields)
            )
            return pa.MapArray.from_arrays(offsets(values), keys, items, mask=mask(values))
        case Recursion():
            return pa.ExtensionArray.from_storage(node.type, pa.array(values, pa.string()))
    return pa.array(values, node.type)


def _column(column: Field | Oneof, values: Sequence[Any]) -> pa.Array:
    if isinstance(column, Oneof):
        members = [
            _column(field, [None if v is None else v[n] for v in values])
            for n, field in enumerate(column.fields)
        ]
        return _struct(members, [f.arrow for f in column.fields], values)
    if column.repeated and not column.is_map:
        flat = [element for v in values for element in v or ()]
        items = _arrow(column.node, flat)
        lists = pa.ListArray.from_arrays(offsets(values), items, mask=mask(values))
        return column.finish(lists)
    return column.finish(_arrow(column.node, values))


def _struct(columns: list[pa.Array], fields: list[pa.Field], values: Sequence[Any]) -> pa.Array:
    if not columns:
        return pa.array([None if v is None else {} for v in values], pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask(values))


def _plain(node: Node, value: Any) -> Any:
    """A value as JSON shows it."""
    if value is None:
        return None
    match node:
        case Message() if node.known is not None and pa.types.is_string(node.type):
            return _arrow(node, [value])[0].as_py()
        case Message():
            return {c.name: _plain_column(c, v) for c, v in zip(node.columns, value, strict=True)}
        case Wrapper():
            return _plain(node.value.node, value)
        case Map():
            key, item = (f.node for f in node.entry.fields)
            if isinstance(key, Scalar) and key.kind == "string":
                return {k: _plain(item, v) for k, v in value}
            return [[_plain(key, k), _plain(item, v)] for k, v in value]
        case Recursion():
            return Json(value)
        case LogicalMessage():
            return shown(pa.array([value], node.type))
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _plain_column(column: Field | Oneof, value: Any) -> Any:
    if isinstance(column, Oneof):
        if value is None:
            return None
        members = zip(column.fields, value, strict=True)
        return {f.name: _plain_column(f, v) for f, v in members if v is not None}
    if column.repeated and not column.is_map:
        return [_plain_value(column, item) for item in value]
    return _plain_value(column, value)


def _plain_value(field: Field, value: Any) -> Any:
    if field.known is None or value is None:
        return _plain(field.node, value)
    return shown(field.known.of(_arrow(field.node, [value])))
