"""JSON values that are not objects: ``1``, ``"abc"``, ``true``, as keys often are."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import Failure
from semel.converters.json.block import ObjectReader
from semel.converters.json.columns import JSON, Column
from semel.converters.json.infer import (
    ANY,
    NULL,
    Kind,
    as_column,
    join,
    kind_of,
    without_dates,
)
from semel.converters.json.text import syntax_error
from semel.converters.semantic import FACTS, Described
from semel.records import DATA_EXCEPTION

NAME = "value"

_SCALAR = (
    r"^(true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
    r'|"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")$'
)


class ScalarReader:
    """Reads values by making each the only field of an object."""

    def __init__(self, column: Column) -> None:
        self._objects = ObjectReader([column])
        self._facts = (column.known or {}).get(FACTS)
        self.type = column.type if self._facts is None else Described(column.type, self._facts)

    def read(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        """Read a string array without nulls; what cannot be read is null and a failure."""
        bad = _malformed(text)
        reasons = {row: f"{syntax_error(text[row].as_py())}" for row in bad}
        if bad:
            mask = pa.array([row in reasons for row in range(len(text))])
            text = pc.if_else(mask, "null", text)
        block, failures = self._objects.read(
            pc.binary_join_element_wise(f'{{"{NAME}":', text, "}", "")
        )
        found = {f.index: f for f in failures}
        found |= {row: Failure(row, DATA_EXCEPTION, why) for row, why in reasons.items()}
        values = pc.struct_field(block, NAME)
        if self._facts is not None:
            values = pa.ExtensionArray.from_storage(self.type, values)
        return values, [found[row] for row in sorted(found)]


def of_one_kind(text: pa.Array) -> list[tuple[pa.Array, pa.Array]]:
    """Valid JSON values by their kinds: the rows of each kind, and its values in their own type, as
    they are read where all values are of that kind. What has no other type stays JSON, text is
    never taken for a date, and nulls are left out."""
    kinds: dict[Kind, list[int]] = {}
    for row, value in enumerate(text.to_pylist()):
        try:
            kind = without_dates({NAME: kind_of(json.loads(value or "null"))})[NAME]
        except (ValueError, RecursionError):
            kind = ANY
        if kind != NULL:
            kinds.setdefault(kind, []).append(row)
    found = []
    for kind, rows in kinds.items():
        written = text.take(pa.array(rows))
        values, failures = ScalarReader(as_column(NAME, kind)).read(written)
        if failures or kind == ANY:
            values = pa.ExtensionArray.from_storage(JSON, written)
        found.append((pa.array(rows, pa.int64()), values))
    return found


def _malformed(text: pa.Array) -> list[int]:
    """The rows that are not exactly one JSON value."""
    simple = pc.match_substring_regex(text, _SCALAR)
    rest = pc.indices_nonzero(pc.invert(simple))
    texts = text.take(rest).to_pylist()
    return [r for r, t in zip(rest.to_pylist(), texts, strict=True) if syntax_error(t) is not None]


def scalar_kind(texts: Sequence[str]) -> Kind:
    """The kind of values; text is never taken for a date: keys are compared as they are."""
    found = NULL
    for text in texts:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        found = join(found, Kind("string") if isinstance(value, str) else kind_of(value))
        if found == ANY:
            break
    return found
