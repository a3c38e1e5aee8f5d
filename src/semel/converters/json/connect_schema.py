"""Kafka Connect's schemas, as its JsonConverter writes them, to columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import check_size
from semel.converters.json import duck
from semel.converters.json.columns import CONNECT as SCHEMA
from semel.converters.json.columns import JSON, Column, Notation, column
from semel.converters.json.text import HIDDEN
from semel.converters.semantic import (
    DECIMAL,
    PRIMITIVES,
    WRITTEN,
    SemanticReader,
    decimal_type,
    metadata,
    semantic,
    semantic_facts,
    semantic_struct,
)
from semel.core.quoting import all_named, named
from semel.core.records import is_absence, list_offsets


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
    try:
        schema = _object(json.loads(text), "the schema")
        check_size(schema, _parts)
    except RecursionError:
        raise SchemaError("its fields are nested too deeply") from None
    except ValueError as error:
        raise SchemaError(str(error)) from None
    if not defaults:
        schema = {**schema, KEEPS_NULLS: True}
    facts = facts_of(schema)
    if schema.get("optional") is True:
        facts["optional"] = True
    semantic_type = semantic_struct(schema) if schema.get("type") == "struct" else None
    is_one = semantic_type is not None and not pa.types.is_struct(semantic_type.type)
    if schema.get("type") != "struct" or is_one:
        value = _column(value_name, schema, required=False, defaults=defaults)
        return ConnectSchema(None, value, facts)
    return ConnectSchema(struct_columns(schema), None, facts)


def _parts(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = schema.get("fields")
    inside = [schema.get(name) for name in ("items", "keys", "values")]
    parts = [*inside, *(fields if isinstance(fields, list) else ())]
    return [part for part in parts if isinstance(part, dict)]


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
        if is_absence(name):
            raise SchemaError(HIDDEN)
        required = field.get("optional") is not True
        columns.append(_column(name, field, required=required, defaults=defaults))
    names = [c.name for c in columns]
    if len(set(names)) < len(names):
        raise SchemaError(f"duplicate field names in {all_named(names)}")
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
    target, readings = _type(name, schema)
    kept = None
    if not readings and _is_nested(schema):
        kept = schema if defaults else {**schema, KEEPS_NULLS: True}
    elif readings:
        kept = _beyond(schema, target)
    field_metadata = {SCHEMA: json.dumps(kept).encode()} if kept else {}
    field_metadata |= metadata(semantic_facts(schema)) or {} if readings else {}
    items = schema["items"] if pa.types.is_list(target) else {"optional": True}
    item = items.get("default") if defaults else None
    return Column(
        name,
        target,
        readings,
        required,
        default=text,
        known=field_metadata or None,
        required_items=items.get("optional") is not True,
        item_default=None if item is None else json.dumps(item),
    )


def _beyond(schema: Mapping[str, Any], target: pa.DataType) -> Mapping[str, Any] | None:
    """What a schema says beyond the Arrow type, if anything."""
    facts = facts_of(schema)
    own = pa.types.is_decimal(target) or (facts.get("name") in WRITTEN and target != JSON)
    precise = "connect.decimal.precision" in facts.get("parameters", ())
    if own and not precise and not facts.keys() & {"doc", "default"}:
        facts = {}
    if pa.types.is_list(target) and schema["items"].get("optional") is not True:
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
    return _is_nested(schema) or (isinstance(kind, str) and kind in PRIMITIVES)


def _type(name: str, schema: Mapping[str, Any]) -> tuple[pa.DataType, tuple[Notation, ...]]:
    kind = schema.get("type")
    if not isinstance(kind, str):
        raise SchemaError(f"field {named(name)}: unknown type {json.dumps(kind)[:80]}")
    if kind == "array":
        items = _object(schema.get("items"), f"field {named(name)}: the items of an array")
        item, readings = _type(name, items)
        if not readings or pa.types.is_list(item):
            return JSON, ()
        return pa.list_(item), tuple(r.in_list(item) for r in readings)
    if kind in ("struct", "map"):
        logical = semantic_struct(schema) if kind == "struct" else None
        return (JSON, ()) if logical is None else (logical.type, _written_as_struct(logical))
    if kind not in PRIMITIVES:
        raise SchemaError(f"field {named(name)}: unknown type {json.dumps(kind)}")
    primitive = PRIMITIVES[kind]
    if schema.get("name") == DECIMAL and kind == "bytes":
        return _decimal(name, schema)
    logical = semantic(schema.get("name"), primitive)
    if logical is not None and logical.type != primitive:
        return logical.type, (_written(logical, primitive),)
    plain = column(name, primitive)
    if pa.types.is_floating(primitive):
        return primitive, (*plain.readings, Notation(pa.string(), _named(primitive), _NO_NUMBER))
    return plain.type, tuple(plain.readings)


def _written(logical: SemanticReader, wire: pa.DataType | None = None) -> Notation:
    """How values of a semantic type are written in JSON."""
    wire = wire or logical.wire
    if pa.types.is_integer(wire):
        pattern = r"-?\d+\Z"
    else:
        pattern = r"\{" if pa.types.is_struct(wire) else '"'
    parsed = _in_json(wire)
    return Notation(parsed, lambda a: logical.read(_from_json(a, logical.wire)), pattern)


_PAIRS, _ENTRIES = pa.list_(pa.list_(pa.float64())), r'\{(?=.*\{\s*"(key|value)")'
"""How JsonConverter and JsonSchemaConverter write maps whose keys are numbers."""


def _written_as_struct(logical: SemanticReader) -> tuple[Notation, ...]:
    if not any(pa.types.is_map(f.type) for f in logical.wire):
        return (_written(logical),)
    pairs = replace(_written(logical), pattern=r'\{(?!.*\{\s*"(key|value)")')
    parsed = pa.struct(
        [
            (f.name, pa.list_(_entry(f.type)) if pa.types.is_map(f.type) else _in_json(f.type))
            for f in logical.wire
        ]
    )
    return pairs, Notation(parsed, lambda a: logical.read(_from_json(a, logical.wire)), _ENTRIES)


def _entry(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)])


def _in_json(wire: pa.DataType) -> pa.DataType:
    """The type of the JSON of a type: bytes are base64, maps are lists of pairs."""
    if pa.types.is_struct(wire):
        return pa.struct([(f.name, _in_json(f.type)) for f in wire])
    if pa.types.is_map(wire):
        return _PAIRS
    return pa.string() if wire == pa.binary() else wire


def _from_json(array: pa.Array, wire: pa.DataType) -> pa.Array:
    if pa.types.is_struct(wire):
        parts = [_from_json(a, f.type) for a, f in zip(array.flatten(), wire, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(wire), mask=mask)
    if pa.types.is_map(wire):
        pairs = array.flatten()
        if pa.types.is_struct(pairs.type):
            keys, items = pairs.flatten()
        elif not pc.all(pc.equal(pc.list_value_length(pairs), 2)).as_py() and len(pairs):
            raise ValueError("a map whose entries are not pairs")
        else:
            keys, items = pairs.flatten()[::2], pairs.flatten()[1::2]
        keys, mask = keys.cast(wire.key_type), array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(list_offsets(array), keys, items, type=wire, mask=mask)
    return duck.from_base64(array) if wire == pa.binary() else array


_NO_NUMBER = r'"(NaN|-?Infinity)"'


def _named(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Floats that JSON has no number for, which Kafka Connect writes as text."""

    def finish(texts: pa.Array) -> pa.Array:
        if not pc.all(
            pc.is_in(texts.drop_null(), pa.array(["NaN", "Infinity", "-Infinity"]))
        ).as_py():
            raise pa.ArrowInvalid("a text that is not NaN or an infinity")
        return texts.cast(target)

    return finish


def _decimal(name: str, schema: Mapping[str, Any]) -> tuple[pa.DataType, tuple[Notation, ...]]:
    parameters = _object(schema.get("parameters") or {}, f"field {named(name)}: parameters")
    try:
        target = decimal_type(parameters)
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(
            f"field {named(name)}: a Decimal needs a whole number from -38 to 38 as scale"
        ) from error
    encoded = Notation(pa.string(), lambda a: duck.unscaled_decimals(a, target), r'"')
    (number,) = column(name, target).readings
    return target, (encoded, replace(number, pattern=r"-?\d"))
