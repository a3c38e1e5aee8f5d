"""JSON values that are not objects: ``1``, ``"abc"``, ``true``, as keys often are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import Failure
from semel.converters.json.block import ObjectReader
from semel.converters.json.columns import JSON, Column
from semel.converters.json.infer import (
    ANY,
    BOOL,
    FLOAT,
    INT,
    NULL,
    STRING,
    Kind,
    as_column,
    tells_type,
)
from semel.converters.json.text import syntax_error
from semel.converters.semantic import FACTS, SemanticType
from semel.core.records import DATA_EXCEPTION

NAME = "value"

_SCALAR = (
    r"^(true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
    r'|"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")$'
)
_ITEMS = {
    STRING: r'"(?:[^"\\]|\\.)*"',
    INT: "-?[0-9]+",
    NULL: "null",
    BOOL: "true|false",
    FLOAT: "-?(?:[0-9][0-9.eE+-]*|Infinity)|NaN",
}
_SPACE = r"[ \t\n\r]*"


def _list_of(item: str) -> str:
    spaced = rf"{_SPACE}(?:null|{item}){_SPACE}"
    return rf"\[(?:{_SPACE}|{spaced}(?:,{spaced})*)\]"


_KINDS = [
    (kind, rf"^{_SPACE}(?:{pattern}){_SPACE}$")
    for kind, pattern in [
        *_ITEMS.items(),
        (ANY, r"\{.*"),
        *((Kind("list", kind), _list_of(item)) for kind, item in _ITEMS.items()),
    ]
]
"""How JSON values of each kind are written; a value is of the first kind that it matches."""


class ScalarReader:
    """Reads values by making each the only field of an object."""

    def __init__(self, column: Column) -> None:
        self._objects = ObjectReader([column])
        self._facts = (column.known or {}).get(FACTS)
        self.type = column.type if self._facts is None else SemanticType(column.type, self._facts)

    def read(self, text: pa.Array, *, valid: bool = False) -> tuple[pa.Array, list[Failure]]:
        """Read a string array without nulls; what cannot be read is null and a failure. ``valid``
        says that each is one JSON value."""
        reasons = {} if valid else malformed(text)
        if reasons:
            mask = pa.array([row in reasons for row in range(len(text))])
            text = pc.if_else(mask, "null", text)
        block, failures = self._objects.read(
            pc.binary_join_element_wise(f'{{"{NAME}":', text, "}", "")
        )
        by_row = {f.index: f for f in failures}
        by_row |= {row: Failure(row, DATA_EXCEPTION, why) for row, why in reasons.items()}
        values = pc.struct_field(block, NAME)
        if self._facts is not None:
            values = pa.ExtensionArray.from_storage(self.type, values)
        return values, [by_row[row] for row in sorted(by_row)]


def of_one_kind(text: pa.Array) -> list[tuple[pa.Array, pa.Array]]:
    """Valid JSON values by their kinds: the rows of each kind, and its values in their own type, as
    they are read where all values are of that kind. What has no other type stays JSON, text is
    never taken for a date, and nulls are left out."""
    rest = pc.indices_nonzero(text.is_valid())
    json_rows, parts = [], []
    for kind, pattern in _KINDS:
        if not len(rest):
            break
        written = text.take(rest)
        matches = pc.match_substring_regex(written, pattern)
        rows, rest = rest.filter(matches), rest.filter(pc.invert(matches))
        if not len(rows):
            continue
        if kind == ANY:
            json_rows.append(rows)
        elif kind != NULL:
            read_as = kind if tells_type(kind) else Kind("list", STRING)  # fits any list
            values, failures = ScalarReader(as_column(NAME, read_as)).read(
                written.filter(matches), valid=True
            )
            unread = pa.array([f.index for f in failures], pa.int64())
            read = np.delete(np.arange(len(rows)), unread)
            json_rows.append(rows.take(unread))
            parts.append((rows.take(read), values.take(read)))
    rows = pa.concat_arrays([*json_rows, rest])
    parts.append((rows, pa.ExtensionArray.from_storage(JSON, text.take(rows))))
    return [(rows, values) for rows, values in parts if len(rows)]


def malformed(text: pa.Array) -> dict[int, str]:
    """The rows that are not exactly one JSON value, each with the reason."""
    simple = pc.match_substring_regex(text, _SCALAR)
    rest = pc.indices_nonzero(pc.invert(simple))
    reasons = zip(rest.to_pylist(), map(syntax_error, text.take(rest).to_pylist()), strict=True)
    return {row: f"{why}" for row, why in reasons if why is not None}
