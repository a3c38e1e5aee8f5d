"""The schemas that Debezium finds in JSON, where a payload of text becomes an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

_INT32 = 2**31


def schema_of(name: str, values: Sequence[Any], *, nulls_as_bytes: bool) -> Schema | None:
    """Kafka Connect's schema that fits all values; None if they are null, or empty arrays.

    Raises:
        ValueError: they are of several types.
    """
    present = [v for v in values if v is not None]
    if not present:
        return {"type": "bytes", "optional": True} if nulls_as_bytes else None
    kinds = {_kind(v) for v in present}
    if len(kinds) > 1 and kinds != {"int32", "int64"}:
        raise ValueError(f"{name} is {' and '.join(sorted(kinds))}")
    kind = max(kinds)
    made: Schema = {"type": kind, "optional": True}
    if kind == "array":
        items = [item for value in present for item in value]
        inside = schema_of(name, items, nulls_as_bytes=nulls_as_bytes) if items else None
        return inside and {**made, "items": inside}
    if kind == "struct":
        names = dict.fromkeys(n for value in present for n in value)
        fields = []
        for n in names:
            held = [value.get(n) for value in present if n in value]
            inside = schema_of(f"{name}.{n}", held, nulls_as_bytes=nulls_as_bytes)
            if inside is not None:
                fields.append({**inside, "field": n})
        return {**made, "name": name, "fields": fields}
    return made


def fitted(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value without the fields that its schema lacks."""
    if isinstance(value, list):
        return [fitted(item, schema["items"]) for item in value]
    if isinstance(value, dict):
        known = {f["field"]: f for f in schema["fields"]}
        return {n: fitted(v, known[n]) for n, v in value.items() if n in known}
    return value


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "int32" if -_INT32 <= value < _INT32 else "int64"
        case float():
            return "double"
        case str():
            return "string"
        case list():
            return "array"
    return "struct"
