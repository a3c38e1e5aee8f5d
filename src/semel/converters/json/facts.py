"""What the metadata of a field says of its schema beyond the Arrow type: a name, a version, a
default, a description."""

from __future__ import annotations

import json
from functools import lru_cache

import pyarrow as pa

from semel.converters.json.columns import CONNECT, JSON
from semel.converters.json.connect_schema import SchemaError, facts_of, struct_columns
from semel.converters.json.read import NAME, ScalarReader
from semel.converters.json.write import Writer, type_of
from semel.converters.semantic import as_sent, facts_for, metadata, schema_in, sent_as
from semel.core.records import Facts


def facts_in(field: pa.Field) -> Facts:
    """What the schema of a field says of itself."""
    return facts_of(schema_in(field))


def facts_as_whole(field: pa.Field) -> Facts:
    """The same for values that leave their field and become the whole key or value."""
    return {**facts_in(field), "optional": field.nullable}


def described(field: pa.Field, facts: Facts) -> pa.Field:
    """A field whose schema says this of itself."""
    items = {"items": facts["items"]} if "items" in facts and pa.types.is_list(field.type) else {}
    facts = {**facts_of(facts), **items}
    if not facts:
        return field.remove_metadata()
    wire = sent_as(field.type, facts)
    kind = {"type": "struct"} if pa.types.is_struct(wire) else type_of("", wire)
    semantic_metadata = metadata(facts_for(field.type, facts)) or {}
    return field.with_metadata({CONNECT: json.dumps({**kind, **facts}), **semantic_metadata})


def renamed(field: pa.Field, name: str) -> pa.Field:
    """A field whose schema has another name."""
    schema = schema_in(field)
    if not schema:
        return described(field, {"name": name})
    return field.with_metadata({CONNECT: json.dumps({**schema, "name": name})})


def default_of(field: pa.Field) -> pa.Scalar | None:
    """The default that the schema of a field declares. None if there is none, or if the field is
    of another type by now."""
    schema = (field.metadata or {}).get(CONNECT)
    default = _default(schema) if schema else None
    return default if default is not None and default.type == field.type else None


def with_default(field: pa.Field, default: pa.Scalar) -> pa.Field:
    """A field with a default of its type."""
    writer = Writer(embedded=True, numeric=False)
    values = as_sent(pa.array([default], field.type), schema_in(field))
    text = writer.texts(values)[0].as_py()
    return described(field, {**facts_in(field), "default": json.loads(text)})


@lru_cache(maxsize=1000)
def _default(serialized: bytes) -> pa.Scalar | None:
    schema = json.loads(serialized)
    if schema.get("default") is None:
        return None
    text = json.dumps(schema["default"])
    try:
        (declared,) = struct_columns({"fields": [{**schema, "field": NAME, "optional": True}]})
    except SchemaError:
        return None
    if declared.raw:
        return pa.ExtensionArray.from_storage(JSON, pa.array([text]))[0]
    values, failures = ScalarReader(declared).read(pa.array([text]))
    return None if failures else values[0]
