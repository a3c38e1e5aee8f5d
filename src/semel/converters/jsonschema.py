"""JSON with a schema registry: Confluent's JsonSchemaConverter.

To write, it makes a JSON Schema of the Arrow type. To read, it translates one to Kafka Connect's
schema, by which JSON is then read. Both follow Confluent's JsonSchemaData.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa

from semel.config import key
from semel.converters.base import MOST_FIELDS, Failure
from semel.converters.json import write
from semel.converters.json.columns import JSON as AS_JSON
from semel.converters.json.columns import Column
from semel.converters.json.envelope import PayloadReader
from semel.converters.json.read import NAME, ScalarReader
from semel.converters.json.text import as_text, without_mark
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
from semel.converters.semantic import (
    CONNECT,
    DEBEZIUM,
    WRITTEN,
    check_types,
    plain_type,
    schema_in,
    suits,
)
from semel.core.quoting import in_field, named
from semel.core.records import Facts

_Document = dict[str, Any]
"""A JSON Schema."""
_OPTIONAL_KEY = "use.optional.for.nonrequired"
_DRAFT = "http://json-schema.org/draft-07/schema#"
_PAIRS = ('{"key":', ',"value":', "}")
_MISSING = "required, but missing or null"


@dataclass(frozen=True)
class JsonSchemaKeys(write.DecimalKeys, RegistryKeys):
    """The keys of JsonSchemaConverter."""

    optional: bool = key(
        _OPTIONAL_KEY,
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
        why = f"{failure.message}. If it may be missing, set {self._where}.{_OPTIONAL_KEY}=true"
        return replace(failure, message=why)

    def _derived(self, kind: pa.DataType) -> tuple[str, str]:
        check_types(kind, "JSON Schema")
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
        return _incompatible(reader, connect_schema(derived))


def _required(schema: Mapping[str, Any]) -> list[str]:
    return [f["field"] for f in schema.get("fields", ()) if not f["optional"]]


def _check(values: pa.Array, required: Sequence[str]) -> None:
    if not pa.types.is_struct(values.type):
        return
    for name in required:
        at = values.type.get_field_index(name)
        if at < 0 or values.field(at).null_count:
            raise ValueError(f"field {named(name)}: null, but its schema requires a value")


def schema_of(
    kind: pa.DataType, facts: Facts | None = None, *, additional: bool = True
) -> _Document:
    """The schema of values of this type.

    Args:
        facts: what Kafka Connect's schema says of itself.
        additional: readers may meet properties that are not in it
            (``object.additional.properties``).
    """
    facts = facts or {}
    return {**_schema_of(kind, facts, additional), **_facts(kind, facts)}


def _facts(kind: pa.DataType, facts: Facts) -> _Document:
    """A schema's name, version and parameters, unless the type itself has a name."""
    if facts.get("name") in WRITTEN or not suits(facts.get("name"), kind):
        return {}
    parts = {
        "title": facts.get("name"),
        "connect.version": facts.get("version"),
        "connect.parameters": facts.get("parameters"),
    }
    return {name: part for name, part in parts.items() if part}


def _schema_of(kind: pa.DataType, facts: Facts, additional: bool) -> _Document:
    if pa.types.is_dictionary(kind):
        return _schema_of(kind.value_type, facts, additional)
    if pa.types.is_struct(kind):
        fields = enumerate(kind)
        properties = {f.name: _property(f, number, additional) for number, f in fields}
        schema: _Document = {"type": "object", "properties": properties}
        return schema if additional else {**schema, "additionalProperties": False}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {
            "type": "array",
            "items": _optional(kind.value_type, facts.get("items"), additional),
        }
    if pa.types.is_map(kind):
        return _map(kind, additional)
    return _plain(kind)


def _property(field: pa.Field, number: int, additional: bool) -> _Document:
    schema = schema_of(field.type, schema_in(field), additional=additional)
    if field.nullable:
        schema = {"oneOf": [{"type": "null"}, schema]}
    return {**schema, "connect.index": number}


def _optional(kind: pa.DataType, facts: Facts | None, additional: bool) -> _Document:
    return {"oneOf": [{"type": "null"}, schema_of(kind, facts, additional=additional)]}


def _map(kind: pa.MapType, additional: bool) -> _Document:
    values = _optional(kind.item_type, None, additional)
    if pa.types.is_string(kind.key_type):
        return {"type": "object", "connect.type": "map", "additionalProperties": values}
    entry = {
        "key": {**schema_of(kind.key_type, additional=additional), "connect.index": 0},
        "value": {**values, "connect.index": 1},
    }
    items = {"type": "object", "properties": entry}
    return {"type": "array", "connect.type": "map", "items": items}


def _plain(kind: pa.DataType) -> _Document:
    if kind == AS_JSON:
        return {"type": "string", "title": DEBEZIUM + "data.Json", "connect.version": 1}
    if pa.types.is_decimal(kind):
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        return {
            "type": "number",
            "title": CONNECT + "Decimal",
            "connect.version": 1,
            "connect.type": "bytes",
            "connect.parameters": parameters,
        }
    connect, logical = plain_type(kind)
    schema: _Document = {"type": _PLAIN[connect]}
    if connect not in ("boolean", "string"):
        schema["connect.type"] = connect
    return schema | ({"title": CONNECT + logical, "connect.version": 1} if logical else {})


_PLAIN = dict.fromkeys(("int8", "int16", "int32", "int64"), "integer")
_PLAIN |= {"float32": "number", "float64": "number"}
_PLAIN |= {"boolean": "boolean", "bytes": "string", "string": "string"}

_ANY: Mapping[str, Any] = {"type": "struct", "optional": True}
"""Values about which nothing is known, or of one of several types: they are kept as JSON."""

_TYPES = {"integer": "int64", "number": "double", "boolean": "boolean", "string": "string"}
_CONNECT = {
    "integer": ("int8", "int16", "int32", "int64", "float32", "float64", "bytes"),
    "number": ("int8", "int16", "int32", "int64", "float32", "float64", "bytes"),
    "string": ("bytes",),
}


class SchemaError(ValueError):
    """A schema that is not a JSON Schema."""


def connect_schema(
    text: str, references: Sequence[tuple[str, str]] = (), *, optional: bool = False
) -> Mapping[str, Any]:
    """The schema of a text, as a JsonConverter writes it in front of payloads.

    Args:
        references: schemas that it refers to, by the names that it uses.
        optional: properties that are not listed as required may be missing
            (``use.optional.for.nonrequired``).

    Raises:
        SchemaError: says what is wrong with it.
    """
    try:
        documents = {name: json.loads(document) for name, document in references}
        root = json.loads(text)
        return _Translator(documents, optional).of(root, root)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"not a JSON Schema: {type(error).__name__}: {error}") from None


class _Translator:
    def __init__(self, documents: Mapping[str, Any], optional: bool) -> None:
        self._documents = documents
        self._optional = optional
        self._open: list[int] = []
        self._steps = 0

    def of(self, schema: Any, root: Any) -> Mapping[str, Any]:
        """A schema of a document, ``root``."""
        self._count()
        if not isinstance(schema, dict):  # true and false
            return _ANY
        if "$ref" in schema:
            return self._referred(schema["$ref"], root)
        if "allOf" in schema:
            schema = self._merged(schema, root)
        for several in ("oneOf", "anyOf"):
            if several in schema:
                return self._one_of(schema, schema[several], root)
        kind = _kind(schema)
        if isinstance(kind, list):
            return self._one_of(schema, [{**schema, "type": k} for k in kind], root)
        return {**self._typed(kind, schema, root), **_named(schema)}

    def _referred(self, reference: str, root: Any) -> Mapping[str, Any]:
        document, schema = self._resolved(reference, root)
        if id(schema) in self._open:
            return _ANY  # a recursive type
        self._open.append(id(schema))
        translated = self.of(schema, document)
        self._open.pop()
        return translated

    def _count(self) -> None:
        """Limit the steps: schemas that refer to each other twice have no end of parts."""
        self._steps += 1
        if self._steps > MOST_FIELDS:
            raise SchemaError(f"it has more than {MOST_FIELDS} parts, with those it refers to")

    def _resolved(self, reference: str, root: Any) -> tuple[Any, Any]:
        self._count()
        name, _, pointer = reference.partition("#")
        document = self._documents.get(name) if name and name != root.get("$id") else root
        if document is None:
            raise SchemaError(f"it refers to {named(name)}, which is not among its references")
        target = document
        for part in filter(None, unquote(pointer).split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key)] if isinstance(target, list) else target[key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise SchemaError(
                    f"it refers to {named(reference)}, which does not exist"
                ) from None
        return document, target

    def _merged(self, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        """Several schemas merged into one, with the properties of all."""
        merged = {k: v for k, v in schema.items() if k != "allOf"}
        for subschema in schema["allOf"]:
            part, inside = subschema, root
            while isinstance(part, dict) and "$ref" in part:
                inside, part = self._resolved(part["$ref"], inside)
            if inside is not root:
                raise SchemaError("allOf with parts of other documents is not supported")
            if not isinstance(part, dict):
                continue
            whole = self._merged(part, inside) if "allOf" in part else part
            properties = {**merged.get("properties", {}), **whole.get("properties", {})}
            required = [*merged.get("required", []), *whole.get("required", [])]
            merged = {**whole, **merged}
            if properties:
                merged["properties"] = properties
            if required:
                merged["required"] = required
        return merged

    def _one_of(self, schema: Mapping[str, Any], parts: Any, root: Any) -> Mapping[str, Any]:
        """A value that may be null if null is one of two, else JSON."""
        present = [part for part in parts if _kind(part) != "null"]
        if len(present) != 1:
            return {**_ANY, "optional": len(present) < len(parts)}
        optional = len(present) < len(parts)
        translated = self.of(present[0], root)
        return {**translated, "optional": True} if optional else translated

    def _typed(self, kind: str | None, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        connect = schema.get("connect.type")
        if kind in _TYPES:
            connect_type = connect if connect in _CONNECT.get(kind, ()) else _TYPES[kind]
            return {"type": connect_type, "optional": False}
        if kind == "array":
            return self._array(schema, root)
        if kind == "object" and connect == "map":
            values = self.of(schema.get("additionalProperties", True), root)
            keys = {"type": "string", "optional": False}
            return {"type": "map", "optional": False, "keys": keys, "values": values}
        if kind == "object" and ("properties" in schema or schema is root):
            return self._object(schema, root)
        return {**_ANY, "optional": kind == "null"}

    def _array(self, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        """A list. A map whose keys are not text is a list of its entries."""
        items = schema.get("items")
        if isinstance(items, list) or items is None:
            return dict(_ANY, optional=False)
        return {"type": "array", "optional": False, "items": self.of(items, root)}

    def _object(self, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        required = schema.get("required", ())
        fields = []
        for name, member in self._ordered(schema.get("properties", {})):
            translated = self.of(member, root)
            optional = translated["optional"] or (self._optional and name not in required)
            fields.append({**translated, "field": name, "optional": optional})
        return {"type": "struct", "optional": False, "fields": fields}

    def _ordered(self, properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        def index(number: int, schema: Any) -> int:
            position = schema.get("connect.index") if isinstance(schema, dict) else None
            return position if isinstance(position, int) else number

        places = [(index(n, s), n) for n, s in enumerate(properties.values())]
        listed = list(properties.items())
        return (listed[number] for _, number in sorted(places))


def _kind(schema: Any) -> Any:
    """The type of a schema, or the list of its types."""
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type")
    if kind is not None:
        return kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
    if "properties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    values = schema["enum"] if "enum" in schema else [schema[k] for k in ("const",) if k in schema]
    return "string" if values and all(isinstance(v, str) for v in values) else None


def _named(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The name of a value's logical type."""
    facts = {}
    for ours, theirs in (
        ("name", "title"),
        ("version", "connect.version"),
        ("parameters", "connect.parameters"),
        ("default", "default"),
    ):
        if schema.get(theirs) is not None:
            facts[ours] = schema[theirs]
    return facts


_WIDER = {"int8": 1, "int16": 2, "int32": 3, "int64": 4, "float": 5, "float32": 5, "double": 6}
_WIDER |= {"float64": 6}


def _incompatible(
    reader: Mapping[str, Any], writer: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """The reasons why a schema does not describe what another one writes, part by part."""
    prefix = in_field(path)
    ours, theirs = writer["type"], reader["type"]
    if theirs == "struct" and "fields" not in reader:
        return
    if writer["optional"] and not reader["optional"]:
        yield f"{prefix}it may be null, but not in the latest version"
    if ours in _WIDER and theirs in _WIDER:
        if _WIDER[theirs] < _WIDER[ours]:
            yield f"{prefix}{ours} cannot be read as {theirs}"
    elif ours != theirs:
        yield f"{prefix}{ours} cannot be read as {theirs}"
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
