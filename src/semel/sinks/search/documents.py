"""Arrow columns as the lines of a bulk request, many at a time, and the mapping of their types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as is_

from semel.converters.json.infer import DATE, TIMESTAMP, kind_of
from semel.converters.json.write import joined
from semel.core.records import members

_TIME = re.compile(r"[0-9-]{10}(T[0-9:.]+(Z|[+-]\d\d:\d\d)?)?")
_LOOKED_AT = 100
"""How many texts decide about the type of their field."""
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


def upserts(ids: pa.Array | None, versions: pa.Array | None, sources: pa.Array) -> pa.Array:
    """The two lines that index each document; without ``ids`` the server makes them."""
    if ids is None:
        return joined(['{"index":{}}\n', sources, "\n"], len(sources))
    return joined([*_action("index", ids, versions), sources, "\n"], len(sources))


def creates(ids: pa.Array | None, sources: pa.Array) -> pa.Array:
    """The two lines that append each document; without ``ids`` the server makes them."""
    action = ['{"create":{}}\n'] if ids is None else _action("create", ids, None)
    return joined([*action, sources, "\n"], len(sources))


def updates(ids: pa.Array, sources: pa.Array) -> pa.Array:
    """The two lines that merge each document into the one that is there, if there is one."""
    action = ['{"update":{"_id":', ids, f',"retry_on_conflict":{_AGAIN}}}}}\n']
    return joined([*action, '{"doc":', sources, ',"doc_as_upsert":true}\n'], len(sources))


def deletes(ids: pa.Array, versions: pa.Array | None) -> pa.Array:
    """The line that deletes each document."""
    return joined(_action("delete", ids, versions), len(ids))


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


def properties(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """The mapping of fields; the server chooses the types of those whose Arrow type does not decide
    it."""
    kinds = {f.name: _property(f.type) for f in fields}
    return {name: kind for name, kind in kinds.items() if kind}


def told(values: pa.Array) -> pa.DataType:
    """The type of values without a schema: a field that has only been null has none yet, and texts
    may all be times that a date field takes."""
    if values.null_count == len(values):
        return pa.null()
    if is_.is_string(values.type):
        texts = values.drop_null()[:_LOOKED_AT].to_pylist()
        dates = all(_TIME.fullmatch(t) and kind_of(t) in (DATE, TIMESTAMP) for t in texts)
        return pa.timestamp("ms") if dates else values.type
    if not is_.is_struct(values.type):
        return values.type
    return pa.struct([(field.name, told(inner)) for field, inner, _ in members(values)])


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
