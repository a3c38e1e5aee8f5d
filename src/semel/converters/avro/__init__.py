"""Avro with a schema registry: Confluent's AvroConverter, and Apicurio's in the same format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from semel.config import LOW, key
from semel.converters.avro import columns, rows
from semel.converters.avro.parse import parse
from semel.converters.avro.schema import Node, incompatible
from semel.converters.avro.write import WriteOptions, schema_of, write
from semel.converters.registry import FramedMessages
from semel.converters.registry.client import AVRO, Registry, Schema
from semel.converters.registry.config import ApicurioKeys, RegistryKeys
from semel.converters.registry.converter import (
    Contents,
    Reader,
    Registration,
    RegistryConverter,
    Writer,
    contents_of,
)
from semel.converters.semantic import SemanticType


@dataclass(frozen=True)
class AvroKeys(RegistryKeys):
    """The keys of Confluent's AvroConverter."""

    full_names: bool = key(
        "enhanced.avro.schema.support",
        False,
        "Whether fields of a union are named by the full names of their types.",
    )
    ignore_defaults: bool = key(
        "ignore.default.for.nullables",
        False,
        "Keep null where a field has a default; otherwise, as in Kafka Connect, null is read as "
        "the default.",
    )
    replace_nulls: bool = key(
        "replace.null.with.default",
        True,
        "false does the same as ignore.default.for.nullables=true.",
        importance=LOW,
    )
    properties: bool = key(
        "connect.meta.data",
        True,
        "Whether registered schemas carry Kafka Connect's own properties, such as connect.name.",
        importance=LOW,
    )
    scrub: bool = key(
        "scrub.invalid.names",
        False,
        "Replace characters that Avro does not allow in names with _; otherwise such a name is "
        "an error.",
    )


@dataclass(frozen=True)
class ApicurioAvroKeys(ApicurioKeys, AvroKeys):
    """The keys of Apicurio's AvroConverter."""


class AvroConverter(RegistryConverter):
    """Avro's binary encoding, read in columns.

    Args:
        full_names: see ``enhanced.avro.schema.support``.
        defaults: a null field with a default takes the default.
    """

    section: ClassVar[type] = AvroKeys
    format = AVRO

    def __init__(
        self,
        registry: Registry,
        where: str,
        *,
        full_names: bool = False,
        defaults: bool = True,
        registration: Registration | None = None,
        write_options: WriteOptions | None = None,
    ) -> None:
        super().__init__(registry, where, registration)
        self._full_names = full_names
        self._defaults = defaults
        self._write_options = write_options or WriteOptions()

    @classmethod
    def _own(cls, keys: AvroKeys, where: str) -> dict[str, Any]:
        return {
            "full_names": keys.full_names,
            "defaults": keys.replace_nulls and not keys.ignore_defaults,
            "write_options": WriteOptions(keys.properties, keys.scrub),
        }

    def _reader(self, schema: Schema) -> Reader:
        node = _parsed(schema, full_names=self._full_names, defaults=self._defaults)
        return lambda framed: contents(node, framed)

    def _derived(self, kind: pa.DataType) -> tuple[str, str]:
        schema = schema_of(kind, replace(self._write_options, facts=self._facts))
        names = [schema.get("namespace"), schema.get("name")] if isinstance(schema, dict) else []
        return json.dumps(schema), ".".join(filter(None, names)) if any(names) else ""

    def _writer(self, schema: Schema) -> Writer:
        node = _parsed(schema)
        return lambda values: write(node, values)

    def _incompatible(self, latest: Schema, derived: str) -> Iterable[str]:
        return incompatible(_parsed(latest), parse(derived))


class ApicurioAvroConverter(AvroConverter):
    """Apicurio's converter with ``apicurio.registry.as-confluent=true``."""

    section: ClassVar[type] = ApicurioAvroKeys


def _parsed(schema: Schema, **options: bool) -> Node:
    return parse(schema.text, [text for _, text in schema.references], **options)


def contents(node: Node, framed: FramedMessages) -> Contents:
    """Values in columns. Values that the column reader marks as unsure are read one by one."""
    in_columns = partial(columns.read, node) if node.columnar else None
    decoded = contents_of(framed, in_columns, partial(rows.read, node))
    decoded = replace(decoded, facts=node.connect or {})
    if not node.facts:
        return decoded
    kind = SemanticType(node.type, node.facts.encode())
    return replace(decoded, values=pa.ExtensionArray.from_storage(kind, decoded.values))
