"""JSON with a schema registry: Confluent's JsonSchemaConverter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from semel.config import key
from semel.converters.base import Failure
from semel.converters.json import write
from semel.converters.json.columns import JSON as AS_JSON
from semel.converters.json.columns import Column
from semel.converters.json.envelope import PayloadReader
from semel.converters.json.read import NAME, ScalarReader
from semel.converters.json.text import as_text, without_mark
from semel.converters.jsonschema.schemas import connect_schema, incompatible, schema_of
from semel.converters.registry import FramedMessages
from semel.converters.registry.client import JSON, Registry, Schema
from semel.converters.registry.config import RegistryKeys
from semel.converters.registry.converter import (
    Contents,
    Reader,
    Registration,
    RegistryConverter,
    Writer,
)
from semel.core.quoting import named

_OPTIONAL = "use.optional.for.nonrequired"
_DRAFT = "http://json-schema.org/draft-07/schema#"
_PAIRS = ('{"key":', ',"value":', "}")
_MISSING = "required, but missing or null"


@dataclass(frozen=True)
class JsonSchemaKeys(write.DecimalKeys, RegistryKeys):
    """The keys of JsonSchemaConverter."""

    optional: bool = key(
        _OPTIONAL,
        False,
        "Whether a property that is not listed under required may be missing; if not, only one "
        "that allows null may.",
    )
    additional: bool = key(
        "object.additional.properties",
        True,
        "Whether registered schemas allow properties that they do not name.",
    )


class JsonSchemaConverter(RegistryConverter):
    """JSON whose types come from a JSON Schema, read and written in columns.

    Args:
        optional: see ``use.optional.for.nonrequired``.
        additional: see ``object.additional.properties``.
        numeric: write decimals as numbers, see ``decimal.format``.
    """

    section: ClassVar[type] = JsonSchemaKeys
    format = JSON

    def __init__(
        self,
        registry: Registry,
        where: str,
        *,
        optional: bool = False,
        additional: bool = True,
        numeric: bool = False,
        registration: Registration | None = None,
    ) -> None:
        super().__init__(registry, where, registration)
        self._optional = optional
        self._additional = additional
        self._numeric = numeric

    @classmethod
    def _own(cls, keys: JsonSchemaKeys, where: str) -> dict[str, Any]:
        return {
            "optional": keys.optional,
            "additional": keys.additional,
            "numeric": keys.numeric,
        }

    def _reader(self, schema: Schema) -> Reader:
        described = connect_schema(schema.text, schema.references, optional=self._optional)
        reader: PayloadReader | ScalarReader
        if described["type"] == "struct" and "fields" not in described:
            reader = ScalarReader(Column(NAME, AS_JSON))
        else:
            reader = PayloadReader(json.dumps(described))
        return lambda framed: self._contents(reader, framed)

    def _contents(self, reader: PayloadReader | ScalarReader, framed: FramedMessages) -> Contents:
        text, failures = as_text(framed.column())
        text = without_mark(text)
        values, more = reader.read(text.fill_null("null") if failures else text)
        refused = {f.index: f.message for f in map(self._explained, [*more, *failures])}
        facts = reader.facts if isinstance(reader, PayloadReader) else {}
        return Contents(values, None, refused, facts)

    def _explained(self, failure: Failure) -> Failure:
        if self._optional or not failure.message.endswith(_MISSING):
            return failure
        why = f"{failure.message}. If it may be missing, set {self._where}.{_OPTIONAL}=true"
        return replace(failure, message=why)

    def _derived(self, kind: pa.DataType) -> tuple[str, str]:
        schema = schema_of(kind, self._facts, additional=self._additional)
        if "properties" not in schema:  # Apicurio recognises a JSON Schema by one or the other
            schema = {"$schema": _DRAFT, **schema}
        return json.dumps(schema), schema.get("title", "")

    def _writer(self, schema: Schema) -> Writer:
        required = _required(connect_schema(schema.text, schema.references, optional=True))
        writer = write.Writer(embedded=False, numeric=self._numeric, pairs=_PAIRS)

        def checked(values: pa.Array) -> pa.Array:
            _check(values, required)
            return writer.texts(values).cast(pa.binary())

        return checked

    def _incompatible(self, latest: Schema, derived: str) -> Iterable[str]:
        reader = connect_schema(latest.text, latest.references, optional=True)
        return incompatible(reader, connect_schema(derived))


def _required(schema: Mapping[str, Any]) -> list[str]:
    return [f["field"] for f in schema.get("fields", ()) if not f["optional"]]


def _check(values: pa.Array, required: Sequence[str]) -> None:
    if not pa.types.is_struct(values.type):
        return
    for name in required:
        at = values.type.get_field_index(name)
        if at < 0 or values.field(at).null_count:
            raise ValueError(f"field {named(name)}: null, but its schema requires a value")
