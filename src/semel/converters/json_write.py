"""Columns to JSON, many at a time, as Kafka Connect's JsonConverter writes them.

Dates are days, times of day and timestamps milliseconds, bytes base64; what is no number in JSON is
null. DuckDB writes the texts; JSON that was kept as text is put in as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
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
    text = texts(values, embedded=not envelope)
    if envelope:
        schema = {**_type("value", values.type), "optional": False}
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
    elif kinds.is_fixed_size_binary(kind) or kinds.is_large_binary(kind):
        text = json_duck.base64_strings(values.cast(pa.binary()))
    else:
        text = _nested(values, embedded)
    return pc.fill_null(text, "null")


def _nested(values: pa.Array, embedded: bool) -> pa.Array:
    kind = values.type
    if pa.types.is_struct(kind):
        return _objects(values, embedded)
    if pa.types.is_map(kind):
        return _maps(values, embedded)
    if _is_list(kind):
        return _lists(values, texts(values.flatten(), embedded=embedded))
    plain = [None if v is None else str(v) for v in values.to_pylist()]
    return json_duck.strings(pa.array(plain, pa.string()))


def _objects(values: pa.StructArray, embedded: bool) -> pa.Array:
    pieces: list[Any] = ["{"]
    for number, (field, column) in enumerate(zip(values.type, values.flatten(), strict=True)):
        begin = f"{',' if number else ''}{json_duck.quoted(field.name)}:"
        pieces += [begin, texts(column, embedded=embedded)]
    return _where_valid(values, joined([*pieces, "}"], len(values)))


def _lists(values: pa.Array, items: pa.Array, ends: str = "[]") -> pa.Array:
    """Texts of lists, from those of their items."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy())])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)
    return _where_valid(values, joined([ends[0], pc.binary_join(lists, ","), ends[1]], len(values)))


def _maps(values: pa.MapArray, embedded: bool) -> pa.Array:
    """Objects, or lists of pairs where the keys are no strings."""
    kind = values.type
    entry = pa.struct([pa.field("key", kind.key_type, False), ("value", kind.item_type)])
    values = values.cast(pa.list_(entry))
    entries = values.flatten()
    key, value = (texts(column, embedded=embedded) for column in entries.flatten())
    if _is_text(kind.key_type):
        return _lists(values, joined([key, ":", value], len(entries)), "{}")
    return _lists(values, joined(["[", key, ",", value, "]"], len(entries)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _where_valid(values: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), text, None) if values.null_count else text


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_LOGICAL: Sequence[tuple[Callable[[pa.DataType], bool], dict[str, Any]]] = (
    (pa.types.is_timestamp, {"type": "int64", "name": _CONNECT + "Timestamp", "version": 1}),
    (pa.types.is_date, {"type": "int32", "name": _CONNECT + "Date", "version": 1}),
    (pa.types.is_time, {"type": "int32", "name": _CONNECT + "Time", "version": 1}),
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_float32, {"type": "float"}),
    (pa.types.is_floating, {"type": "double"}),
    (pa.types.is_binary, {"type": "bytes"}),
    (pa.types.is_large_binary, {"type": "bytes"}),
    (pa.types.is_fixed_size_binary, {"type": "bytes"}),
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
    if pa.types.is_struct(kind):
        fields = [{"field": f.name, **_optional(f.name, f.type)} for f in kind]
        return {"type": "struct", "fields": fields}
    if pa.types.is_map(kind):
        keys = {**_type(name, kind.key_type), "optional": False}
        return {"type": "map", "keys": keys, "values": _optional(name, kind.item_type)}
    if _is_list(kind):
        return {"type": "array", "items": _optional(name, kind.value_type)}
    for matches, found in _LOGICAL:
        if matches(kind):
            return found
    raise ConfigError(
        f"field {name}: {kind} has no place in Kafka Connect's schemas. Let the transform change "
        "it, or set value.converter.schemas.enable=false"
    )


def _optional(name: str, kind: pa.DataType) -> dict[str, Any]:
    return {"optional": True, **_type(name, kind)}
