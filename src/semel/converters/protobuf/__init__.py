"""Protobuf with a schema registry: Confluent's ProtobufConverter, and Apicurio's in its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from semel.converters.base import Converter
from semel.converters.protobuf import columns, indexes, rows
from semel.converters.protobuf.files import SchemaError
from semel.converters.protobuf.link import Linked, Reading
from semel.converters.protobuf.schema import Node
from semel.converters.protobuf.serialized import file_of
from semel.converters.registry import config as keys
from semel.converters.registry import mixed, registration
from semel.converters.registry.client import PROTOBUF, Registry, Schema
from semel.converters.registry.converter import Contents, Reader, RegistryConverter, Writer
from semel.converters.registry.framing import Framed
from semel.converters.registry.registration import Registration

ENHANCED, SCRUB = "enhanced.protobuf.schema.support", "scrub.invalid.names"
_READING = {
    "generate.index.for.unions": ("index_unions", True),
    "flatten.unions": ("flatten_unions", False),
    "optional.for.nullables": ("optional_for_nullables", False),
    "optional.for.proto2": ("optional_for_proto2", True),
    "wrapper.for.nullables": ("wrapper_for_nullables", False),
    "wrapper.for.raw.primitives": ("wrapper_for_raw_primitives", True),
    "generate.struct.for.nulls": ("struct_for_nulls", False),
    "int.for.enums": ("int_for_enums", False),
}
_WITHOUT_EFFECT = frozenset(
    {
        *(ENHANCED, "generalized.sum.type.support", "ignore.default.for.nullables"),
        *("reference.subject.name.strategy", "reference.lookup.only", "skip.known.types"),
    }
)
_READ_NAME, _READ_INDEXES = (
    "apicurio.registry.serde.read-type-ref",
    "apicurio.registry.serde.read-indexes",
)


class ProtobufConverter(RegistryConverter):
    """Protobuf's binary encoding, read in columns."""

    KEYS = keys.KEYS | registration.KEYS | _READING.keys() | _WITHOUT_EFFECT | {SCRUB}
    format = PROTOBUF

    def __init__(
        self,
        registry: Registry,
        where: str,
        *,
        reading: Reading | None = None,
        registration: Registration | None = None,
    ) -> None:
        super().__init__(registry, where, registration)
        self._reading = reading or Reading()

    @classmethod
    def configured(
        cls, config: Mapping[str, str], *, is_key: bool, where: str, evolve: bool = False
    ) -> Converter:
        return cls(
            keys.registry(config, where),
            where,
            reading=_reading(config, where),
            registration=Registration.configured(config, is_key=is_key, where=where),
        )

    def _split(self, group: Framed) -> list[Framed]:
        return indexes.split(group)

    def _reader(self, schema: Schema) -> Reader:
        references = {name: file_of(text) for name, text in schema.references}
        linked = Linked(file_of(schema.text), references, self._reading)
        nodes: dict[tuple[int, ...] | str, Node | str] = {}

        def read(framed: Framed) -> Contents:
            if framed.message not in nodes:
                nodes[framed.message] = _root(linked, framed.message)
            node = nodes[framed.message]
            if isinstance(node, str):
                refused = dict.fromkeys(range(len(framed.rows)), node)
                return Contents(pa.nulls(0), pa.array([], pa.int64()), refused)
            return contents(node, framed)

        return read

    def _derived(self, kind: pa.DataType) -> tuple[str, str]:
        raise ValueError("Protobuf is only read yet")

    def _writer(self, schema: Schema, derived: str | None) -> Writer:
        raise ValueError("Protobuf is only read yet")


class ApicurioProtobufConverter(ProtobufConverter):
    """Apicurio's converter with ``apicurio.registry.as-confluent=true``. Its serializer names
    messages by default, instead of giving their indexes."""

    KEYS = ProtobufConverter.KEYS | keys.APICURIO.keys() | {_READ_NAME, _READ_INDEXES}

    def __init__(
        self,
        registry: Registry,
        where: str,
        *,
        reading: Reading | None = None,
        registration: Registration | None = None,
        named: bool = True,
        indexed: bool = False,
    ) -> None:
        super().__init__(registry, where, reading=reading, registration=registration)
        self._named, self._indexed = named, indexed

    @classmethod
    def configured(
        cls, config: Mapping[str, str], *, is_key: bool, where: str, evolve: bool = False
    ) -> Converter:
        translated = keys.of_apicurio(config, where)
        return cls(
            keys.registry(translated, where),
            where,
            reading=_reading({"flatten.unions": "true", **translated}, where),
            registration=Registration.configured(translated, is_key=is_key, where=where),
            named=keys.flag(config, _READ_NAME, True, where),
            indexed=keys.flag(config, _READ_INDEXES, False, where),
        )

    def _split(self, group: Framed) -> list[Framed]:
        parts = indexes.split(group) if self._indexed else [replace(group, message=indexes.FIRST)]
        if not self._named:
            return parts
        whole = [part for part in parts if part.message != indexes.DAMAGED]
        damaged = [part for part in parts if part.message == indexes.DAMAGED]
        return [named for part in whole for named in indexes.split_by_name(part)] + damaged


def _reading(config: Mapping[str, str], where: str) -> Reading:
    chosen = {
        name: keys.flag(config, key, default, where) for key, (name, default) in _READING.items()
    }
    return Reading(**chosen)


def _root(linked: Linked, message: tuple[int, ...] | str) -> Node | str:
    if message == indexes.DAMAGED:
        return "what stands before the value, and says which message it is, cannot be read"
    try:
        if isinstance(message, str):
            return linked.root(linked.full_name(message))
        return linked.root(linked.name_of(message))
    except SchemaError as error:
        return str(error)


def contents(node: Node, framed: Framed) -> Contents:
    """Values in columns; those that columns are not sure of are read alone."""
    in_columns = partial(columns.read, node) if node.columnar else None
    return mixed.contents(framed, in_columns, partial(rows.read, node))
