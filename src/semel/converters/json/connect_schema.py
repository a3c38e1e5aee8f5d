"""Kafka Connect's schemas, as its JsonConverter writes them, to columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from semel.converters.json import duck
from semel.converters.json.columns import CONNECT as SCHEMA
from semel.converters.json.columns import JSON, Column, Reading, column, time_of_day

CONNECT = "org.apache.kafka.connect.data."
DEBEZIUM = "io.debezium."

_PRIMITIVES = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}

LOGICAL = {
    CONNECT + "Date": pa.date32(),
    CONNECT + "Time": pa.time32("ms"),
    CONNECT + "Timestamp": pa.timestamp("ms", "UTC"),
    DEBEZIUM + "time.Date": pa.date32(),
    DEBEZIUM + "time.Time": pa.time32("ms"),
    DEBEZIUM + "time.MicroTime": pa.time64("us"),
    DEBEZIUM + "time.NanoTime": pa.time64("ns"),
    DEBEZIUM + "time.Timestamp": pa.timestamp("ms"),
    DEBEZIUM + "time.MicroTimestamp": pa.timestamp("us"),
    DEBEZIUM + "time.NanoTimestamp": pa.timestamp("ns"),
}
"""Numbers in their unit. Debezium's timestamps are wall clock time without a zone."""


_WRITTEN = (CONNECT + "Date", CONNECT + "Time", CONNECT + "Timestamp", DEBEZIUM + "data.Json")
"""The names that their Arrow types stand for."""


class SchemaError(ValueError):
    """A schema in a record that is not one of Kafka Connect's."""


KEEPS_NULLS = "semel.keeps.nulls"
"""A property of a nested schema whose nulls stay null where there is a default."""
FACTS = ("name", "version", "doc", "parameters", "default")
"""The properties that any schema may have beside its type."""


@dataclass(frozen=True, slots=True)
class ConnectSchema:
    """A translated schema: the fields of a struct, or one column of any other type; and what it
    says of itself."""

    fields: tuple[Column, ...] | None
    value: Column | None
    facts: Mapping[str, Any]


def translate(text: str, value_name: str, *, defaults: bool = True) -> ConnectSchema:
    """Translate a schema; what is not a struct becomes a column of the given name.

    ``defaults`` says that a null stands for the default, if there is one.

    Raises:
        SchemaError: names what is wrong with it.
    """
    schema = _object(json.loads(text), "the schema")
    if not defaults:
        schema = {**schema, KEEPS_NULLS: True}
    facts = facts_of(schema)
    if schema.get("optional") is True:
        facts["optional"] = True
    if schema.get("type") != "struct":
        made = _column(value_name, schema, required=False, defaults=defaults)
        return ConnectSchema(None, made, facts)
    return ConnectSchema(struct_columns(schema), None, facts)


def facts_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a schema says of itself beside its type."""
    return {n: schema[n] for n in FACTS if schema.get(n) is not None}


def struct_columns(schema: Mapping[str, Any]) -> tuple[Column, ...]:
    """The fields of a struct.

    Raises:
        SchemaError: names what is wrong with it.
    """
    defaults = not schema.get(KEEPS_NULLS)
    fields = schema.get("fields")
    if not isinstance(fields, list):
        raise SchemaError('a struct needs "fields"')
    columns = []
    for field in fields:
        name = _object(field, "a field").get("field")
        if not isinstance(name, str):
            raise SchemaError('a field of a struct needs a "field" name')
        required = field.get("optional") is not True
        columns.append(_column(name, field, required=required, defaults=defaults))
    names = [c.name for c in columns]
    if len(set(names)) < len(names):
        raise SchemaError(f"duplicate field names in {names}")
    return tuple(columns)


def item_column(name: str, schema: Any, *, defaults: bool) -> Column:
    """An item of an array, or a value of a map."""
    described = _object(schema, "the items of an array or map")
    return _column(name, described, required=False, defaults=defaults)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise SchemaError(f"{what} must be an object, not {json.dumps(value)[:80]}")
    return value


def _column(name: str, schema: Mapping[str, Any], *, required: bool, defaults: bool) -> Column:
    default = schema.get("default") if defaults else None
    text = None if default is None else json.dumps(default)
    wanted, readings = _type(name, schema)
    known = None
    if not readings and _is_nested(schema):
        known = schema if defaults else {**schema, KEEPS_NULLS: True}
    elif readings:
        known = _beyond(schema, wanted)
    metadata = {SCHEMA: json.dumps(known).encode()} if known else None
    return Column(name, wanted, readings, required, text, metadata)


def _beyond(schema: Mapping[str, Any], wanted: pa.DataType) -> Mapping[str, Any] | None:
    """What a schema says beyond the Arrow type, if anything."""
    facts = facts_of(schema)
    own = pa.types.is_decimal(wanted) or facts.get("name") in _WRITTEN
    if own and not facts.keys() & {"doc", "default"}:
        facts = {}
    if pa.types.is_list(wanted) and schema["items"].get("optional") is not True:
        facts["items"] = schema["items"]
    return {"type": schema["type"], **facts} if facts else None


def _is_nested(schema: Any) -> bool:
    """Whether a schema is of a nested type, and complete down to its innermost parts."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "struct":
        fields = schema.get("fields")
        return isinstance(fields, list) and all(
            isinstance(f, dict) and isinstance(f.get("field"), str) and _is_whole(f) for f in fields
        )
    if kind == "map":
        return _is_whole(schema.get("keys")) and _is_whole(schema.get("values"))
    return kind == "array" and _is_whole(schema.get("items"))


def _is_whole(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _is_nested(schema) or (isinstance(kind, str) and kind in _PRIMITIVES)


def _type(name: str, schema: Mapping[str, Any]) -> tuple[pa.DataType, tuple[Reading, ...]]:
    kind, logical = schema.get("type"), schema.get("name")
    if not isinstance(kind, str):
        raise SchemaError(f"field {name}: unknown type {json.dumps(kind)[:80]}")
    logical = logical if isinstance(logical, str) else None
    if kind == "array":
        items = _object(schema.get("items"), f"field {name}: the items of an array")
        item, readings = _type(name, items)
        if not readings or pa.types.is_list(item):
            return JSON, ()
        return pa.list_(item), tuple(r.in_list(item) for r in readings)
    if kind in ("struct", "map"):
        return JSON, ()
    if kind not in _PRIMITIVES:
        raise SchemaError(f"field {name}: unknown type {json.dumps(kind)}")
    primitive = _PRIMITIVES[kind]
    if logical == CONNECT + "Decimal":
        return _decimal(name, schema)
    if logical in LOGICAL and pa.types.is_integer(primitive):
        wanted = LOGICAL[logical]
        return wanted, (Reading(primitive, _in_unit(wanted), r"-?\d+\Z"),)
    if logical == DEBEZIUM + "time.ZonedTimestamp" and kind == "string":
        zoned = column(name, pa.timestamp("us", "UTC"))
        return zoned.type, tuple(r for r in zoned.readings if not pa.types.is_integer(r.parsed))
    if logical == DEBEZIUM + "data.Json" and kind == "string":
        return JSON, (Reading(pa.string(), _as_json, '"'),)
    plain = column(name, primitive)
    return plain.type, tuple(plain.readings)


def _decimal(name: str, schema: Mapping[str, Any]) -> tuple[pa.DataType, tuple[Reading, ...]]:
    parameters = _object(schema.get("parameters") or {}, f"field {name}: parameters")
    try:
        scale = int(parameters["scale"])
        precision = int(parameters.get("connect.decimal.precision", 38))
        wanted = pa.decimal128(min(max(precision, 1), 38), scale)
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"field {name}: a Decimal needs a whole number as scale") from error
    encoded = Reading(pa.string(), lambda a: duck.unscaled_decimals(a, wanted), r'"')
    (number,) = column(name, wanted).readings
    return wanted, (encoded, replace(number, pattern=r"-?\d"))


def _in_unit(wanted: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    if pa.types.is_time(wanted):
        return lambda array: time_of_day(array, wanted)
    width = pa.int32() if wanted.bit_width == 32 else pa.int64()
    return lambda array: array.cast(width).cast(wanted)


def _as_json(array: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(JSON, array)
