"""JSON as text: checks of values before a parser sees them.

``pyarrow.json`` reads documents, not records: several values are joined by newlines and parsed as
one block. Rows are values only if no value holds a newline, each begins with ``{`` and ends with
``}``, and as many rows come out as values went in: a raw newline is an error inside a JSON string
and a ``{`` is an error after a newline anywhere else in an object, so values cannot run into one
another, and each gives at least one row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import Failure
from semel.core.records import DATA_EXCEPTION, is_absence

WHITESPACE = " \t\n\r"
BYTE_ORDER_MARK = "\ufeff"
HIDDEN = "a field's name begins with a NUL and the word absent, which semel keeps for itself"
_NUL = b"\\u0000"
SHOWN = 80


@dataclass(frozen=True, slots=True)
class SortedValues:
    """Values by what they look like; ``rows`` are indices into what was sorted."""

    objects: pa.Array
    object_rows: pa.Array | None
    """None: every value is an object, in order."""
    others: Sequence[tuple[int, str]] = ()
    """The literal ``null`` and blank values too; an Arrow null is in neither list."""


def as_text(values: pa.Array) -> tuple[pa.Array, list[Failure]]:
    """Binary to string; what is not UTF-8 becomes null and a failure."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        return values.cast(pa.string()), []
    except pa.ArrowInvalid:
        pass
    decoded: list[str | None] = []
    failures = []
    for row, value in enumerate(values.to_pylist()):
        try:
            decoded.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            decoded.append(None)
            message = f"not UTF-8: byte 0x{value[error.start]:02x} at position {error.start}"
            failures.append(Failure(row, DATA_EXCEPTION, message))
    return pa.array(decoded, pa.string()), failures


def hidden(text: pa.Array) -> list[Failure]:
    """Values with a field whose name is one that semel keeps for itself."""
    content = text.buffers()[2]
    if content is None or _NUL not in content.to_pybytes():
        return []
    failures = []
    for row in pc.indices_nonzero(pc.match_substring(text, _NUL.decode())).to_pylist():
        try:
            json.loads(text[row].as_py(), object_pairs_hook=_shown)
        except _Hidden:
            failures.append(Failure(row, DATA_EXCEPTION, HIDDEN))
        except (ValueError, RecursionError):
            continue  # whoever reads it says what is wrong
    return failures


class _Hidden(Exception):
    """There is such a name."""


def _shown(pairs: Sequence[tuple[str, object]]) -> None:
    if any(is_absence(name) for name, _ in pairs):
        raise _Hidden


def joined(text: pa.Array, separator: str) -> pa.Buffer:
    """All values in one buffer."""
    offsets = pa.array([0, len(text)], pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, text), separator)[0].as_buffer()


def without_mark(text: pa.Array) -> pa.Array:
    """Drop byte order marks, which Kafka Connect's JSON parser ignores."""
    if not pc.any(pc.starts_with(text, BYTE_ORDER_MARK)).as_py():
        return text
    return pc.replace_substring_regex(text, "^" + BYTE_ORDER_MARK, "")


def content(text: pa.Array) -> bytes:
    """The characters of all values, for checks that are faster on bytes than in Arrow."""
    _, offsets, characters = text.buffers()
    if characters is None or not len(text):
        return b""
    ends = memoryview(offsets).cast("i")
    first, last = ends[text.offset], ends[text.offset + len(text)]
    return bytes(characters.slice(first, last - first))


def sort(text: pa.Array) -> SortedValues:
    """Find the values that can be parsed as a block, after removing harmless white space."""
    present = text.drop_null() if text.null_count else text
    rows = pc.indices_nonzero(pc.is_valid(text)) if text.null_count else None
    if len(present) == 0:
        return SortedValues(present, rows)
    clean, odd = _clean(present)
    like_object = pc.and_(pc.starts_with(clean, "{"), pc.ends_with(clean, "}"))
    if odd:
        like_object = pc.and_(like_object, pc.invert(pc.match_substring(clean, "\0")))
    if pc.all(like_object).as_py():
        return SortedValues(clean, rows)
    object_rows = pc.indices_nonzero(like_object)
    rest = pc.indices_nonzero(pc.invert(like_object))
    back = (rest if rows is None else rows.take(rest)).to_pylist()
    texts = clean.take(rest).to_pylist()
    others = list(zip(back, texts, strict=True))
    objects = clean.take(object_rows)
    return SortedValues(objects, object_rows if rows is None else rows.take(object_rows), others)


def _clean(text: pa.Array) -> tuple[pa.Array, bool]:
    """Replace newlines by tabs, which JSON allows and forbids in the same places, and trim values
    if needed. Also returns whether there is a zero byte."""
    characters = content(text)
    if b"\n" in characters:
        text = pc.replace_substring(text, "\n", "\t")
    if b"\r" in characters:
        text = pc.replace_substring(text, "\r", "\t")
    if not pc.all(pc.starts_with(text, "{")).as_py() or not pc.all(pc.ends_with(text, "}")).as_py():
        text = pc.ascii_trim(text, characters=WHITESPACE)
    return text, b"\0" in characters


def place(array: pa.Array, rows: pa.Array | None, length: int) -> pa.Array:
    """Put each value at its row of an array of this length; the other rows are null."""
    if rows is None:
        return array
    return array.take(pc.inverse_permutation(rows.cast(pa.int64()), max_index=length - 1))


def moved(failures: Sequence[Failure], rows: pa.Array | None) -> list[Failure]:
    """Failures with the rows they came from."""
    if rows is None or not failures:
        return list(failures)
    return [Failure(rows[f.index].as_py(), f.exception, f.message) for f in failures]


def members(text: str) -> tuple[dict[str, str], bool]:
    """The fields of a JSON object with their values as written, and whether some are duplicates.

    The last of several duplicates counts.

    Raises:
        JSONDecodeError: not exactly one JSON object.
        RecursionError: nested too deeply.
    """
    positions = spans(text)
    fields = {name: text[start:end] for name, start, end in positions}
    return fields, len(fields) < len(positions)


def spans(text: str) -> list[tuple[str, int, int]]:
    """Name, start and end of the value of each field of a JSON object."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise JSONDecodeError("Expecting an object", text, at)
    positions: list[tuple[str, int, int]] = []
    at = _skip(text, at + 1)
    more = text[at : at + 1] != "}"
    while more:
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = scanstring(text, at + 1, True)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise JSONDecodeError("Expecting ':' delimiter", text, at)
        start = _skip(text, at + 1)
        end = _value_end(text, start)
        positions.append((name, start, end))
        at = _skip(text, end)
        more = text[at : at + 1] == ","
        if more:
            at = _skip(text, at + 1)
    if text[at : at + 1] != "}":
        raise JSONDecodeError("Expecting ',' delimiter", text, at)
    at = _skip(text, at + 1)
    if at != len(text):
        raise JSONDecodeError("Extra data", text, at)
    return positions


def array_elements(text: str) -> list[str]:
    """The elements of a JSON array as written.

    Raises:
        JSONDecodeError: not exactly one JSON array.
        RecursionError: nested too deeply.
    """
    at = _skip(text, _skip(text, 0) + 1)
    elements: list[str] = []
    while text[at : at + 1] != "]":
        end = _value_end(text, at)
        elements.append(text[at:end])
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
    return elements


# Numbers are not converted: Python refuses very long ones.
_decoder = json.JSONDecoder(parse_int=str, parse_float=str)


def _value_end(text: str, start: int) -> int:
    return _decoder.raw_decode(text, start)[1]


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in WHITESPACE and at < len(text):
        at += 1
    return at


def kind(text: str) -> str:
    """What a JSON value is, by its first character."""
    first = text[:1]
    if first == "{":
        return "an object"
    if first == "[":
        return "an array"
    if first == '"':
        return "a string"
    return {"t": "a boolean", "f": "a boolean", "n": "null"}.get(first, "a number")


def shown(text: str) -> str:
    """A value in a message: the beginning of it."""
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def syntax_error(text: str) -> str | None:
    """Why a text is not one JSON value, or None when it is."""
    try:
        _decoder.decode(text)
    except JSONDecodeError as error:
        return f"not JSON: {error.msg} at position {error.pos}: {shown(text[error.pos :])!r}"
    except RecursionError:
        return "not readable: nested too deeply"
    return None
