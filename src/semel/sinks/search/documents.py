"""Arrow columns as the lines of a bulk request, many at a time, and the mapping of their types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.converters.json import duck

_SIMPLE = {
    pa.int8(): "byte",
    pa.uint8(): "short",
    pa.int16(): "short",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.uint64(): "unsigned_long",
    pa.bool_(): "boolean",
    pa.float16(): "float",
    pa.float32(): "float",
}
_AGAIN = 5
"""How often the server retries an update that conflicts with another one."""
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def documents(columns: Mapping[str, pa.Array], count: int, *, sparse: bool = False) -> pa.Array:
    """One JSON object per row; with ``sparse``, without the fields that are null in it."""
    if sparse and columns:
        there = [_member(name, values) for name, values in columns.items()]
        inner = pc.utf8_slice_codeunits(_joined(there, count), 1)  # without the first comma
        return _joined(["{", inner, "}"], count)
    pieces: list[Any] = ["{"]
    for name, values in columns.items():
        comma = "," if len(pieces) > 1 else ""
        pieces += [f"{comma}{duck.quoted(name)}:", text(values)]
    return _joined([*pieces, "}"], count)


def upserts(ids: pa.Array | None, versions: pa.Array | None, sources: pa.Array) -> pa.Array:
    """The two lines that index each document; without ``ids`` the server makes them."""
    if ids is None:
        return _joined(['{"index":{}}\n', sources, "\n"], len(sources))
    return _joined([*_action("index", ids, versions), sources, "\n"], len(sources))


def creates(ids: pa.Array | None, sources: pa.Array) -> pa.Array:
    """The two lines that append each document; without ``ids`` the server makes them."""
    action = ['{"create":{}}\n'] if ids is None else _action("create", ids, None)
    return _joined([*action, sources, "\n"], len(sources))


def updates(ids: pa.Array, sources: pa.Array) -> pa.Array:
    """The two lines that merge each document into the one that is there, if there is one."""
    action = ['{"update":{"_id":', ids, f',"retry_on_conflict":{_AGAIN}}}}}\n']
    return _joined([*action, '{"doc":', sources, ',"doc_as_upsert":true}\n'], len(sources))


def _member(name: str, values: pa.Array) -> pa.Array:
    """A field of an object, after a comma; empty where it is null."""
    if is_.is_struct(values.type):
        inner = dict(zip([f.name for f in values.type], values.flatten(), strict=True))
        found = documents(inner, len(values), sparse=True)
    else:
        found = text(values)
    return pc.if_else(values.is_valid(), _joined([f",{duck.quoted(name)}:", found], 0), "")


def deletes(ids: pa.Array, versions: pa.Array | None) -> pa.Array:
    """The line that deletes each document."""
    return _joined(_action("delete", ids, versions), len(ids))


def _action(verb: str, ids: pa.Array, versions: pa.Array | None) -> list[Any]:
    pieces: list[Any] = [f'{{"{verb}":{{"_id":', ids]
    if versions is not None:
        pieces += [',"version_type":"external","version":', versions.cast(pa.string())]
    return [*pieces, "}}\n"]


def requests(lines: pa.Array, most: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The bodies of bulk requests, each with the row that it begins with.

    One has at most ``most`` rows and, unless a single row is larger, ``size`` bytes. The texts
    are contiguous in Arrow's memory, so a body is a slice of it.
    """
    if not len(lines):
        return
    kind = np.int64 if is_.is_large_string(lines.type) else np.int32
    _, positions, memory = lines.buffers()
    ends = np.frombuffer(positions, kind)[lines.offset : lines.offset + len(lines) + 1]
    content = memoryview(memory)
    row = 0
    while row < len(lines):
        fitting = int(np.searchsorted(ends, int(ends[row]) + size, side="right")) - 1
        until = min(max(fitting, row + 1), row + most, len(lines))
        yield row, bytes(content[int(ends[row]) : int(ends[until])])
        row = until


def text(values: pa.Array) -> pa.Array:
    """The JSON text of each value, never null. Times are ISO 8601, bytes base64."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        found = _extension(values)
    elif is_.is_null(kind) or is_.is_integer(kind) or is_.is_boolean(kind) or is_.is_decimal(kind):
        found = values.cast(pa.string())
    elif is_.is_floating(kind):
        values = values.cast(pa.float32()) if is_.is_float16(kind) else values
        found = duck.numbers(pc.if_else(pc.is_finite(values), values, None))
    elif is_.is_string(kind) or is_.is_large_string(kind):
        found = duck.strings(values)
    elif is_.is_timestamp(kind):
        found = _quoted(_timestamps(values))
    elif is_.is_date(kind) or is_.is_time(kind):
        found = _quoted(values.cast(pa.string()))
    elif is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        found = duck.base64_strings(values.cast(pa.binary()))
    elif is_.is_dictionary(kind):
        return text(values.dictionary_decode())
    elif is_.is_struct(kind):
        names = [f.name for f in kind]
        inner = documents(dict(zip(names, values.flatten(), strict=True)), len(values))
        found = pc.if_else(values.is_valid(), inner, None)
    elif is_.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        found = _lists(values.cast(pa.list_(entry)), _members, "{}")
    elif is_.is_nested(kind):
        found = _lists(values.cast(pa.list_(kind.value_type)), text, "[]")
    else:
        found = duck.strings(values.cast(pa.string()))
    return pc.fill_null(found, "null")


def _extension(values: pa.Array) -> pa.Array:
    if isinstance(values.type, pa.UuidType):
        return duck.uuid_strings(values.storage)
    if not isinstance(values.type, pa.JsonType):
        return text(values.storage)
    found = values.storage.cast(pa.string())
    return pc.replace_substring(found, "\n", " ")  # white space: in a string it would be \n


def moments(values: pa.Array) -> pa.Array:
    """Times as a date field takes them: ISO 8601, milliseconds since 1970, or texts as they are."""
    return _timestamps(values) if is_.is_timestamp(values.type) else values.cast(pa.string())


def _timestamps(values: pa.Array) -> pa.Array:
    if values.type.tz not in (None, "UTC"):
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    return pc.replace_substring(values.cast(pa.string()), " ", "T")


def _lists(values: pa.Array, inner: Callable[[pa.Array], pa.Array], brackets: str) -> pa.Array:
    """Each list as text: its values, written by ``inner``, in brackets."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    parts = pa.ListArray.from_arrays(pa.array(offsets), inner(pc.list_flatten(values)))
    joined = _joined([brackets[0], pc.binary_join(parts, ","), brackets[1]], len(values))
    return pc.if_else(values.is_valid(), joined, None)


def _members(entries: pa.Array) -> pa.Array:
    keys, values = entries.flatten()
    names = text(keys) if is_.is_string(keys.type) else _quoted(keys.cast(pa.string()))
    return _joined([names, ":", text(values)], len(entries))


def _quoted(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', values, '"', "")


def _joined(pieces: Sequence[Any], rows: int) -> pa.Array:
    if not any(isinstance(p, pa.Array) for p in pieces):
        return pa.repeat("".join(pieces), rows)
    return pc.binary_join_element_wise(*pieces, "")


def properties(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """The mapping of fields; the server chooses the types of those whose Arrow type does not decide
    it."""
    found = {f.name: _property(f.type) for f in fields}
    return {name: kind for name, kind in found.items() if kind}


def _property(kind: pa.DataType) -> dict[str, Any] | None:
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if isinstance(kind, pa.BaseExtensionType):
        return {"type": "keyword"} if isinstance(kind, pa.UuidType) else None
    if is_.is_dictionary(kind):
        return _property(kind.value_type)
    if is_.is_floating(kind) or is_.is_decimal(kind):
        return {"type": "double"}
    if is_.is_string(kind) or is_.is_large_string(kind):
        return dict(_TEXT)
    if is_.is_timestamp(kind) or is_.is_date(kind):
        return {"type": "date"}
    if is_.is_time(kind):
        return {"type": "keyword"}
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return {"type": "binary"}
    if is_.is_struct(kind):
        return {"properties": properties(kind)}
    if is_.is_map(kind):
        return {"type": "object"}
    return _property(kind.value_type) if is_.is_nested(kind) else None
