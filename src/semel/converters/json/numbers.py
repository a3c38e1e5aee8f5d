"""Fields of plain JSON that hold whole numbers and fractions: JSON text, as no other type tells 1
from 1.0. Their metadata says what they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json import duck
from semel.converters.json.columns import JSON, column
from semel.converters.json.read import NAME, ScalarReader
from semel.converters.json.write import Writer

MIXED: Mapping[bytes, bytes] = {b"semel.numbers": b"1"}
_INT64 = r"-?[0-9]{1,18}"
_ITEM = rf"\s*(?:null|{_INT64})\s*"
_WHOLE = rf"^(?:{_INT64}|\[\s*(?:{_ITEM}(?:,{_ITEM})*)?\])$"
_HAS_WHOLE = r"(^|[\[,])\s*-?[0-9]+\s*([,\]]|$)"
_WRITER = Writer(embedded=True, numeric=True)
_NULL, _FRACTION, _WHOLE_NUMBER = range(3)


def is_mixed(field: pa.Field) -> bool:
    """Whether a field holds whole numbers and fractions, or lists of them."""
    return bool(field.type == JSON and MIXED.items() <= (field.metadata or {}).items())


def as_written(values: pa.Array, field: pa.Field, text: pa.Array) -> tuple[pa.Field, pa.Array]:
    """A field of fractions, as it is if none was written as a whole number. ``text`` are the
    objects that it was read from."""
    is_list = pa.types.is_list(values.type)
    items = values.flatten() if is_list else values
    if not pa.types.is_floating(items.type):
        return field, values
    whole = pc.fill_null(pc.equal(items, pc.floor(items)), False)
    if not pc.any(whole).as_py():
        return field, values
    rows = pc.indices_nonzero(whole)
    if is_list:
        rows = pc.unique(pc.list_parent_indices(values).take(rows))
    if not _may_have_whole(text.take(rows), field.name):
        return field, values
    (written,) = duck.raw(text.take(rows), [field.name])
    integer = pc.fill_null(pc.match_substring_regex(written, _HAS_WHOLE), False)
    if not pc.any(integer).as_py():
        return field, values
    is_whole = np.zeros(len(text), np.bool_)
    is_whole[rows.filter(integer).to_numpy()] = True
    texts = pc.if_else(values.is_valid(), _WRITER.texts(values), pa.scalar(None, pa.string()))
    texts = pc.replace_with_mask(texts, pa.array(is_whole), written.filter(integer))
    mixed = pa.field(field.name, JSON, field.nullable, MIXED)
    return _as_one_kind(mixed, pa.ExtensionArray.from_storage(JSON, texts), mixed=True)


def _may_have_whole(text: pa.Array, name: str) -> bool:
    """Whether a field of some objects may be written as a whole number, or a list of numbers."""
    pattern = rf'\\|"{re.escape(name)}"\s*:\s*(\[|-?[0-9]+\s*[,}}])'
    return bool(pc.any(pc.match_substring_regex(text, pattern)).as_py())


def fractions(field: pa.Field, values: pa.Array) -> tuple[pa.Field, pa.Array]:
    """A field that holds both, as fractions."""
    text = values.storage
    is_list = pc.any(pc.starts_with(text, "[")).as_py()
    return _as(field, text, pa.list_(pa.float64()) if is_list else pa.float64())


def of_one_kind(field: pa.Field, values: pa.Array) -> tuple[pa.Field, pa.Array]:
    """A field that may hold both, as whole numbers if it holds nothing else, or else as
    fractions."""
    return _as_one_kind(field, values, mixed=False)


def _as_one_kind(field: pa.Field, values: pa.Array, *, mixed: bool) -> tuple[pa.Field, pa.Array]:
    text = values.storage
    if not pc.all(pc.match_substring_regex(text, _WHOLE)).as_py():
        return (field, values) if mixed else fractions(field, values)
    is_list = pc.any(pc.starts_with(text, "[")).as_py()
    return _as(field, text, pa.list_(pa.int64()) if is_list else pa.int64())


def _as(field: pa.Field, text: pa.Array, kind: pa.DataType) -> tuple[pa.Field, pa.Array]:
    text = pc.fill_null(text, "null")
    values, failures = ScalarReader(column(NAME, kind)).read(text)
    assert not failures, failures[0]
    return pa.field(field.name, kind, field.nullable), values


Change = Callable[[pa.Field, pa.Array], tuple[pa.Field, pa.Array]]


def holds_mixed(kind: pa.DataType) -> bool:
    """Whether structs of a type have fields that hold both, at any depth."""
    return pa.types.is_struct(kind) and any(is_mixed(f) or holds_mixed(f.type) for f in kind)


def changed(values: pa.Array, change: Change) -> pa.Array:
    """Structs with other forms of the fields that hold both, at any depth."""
    if not holds_mixed(values.type):
        return values
    columns = [
        change(f, array) if is_mixed(f) else _kept(f, changed(array, change))
        for f, array in zip(values.type, values.flatten(), strict=True)
    ]
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(
        [a for _, a in columns], fields=[f for f, _ in columns], mask=mask
    )


def _kept(field: pa.Field, values: pa.Array) -> tuple[pa.Field, pa.Array]:
    return field.with_type(values.type), values


def mixed(values: pa.Array) -> Iterator[pa.Array]:
    """The fields of structs that hold both, at any depth."""
    if not holds_mixed(values.type):
        return
    for f, array in zip(values.type, values.flatten(), strict=True):
        if is_mixed(f):
            yield array
        else:
            yield from mixed(array)


def patterns(fields: Sequence[pa.Array], *, most: int) -> np.ndarray | None:
    """A number for each row, equal where each field holds numbers of one kind only; None if there
    would be too many of them."""
    kinds = np.stack([_kinds(values) for values in fields], axis=1)
    rows, labels = np.unique(kinds, axis=0, return_inverse=True)
    groups: list[np.ndarray] = []
    places = np.zeros(len(rows), np.int64)
    for number, row in enumerate(rows):
        alike = (n for n, g in enumerate(groups) if not ((g != row) & (g > 0) & (row > 0)).any())
        place = next(alike, len(groups))
        if place == most:
            return None
        if place == len(groups):
            groups.append(row.copy())
        groups[place] = np.maximum(groups[place], row)
        places[number] = place
    group_numbers: np.ndarray = places[labels.reshape(-1)]
    return group_numbers


def _kinds(values: pa.Array) -> np.ndarray:
    text = values.storage
    whole = pc.fill_null(pc.match_substring_regex(text, _WHOLE), False)
    kinds = pc.if_else(whole, _WHOLE_NUMBER, _FRACTION)
    return np.asarray(pc.if_else(text.is_valid(), kinds, _NULL)).astype(np.int8)
