"""JSON with a schema registry: Confluent's JsonSchemaConverter."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from semel.config import key
from semel.converters.base import Converter, Failure
from semel.converters.json import write
from semel.converters.json.columns import JSON as AS_JSON
from semel.converters.json.columns import Column
from semel.converters.json.envelope import PayloadReader
from semel.converters.json.scalars import NAME, ScalarReader
from semel.converters.json.text import as_text, without_mark
from semel.converters.jsonschema.derive import schema_of
from semel.converters.jsonschema.translate import connect_schema
from semel.converters.registry import config as keys
from semel.converters.registry import registration
from semel.converters.registry.client import JSON, Registry, Schema
from semel.converters.registry.converter import Contents, Reader, RegistryConverter, Writer
from semel.converters.registry.framing import Framed
from semel.converters.registry.registration import Registration
from semel.core.quoting import named
from semel.core.records import Facts

_OPTIONAL = "use.optional.for.nonrequired"
_DRAFT = "http://json-schema.org/draft-07/schema#"
_PAIRS = ('{"key":', ',"value":', "}")
_MISSING = "required, but missing or null"


@dataclass(frozen=True)
class JsonSchemaKeys(write.DecimalKeys, keys.RegistryKeys):
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
    def configured(
        cls, config: Mapping[str, str], *, is_key: bool, where: str, evolve: bool = False
    ) -> Converter:
        given = cls.keys(config, where)
        return cls(
            keys.registry(given, where),
            where,
            optional=given.optional,
            additional=given.additional,
            numeric=given.numeric,
            registration=Registration.of(given, is_key=is_key, where=where),
        )

    def _reader(self, schema: Schema) -> Reader:
        described = connect_schema(schema.text, schema.references, optional=self._optional)
        reader: PayloadReader | ScalarReader
        if described["type"] == "struct" and "fields" not in described:
            reader = ScalarReader(Column(NAME, AS_JSON))
        else:
            reader = PayloadReader(json.dumps(described))
        return lambda framed: self._contents(reader, framed)

    def _contents(self, reader: PayloadReader | ScalarReader, framed: Framed) -> Contents:
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
        found = schema_of(kind, self._facts, additional=self._additional)
        if "properties" not in found:  # Apicurio recognises a JSON Schema by one or the other
            found = {"$schema": _DRAFT, **found}
        return json.dumps(found), found.get("title", "")

    def describing(self, facts: Facts) -> Converter:
        made = copy.copy(self)
        made._facts = facts
        made._writers, made._topics = {}, {}
        return made

    def _writer(self, schema: Schema, derived: str | None) -> Writer:
        if derived is not None:
            latest = connect_schema(schema.text, schema.references, optional=True)
            wrong = list(_incompatible(latest, connect_schema(derived)))
            if wrong:
                raise ValueError(registration.unfit(schema, wrong))
        required = _required(connect_schema(schema.text, schema.references, optional=True))

        writer = write.Writer(embedded=False, numeric=self._numeric, pairs=_PAIRS)

        def checked(values: pa.Array) -> pa.Array:
            _check(values, required)
            return writer.texts(values).cast(pa.binary())

        return checked


def _required(schema: Mapping[str, Any]) -> list[str]:
    return [f["field"] for f in schema.get("fields", ()) if not f["optional"]]


def _check(values: pa.Array, required: Sequence[str]) -> None:
    if not pa.types.is_struct(values.type):
        return
    for name in required:
        at = values.type.get_field_index(name)
        if at < 0 or values.field(at).null_count:
            raise ValueError(f"field {named(name)}: null, but its schema requires a value")


_WIDER = {"int8": 1, "int16": 2, "int32": 3, "int64": 4, "float": 5, "float32": 5, "double": 6}
_WIDER |= {"float64": 6}


def _incompatible(
    reader: Mapping[str, Any], writer: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """The reasons why a schema does not describe what another one writes, part by part."""
    told = f"field {named(path)}: " if path else ""
    ours, theirs = writer["type"], reader["type"]
    if theirs == "struct" and "fields" not in reader:
        return
    if writer["optional"] and not reader["optional"]:
        yield f"{told}it may be null, but not in the latest version"
    if ours in _WIDER and theirs in _WIDER:
        if _WIDER[theirs] < _WIDER[ours]:
            yield f"{told}{ours} cannot be read as {theirs}"
    elif ours != theirs:
        yield f"{told}{ours} cannot be read as {theirs}"
    elif ours == "struct":
        written = {f["field"]: f for f in writer.get("fields", ())}
        for field in reader["fields"]:
            inner = f"{path}.{field['field']}".strip(".")
            if field["field"] in written:
                yield from _incompatible(field, written[field["field"]], inner)
            elif not field["optional"]:
                yield f"field {named(inner)}: it is missing, and the latest version requires it"
    else:
        for part in ("items", "values"):
            if part in reader:
                yield from _incompatible(reader[part], writer[part], f"{path}[]")
