"""JSON Schemas of Arrow types, as Confluent's JsonSchemaData writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from semel.converters.json.columns import JSON
from semel.converters.semantic import CONNECT, DEBEZIUM, WRITTEN, schema_in, suits
from semel.core.records import Facts

Schema = dict[str, Any]


def schema_of(kind: pa.DataType, known: Facts | None = None, *, additional: bool = True) -> Schema:
    """The schema of values of this type.

    Args:
        known: what Kafka Connect's schema says of itself.
        additional: readers may meet properties that are not in it
            (``object.additional.properties``).

    Raises:
        ValueError: JSON has no such type.
    """
    known = known or {}
    return {**_schema_of(kind, known, additional), **_facts(kind, known)}


def _facts(kind: pa.DataType, known: Facts) -> Schema:
    """A schema's name, version and parameters, unless the type itself has a name."""
    if known.get("name") in WRITTEN or not suits(known.get("name"), kind):
        return {}
    parts = {
        "title": known.get("name"),
        "connect.version": known.get("version"),
        "connect.parameters": known.get("parameters"),
    }
    return {name: part for name, part in parts.items() if part}


def _schema_of(kind: pa.DataType, known: Facts, additional: bool) -> Schema:
    if pa.types.is_dictionary(kind):
        return _schema_of(kind.value_type, known, additional)
    if pa.types.is_struct(kind):
        fields = enumerate(kind)
        properties = {f.name: _property(f, number, additional) for number, f in fields}
        found: Schema = {"type": "object", "properties": properties}
        return found if additional else {**found, "additionalProperties": False}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {
            "type": "array",
            "items": _optional(kind.value_type, known.get("items"), additional),
        }
    if pa.types.is_map(kind):
        return _map(kind, additional)
    return _plain(kind)


def _property(field: pa.Field, number: int, additional: bool) -> Schema:
    found = schema_of(field.type, schema_in(field), additional=additional)
    if field.nullable:
        found = {"oneOf": [{"type": "null"}, found]}
    return {**found, "connect.index": number}


def _optional(kind: pa.DataType, known: Facts | None, additional: bool) -> Schema:
    return {"oneOf": [{"type": "null"}, schema_of(kind, known, additional=additional)]}


def _map(kind: pa.MapType, additional: bool) -> Schema:
    values = _optional(kind.item_type, None, additional)
    if pa.types.is_string(kind.key_type):
        return {"type": "object", "connect.type": "map", "additionalProperties": values}
    entry = {
        "key": {**schema_of(kind.key_type, additional=additional), "connect.index": 0},
        "value": {**values, "connect.index": 1},
    }
    items = {"type": "object", "properties": entry}
    return {"type": "array", "connect.type": "map", "items": items}


def _plain(kind: pa.DataType) -> Schema:
    if kind == JSON:
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
    for matches, found, connect, logical in _PLAIN:
        if matches(kind):
            schema: Schema = {"type": found}
            if connect:
                schema["connect.type"] = connect
            if logical:
                schema |= {"title": CONNECT + logical, "connect.version": 1}
            return schema
    raise ValueError(f"JSON Schema cannot represent {kind}. Let a transform convert it")


_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], str, str, str]] = (
    (pa.types.is_boolean, "boolean", "", ""),
    (pa.types.is_int8, "integer", "int8", ""),
    (pa.types.is_int16, "integer", "int16", ""),
    (pa.types.is_uint8, "integer", "int16", ""),
    (pa.types.is_int32, "integer", "int32", ""),
    (pa.types.is_uint16, "integer", "int32", ""),
    (pa.types.is_int64, "integer", "int64", ""),
    (pa.types.is_uint32, "integer", "int64", ""),
    (pa.types.is_float16, "number", "float32", ""),
    (pa.types.is_float32, "number", "float32", ""),
    (pa.types.is_floating, "number", "float64", ""),
    (pa.types.is_binary, "string", "bytes", ""),
    (pa.types.is_large_binary, "string", "bytes", ""),
    (pa.types.is_fixed_size_binary, "string", "bytes", ""),
    (pa.types.is_string, "string", "", ""),
    (pa.types.is_large_string, "string", "", ""),
    (pa.types.is_null, "string", "", ""),
    (pa.types.is_date, "integer", "int32", "Date"),
    (pa.types.is_time, "integer", "int32", "Time"),
    (pa.types.is_timestamp, "integer", "int64", "Timestamp"),
)
