"""Columns to JSON, many at a time, as Kafka Connect's JsonConverter writes them.

Dates are days, times of day and timestamps milliseconds, bytes base64; NaN and infinities are
texts. DuckDB writes the texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import LOW, key
from semel.converters.base import Unwritable
from semel.converters.binary import unscaled
from semel.converters.json import duck
from semel.converters.json.columns import JSON
from semel.converters.json.connect_schema import KEEPS_NULLS, facts_of
from semel.converters.semantic import (
    CONNECT,
    JSON_NAME,
    WRITTEN,
    as_sent,
    milliseconds,
    schema_in,
    suits,
)
from semel.core.quoting import named
from semel.core.records import members, without_absence

_PLAIN = (pa.types.is_null, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_INTEGERS = {pa.int8(): "int8", pa.int16(): "int16", pa.int32(): "int32", pa.uint8(): "int16"}
_INTEGERS |= {pa.uint16(): "int32"}


def _decimals(text: str) -> None:
    if text.upper() not in ("BASE64", "NUMERIC"):
        raise ValueError("must be BASE64 or NUMERIC")


@dataclass(frozen=True)
class DecimalKeys:
    """How decimals are written."""

    decimals: str = key(
        "decimal.format",
        "BASE64",
        "How decimals are written: BASE64 of the unscaled value, as in Kafka Connect, or "
        "NUMERIC. With a schema, both are read.",
        importance=LOW,
        group="Serialization",
        recommended=("BASE64", "NUMERIC"),
        validator=_decimals,
    )

    @property
    def numeric(self) -> bool:
        """Whether decimals are written as numbers."""
        return self.decimals.upper() == "NUMERIC"


def encode(
    values: pa.Array, *, envelope: bool, numeric: bool, facts: Mapping[str, Any] | None = None
) -> pa.Array:
    """Each value as JSON, binary: structs as objects, others as they are; null where null.

    Args:
        envelope: each value is wrapped in ``{"schema":..., "payload":...}``.
        numeric: decimals are numbers, see :class:`Writer`.
        facts: what the schema says of itself.
    """
    facts = facts or {}
    if envelope:
        values = as_sent(without_absence(values), facts)
    text = Writer(embedded=not envelope, numeric=numeric).texts(values)
    if envelope:
        if facts.get("name") not in WRITTEN and not suits(facts.get("name"), values.type):
            facts = {n: fact for n, fact in facts.items() if n not in ("name", "parameters")}
        schema = {**type_of("value", values.type), "optional": False, **facts}
        begin = _compact(schema)
        text = joined([f'{{"schema":{begin},"payload":', text, "}"], len(values))
    if values.null_count:
        text = pc.if_else(values.is_null(), None, text)
    return text.cast(pa.binary())


def objects(fields: Iterable[tuple[str, pa.Array, pa.Array | None]], rows: int) -> pa.Array:
    """JSON objects from their fields: name, texts, and which objects lack it; None if none does."""
    columns = [(f"{duck.quoted(name)}:", text, absent) for name, text, absent in fields]
    if all(absent is None for _, _, absent in columns):
        pieces = [piece for name, text, _ in columns for piece in (f",{name}", text)]
        pieces[:1] = [f"{{{pieces[0][1:]}"] if pieces else ["{"]
        return joined([*pieces, "}"], rows)
    members = [joined([f",{name}", text], rows) for name, text, _ in columns]
    for place, (_, _, absent) in enumerate(columns):
        if absent is not None:
            members[place] = pc.if_else(pc.fill_null(absent, False), "", members[place])
    inner = pc.utf8_slice_codeunits(joined(members, rows), 1)  # without the first comma
    return joined(["{", inner, "}"], rows)


def joined(pieces: Sequence[Any], rows: int) -> pa.Array:
    """Concatenate, for each value, its own texts and those that all values share."""
    if not any(isinstance(p, pa.Array) for p in pieces):
        return pa.repeat("".join(pieces), rows)
    return pc.binary_join_element_wise(*pieces, "")


@dataclass(frozen=True)
class Writer:
    """Writes the JSON texts of columns.

    Args:
        embedded: JSON that was kept as text is put in as it is; otherwise it becomes a string.
        numeric: decimals are numbers. Otherwise they are base64 of their unscaled number, whose
            scale only a schema tells (KIP-481).
        pairs: what surrounds keys and values of maps whose keys are not strings.
    """

    embedded: bool
    numeric: bool
    pairs: tuple[str, str, str] = ("[", ",", "]")

    def texts(self, values: pa.Array) -> pa.Array:
        """The JSON text of each value, ``null`` where it is null."""
        return pc.fill_null(self._texts(values), "null")

    def _texts(self, values: pa.Array) -> pa.Array:
        kind = values.type
        kinds = pa.types
        if isinstance(kind, pa.BaseExtensionType):
            values = values.storage
            return values.cast(pa.string()) if self.embedded else duck.strings(values)
        if kinds.is_decimal(kind) and not self.numeric:
            return _where_valid(values, duck.base64_strings(unscaled(values)))
        if any(plain(kind) for plain in _PLAIN):
            return values.cast(pa.string())
        if kinds.is_floating(kind):
            finite = pc.is_finite(values)
            numbers = duck.numbers(pc.if_else(finite, values, None))
            if pc.all(finite, min_count=0).as_py():
                return numbers
            return pc.if_else(pc.equal(finite, False), _named_floats(values), numbers)
        if kinds.is_string(kind) or kinds.is_large_string(kind):
            return duck.strings(values)
        if any(binary(kind) for binary in _BINARY):
            return duck.base64_strings(values.cast(pa.binary()))
        if kinds.is_timestamp(kind):
            return milliseconds(values).cast(pa.string())
        if kinds.is_date(kind):
            return values.cast(pa.date32()).cast(pa.int32()).cast(pa.string())
        if kinds.is_time(kind):
            return values.cast(pa.time32("ms"), safe=False).cast(pa.int32()).cast(pa.string())
        if kinds.is_dictionary(kind):
            return self._texts(values.dictionary_decode())
        return self._nested(values)

    def _nested(self, values: pa.Array) -> pa.Array:
        kind = values.type
        if pa.types.is_struct(kind):
            return self._objects(values)
        if pa.types.is_map(kind):
            return self._maps(values)
        if _is_list(kind):
            return _lists(values, self.texts(values.flatten()))
        plain = [None if v is None else str(v) for v in values.to_pylist()]
        return duck.strings(pa.array(plain, pa.string()))

    def _objects(self, values: pa.StructArray) -> pa.Array:
        fields = (
            (f.name, self.texts(a) if self.embedded else self._declared(f, a), absent)
            for f, a, absent in members(values)
        )
        return _where_valid(values, objects(fields, len(values)))

    def _declared(self, field: pa.Field, values: pa.Array) -> pa.Array:
        """The texts that the schema of a field describes, see :func:`_field`."""
        if field.type == JSON and _is_nested(schema_in(field)):
            return pc.fill_null(values.storage.cast(pa.string()), "null")
        return self.texts(values)

    def _maps(self, values: pa.MapArray) -> pa.Array:
        kind = values.type
        entry = pa.struct([pa.field("key", kind.key_type, False), ("value", kind.item_type)])
        values = values.cast(pa.list_(entry))
        entries = values.flatten()
        key, value = map(self.texts, entries.flatten())
        if _is_text(kind.key_type):
            return _lists(values, joined([key, ":", value], len(entries)), "{}")
        begin, between, end = self.pairs
        return _lists(values, joined([begin, key, between, value, end], len(entries)))


def _named_floats(values: pa.Array) -> pa.Array:
    """Those that JSON has no number for, as Jackson writes them."""
    infinite = pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(pc.is_nan(values), '"NaN"', infinite)


def _lists(values: pa.Array, items: pa.Array, ends: str = "[]") -> pa.Array:
    """Texts of lists, from those of their items."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy())])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)
    return _where_valid(values, joined([ends[0], pc.binary_join(lists, ","), ends[1]], len(values)))


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
    (pa.types.is_timestamp, {"type": "int64", "name": CONNECT + "Timestamp", "version": 1}),
    (pa.types.is_date, {"type": "int32", "name": CONNECT + "Date", "version": 1}),
    (pa.types.is_time, {"type": "int32", "name": CONNECT + "Time", "version": 1}),
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


def type_of(name: str, kind: pa.DataType) -> dict[str, Any]:
    """Kafka Connect's schema for a type, without what its field says.

    Raises:
        Unwritable: it has none; names the field.
    """
    if kind == JSON:
        return {"type": "string", "name": JSON_NAME, "version": 1}
    if pa.types.is_integer(kind):
        return {"type": _INTEGERS.get(kind, "int64")}
    if pa.types.is_decimal(kind):
        scale = {"scale": str(kind.scale)}
        return {"type": "bytes", "name": CONNECT + "Decimal", "version": 1, "parameters": scale}
    if pa.types.is_struct(kind):
        fields = [{"field": f.name, **_field(f.name, f)} for f in kind]
        return {"type": "struct", "fields": fields}
    if pa.types.is_map(kind):
        keys = {**type_of(name, kind.key_type), "optional": False}
        return {"type": "map", "keys": keys, "values": _field(name, kind.item_field)}
    if _is_list(kind):
        return {"type": "array", "items": _field(name, kind.value_field)}
    for matches, schema in _LOGICAL:
        if matches(kind):
            return schema
    raise Unwritable(
        f"field {named(name)}: Kafka Connect's schemas cannot represent {kind}. Let the transform "
        "convert it, or set value.converter.schemas.enable=false"
    )


def _field(name: str, field: pa.Field) -> dict[str, Any]:
    schema = _known(field)
    whole = field.type == JSON and _is_nested(schema)
    full = schema if whole else {**type_of(name, field.type), **schema}
    return {**full, "optional": field.nullable}


def _is_nested(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("struct", "array", "map")


def _known(field: pa.Field) -> dict[str, Any]:
    """What is known of a field from Kafka Connect's schema: all of it for JSON, and for others what
    its values are still written by."""
    schema = schema_in(field)
    if field.type == JSON and _is_nested(schema):
        return {n: v for n, v in schema.items() if n not in ("field", KEEPS_NULLS)}
    derived = type_of("", field.type) if schema and field.type != JSON else {}
    if derived and schema["type"] == derived["type"]:
        alike = derived.get("items", {}).get("type") == schema.get("items", {}).get("type")
        items = {"items": schema["items"]} if "items" in schema and alike else {}
        return {**facts_of(schema), **items}
    return {n: v for n, v in facts_of(schema).items() if n in ("doc", "parameters")}
