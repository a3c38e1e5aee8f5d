"""Columns to JSON as Confluent's JsonSchemaData writes it, nested ones too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters import json_duck, json_write
from semel.converters.bytestrings import unscaled

NULL = "null"


def write(values: pa.Array, *, numeric: bool) -> pa.Array:
    """Each value as JSON, binary.

    Args:
        numeric: decimals are numbers, not base64 (``decimal.format=NUMERIC``).
    """
    return _Writer(numeric).texts(values).cast(pa.binary())


class _Writer:
    def __init__(self, numeric: bool) -> None:
        self._numeric = numeric

    def texts(self, values: pa.Array) -> pa.Array:
        """The JSON of each value, which is ``null`` for null."""
        kind = values.type
        t = pa.types
        if t.is_dictionary(kind):
            return self.texts(values.dictionary_decode())
        if t.is_struct(kind):
            return self._or_null(values, self._struct)
        if t.is_map(kind):
            return self._or_null(values, self._map)
        if t.is_list(kind) or t.is_large_list(kind):
            return self._or_null(values, self._list)
        if t.is_decimal(kind) and not self._numeric:
            found = json_duck.base64_strings(unscaled(values.cast(_wide(kind))))
            return pc.if_else(values.is_valid(), found, NULL)
        if t.is_fixed_size_binary(kind) or t.is_large_binary(kind):
            values = values.cast(pa.binary())
        return json_write.texts(values, embedded=False)

    def _or_null(self, values: pa.Array, write: Any) -> pa.Array:
        if not values.null_count:
            return write(values)
        present = values.drop_null()
        if not len(present):
            return pa.repeat(NULL, len(values))
        texts = pa.repeat(pa.scalar(NULL), len(values))
        return pc.replace_with_mask(texts, values.is_valid(), write(present))

    def _struct(self, values: pa.StructArray) -> pa.Array:
        pieces: list[Any] = ["{"]
        for number, column in enumerate(values.flatten()):
            name = json_duck.quoted(values.type.field(number).name)
            pieces += [f"{',' if number else ''}{name}:", self.texts(column)]
        return json_write.joined([*pieces, "}"], len(values))

    def _list(self, values: pa.Array) -> pa.Array:
        return _together(values, "[", self.texts(values.flatten()), "]")

    def _map(self, values: pa.MapArray) -> pa.Array:
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        keys = values.keys[first:last]
        texts = self.texts(keys), self.texts(values.items[first:last])
        if pa.types.is_string(keys.type):
            entries = pc.binary_join_element_wise(*texts, ":")
            return _together(values, "{", entries, "}")
        pieces = ['{"key":', texts[0], ',"value":', texts[1], "}"]
        return _together(values, "[", json_write.joined(pieces, len(keys)), "]")


def _together(values: pa.Array, begin: str, texts: pa.Array, end: str) -> pa.Array:
    """The texts of the items of each list, none of which is null, between brackets."""
    lengths = np.diff(values.offsets.to_numpy())
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    inside = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return json_write.joined([begin, inside, end], len(values))


def _wide(kind: pa.DataType) -> pa.DataType:
    return pa.decimal128(min(kind.precision, 38), kind.scale)
