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
from semel.records import one_array

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
    found = {}
    for name, values in columns.items():
        if name in left_out:
            continue
        rows = _held(values, placeholder)
        if rows is not None and pc.any(rows).as_py():
            found[name] = pc.fill_null(rows, False).to_numpy()
    return found


def in_objects(texts: pa.ChunkedArray, placeholder: str) -> np.ndarray:
    """Which JSON objects hold the placeholder as the value of a field."""
    found = np.zeros(len(texts), np.bool_)
    some = pc.fill_null(pc.match_substring(texts, placeholder), False)
    forms = _in_json(placeholder)
    for row in pc.indices_nonzero(some).to_pylist():
        try:
            values = json.loads(texts[row].as_py()).values()
        except (ValueError, AttributeError, RecursionError):
            continue
        found[row] = any(_compact(value) in forms for value in values)
    return found


def without(values: pa.ChunkedArray, rows: np.ndarray) -> pa.ChunkedArray:
    """The values with nulls in some rows."""
    return values.take(pa.array(np.arange(len(values)), mask=rows))


def refusals(found: Mapping[str, np.ndarray], placeholder: str) -> dict[int, str]:
    """Why records are refused where no column can be left as it is, by row."""
    reasons: dict[int, str] = {}
    for name, rows in found.items():
        why = (
            f"field {name} holds {placeholder!r}: Debezium could not tell its value, and only an "
            "upsert or update in a SQL database can leave a column as it is. Let Debezium fetch it "
            f"(post.processors=reselect), or set {KEY} to a text that no value has, to write it"
        )
        for row in np.flatnonzero(rows).tolist():
            reasons.setdefault(row, why)
    return reasons


def _held(values: pa.ChunkedArray, placeholder: str) -> pa.ChunkedArray | None:
    """Whether each value is the placeholder; None for types that have none."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.chunked_array([c.storage for c in values.chunks], kind.storage_type)
        if isinstance(kind, pa.JsonType):
            return _one_of(storage, _in_json(placeholder))
        return _held(storage, placeholder)
    if is_.is_string(kind) or is_.is_large_string(kind):
        return pc.equal(values, placeholder)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return pc.equal(values, placeholder.encode())
    if is_.is_map(kind) and is_.is_string(kind.key_type) and is_.is_string(kind.item_type):
        lists = one_array(values).cast(
            pa.list_(pa.struct([("k", pa.string()), ("v", pa.string())]))
        )
        entries = [{"k": placeholder, "v": placeholder}]
        return pa.chunked_array([_lists_of(lists, entries)])
    if is_.is_list(kind) or is_.is_large_list(kind):
        lists, items = one_array(values), kind.value_type
        if is_.is_integer(items):
            return pa.chunked_array([_lists_of(lists, [_signed(b) for b in placeholder.encode()])])
        if is_.is_string(items):
            texts = [[placeholder], [_uuid(placeholder)]]
            first, second = (_lists_of(lists, text) for text in texts)
            return pa.chunked_array([pc.or_(first, second)])
        if is_.is_binary(items):
            return pa.chunked_array([_lists_of(lists, [placeholder.encode()])])
    return None


def _one_of(texts: pa.ChunkedArray, forms: Collection[str]) -> pa.ChunkedArray:
    return pc.and_(texts.is_valid(), pc.is_in(texts, pa.array(forms, texts.type)))


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


def _lists_of(lists: pa.Array, wanted: list[Any]) -> pa.Array:
    """Which lists hold exactly these items."""
    candidates = pc.equal(pc.list_value_length(lists), len(wanted))
    rows = pc.indices_nonzero(pc.fill_null(candidates, False))
    found = np.zeros(len(lists), np.bool_)
    for row in rows.to_pylist():
        found[row] = lists[row].as_py() == wanted
    return pa.array(found)
