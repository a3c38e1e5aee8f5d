"""Resolves the names in schema files, and gives Kafka Connect's view of each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from semel.converters.protobuf import files
from semel.converters.protobuf.files import File, SchemaError
from semel.converters.protobuf.known import known
from semel.converters.protobuf.schema import (
    SCALARS,
    Enum,
    Field,
    Known,
    Map,
    Message,
    Node,
    Oneof,
    Recursion,
    Scalar,
    Wrapped,
)

DECIMAL, PLAIN_DECIMAL = "confluent.type.Decimal", (38, 9)
"""The type of decimals, and the precision and scale of those that declare none."""
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_LOGICAL = {
    "google.protobuf.Timestamp": pa.timestamp("ms", "UTC"),
    "google.type.Date": pa.date32(),
    "google.type.TimeOfDay": pa.time32("ms"),
}
_NARROW = {"int8": pa.int8(), "int16": pa.int16()}
_NARROWED = ("int32", "sint32", "sfixed32")


@dataclass(frozen=True, slots=True)
class Reading:
    """Confluent's keys of the same names; those that are missing here affect no column."""

    index_unions: bool = True
    flatten_unions: bool = False
    optional_for_nullables: bool = False
    optional_for_proto2: bool = True
    wrapper_for_nullables: bool = False
    wrapper_for_raw_primitives: bool = True
    struct_for_nulls: bool = False
    int_for_enums: bool = False


class Linked:
    """A file with all that it imports.

    Args:
        references: the files that a registry has for its imports, by the names used there.

    Raises:
        SchemaError: an imported file is missing.
    """

    def __init__(
        self, file: File, references: Mapping[str, File], reading: Reading | None = None
    ) -> None:
        self.file = file
        self._reading = reading or Reading()
        self._types: dict[str, tuple[files.Message | files.Enum, str]] = {}
        self._seen: set[int] = set()
        self._add(file, references)
        self._made: dict[str, Message] = {}
        self._open: set[str] = set()

    def _add(self, file: File, references: Mapping[str, File]) -> None:
        if id(file) in self._seen:
            return
        self._seen.add(id(file))
        for name in file.imports:
            found = references.get(name) or known(name)
            if found is None:
                raise SchemaError(
                    f"it imports {name!r}, which is not registered as a reference of it"
                )
            self._add(found, references)
        self._types |= {name: (found, file.syntax) for name, found in file.declared()}

    def name_of(self, indexes: Sequence[int]) -> str:
        """The full name of a message, by its indexes.

        Raises:
            SchemaError: there is no such message.
        """
        messages, path = self.file.messages, [self.file.package] if self.file.package else []
        for index in indexes:
            inner = [m for m in messages if not m.is_entry]
            if not 0 <= index < len(inner):
                raise SchemaError(f"it has no message with the indexes {list(indexes)}")
            path.append(inner[index].name)
            messages = inner[index].messages
        return ".".join(path)

    def indexes_of(self, name: str | None) -> tuple[int, ...]:
        """The indexes of a message by its full name; without one, those of the first.

        Raises:
            SchemaError: it is not there.
        """
        names = [f"{self.file.package}.{m.name}".lstrip(".") for m in self.file.messages]
        if not names or (name is not None and name not in names):
            raise SchemaError(f"it has no message {name or ''}".rstrip())
        return (0 if name is None else names.index(name),)

    def full_name(self, name: str) -> str:
        """The full name of one of the file's messages.

        Raises:
            SchemaError: there is none.
        """
        if name not in [m.name for m in self.file.messages]:
            raise SchemaError(f"it has no message {name!r}")
        return f"{self.file.package}.{name}".lstrip(".")

    def root(self, name: str) -> Node:
        """The message of a full name, or what it wraps."""
        self._made, self._open = {}, set()
        message = self._message(name)
        if name in WRAPPERS and self._reading.wrapper_for_raw_primitives:
            return Wrapped(message)
        return message

    def _message(self, name: str) -> Message:
        if name not in self._made:
            declared, syntax = self._types[name]
            assert isinstance(declared, files.Message)
            self._open.add(name)
            plain = declared.is_entry or name in WRAPPERS or name in (*_LOGICAL, DECIMAL)
            fields = [(f, self._field(f, name, syntax, plain)) for f in declared.fields]
            self._open.discard(name)
            self._made[name] = Message(name, self._columns(declared, fields))
        return self._made[name]

    def _columns(
        self, declared: files.Message, fields: Sequence[tuple[files.Field, Field]]
    ) -> tuple[Field | Oneof, ...]:
        unions: list[Field | Oneof] = []
        for number, name in enumerate(declared.oneofs):
            members = tuple(field for f, field in fields if f.oneof == number)
            if self._reading.flatten_unions:
                unions += members
            else:
                shown = f"{name}_{number}" if self._reading.index_unions else name
                unions.append(Oneof(shown, members))
        found = (*unions, *(field for f, field in fields if f.oneof is None))
        names = [column.name for column in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(f"message {declared.name} has a field twice: {', '.join(twice)}")
        return found

    def _field(self, field: files.Field, scope: str, syntax: str, plain: bool) -> Field:
        reading = Reading() if plain else self._reading
        node = self._node(field, scope, syntax)
        repeated = field.label == "repeated"
        member = field.oneof is not None
        found = Field(field.name, field.number, node, repeated)
        keyword = field.label == "optional" and (syntax != "editions")
        optional = keyword and (syntax == "proto3" or reading.optional_for_proto2)
        explicit = not repeated and (member or optional or (found.is_message and not plain))
        nullable = (
            member
            or explicit
            or repeated
            or isinstance(node, Enum)
            or not (reading.optional_for_nullables or reading.wrapper_for_nullables)
        )
        always = found.is_message and not repeated and not member
        always = always and (plain or (reading.struct_for_nulls and _has_struct(node)))
        name = scope if member else None
        return replace(
            found,
            explicit=explicit and not always,
            required=field.label == "required",
            always=always,
            nullable=nullable,
            oneof=f"{name}#{field.oneof}" if member else None,
            default=None if repeated else _default(node, field),
        )

    def _node(self, field: files.Field, scope: str, syntax: str) -> Node:
        if field.type in SCALARS:
            narrow = field.parameters.get("connect.type", "")
            return Scalar(
                field.type,
                _NARROW.get(narrow) if field.type in _NARROWED else None,
                strict=syntax != "proto2",
            )
        name = self._resolved(field.type, scope)
        declared, where = self._types[name]
        if isinstance(declared, files.Enum):
            closed = where == "proto2"
            values = tuple(declared.values)
            return Enum(declared.name, values, closed, self._reading.int_for_enums)
        if name in self._open:
            return Recursion(name, self._made)
        message = self._message(name)
        if field.label == "repeated" and _is_entry(declared):
            key, value = (replace(f, explicit=False, always=f.is_message) for f in message.fields)
            return Map(replace(message, columns=(key, value)))
        if name in _LOGICAL:
            return Known(name.rpartition(".")[2], message, _LOGICAL[name])
        if name == DECIMAL:
            return Known("Decimal", message, _decimal(field.parameters))
        if name in WRAPPERS and self._reading.wrapper_for_nullables:
            return Wrapped(message)
        return message

    def _resolved(self, name: str, scope: str) -> str:
        if name.startswith("."):
            candidates = [name[1:]]
        else:
            parts = scope.split(".")
            candidates = [".".join([*parts[:n], name]) for n in range(len(parts), -1, -1)]
        for candidate in candidates:
            if candidate in self._types:
                return candidate
        raise SchemaError(f"message {scope} refers to {name}, which is not defined")


def _has_struct(node: Node) -> bool:
    return isinstance(node, (Message, Wrapped, Known))


def _is_entry(message: files.Message) -> bool:
    """Whether a message is a map entry as Kafka Connect writes it, with these two fields."""
    if message.is_entry:
        return True
    named = [f.name for f in message.fields] == ["key", "value"]
    single = all(f.label != "repeated" and f.oneof is None for f in message.fields)
    return message.name.endswith("Entry") and named and single


def _decimal(parameters: Mapping[str, str]) -> pa.DataType:
    def number(name: str, otherwise: int) -> int:
        text = parameters.get(name, "").strip()
        return int(text) if text.lstrip("-").isdigit() else otherwise

    if not {"precision", "scale"} & set(parameters):
        return pa.decimal128(*PLAIN_DECIMAL)
    return pa.decimal128(min(max(number("precision", 38), 1), 38), number("scale", 0))


def _default(node: Node, field: files.Field) -> Any:
    given = field.default
    if isinstance(node, Enum):
        numbers = dict(node.values)
        if given is not None and given not in numbers:
            raise SchemaError(f"field {field.name}: its default {given} is not one of its values")
        return node.values[0][1] if given is None else numbers[given]
    if not isinstance(node, Scalar):
        return None
    zero = SCALARS[node.kind][2]
    if given is None:
        return zero
    try:
        if isinstance(zero, bytes):
            return str(given).encode("latin-1")
        if isinstance(zero, str):
            return str(given)
        if isinstance(zero, bool):
            return given == "true"
        return float(given) if isinstance(zero, float) else int(given, 0)
    except ValueError:
        raise SchemaError(f"field {field.name}: its default {given!r} cannot be read") from None
