"""JSON text of structs, maps and lists of them to Arrow.

Converters keep such values as text, which is what SQL databases take. What is known about their
type is kept in the metadata of the field (``ARROW``, ``CONNECT`` of
:mod:`semel.converters.json.columns`), for sinks whose columns are nested.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json import duck
from semel.converters.json.columns import ARROW, CONNECT, JSON, Column, column, column_of
from semel.converters.json.connect_schema import (
    KEEPS_NULLS,
    SchemaError,
    item_column,
    struct_columns,
)
from semel.converters.json.infer import NULL, as_column
from semel.converters.json.read import NAME, ObjectReader, ScalarReader, Unreadable
from semel.converters.json.text import WHITESPACE, kind, place, shown, sort
from semel.converters.semantic import DECIMAL, TYPES, plain
from semel.core.quoting import named
from semel.core.records import list_offsets


class ValueReader(ABC):
    """Reads JSON values of one type. It remembers what it has seen, so it is not thread-safe."""

    type: pa.DataType

    def read(self, text: pa.Array) -> pa.Array:
        """Read a string array.

        Raises:
            Unreadable: some value is not of the type.
        """
        trimmed = pc.ascii_trim(text, characters=WHITESPACE)
        text = pc.if_else(pc.equal(trimmed, "null"), pa.scalar(None, pa.string()), trimmed)
        present = text.drop_null()
        if not len(present):
            return pa.nulls(len(text), self.type)
        rows = pc.indices_nonzero(text.is_valid()) if text.null_count else None
        try:
            return place(self._read(present), rows, len(text))
        except duck.errors() as error:
            raise Unreadable(str(error).splitlines()[0]) from None

    @abstractmethod
    def _read(self, text: pa.Array) -> pa.Array: ...


class _Value(ValueReader):
    """A value that is not nested, or a list of such values; also JSON text."""

    def __init__(self, column: Column) -> None:
        self._scalars = ScalarReader(column)
        self.type = _stored(column.type)

    def _read(self, text: pa.Array) -> pa.Array:
        values, failures = self._scalars.read(text)
        if failures:
            raise Unreadable(failures[0].message)
        return _storage(values)


class _Struct(ValueReader):
    def __init__(self, columns: Sequence[Column]) -> None:
        self._objects = ObjectReader(columns)
        self._nested = [nested_of(c.arrow_field) for c in columns]
        types = [
            n.type if n else _stored(c.type) for c, n in zip(columns, self._nested, strict=True)
        ]
        self._fields = [
            pa.field(c.name, t, not c.required) for c, t in zip(columns, types, strict=True)
        ]
        self.type = pa.struct(self._fields)

    def _read(self, text: pa.Array) -> pa.Array:
        values = sort(text)
        if values.others:
            raise _misfit(values.others[0][1], "an object")
        block = None
        if not self._objects.keeps_json:
            block = self._objects.parse(values.objects, only_known=True)
        if block is None:
            self._refuse_others(values.objects)
            block, failures = self._objects.read(values.objects)
            if failures:
                raise Unreadable(failures[0].message)
        arrays = [
            nested.read(_storage(array)) if nested else _storage(array)
            for nested, array in zip(self._nested, block.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=self._fields)

    def _refuse_others(self, text: pa.Array) -> None:
        """A field that the type lacks may only be null."""
        for name in sorted(duck.keys(text) - {f.name for f in self._fields}):
            if ObjectReader([as_column(name, NULL)]).parse(text) is None:
                raise Unreadable(f"it holds a field {named(name)}, which {self.type} lacks")


class _List(ValueReader):
    def __init__(self, item: ValueReader) -> None:
        self._item = item
        self.type = pa.list_(item.type)

    def _read(self, text: pa.Array) -> pa.Array:
        _check_begin(text, "[", "an array")
        lists = duck.elements(text)
        return pa.ListArray.from_arrays(list_offsets(lists), self._item.read(lists.flatten()))


class _Map(ValueReader):
    def __init__(self, key: pa.DataType, item: ValueReader) -> None:
        self._key = key
        self._item = item
        self.type = pa.map_(key, item.type)

    def _read(self, text: pa.Array) -> pa.Array:
        _check_begin(text, "{", "an object")
        names, lists = duck.entries(text)
        entries = pa.table({"row": pc.list_parent_indices(lists), "name": names})
        distinct = entries.group_by(["row", "name"], use_threads=False).aggregate([])
        if distinct.num_rows < len(names):
            raise Unreadable("it holds a name twice")
        values = self._item.read(lists.flatten())
        return pa.MapArray.from_arrays(list_offsets(lists), names.cast(self._key), values)


def nested_of(field: pa.Field) -> ValueReader | None:
    """How to read a field of JSON, if it is known what is inside and Arrow has a type for that."""
    metadata = field.metadata or {}
    if field.type != JSON:
        return None
    if CONNECT in metadata:
        return _of_connect(metadata[CONNECT])
    return _of_arrow(metadata[ARROW]) if ARROW in metadata else None


def is_typed(field: pa.Field) -> bool:
    """Whether the JSON of a field has parts whose type only their schema tells."""
    text = (field.metadata or {}).get(CONNECT)
    return text is not None and _names_types(text)


@lru_cache(maxsize=1000)
def _names_types(text: bytes) -> bool:
    return any(name.encode() in text for name in (DECIMAL, *TYPES))


def nested_as(target: pa.DataType) -> ValueReader | None:
    """The reader of JSON for a nested type."""
    return nested_of(column(NAME, target).arrow_field)


@lru_cache(maxsize=1000)
def _of_arrow(serialized: bytes) -> ValueReader | None:
    target = pa.ipc.read_schema(pa.py_buffer(serialized)).field(0).type
    if pa.types.is_struct(target):
        return _struct([column_of(f, required=not f.nullable) for f in target])
    if pa.types.is_map(target):
        item = _inner(column(NAME, target.item_type))
        return None if item is None else _Map(target.key_type, item)
    item = _inner(column(NAME, target.value_type))
    return None if item is None else _List(item)


@lru_cache(maxsize=1000)
def _of_connect(text: bytes) -> ValueReader | None:
    schema = json.loads(text)
    defaults = not schema.get(KEEPS_NULLS)
    try:
        if schema["type"] == "struct":
            return _struct(struct_columns(schema))
        if schema["type"] == "map":
            if (schema.get("keys") or {}).get("type") != "string":
                return None  # an array of pairs
            item = _inner(item_column(NAME, schema.get("values"), defaults=defaults))
            return None if item is None else _Map(pa.string(), item)
        item = _inner(item_column(NAME, schema.get("items"), defaults=defaults))
    except SchemaError:
        return None
    return None if item is None else _List(item)


def _struct(columns: Sequence[Column]) -> ValueReader | None:
    """Parquet has no empty structs, and lakes no names that differ only in case."""
    names = {c.name.lower() for c in columns}
    return _Struct(columns) if columns and len(names) == len(columns) else None


def _inner(column: Column) -> ValueReader | None:
    return nested_of(column.arrow_field) if column.known and column.raw else _Value(column)


def _stored(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind == JSON else kind


def _storage(array: pa.Array) -> pa.Array:
    array = plain(array)
    return array.storage if array.type == JSON else array


def _check_begin(text: pa.Array, character: str, what: str) -> None:
    other = pc.invert(pc.starts_with(text, character))
    if pc.any(other).as_py():
        raise _misfit(text.filter(other)[0].as_py(), what)


def _misfit(text: str, expected: str) -> Unreadable:
    return Unreadable(f"{shown(text)} is {kind(text)}, not {expected}")
