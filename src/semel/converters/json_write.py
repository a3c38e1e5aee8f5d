"""Columns to JSON, many at a time, as Kafka Connect's JsonConverter writes them.

Dates are days, times of day and timestamps milliseconds, bytes base64; what is no number in JSON is
null. DuckDB writes the texts; JSON that was kept as text is put in as it is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters import json_duck
from semel.converters.json_columns import JSON
from semel.errors import ConfigError

_CONNECT = "org.apache.kafka.connect.data."
_PLAIN = (pa.types.is_null, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
_INTEGERS = {pa.int8(): "int8", pa.int16(): "int16", pa.int32(): "int32", pa.uint8(): "int16"}
_INTEGERS |= {pa.uint16(): "int32"}


def encode(values: pa.Array, *, envelope: bool) -> pa.Array:
    """Each value as JSON, binary: structs as objects, others as they are; null where null.

    With ``envelope`` in ``{"schema":..., "payload":...}``.
    """
    if pa.types.is_struct(values.type):
        names = [json_duck.quoted(f.name) for f in values.type]
        pieces: list[Any] = ["{"]
        for number, (name, column) in enumerate(zip(names, values.flatten(), strict=True)):
            pieces += [f"{',' if number else ''}{name}:", texts(column, embedded=not envelope)]
        text = joined([*pieces, "}"], len(values))
    else:
        text = texts(values, embedded=not envelope)
    if envelope:
        struct = pa.types.is_struct(values.type)
        schema = (
            _struct(values.type) if struct else {**_type("value", values.type), "optional": False}
        )
        begin = _compact(schema)
        text = joined([f'{{"schema":{begin},"payload":', text, "}"], len(values))
    if values.null_count:
        text = pc.if_else(values.is_null(), None, text)
    return text.cast(pa.binary())


def joined(pieces: Sequence[Any], rows: int) -> pa.Array:
    """Texts of each value, and those of all, behind one another."""
    if not any(isinstance(p, pa.Array) for p in pieces):
        return pa.repeat("".join(pieces), rows)
    return pc.binary_join_element_wise(*pieces, "")


def texts(values: pa.Array, *, embedded: bool) -> pa.Array:
    """The JSON text of each value, never null; JSON itself is ``embedded``, or becomes a string."""
    kind = values.type
    kinds = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        values = values.storage
        text = values.cast(pa.string()) if embedded else json_duck.strings(values)
    elif (
        kinds.is_null(kind)
        or kinds.is_integer(kind)
        or kinds.is_boolean(kind)
        or kinds.is_decimal(kind)
    ):
        text = values.cast(pa.string())
    elif kinds.is_floating(kind):
        text = json_duck.numbers(pc.if_else(pc.is_finite(values), values, None))
    elif kinds.is_string(kind) or kinds.is_large_string(kind):
        text = json_duck.strings(values)
    elif kinds.is_binary(kind):
        text = json_duck.base64_strings(values)
    elif kinds.is_timestamp(kind):
        text = values.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).cast(pa.string())
    elif kinds.is_date(kind):
        text = values.cast(pa.date32()).cast(pa.int32()).cast(pa.string())
    elif kinds.is_time(kind):
        text = values.cast(pa.time32("ms"), safe=False).cast(pa.int32()).cast(pa.string())
    elif kinds.is_dictionary(kind):
        return texts(values.dictionary_decode(), embedded=embedded)
    else:
        plain = [None if v is None else _compact(_plain(v)) for v in values.to_pylist()]
        text = pa.array(plain, pa.string())
    return pc.fill_null(text, "null")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A nested value in JSON's types."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        pairs = value and all(isinstance(v, tuple) for v in value)
        return {str(k): _plain(v) for k, v in value} if pairs else [_plain(v) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and not (-1e309 < value < 1e309):
        return None
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


def _struct(kind: pa.StructType) -> dict[str, Any]:
    fields = [{"field": f.name, "optional": True, **_type(f.name, f.type)} for f in kind]
    return {"type": "struct", "optional": False, "fields": fields}


_LOGICAL: Sequence[tuple[Callable[[pa.DataType], bool], dict[str, Any]]] = (
    (pa.types.is_timestamp, {"type": "int64", "name": _CONNECT + "Timestamp", "version": 1}),
    (pa.types.is_date, {"type": "int32", "name": _CONNECT + "Date", "version": 1}),
    (pa.types.is_time, {"type": "int32", "name": _CONNECT + "Time", "version": 1}),
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_float32, {"type": "float"}),
    (pa.types.is_floating, {"type": "double"}),
    (pa.types.is_binary, {"type": "bytes"}),
    (pa.types.is_string, {"type": "string"}),
    (pa.types.is_large_string, {"type": "string"}),
    (pa.types.is_null, {"type": "string"}),
)


def _type(name: str, kind: pa.DataType) -> dict[str, Any]:
    if kind == JSON:
        return {"type": "string", "name": "io.debezium.data.Json", "version": 1}
    if pa.types.is_integer(kind):
        return {"type": _INTEGERS.get(kind, "int64")}
    if pa.types.is_decimal(kind):
        scale = {"scale": str(kind.scale)}
        return {"type": "bytes", "name": _CONNECT + "Decimal", "version": 1, "parameters": scale}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "items": {"optional": True, **_type(name, kind.value_type)}}
    for matches, found in _LOGICAL:
        if matches(kind):
            return found
    raise ConfigError(
        f"field {name}: {kind} has no place in Kafka Connect's schemas. Let the transform change "
        "it, or set value.converter.schemas.enable=false"
    )
