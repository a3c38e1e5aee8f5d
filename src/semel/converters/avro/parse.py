"""Avro schemas, from their texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from semel.converters.avro.schema import (
    NAME,
    NAMESPACE,
    PRIMITIVES,
    Array,
    Decimal,
    Enum,
    Field,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Recursion,
    Union,
)
from semel.converters.base import check_size
from semel.converters.semantic import (
    DECIMAL,
    JSON_NAME,
    WRITTEN,
    decimal_type,
    semantic,
    semantic_facts,
)
from semel.core.quoting import all_named, named
from semel.core.records import Facts

log = logging.getLogger(__name__)

_PARAMETERS, _DEFAULT = "connect.parameters", "connect.default"
_ENTRY = f"{NAMESPACE}.MapEntry"
_NAMED = ("record", "error", "enum", "fixed")
_AVROS = {"date": pa.date32(), "time-millis": pa.time32("ms")}
_AVROS |= {"timestamp-millis": pa.timestamp("ms", "UTC")}
_COUNTED = {"time-micros": pa.time64("us")} | {
    f"{local}timestamp-{name}": pa.timestamp(unit)
    for local in ("", "local-")
    for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}
"""What numbers count that Kafka Connect takes for numbers."""
_WIDTHS = {"int": pa.int32(), "long": pa.int64()}
_NARROW = {"int8": pa.int8(), "int16": pa.int16()}


class SchemaError(ValueError):
    """A schema that is not one of Avro's."""


def parse(
    text: str, references: Sequence[str] = (), *, full_names: bool = False, defaults: bool = True
) -> Node:
    """The schema of a text.

    Args:
        references: schemas that it refers to by name, dependencies first.
        full_names: name the fields of unions by full names (``enhanced.avro.schema.support``).
        defaults: null stands for a field's default.

    Raises:
        SchemaError: says what is wrong with it.
    """
    parser = _Parser(full_names, defaults)
    try:
        for reference in references:
            parser.node(json.loads(reference), "")
        root = parser.node(json.loads(text), "")
        check_size(root, lambda node: node.parts)
        return root
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"not an Avro schema: {type(error).__name__}: {error}") from None


class _Parser:
    def __init__(self, full_names: bool, defaults: bool) -> None:
        self._named: dict[str, Node] = {}
        self._open: set[str] = set()
        self._full_names = full_names
        self._defaults = defaults

    def node(self, schema: Any, space: str) -> Node:
        if isinstance(schema, list):
            branches = tuple(self.node(s, space) for s in schema)
            names = tuple(self._branch_name(s, space) for s in schema)
            if len(set(names)) < len(names):
                raise SchemaError(f"a union has two branches of one type: {all_named(names)}")
            return Union(branches, names)
        if isinstance(schema, str):
            return Primitive(schema) if schema in PRIMITIVES else self._refer(schema, space)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.node(kind, space)
        if kind in PRIMITIVES:
            return _primitive(kind, schema)
        if kind == "array":
            items = self.node(schema["items"], space)
            inner = _connect(items)
            connect = dict(_connect_facts(schema, schema.get("connect.name")) or {})
            if items.connect and "type" in inner:
                connect["items"] = {**inner, "optional": items.takes_null, **items.connect}
            facts = _facts(schema, {"type": "array", "items": inner})
            return Array(items, facts, connect or None)
        if kind == "map":
            return Map(self.node(schema["values"], space))
        if kind in _NAMED:
            return self._define(kind, schema, space)
        return self._refer(kind, space)

    def _refer(self, name: str, space: str) -> Node:
        full = _full(name, space)
        for candidate in (full, name):
            if candidate in self._open:
                return Recursion(candidate, self._named)
            if candidate in self._named:
                return self._named[candidate]
        raise SchemaError(f"it refers to {named(full)}, which is not defined")

    def _define(self, kind: str, schema: Mapping[str, Any], space: str) -> Node:
        full = _full(schema["name"], schema.get("namespace", space))
        inner = full.rpartition(".")[0]
        node: Node
        if kind == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or size < 0:
                raise SchemaError(f"fixed {named(full)}: size {size!r} is no number of bytes")
            node = _decimal(schema, size) or Fixed(size)
        elif kind == "enum":
            symbols = schema["symbols"]
            texts = isinstance(symbols, list) and all(isinstance(s, str) for s in symbols)
            if not texts or not symbols:
                raise SchemaError(f"enum {named(full)}: its symbols are not a list of names")
            node = Enum(tuple(symbols))
        else:
            self._open.add(full)
            fields = tuple(self._field(f, inner) for f in schema["fields"])
            self._open.discard(full)
            names = [f.name for f in fields]
            if len(set(names)) < len(names):
                raise SchemaError(f"record {named(full)} has a field twice: {all_named(names)}")
            marked = full == _ENTRY or schema.get("connect.internal.type") == "MapEntry"
            entry = marked and names == ["key", "value"]
            name = schema.get("connect.name", full)
            known = semantic(name, pa.struct([(n, pa.null()) for n in names]))
            described = {"type": "struct", "fields": [{"field": n} for n in names]}
            facts = _facts({**schema, "connect.name": name}, described)
            node = Record(full, fields, entry, known, facts, _connect_facts(schema, name))
        self._named[full] = node
        return node

    def _field(self, schema: Mapping[str, Any], space: str) -> Field:
        node = self.node(schema["type"], space)
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        declared = (k[_DEFAULT] for k in kinds if isinstance(k, dict) and _DEFAULT in k)
        given = schema.get("default")
        # For Kafka Connect, Avro's own default of a field that may be null is none.
        default = None if _is_choice(node) else next(declared, None if node.takes_null else given)
        name = schema["name"]
        if not isinstance(name, str):
            raise SchemaError(f"a field's name is {json.dumps(name)[:80]}")
        doc = schema.get("doc")
        field = Field(
            name,
            node,
            default,
            given,
            doc if isinstance(doc, str) else None,
            fills=self._defaults,
        )
        try:
            field.check_defaults()
        except ValueError as error:  # the schemas of records are not validated; see Confluent's
            log.warning("an Avro schema is read without a default: %s", error)
            return replace(field, default=None)
        return field

    def _branch_name(self, schema: Any, space: str) -> str:
        """The field of Kafka Connect's struct for a union."""
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in (*PRIMITIVES, "array", "map"):
            return str(kind)
        full = _full(schema["name"], schema.get("namespace", space)) if kind in _NAMED else kind
        return str(full) if self._full_names else str(full).rpartition(".")[2]


def _is_choice(node: Node) -> bool:
    """Whether a value is of one of several types."""
    return isinstance(node, Union) and len(node.values) > 1


def _full(name: str, space: str | None) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _primitive(kind: str, schema: Mapping[str, Any]) -> Node:
    logical, name = schema.get("logicalType"), schema.get("connect.name")
    decimal = _decimal(schema, None) if kind == "bytes" else None
    if decimal is not None:
        return decimal
    known, facts = semantic(name, PRIMITIVES[kind]), _facts(schema, {"type": _CONNECT[kind]})
    connect = _connect_facts(schema, name)
    if known is not None and known.wire == PRIMITIVES[kind]:
        logical_type = None if known.type == known.wire else known.type
        return Primitive(kind, logical_type, known, facts, connect)
    if kind in _WIDTHS:
        time_type = _AVROS.get(logical or "")
        if time_type is not None and time_type.bit_width == _WIDTHS[kind].bit_width:
            return Primitive(kind, time_type)
        if kind == "int" and schema.get("connect.type") in _NARROW:
            return Primitive(kind, _NARROW[schema["connect.type"]], connect=connect)
    counted = _COUNTED.get(logical or "") if kind == "long" else None
    return Primitive(kind, connect=connect, counted=counted)


_CONNECT = {"int": "int32", "long": "int64", "float": "float32", "double": "float64"}
_CONNECT |= {kind: kind for kind in ("boolean", "bytes", "string", "null")}


def _connect(node: Node) -> Mapping[str, Any]:
    """As much of Kafka Connect's schema of a node as its semantic type may need."""
    own = json.loads(node.facts) if node.facts else {}
    inner = node.branches[node.values[0]] if isinstance(node, Union) and node.values else node
    kind = "struct" if isinstance(inner, Record) else ""
    return {"type": _CONNECT[inner.kind] if isinstance(inner, Primitive) else kind, **own}


def _connect_facts(schema: Mapping[str, Any], name: str | None) -> Facts | None:
    """What a schema says of itself beyond its Arrow type: its name, if it has one of its own."""
    if (
        not name
        or (name in WRITTEN and name != JSON_NAME)
        or name in (f"{NAMESPACE}.{NAME}", _ENTRY)
    ):
        return None
    properties = {"version": schema.get("connect.version"), "parameters": schema.get(_PARAMETERS)}
    return {"name": name, **{n: fact for n, fact in properties.items() if fact is not None}}


def _facts(schema: Mapping[str, Any], described: Mapping[str, Any]) -> str:
    """The facts of a schema with this type, as JSON."""
    name, parameters = schema.get("connect.name"), schema.get(_PARAMETERS)
    facts = semantic_facts({**described, "name": name, "parameters": parameters})
    return "" if facts is None or "name" not in facts else json.dumps(facts)


def _decimal(schema: Mapping[str, Any], size: int | None) -> Decimal | None:
    parameters = schema.get(_PARAMETERS) or {}
    if schema.get("connect.name") != DECIMAL and schema.get("logicalType") != "decimal":
        return None
    scale = schema.get("scale", parameters.get("scale", 0))
    precision = schema.get("precision", parameters.get("connect.decimal.precision", 38))
    kind = decimal_type({"scale": scale, "connect.decimal.precision": precision})
    return Decimal(kind.precision, kind.scale, size)
