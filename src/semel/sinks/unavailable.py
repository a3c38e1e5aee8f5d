"""Values that a source could not tell: Debezium writes a placeholder where a database's log has no
value for a column that an update leaves as it is, such as a large text of PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.config import LOW, key
from semel.core.quoting import named
from semel.core.records import one_array

KEY = "unavailable.value.placeholder"
PLACEHOLDER = "__debezium_unavailable_value"


def placeholder_key() -> Any:
    """``unavailable.value.placeholder``, by Debezium's name for it."""
    return key(
        KEY,
        PLACEHOLDER,
        "What a change event has in place of a value that Debezium could not tell. An upsert or "
        "update leaves the column as it is; where that is impossible, the record is refused.",
        importance=LOW,
        group="Data Mapping",
    )


def unavailable(
    columns: Mapping[str, pa.ChunkedArray], left_out: Collection[str], placeholder: str
) -> dict[str, np.ndarray]:
    """Which rows hold the placeholder, for each column in which some do. ``left_out`` are columns
    that are not looked at."""
    rows_by_column = {}
    for name, values in columns.items():
        if name in left_out:
            continue
        rows = _held(one_array(values), placeholder)
        if rows is not None and rows.any():
            rows_by_column[name] = rows
    return rows_by_column


def in_objects(texts: pa.ChunkedArray, placeholder: str) -> np.ndarray:
    """Which JSON objects hold the placeholder as the value of a field."""
    matches = np.zeros(len(texts), np.bool_)
    some = pc.fill_null(pc.match_substring(texts, placeholder), False)
    forms = _in_json(placeholder)
    for row in pc.indices_nonzero(some).to_pylist():
        try:
            values = json.loads(texts[row].as_py()).values()
        except (ValueError, AttributeError, RecursionError):
            continue
        matches[row] = any(_compact(value) in forms for value in values)
    return matches


def without(values: pa.ChunkedArray, rows: np.ndarray) -> pa.ChunkedArray:
    """The values with nulls in some rows."""
    return values.take(pa.array(np.arange(len(values)), mask=rows))


def refusals(rows_by_column: Mapping[str, np.ndarray], placeholder: str) -> dict[int, str]:
    """Why records are refused where no column can be left as it is, by row."""
    reasons: dict[int, str] = {}
    for name, rows in rows_by_column.items():
        why = (
            f"field {named(name)} holds {placeholder!r}: Debezium could not tell its value, and "
            "only an upsert or update in a SQL database can leave a column as it is. Let Debezium "
            f"fetch it (post.processors=reselect), or set {KEY} to a text that no value has, to "
            "write it"
        )
        for row in np.flatnonzero(rows).tolist():
            reasons.setdefault(row, why)
    return reasons


def _held(values: pa.Array, placeholder: str) -> np.ndarray | None:
    """Whether each value is the placeholder; None for types that have none."""
    kind = values.type
    if isinstance(kind, pa.JsonType):
        return _among(values.storage, _in_json(placeholder))
    if isinstance(kind, pa.BaseExtensionType):
        return _held(values.storage, placeholder)
    if is_.is_string(kind) or is_.is_large_string(kind):
        return _among(values, [placeholder])
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return _among(values, [placeholder.encode()])
    if is_.is_map(kind) and is_.is_string(kind.key_type) and is_.is_string(kind.item_type):
        entry = pa.struct([("k", pa.string()), ("v", pa.string())])
        return _lists_of(values.cast(pa.list_(entry)), [{"k": placeholder, "v": placeholder}])
    if is_.is_list(kind) or is_.is_large_list(kind):
        items = kind.value_type
        if is_.is_integer(items):
            return _lists_of(values, [_signed(b) for b in placeholder.encode()])
        if is_.is_string(items):
            matches = _lists_of(values, [placeholder])
            matches[_lists_of(values, [_uuid(placeholder)])] = True
            return matches
        if is_.is_binary(items):
            return _lists_of(values, [placeholder.encode()])
    return None


def _among(texts: pa.Array, forms: Collection[str | bytes]) -> np.ndarray:
    """Which texts have one of these forms. Few have its length: only these are compared."""
    kind = texts.type
    wide = is_.is_large_string(kind) or is_.is_large_binary(kind)
    offsets = np.frombuffer(texts.buffers()[1], np.int64 if wide else np.int32)
    lengths = np.diff(offsets[texts.offset : texts.offset + len(texts) + 1])
    matches = np.zeros(len(texts), np.bool_)
    sizes = {len(f.encode() if isinstance(f, str) else f) for f in forms}
    likely = np.flatnonzero(
        np.isin(lengths, list(sizes)) if len(sizes) > 1 else lengths == min(sizes)
    )
    if len(likely):
        same = pc.is_in(texts.take(pa.array(likely)), pa.array(forms, kind))
        matches[likely] = same.to_numpy(zero_copy_only=False)
    return matches


def _in_json(placeholder: str) -> list[str]:
    """The placeholder as JSON, and in the forms that lists and maps have for it."""
    codes = [_signed(b) for b in placeholder.encode()]
    forms: list[Any] = [placeholder, {placeholder: placeholder}, [placeholder], codes]
    forms.append([_uuid(placeholder)])
    return [placeholder, *map(_compact, forms)]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _uuid(placeholder: str) -> str:
    """Java's ``UUID.nameUUIDFromBytes``, which Debezium writes into arrays of UUIDs."""
    digest = hashlib.md5(placeholder.encode(), usedforsecurity=False).digest()
    return str(uuid.UUID(bytes=digest, version=3))


def _lists_of(lists: pa.Array, expected: list[Any]) -> np.ndarray:
    """Which lists hold exactly these items."""
    matches = np.zeros(len(lists), np.bool_)
    right = pc.equal(pc.list_value_length(lists), len(expected))
    rows = pc.indices_nonzero(pc.fill_null(right, False))
    if len(rows):
        items = lists.take(rows).flatten()
        tiled = pa.array(expected, items.type).take(
            pa.array(np.tile(np.arange(len(expected)), len(rows)))
        )
        parts = [(items, tiled)]
        if is_.is_struct(items.type):
            parts = list(zip(items.flatten(), tiled.flatten(), strict=True))
        same = np.ones(len(items), np.bool_)
        for actual, target in parts:
            same &= pc.fill_null(pc.equal(actual, target), False).to_numpy(zero_copy_only=False)
        matches[rows.to_numpy()] = same.reshape(-1, len(expected)).all(axis=1)
    return matches
