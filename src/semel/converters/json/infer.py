"""The types of fields in plain JSON, and of values that are not objects, found in the data.

====================================  =============================
whole numbers                         int64
numbers, some with fraction           float64
``true``, ``false``                   bool
text                                  string
ISO 8601 dates, all ``YYYY-MM-DD``    date32
ISO 8601 timestamps (or dates)        timestamp[us, UTC]
lists of one of these                 list
lists without items, or only of null  JSON
objects, lists of objects or lists    JSON
values of different types             JSON, so that nothing is lost
whole numbers beyond int64            JSON
only null                             string
====================================  =============================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json import duck
from semel.converters.json.columns import JSON, Column, Notation, column
from semel.converters.json.read import NAME, ScalarReader

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?")
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of the values seen so far in one field."""

    name: str
    item: Kind | None = None
    """The kind of a list's items."""


NULL, BOOL, INT, FLOAT = Kind("null"), Kind("bool"), Kind("int"), Kind("float")
STRING, DATE, TIMESTAMP, ANY = Kind("string"), Kind("date"), Kind("timestamp"), Kind("any")

_TEXT = (STRING, DATE, TIMESTAMP)
_TYPES = {
    NULL: pa.string(),
    BOOL: pa.bool_(),
    INT: pa.int64(),
    FLOAT: pa.float64(),
    STRING: pa.string(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    ANY: JSON,
}

Kinds = Mapping[str, Kind]


def tells_type(kind: Kind) -> bool:
    """Whether a kind says what a column may hold: null does not, and neither does ``[]``."""
    return kind != NULL and (kind.item is None or tells_type(kind.item))


def join(one: Kind, other: Kind) -> Kind:
    """The narrowest kind that holds both."""
    if other in (one, NULL):
        return one
    if one == NULL:
        return other
    if one.item is not None and other.item is not None:
        item = join(one.item, other.item)
        return ANY if item == ANY else Kind("list", item)
    if {one, other} == {INT, FLOAT}:
        return FLOAT
    if {one, other} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    if one in _TEXT and other in _TEXT:
        return STRING
    return ANY


def widen(current: Kind, seen: Kind) -> Kind:
    """The kind that a kind in use widens to without changing its meaning; itself if it cannot."""
    wider = join(current, seen)
    lossless = current == NULL or (current, wider) in ((INT, FLOAT), (DATE, TIMESTAMP))
    if current.item is not None and wider.item is not None:
        lossless = widen(current.item, wider.item) == wider.item
    return wider if lossless else current


def fits(seen: Kind, kind: pa.DataType) -> bool:
    """Whether a column of this type takes what is of another kind than its own, too."""
    t = pa.types
    if kind == JSON or arrow_type(seen) == kind:
        return True
    if t.is_string(kind):
        return seen in _TEXT
    return bool((seen == INT and t.is_floating(kind)) or (seen == DATE and t.is_timestamp(kind)))


def kind_of(value: Any) -> Kind:
    """The kind of one parsed JSON value."""
    if isinstance(value, str):
        return _text_kind(value)
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return INT if -_INT64 <= value < _INT64 else ANY
    if isinstance(value, list):
        item = NULL
        for element in value:
            item = join(item, kind_of(element))
            if item == ANY or item.item is not None:
                return ANY
        return Kind("list", item)
    if isinstance(value, dict):
        return ANY
    return NULL if value is None else FLOAT


def _text_kind(text: str) -> Kind:
    if not 10 <= len(text) <= 35:
        return STRING
    date = _DATE.fullmatch(text)
    if not date and not _TIMESTAMP.fullmatch(text):
        return STRING
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return STRING
    return DATE if date else TIMESTAMP


def without_dates(field_kinds: Kinds) -> dict[str, Kind]:
    """The same kinds, but with dates and timestamps left as text."""
    return {name: _without_dates(kind) for name, kind in field_kinds.items()}


def _without_dates(kind: Kind) -> Kind:
    if kind.item is not None:
        return Kind(kind.name, _without_dates(kind.item))
    return STRING if kind in _TEXT else kind


def kinds(texts: Iterable[str]) -> dict[str, Kind]:
    """The kinds of all fields of some JSON objects; other values are skipped."""
    field_kinds: dict[str, Kind] = {}
    for text in texts:
        try:
            value = json.loads(text)
        except RecursionError:
            value = _deep(text)
        except ValueError:
            continue
        if not isinstance(value, dict):
            continue
        for name, element in value.items():
            kind = field_kinds.get(name)
            if kind is None:
                field_kinds[name] = kind_of(element)
            elif kind == STRING and isinstance(element, str):
                continue
            elif kind != ANY:
                field_kinds[name] = join(kind, kind_of(element))
    return field_kinds


def _deep(text: str) -> dict[str, Any]:
    """The fields of an object that is nested too deeply for Python; fields that are too deep
    themselves count as objects."""
    texts = pa.array([text])
    fields: dict[str, Any] = {}
    for name in duck.keys(texts):
        try:
            (value,) = duck.raw(texts, [name])
            fields[name] = json.loads(value[0].as_py() or "null")
        except RecursionError:
            fields[name] = {}
        except ValueError:
            continue
    return fields


def arrow_type(kind: Kind) -> pa.DataType:
    """The column type of a kind."""
    if kind.item is None:
        return _TYPES[kind]
    return pa.list_(arrow_type(kind.item)) if tells_type(kind) else JSON


def as_column(name: str, kind: Kind) -> Column:
    """The column to read a field of this kind with.

    A field that has only been null accepts nothing else, so that its first value is noticed, and
    one that has only been a list without items accepts no other list.
    """
    if kind == NULL:
        only_null = Notation(pa.null(), lambda array: array.cast(pa.string()), "null")
        return Column(name, pa.string(), (only_null,))
    if not tells_type(kind):
        return Column(name, JSON, (Notation(pa.list_(pa.null()), _lists_of_null, r"\["),))
    plain = column(name, arrow_type(kind))
    if (kind.item or kind) not in (DATE, TIMESTAMP):
        return plain
    return replace(plain, readings=[way for way in plain.readings if not _counts(way.parsed)])


def _counts(kind: pa.DataType) -> bool:
    """Whether a number is read as a time: only a target can say that it is one."""
    return bool(pa.types.is_integer(kind.value_type if pa.types.is_list(kind) else kind))


def _lists_of_null(lists: pa.Array) -> pa.Array:
    items = pc.binary_repeat("null,", pc.list_value_length(lists))
    text = pc.binary_join_element_wise("[", pc.ascii_rtrim(items, characters=","), "]", "")
    return pa.ExtensionArray.from_storage(JSON, text)


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
