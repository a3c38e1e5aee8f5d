"""Protobuf with a schema registry: Confluent's ProtobufConverter, and Apicurio's in its format.

Before each value a list of indexes names its message: the first index among the messages of the
file, the next one among those inside that message, and so on. Apicurio's converter may name the
message instead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import LOW, Type, key
from semel.config.extras import require
from semel.converters.base import Converter, check_size
from semel.converters.binary import Content, Cursor, elements, varints
from semel.converters.registry import FramedMessages
from semel.converters.registry.client import PROTOBUF, Registry, Schema
from semel.converters.registry.config import ApicurioKeys, RegistryKeys
from semel.converters.registry.converter import (
    Contents,
    Reader,
    Registration,
    RegistryConverter,
    Writer,
    contents_of,
)
from semel.core.errors import ConfigError, Problem
from semel.core.records import Facts

try:
    from semel.converters.protobuf import columns, rows
    from semel.converters.protobuf.compiler import SchemaError, compiled
    from semel.converters.protobuf.link import LinkedFile, ReadOptions
    from semel.converters.protobuf.schema import Node, incompatible
    from semel.converters.protobuf.write import WriteOptions, schema_of, wrapper_of, write
except ModuleNotFoundError as missing:
    lacking = "Protobuf needs the package grpcio-tools: pip install 'semel[registry]'"
    raise ConfigError(Problem("", lacking, not_installed=True)) from missing

_FIRST = (0,)
_DAMAGED = (-1,)
"""Stands in for indexes that cannot be read."""
_MOST_INDEXES = 100
_LONGEST_NAME = 1000
"""The most bytes of a name."""


@dataclass(frozen=True)
class ProtobufKeys(RegistryKeys):
    """The keys of Confluent's ProtobufConverter."""

    index_unions: bool = key(
        "generate.index.for.unions",
        True,
        "A oneof named choice becomes the field choice_0; otherwise it keeps its name.",
    )
    flatten_unions: bool = key(
        "flatten.unions", False, "The members of a oneof become fields of the message."
    )
    optional_for_nullables: bool = key(
        "optional.for.nullables", False, "Only fields declared optional may be null."
    )
    optional_for_proto2: bool = key(
        "optional.for.proto2",
        True,
        "An absent optional field of proto2 is null; otherwise it has its default.",
    )
    wrapper_for_nullables: bool = key(
        "wrapper.for.nullables",
        False,
        "Wrappers such as google.protobuf.StringValue are values that may be null, instead of "
        "structs.",
    )
    wrapper_for_raw_primitives: bool = key(
        "wrapper.for.raw.primitives", True, "A record that is a wrapper becomes the value in it."
    )
    struct_for_nulls: bool = key(
        "generate.struct.for.nulls",
        False,
        "An absent message becomes a message of default values, instead of null.",
    )
    int_for_enums: bool = key("int.for.enums", False, "Enums are numbers, instead of names.")
    scrub: bool = key(
        "scrub.invalid.names",
        False,
        "Replace characters that Protobuf does not allow in names with _; otherwise such a name "
        "is an error.",
    )
    enhanced: str = key(
        "enhanced.protobuf.schema.support", "false", "Has no effect.", type=Type.BOOLEAN
    )
    sum_type: str = key(
        "generalized.sum.type.support", "false", "Has no effect.", type=Type.BOOLEAN
    )
    ignore_defaults: str = key(
        "ignore.default.for.nullables", "false", "Has no effect.", type=Type.BOOLEAN
    )
    references: str = key(
        "reference.subject.name.strategy", "", "Has no effect.", type=Type.CLASS, importance=LOW
    )
    lookup_only: str = key("reference.lookup.only", "true", "Has no effect.", type=Type.BOOLEAN)
    skip_known: str = key(
        "skip.known.types", "true", "Has no effect.", type=Type.BOOLEAN, importance=LOW
    )

    @property
    def read_options(self) -> ReadOptions:
        """How values are read."""
        return ReadOptions(
            **{option.name: getattr(self, option.name) for option in fields(ReadOptions)}
        )


@dataclass(frozen=True)
class ApicurioProtobufKeys(ApicurioKeys, ProtobufKeys):
    """The keys of Apicurio's ProtobufConverter."""

    flatten_unions: bool = key(
        "flatten.unions", True, "The members of a oneof become fields of the message."
    )
    named: bool = key(
        "apicurio.registry.serde.read-type-ref",
        True,
        "Values begin with the name of their message.",
    )
    indexed: bool = key(
        "apicurio.registry.serde.read-indexes",
        False,
        "Values begin with the indexes of their message.",
    )


class ProtobufConverter(RegistryConverter):
    """Protobuf's binary encoding, read and written in columns.

    Args:
        scrub: see ``scrub.invalid.names``.
    """

    section: ClassVar[type] = ProtobufKeys
    format = PROTOBUF

    def __init__(
        self,
        registry: Registry,
        where: str,
        *,
        read_options: ReadOptions | None = None,
        registration: Registration | None = None,
        scrub: bool = False,
    ) -> None:
        super().__init__(registry, where, registration)
        self._read_options = read_options or ReadOptions()
        self._write_options = WriteOptions(
            self._read_options.optional_for_nullables,
            self._read_options.wrapper_for_nullables,
            scrub,
        )

    @classmethod
    def _own(cls, keys: Any, where: str) -> dict[str, Any]:
        packages = {"grpc_tools": "grpcio-tools", "google.type": "googleapis-common-protos"}
        require(where, "registry", packages, key=where)
        return {"read_options": keys.read_options, "scrub": keys.scrub}

    def _split(self, group: FramedMessages) -> list[FramedMessages]:
        return split_by_indexes(group)

    def _linked(self, schema: Schema) -> LinkedFile:
        return LinkedFile(compiled(schema.text, schema.references), self._read_options)

    def _reader(self, schema: Schema) -> Reader:
        linked = self._linked(schema)
        nodes: dict[tuple[int, ...] | str, Node | str] = {}

        def read(framed: FramedMessages) -> Contents:
            if framed.message not in nodes:
                nodes[framed.message] = _root(linked, framed.message)
            node = nodes[framed.message]
            if isinstance(node, str):
                refused = dict.fromkeys(range(len(framed.rows)), node)
                return Contents(pa.nulls(0), pa.array([], pa.int64()), refused)
            return contents(node, framed)

        return read

    def _derived(self, kind: pa.DataType) -> tuple[str, str]:
        return schema_of(kind, self._write_options)

    def describing(self, facts: Facts) -> Converter:
        converter = copy.copy(self)
        converter._write_options = replace(self._write_options, name=facts.get("name") or "")
        converter._writers, converter._topics = {}, {}
        return converter

    def _incompatible(self, latest: Schema, derived: str) -> Iterable[str]:
        return incompatible(self._first(latest), self._first(Schema(PROTOBUF, derived)))

    def _first(self, schema: Schema) -> Node:
        linked = self._linked(schema)
        return linked.root(linked.name_of((0,)))

    def _writer(self, schema: Schema) -> Writer:
        linked = self._linked(schema)

        def written(values: pa.Array) -> pa.Array:
            message = linked.indexes_of(_name_of(values.type))
            node = linked.root(linked.name_of(message))
            begin = pa.scalar(self._begin(linked.name_of(message), message), pa.binary())
            return pc.binary_join_element_wise(begin, write(node, values), b"")

        return written

    def _begin(self, name: str, message: tuple[int, ...]) -> bytes:
        """The bytes before a value."""
        return _indexes_prefix(message)


class ApicurioProtobufConverter(ProtobufConverter):
    """Apicurio's converter with ``apicurio.registry.as-confluent=true``. Its serializer names
    messages by default, instead of giving their indexes."""

    section: ClassVar[type] = ApicurioProtobufKeys

    def __init__(
        self,
        registry: Registry,
        where: str,
        *,
        named: bool = True,
        indexed: bool = False,
        **own: Any,
    ) -> None:
        super().__init__(registry, where, **own)
        self._named, self._indexed = named, indexed

    @classmethod
    def _own(cls, keys: ApicurioProtobufKeys, where: str) -> dict[str, Any]:
        return {**super()._own(keys, where), "named": keys.named, "indexed": keys.indexed}

    def _begin(self, name: str, message: tuple[int, ...]) -> bytes:
        begin = _indexes_prefix(message) if self._indexed else b""
        return begin + _name_prefix(name.rpartition(".")[2]) if self._named else begin

    def _split(self, group: FramedMessages) -> list[FramedMessages]:
        parts = split_by_indexes(group) if self._indexed else [replace(group, message=_FIRST)]
        if not self._named:
            return parts
        whole = [part for part in parts if part.message != _DAMAGED]
        damaged = [part for part in parts if part.message == _DAMAGED]
        return [named for part in whole for named in _split_by_name(part)] + damaged


def _name_of(kind: pa.DataType) -> str | None:
    """The message for values of a type, if only one fits."""
    return None if pa.types.is_struct(kind) else wrapper_of(kind)


def _root(linked: LinkedFile, message: tuple[int, ...] | str) -> Node | str:
    if message == _DAMAGED:
        return "the message indexes before the value cannot be read"
    try:
        name = linked.full_name(message) if isinstance(message, str) else linked.name_of(message)
        root = linked.root(name)
        check_size(root, lambda node: node.parts)
        return root
    except (SchemaError, ValueError) as error:
        return str(error)
    except RecursionError:
        return "its messages are nested too deeply"


def contents(node: Node, framed: FramedMessages) -> Contents:
    """Values in columns. Values that the column reader marks as unsure are read one by one."""
    in_columns = partial(columns.read, node) if node.columnar else None
    return contents_of(framed, in_columns, partial(rows.read, node))


def split_by_indexes(group: FramedMessages) -> list[FramedMessages]:
    """Values by their messages, without the indexes."""
    present = group.starts < group.ends
    if present.all() and not group.data[group.starts].any():  # by far the most: the first message
        return [replace(group, starts=group.starts + 1, message=_FIRST)]
    cursor = Cursor(Content(group.data), group.starts.copy(), group.ends)
    counts = cursor.long()
    cursor.doubt((counts < 0) | (counts > _MOST_INDEXES))
    counts = np.where(cursor.unsure, 0, counts)
    for number in range(int(counts.max(initial=0))):
        which = np.flatnonzero((counts > number) & ~cursor.unsure)
        inner = cursor.take(which)
        inner.long()
        cursor.put(which, inner)
    return _apart(group, cursor, _indexes)


def _apart(
    group: FramedMessages, cursor: Cursor, message_of: Callable[[bytes], tuple[int, ...] | str]
) -> list[FramedMessages]:
    groups = []
    written = elements(cursor.content.bytes, group.starts, cursor.at).dictionary_encode()
    codes = written.indices.to_numpy()
    for code, value in enumerate(written.dictionary.to_pylist()):
        alike = np.flatnonzero((codes == code) & ~cursor.unsure)
        if len(alike):
            some = replace(group.only(alike), starts=cursor.at[alike], message=message_of(value))
            groups.append(some)
    damaged = np.flatnonzero(cursor.unsure)
    if len(damaged):
        groups.append(replace(group.only(damaged), message=_DAMAGED))
    return groups


def _split_by_name(group: FramedMessages) -> list[FramedMessages]:
    """Values by their messages. Before each value is the name of its message, as Apicurio's
    serializer writes it: a length, then a Protobuf message with one string."""
    cursor = Cursor(Content(group.data), group.starts.copy(), group.ends)
    sizes = cursor.varint()
    cursor.doubt(sizes > np.uint64(_LONGEST_NAME))
    cursor.skip(np.where(cursor.unsure, np.uint64(0), sizes).astype(np.int64))
    return _apart(group, cursor, _name)


def _name(written: bytes) -> str | tuple[int, ...]:
    message = written[1 if written[0] < 0x80 else 2 :]
    text = message[2 if message[1:2] < b"\x80" else 3 :]
    if message != _name_message(text):
        return _DAMAGED
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _DAMAGED


def _indexes(written: bytes) -> tuple[int, ...]:
    data = np.frombuffer(written, np.uint8)
    cursor = Cursor(Content(data), np.zeros(1, np.int64), np.full(1, len(data)))
    count = int(cursor.long()[0])
    return tuple(int(cursor.long()[0]) for _ in range(count)) or _FIRST


def _indexes_prefix(message: Sequence[int]) -> bytes:
    """The bytes of indexes."""
    if tuple(message) == _FIRST:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(message), *message))


def _name_prefix(name: str) -> bytes:
    """The bytes of a name, as Apicurio's serializer writes them."""
    inner = _name_message(name.encode())
    return _varint(len(inner)) + inner


def _name_message(text: bytes) -> bytes:
    return b"\n" + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    encoded: bytes = varints(np.array([number], np.uint64))[0].as_py()
    return encoded
