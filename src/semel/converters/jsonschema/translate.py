"""JSON Schemas as Kafka Connect's schemas, as Confluent's JsonSchemaData understands them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from semel.converters.schema_sizes import MOST
from semel.core.quoting import named

ANY: Mapping[str, Any] = {"type": "struct", "optional": True}
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
        documents = {name: json.loads(each) for name, each in references}
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
            return ANY
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
            return ANY  # a recursive type
        self._open.append(id(schema))
        found = self.of(schema, document)
        self._open.pop()
        return found

    def _count(self) -> None:
        """Limit the steps: schemas that refer to each other twice have no end of parts."""
        self._steps += 1
        if self._steps > MOST:
            raise SchemaError(f"it has more than {MOST} parts, with those it refers to")

    def _resolved(self, reference: str, root: Any) -> tuple[Any, Any]:
        self._count()
        name, _, pointer = reference.partition("#")
        document = self._documents.get(name) if name and name != root.get("$id") else root
        if document is None:
            raise SchemaError(f"it refers to {named(name)}, which is not among its references")
        found = document
        for part in filter(None, unquote(pointer).split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise SchemaError(
                    f"it refers to {named(reference)}, which does not exist"
                ) from None
        return document, found

    def _merged(self, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        """Several schemas merged into one, with the properties of all."""
        found = {k: v for k, v in schema.items() if k != "allOf"}
        for given in schema["allOf"]:
            part, inside = given, root
            while isinstance(part, dict) and "$ref" in part:
                inside, part = self._resolved(part["$ref"], inside)
            if inside is not root:
                raise SchemaError("allOf with parts of other documents is not supported")
            if not isinstance(part, dict):
                continue
            whole = self._merged(part, inside) if "allOf" in part else part
            properties = {**found.get("properties", {}), **whole.get("properties", {})}
            required = [*found.get("required", []), *whole.get("required", [])]
            found = {**whole, **found}
            if properties:
                found["properties"] = properties
            if required:
                found["required"] = required
        return found

    def _one_of(self, schema: Mapping[str, Any], parts: Any, root: Any) -> Mapping[str, Any]:
        """A value that may be null if null is one of two, else JSON."""
        present = [part for part in parts if _kind(part) != "null"]
        if len(present) != 1:
            return {**ANY, "optional": len(present) < len(parts)}
        optional = len(present) < len(parts)
        found = self.of(present[0], root)
        return {**found, "optional": True} if optional else found

    def _typed(self, kind: str | None, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        connect = schema.get("connect.type")
        if kind in _TYPES:
            wanted = connect if connect in _CONNECT.get(kind, ()) else _TYPES[kind]
            return {"type": wanted, "optional": False}
        if kind == "array":
            return self._array(schema, root)
        if kind == "object" and connect == "map":
            values = self.of(schema.get("additionalProperties", True), root)
            keys = {"type": "string", "optional": False}
            return {"type": "map", "optional": False, "keys": keys, "values": values}
        if kind == "object" and ("properties" in schema or schema is root):
            return self._object(schema, root)
        return {**ANY, "optional": kind == "null"}

    def _array(self, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        """A list. A map whose keys are not text is a list of its entries."""
        items = schema.get("items")
        if isinstance(items, list) or items is None:
            return dict(ANY, optional=False)
        return {"type": "array", "optional": False, "items": self.of(items, root)}

    def _object(self, schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
        required = schema.get("required", ())
        fields = []
        for name, each in self._ordered(schema.get("properties", {})):
            found = self.of(each, root)
            optional = found["optional"] or (self._optional and name not in required)
            fields.append({**found, "field": name, "optional": optional})
        return {"type": "struct", "optional": False, "fields": fields}

    def _ordered(self, properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        def index(number: int, schema: Any) -> int:
            given = schema.get("connect.index") if isinstance(schema, dict) else None
            return given if isinstance(given, int) else number

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
    found = {}
    for ours, theirs in (
        ("name", "title"),
        ("version", "connect.version"),
        ("parameters", "connect.parameters"),
        ("default", "default"),
    ):
        if schema.get(theirs) is not None:
            found[ours] = schema[theirs]
    return found
