"""Resolves the names in schema files, and gives Kafka Connect's view of each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, OneofDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message_factory import GetMessageClass

from semel.converters.protobuf.compiler import SchemaError
from semel.converters.protobuf.schema import (
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
from semel.converters.semantic import TYPES, SemanticReader, decimal_type, semantic, semantic_facts
from semel.core.quoting import all_named, named

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
_KINDS = {
    number: FieldDescriptorProto.Type.Name(number).removeprefix("TYPE_").lower()
    for number in FieldDescriptorProto.Type.values()
}
_NARROW = {"int8": pa.int8(), "int16": pa.int16()}
_STRUCTS = {
    name.rpartition(".")[2]: name for name, known in TYPES.items() if pa.types.is_struct(known.wire)
}
"""Kafka Connect's converter drops the package of a nested message."""
_NARROWED = ("int32", "sint32", "sfixed32")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Confluent's keys of the same names; those that are missing here affect no column."""

    index_unions: bool = True
    flatten_unions: bool = False
    optional_for_nullables: bool = False
    optional_for_proto2: bool = True
    wrapper_for_nullables: bool = False
    wrapper_for_raw_primitives: bool = True
    struct_for_nulls: bool = False
    int_for_enums: bool = False


class LinkedFile:
    """A file, as Kafka Connect understands its messages."""

    def __init__(self, file: FileDescriptor, options: ReadOptions | None = None) -> None:
        self.file = file
        self._options = options or ReadOptions()
        self._by_name: dict[str, Message] = {}
        self._open: set[str] = set()

    @property
    def _messages(self) -> list[Descriptor]:
        return list(self.file.message_types_by_name.values())

    def name_of(self, indexes: Sequence[int]) -> str:
        """The full name of a message, by its indexes.

        Raises:
            SchemaError: there is no such message.
        """
        messages, name = self._messages, self.file.package
        for index in indexes:
            inner = [m for m in messages if not m.GetOptions().map_entry]
            if not 0 <= index < len(inner):
                raise SchemaError(f"it has no message with the indexes {list(indexes)}")
            name, messages = inner[index].full_name, list(inner[index].nested_types)
        return str(name)

    def indexes_of(self, name: str | None) -> tuple[int, ...]:
        """The indexes of a message by its full name; without one, those of the first.

        Raises:
            SchemaError: it is not there.
        """
        names = [m.full_name for m in self._messages]
        if not names or (name is not None and name not in names):
            raise SchemaError(f"it has no message {named(name or '')}".rstrip())
        return (0 if name is None else names.index(name),)

    def full_name(self, name: str) -> str:
        """The full name of one of the file's messages.

        Raises:
            SchemaError: there is none.
        """
        message = self.file.message_types_by_name.get(name)
        if message is None:
            raise SchemaError(f"it has no message {named(name)}")
        return str(message.full_name)

    def root(self, name: str) -> Node:
        """The message of a full name, or what it wraps."""
        self._by_name, self._open = {}, set()
        message = self._message(self.file.pool.FindMessageTypeByName(name))
        if name in WRAPPERS and self._options.wrapper_for_raw_primitives:
            return Wrapper(message)
        return message

    def _message(self, declared: Descriptor) -> Message:
        name = declared.full_name
        if name not in self._by_name:
            self._open.add(name)
            map_entry = declared.GetOptions().map_entry
            plain = map_entry or name in WRAPPERS or name in (*_LOGICAL, DECIMAL)
            fields = [(f, self._field(f, plain)) for f in declared.fields]
            self._open.discard(name)
            columns = self._columns(declared, fields)
            names = pa.struct([(column.name, pa.null()) for column in columns])
            full = name if name in TYPES else _STRUCTS.get(name.rpartition(".")[2])
            known = semantic(full, names)
            facts = None if known is None else {"name": str(full), "parameters": {}}
            self._by_name[name] = Message(name, columns, known, facts)
        return self._by_name[name]

    def _columns(
        self, declared: Descriptor, fields: Sequence[tuple[FieldDescriptor, Field]]
    ) -> tuple[Field | Oneof, ...]:
        unions: list[Field | Oneof] = []
        for oneof in declared.oneofs:
            members = tuple(field for f, field in fields if _oneof(f) == oneof)
            if not members:  # it stands for proto3's optional
                continue
            if self._options.flatten_unions:
                unions += members
            else:
                index_unions = self._options.index_unions
                shown = f"{oneof.name}_{oneof.index}" if index_unions else oneof.name
                unions.append(Oneof(shown, members))
        columns = (*unions, *(field for f, field in fields if _oneof(f) is None))
        names = [column.name for column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(
                f"message {named(declared.name)} has a field twice: {all_named(twice)}"
            )
        return columns

    def _field(self, field: FieldDescriptor, plain: bool) -> Field:
        options = ReadOptions() if plain else self._options
        node = self._node(field)
        repeated = field.is_repeated
        oneof = _oneof(field)
        draft = Field(field.name, field.number, node, repeated)
        proto2 = _is_proto2(field.file)
        keyword = proto2 and not field.is_required
        keyword = keyword or field.number in _optionals(field.containing_type)
        optional = keyword and (not proto2 or options.optional_for_proto2)
        explicit = not repeated and (
            oneof is not None or optional or (draft.is_message and not plain)
        )
        nullable = (
            oneof is not None
            or explicit
            or repeated
            or isinstance(node, Enum)
            or not (options.optional_for_nullables or options.wrapper_for_nullables)
        )
        always = draft.is_message and not repeated and oneof is None
        always = always and (plain or (options.struct_for_nulls and _has_struct(node)))
        known, facts = _semantic(field, node)
        return replace(
            draft,
            known=known,
            facts=facts,
            explicit=explicit and not always,
            required=field.is_required,
            always=always,
            nullable=nullable,
            group=field.type == FieldDescriptor.TYPE_GROUP,
            oneof=oneof.full_name if oneof else None,
            default=None if repeated else _default(field),
        )

    def _node(self, field: FieldDescriptor) -> Node:
        if field.enum_type is not None:
            enum = field.enum_type
            values = tuple((value.name, value.number) for value in enum.values)
            return Enum(enum.name, values, enum.is_closed, self._options.int_for_enums)
        if field.message_type is None:
            kind = _KINDS[field.type]
            narrow = _parameters(field).get("connect.type", "") if kind in _NARROWED else ""
            return Scalar(kind, _NARROW.get(narrow))
        name = field.message_type.full_name
        if name in self._open:
            return Recursion(name, self._by_name)
        message = self._message(field.message_type)
        if field.is_repeated and _is_entry(field.message_type):
            key, value = (replace(f, explicit=False, always=f.is_message) for f in message.fields)
            return Map(replace(message, columns=(key, value)))
        if name in _LOGICAL:
            return LogicalMessage(name.rpartition(".")[2], message, _LOGICAL[name])
        if name == DECIMAL:
            return LogicalMessage("Decimal", message, _decimal(_parameters(field)))
        if name in WRAPPERS and self._options.wrapper_for_nullables:
            return Wrapper(message)
        return message


@lru_cache
def _optionals(message: Descriptor) -> frozenset[int]:
    """The numbers of fields that proto3 declares with ``optional``."""
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return frozenset(field.number for field in proto.field if field.proto3_optional)


def _oneof(field: FieldDescriptor) -> OneofDescriptor | None:
    """The oneof of a field, if it has one that is written in the file."""
    return None if field.number in _optionals(field.containing_type) else field.containing_oneof


@lru_cache
def _is_proto2(file: FileDescriptor) -> bool:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto.syntax in ("", "proto2") and not proto.edition


def _parameters(field: FieldDescriptor) -> Mapping[str, str]:
    """What ``(confluent.field_meta)`` says of a field."""
    pool = field.file.pool
    try:
        meta = pool.FindExtensionByName("confluent.field_meta")
    except KeyError:
        return {}
    kind = GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
    options = kind.FromString(field.GetOptions().SerializeToString())
    return dict(options.Extensions[meta].params)


def _semantic(
    field: FieldDescriptor, node: Node
) -> tuple[SemanticReader | None, Mapping[str, Any] | None]:
    """The semantic type of a scalar, and what columns must know of it."""
    parameters = _parameters(field)
    name = parameters.get("connect.name")
    if name is None or not isinstance(node, Scalar):
        return None, None
    wire = "bytes" if node.kind == "bytes" else str(node.type)
    known = semantic(name, node.type)
    if known is None or known.wire != node.type:
        return None, None
    others = {key: value for key, value in parameters.items() if not key.startswith("connect.")}
    return known, semantic_facts({"type": wire, "name": name, "parameters": others})


def _default(field: FieldDescriptor) -> Any:
    """The default of a field; numbers of 64 bits without a sign are longs of the same bits."""
    default = field.default_value
    unsigned = field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)
    return default - 2**64 if unsigned and default >= 2**63 else default


def _has_struct(node: Node) -> bool:
    return isinstance(node, (Message, Wrapper, LogicalMessage))


def _is_entry(message: Descriptor) -> bool:
    """Whether a message is a map entry as Kafka Connect writes it, with these two fields."""
    if message.GetOptions().map_entry:
        return True
    named = [f.name for f in message.fields] == ["key", "value"]
    single = all(not f.is_repeated and _oneof(f) is None for f in message.fields)
    return message.name.endswith("Entry") and named and single


def _decimal(parameters: Mapping[str, str]) -> pa.DataType:
    def number(name: str, otherwise: int) -> int:
        text = parameters.get(name, "").strip()
        return int(text) if text.lstrip("-").isdigit() else otherwise

    if not {"precision", "scale"} & set(parameters):
        return pa.decimal128(*PLAIN_DECIMAL)
    declared = {"scale": number("scale", 0), "connect.decimal.precision": number("precision", 38)}
    return decimal_type(declared)
