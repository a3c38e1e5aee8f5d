"""Reads many JSON values at once into columns of known types, with ``pyarrow.json``, and finds bad
ones.

Values that are not objects (``1``, ``"abc"``, ``true``), as keys often are, are read as the only
field of an object.

A fraction becomes the nearest float. A number beyond the largest float must not become infinite, a
small one must not become zero, and a whole number must not become another whole number: where
parsing has done that, the value is bad.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from json import JSONDecodeError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from semel.converters.base import Failure
from semel.converters.json import duck
from semel.converters.json.columns import Column
from semel.converters.json.text import (
    array_elements,
    joined,
    kind,
    members,
    place,
    shown,
    syntax_error,
)
from semel.converters.semantic import FACTS, SemanticType, name_in
from semel.core.quoting import named
from semel.core.records import DATA_EXCEPTION, lists_like, one_array

BLOCK_BYTES = 256 * 1024 * 1024
CAREFUL = 1024
"""A block with a bad record is halved down to this size; its records are then examined one by
one."""
SAMPLE = 16

NAME = "value"
"""The field that a value becomes which is not an object."""

NotationChoice = tuple[int, ...]
"""The reading that each column is parsed with."""

_SCALAR = (
    r"^(true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
    r'|"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")$'
)
_WHOLE = {32: 1 << 24, 64: 1 << 53}
"""Up to these, floats of 32 and 64 bits hold every whole number."""
_SUSPICIOUS = {
    32: r"[0-9]{8}|[0-9.][eE][+-]?[0-9]{2}",
    64: r"[0-9]{16}|[0-9.][eE][+-]?[0-9]{3}",
}
"""Only a text with a number that differs from its float can match this."""
_TOO_FINE = (
    r'[:,\[\s"][-+]?([0-9]*(\.[0-9]*)?[eE]-0*[0-9]{3}|[0-9]*\.?[0-9]{99})'
    r'|"[-+.0-9eE]*\\u00'  # escaped, it may be any number
)
"""Begins a number that may have more digits after the point than any decimal: Arrow would read
beyond the end of its table of powers, and may crash."""
_NAMED = re.compile(r"-?Inf|NaN|null")
_RARE = 20
"""If fewer than one number in this many is zero, each zero is checked instead of the whole text."""
_PIECE = 1 << 18


class Unreadable(Exception):
    """Something in a block of values cannot be read as the columns require."""


def _errors() -> tuple[type[Exception], ...]:
    return (Unreadable, *duck.errors())


class ObjectReader:
    """Reads JSON objects into fixed columns.

    It remembers how each column was written last (ISO text or epoch numbers), so that in a
    steady stream each block is parsed once.
    """

    def __init__(
        self, columns: Sequence[Column], ignored: Mapping[str, pa.DataType] | None = None
    ) -> None:
        self.columns = tuple(columns)
        self._ignored = list((ignored or {}).items())
        self.counted: Counter[str] = Counter()
        """How many values the fields to be ignored have had, as far as :meth:`parse` has looked at
        them."""
        self.type = pa.struct([c.arrow_field for c in self.columns])
        self._raw = [c.name for c in self.columns if c.raw]
        self._parsed = [(i, c) for i, c in enumerate(self.columns) if not c.raw]
        self._flexible = [(i, c) for i, c in self._parsed if len(c.readings) > 1]
        self._writing: NotationChoice = (0,) * len(self.columns)
        self._defaults: dict[str, pa.Array] = {}
        self._item_defaults: dict[str, pa.Array] = {}
        self._read_defaults()

    @property
    def keeps_json(self) -> bool:
        """Whether some columns are not parsed but kept as JSON text."""
        return bool(self._raw)

    def parse(self, text: pa.Array, *, only_known: bool = False) -> pa.Array | None:
        """The whole block at once, or None when something in it cannot be read.

        Args:
            text: string array without nulls, of values that begin with ``{`` and end with ``}``
                and hold no newline.
            only_known: give up when there is a field that is not among the columns, or when one
                that was to be ignored is of another type.
        """
        if text.nbytes > BLOCK_BYTES and len(text) > 1:
            half = len(text) // 2
            parts = [self.parse(t, only_known=only_known) for t in (text[:half], text[half:])]
            return None if None in parts else pa.concat_arrays(parts)
        try:
            return self._parse(text, self._writing, only_known=only_known)
        except _errors():
            pass
        if not self._flexible:
            return None
        writing = self._writing_of(_sample(text))
        if writing == self._writing:
            return None
        try:
            block = self._parse(text, writing, only_known=only_known)
        except _errors():
            return None
        self._writing = writing
        return block

    def read(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        """Like :meth:`parse`, but a value that cannot be read is null and reported as a failure."""
        block = self.parse(text)
        if block is not None:
            return block, []
        if len(text) > CAREFUL:
            half = len(text) // 2
            first, failures = self.read(text[:half])
            second, more = self.read(text[half:])
            moved = [Failure(f.index + half, f.exception, f.message) for f in more]
            return pa.concat_arrays([first, second]), failures + moved
        return self._read_carefully(text)

    def _parse(
        self, text: pa.Array, writing: NotationChoice, *, only_known: bool = False
    ) -> pa.Array:
        if not self.columns and not len(text):
            return pa.array([], self.type)
        ways = [(c, c.readings[writing[i]]) for i, c in self._parsed]
        schema = [(c.name, way.parsed) for c, way in ways]
        content = joined(text, "\n")
        written = _ObjectTexts(text, content)
        for c, way in ways:
            if _holds_decimals(way.parsed) and written.may_be_too_fine(c.name):
                raise Unreadable(f"field {named(c.name)}: it does not fit {c.type}")
        table = pj.read_json(
            pa.BufferReader(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=content.size + 64),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(schema + self._ignored if only_known else schema),
                unexpected_field_behavior="error" if only_known else "ignore",
            ),
        )
        if table.num_rows != len(text):
            raise Unreadable("more than one JSON value in a record")
        done = {}
        for c, way in ways:
            parsed = one_array(table[c.name])
            number = _unfaithful(written, c.name, parsed)
            if number is not None:
                raise Unreadable(f"field {named(c.name)}: {shown(number)} {misfit(number, c)}")
            done[c.name] = way.finish(parsed)
        if self._raw:
            done.update(zip(self._raw, duck.raw(text, self._raw), strict=True))
        arrays = [self._complete(c, done[c.name]) for c in self.columns]
        for name, _ in self._ignored if only_known else ():
            self.counted[name] += len(text) - table[name].null_count
        if not arrays:
            return pa.array([{}] * len(text), self.type)
        return pa.StructArray.from_arrays(arrays, fields=list(self.type))

    def _complete(self, column: Column, array: pa.Array) -> pa.Array:
        if column.raw:
            array = pa.ExtensionArray.from_storage(column.type, array)
        if array.null_count and column.name in self._defaults:
            array = _fill(array, self._defaults[column.name])
        if column.required and array.null_count:
            raise Unreadable(f"field {named(column.name)}: required, but missing or null")
        if column.name in self._item_defaults and (items := array.flatten()).null_count:
            array = lists_like(array, _fill(items, self._item_defaults[column.name]))
        if column.required_items and array.flatten().null_count:
            raise Unreadable(f"field {named(column.name)}: an item is null, but required")
        return array

    def _read_defaults(self) -> None:
        for column in self.columns:
            default, item = column.default, column.item_default
            if default is not None and (read := _alone(column, default)) is not None:
                self._defaults[column.name] = read
            if item is not None and (read := _alone(column, f"[{item}]")) is not None:
                self._item_defaults[column.name] = read.flatten()

    def _writing_of(self, objects: Iterable[Mapping[str, str]]) -> NotationChoice:
        """The readings of the flexible columns that fit these values, as far as one can tell."""
        readings: dict[int, int] = {}
        for fields in objects:
            if len(readings) == len(self._flexible):
                break
            for i, column in self._flexible:
                value = fields.get(column.name, "null")
                ways = (n for n, way in enumerate(column.readings) if way.recognises(value))
                way = next(ways, None)
                if way is not None:
                    readings.setdefault(i, way)
        return tuple(readings.get(i, way) for i, way in enumerate(self._writing))

    def _read_carefully(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        """Set aside values that are certainly bad, and parse values with the same readings
        together."""
        reasons: dict[int, str] = {}
        groups: dict[NotationChoice, list[tuple[int, str]]] = defaultdict(list)
        for row, value in enumerate(text.to_pylist()):
            try:
                fields, duplicates = members(value)
            except JSONDecodeError as error:
                if "Inf" not in value:  # an infinity for pyarrow, but not for Python
                    reasons[row] = syntax_error(value) or str(error)
                    continue
                fields, duplicates = {}, False
            except (ValueError, RecursionError):
                fields, duplicates = {}, False
            reason = self._refusal(fields) if fields else None
            if reason is not None:
                reasons[row] = reason
                continue
            groups[self._writing_of([fields])].append(
                (row, _rebuilt(fields) if duplicates else value)
            )
        order: list[int] = []
        blocks: list[pa.Array] = []
        for writing, group in groups.items():
            order += [row for row, _ in group]
            values = pa.array([value for _, value in group], pa.string())
            block, failed = self._halve(values, writing)
            blocks.append(block)
            reasons |= {group[at][0]: reason for at, reason in failed.items()}
        if not blocks:
            combined = pa.nulls(len(text), self.type)
        else:
            combined = place(pa.concat_arrays(blocks), pa.array(order, pa.int64()), len(text))
        return combined, [Failure(row, DATA_EXCEPTION, reasons[row]) for row in sorted(reasons)]

    def _halve(self, text: pa.Array, writing: NotationChoice) -> tuple[pa.Array, dict[int, str]]:
        """Parse, and find by bisection the values that cannot be parsed."""
        try:
            return self._parse(text, writing), {}
        except _errors() as error:
            if len(text) == 1:
                return pa.nulls(1, self.type), {0: self._reason(text[0].as_py(), error)}
        half = len(text) // 2
        first, reasons = self._halve(text[:half], writing)
        second, more = self._halve(text[half:], writing)
        moved = {half + row: reason for row, reason in more.items()}
        return pa.concat_arrays([first, second]), reasons | moved

    def _refusal(self, fields: Mapping[str, str]) -> str | None:
        """A defect of an object that shows without parsing it; None if none does."""
        for column in self.columns:
            value = fields.get(column.name, "null")
            if value == "null":
                if column.required and column.default is None:
                    return f"field {named(column.name)}: required, but missing or null"
            elif not column.takes(value):
                return f"field {named(column.name)}: {shown(value)} {misfit(value, column)}"
        return None

    def _reason(self, text: str, error: Exception) -> str:
        """Why a single object cannot be parsed: its first field that cannot be parsed alone."""
        try:
            fields, _ = members(text)
        except (ValueError, RecursionError):
            return syntax_error(text) or _message(error)
        for column in self.columns:
            value = fields.get(column.name)
            if value is not None and _alone(column, value) is None:
                return f"field {named(column.name)}: {shown(value)} {misfit(value, column)}"
        return _message(error)


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


def malformed(text: pa.Array) -> dict[int, str]:
    """The rows that are not exactly one JSON value, each with the reason."""
    simple = pc.match_substring_regex(text, _SCALAR)
    rest = pc.indices_nonzero(pc.invert(simple))
    reasons = zip(rest.to_pylist(), map(syntax_error, text.take(rest).to_pylist()), strict=True)
    return {row: f"{why}" for row, why in reasons if why is not None}


def misfit(value: str, column: Column) -> str:
    """Why a value is not of a column's type."""
    t = pa.types
    target = column.type
    if column.raw:
        return "cannot be kept as JSON"
    name = name_in(column.known)
    if name:
        return f"is no {name}"
    if t.is_integer(target):
        whole = kind(value) == "a number" and value.lstrip("-").isdigit()
        return f"is out of range for {target}" if whole else "is not a whole number"
    if t.is_floating(target):
        if kind(value) != "a number":
            return "is not a number"
        if re.fullmatch(r"-?\d{1,38}(\.0*)?", value):
            return f"is not exact in {target}"
        return f"is out of range for {target}"
    if t.is_string(target) or t.is_large_string(target):
        return "is not valid text" if kind(value) == "a string" else "is not a string"
    for matches, what in _MISFITS:
        if matches(target):
            return what
    return f"does not fit {target}"


_MISFITS = (
    (pa.types.is_boolean, "is not a boolean"),
    (pa.types.is_binary, "is not bytes as base64 text"),
    (pa.types.is_large_binary, "is not bytes as base64 text"),
    (pa.types.is_fixed_size_binary, "is not bytes of this length as base64 text"),
    (
        lambda t: pa.types.is_timestamp(t) and t.unit in ("s", "ms"),
        "is neither an ISO 8601 timestamp nor epoch milliseconds, or finer than the column",
    ),
    (pa.types.is_timestamp, "is neither an ISO 8601 timestamp nor epoch milliseconds"),
    (pa.types.is_date, "is neither a date (YYYY-MM-DD) nor days since 1970"),
    (pa.types.is_time, "is neither a time of day nor milliseconds"),
)


def _sample(text: pa.Array) -> Iterator[Mapping[str, str]]:
    for value in text[:SAMPLE].to_pylist():
        with contextlib.suppress(ValueError, RecursionError):
            yield members(value)[0]


def _message(error: Exception) -> str:
    return " ".join(str(error).split())


def _alone(column: Column, value: str) -> pa.Array | None:
    """One JSON value of a column; None if it cannot be read."""
    reader = ObjectReader([Column(column.name, column.type, column.readings)])
    block = reader.parse(pa.array([_object(column.name, value)]))
    return None if block is None else block.field(0)


def _object(name: str, value: str) -> str:
    return _rebuilt({name: value.replace("\n", "\t").replace("\r", "\t")})


def _rebuilt(fields: Mapping[str, str]) -> str:
    """An object without duplicates, which pyarrow refuses; in Kafka Connect the last one counts."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields.items()) + "}"


def _fill(array: pa.Array, default: pa.Array) -> pa.Array:
    """``fill_null`` for every type."""
    n = len(array)
    rows = pa.array(range(n), pa.int64())
    return pa.concat_arrays([array, default]).take(pc.if_else(array.is_null(), n, rows))


class _ObjectTexts:
    """JSON objects, and all of their text in one buffer."""

    def __init__(self, text: pa.Array, content: pa.Buffer) -> None:
        self.text = text
        self._content = content

    @cached_property
    def has_small_numbers(self) -> bool:
        """Whether there may be a number that is so small that it becomes zero."""
        characters = np.frombuffer(self._content, np.uint8)
        for start in range(0, len(characters), _PIECE):  # within the processor's cache
            piece = characters[start : start + _PIECE + 1]
            if ((piece[:-1] | 0x20 == ord("e")) & (piece[1:] == ord("-"))).any():
                return True
        return b"0" * 40 in self._content.to_pybytes()

    def may_be_too_fine(self, name: str) -> bool:
        """Whether a field may have a number that is too fine for any decimal."""
        if (
            not self.has_small_numbers
            and not pc.any(pc.match_substring(self.text, "\\u00")).as_py()
        ):
            return False
        for text in self.text.filter(pc.match_substring_regex(self.text, _TOO_FINE)).to_pylist():
            try:
                value = members(text)[0].get(name, "null")
            except (ValueError, RecursionError):
                return True
            if re.search(_TOO_FINE, f":{value}"):
                return True
        return False


def _holds_decimals(kind: pa.DataType) -> bool:
    item = kind.value_type if pa.types.is_list(kind) else kind
    return bool(pa.types.is_decimal(item))


def _unfaithful(written: _ObjectTexts, name: str, values: pa.Array) -> str | None:
    """The first number, in a field of numbers or of lists of them, that differs from the float or
    decimal parsed from it; None if there is none, or if values are of other types."""
    lists = pa.types.is_list(values.type)
    numbers = values.flatten() if lists else values
    kind = numbers.type
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        doubtful, suspicious = _large_or_zero(numbers, written), _SUSPICIOUS[kind.bit_width]
    elif pa.types.is_decimal(kind):  # shifted down by too many digits they become zero
        doubtful, suspicious = _zeros(numbers, written), r"[0-9.][eE]-"
    else:
        return None
    if doubtful is None:
        return None
    rows = pc.indices_nonzero(doubtful)
    if lists:
        rows = pc.unique(pc.list_parent_indices(values).take(rows))
    texts = written.text.take(rows)
    for text in texts.filter(pc.match_substring_regex(texts, suspicious)).to_pylist():
        value = members(text)[0].get(name, "null")
        for number in array_elements(value) if value.startswith("[") else [value]:
            if not _is_kept(number, kind):
                return number
    return None


def _large_or_zero(floats: pa.Array, written: _ObjectTexts) -> pa.Array | None:
    whole = _WHOLE[floats.type.bit_width]
    least, greatest = pc.min_max(floats).as_py().values()
    if least is None:
        return None
    zero = _zeros(floats, written) if least <= 0 <= greatest else None
    if greatest < whole and least > -whole:
        return zero
    large = pc.greater_equal(pc.abs(floats), float(whole))
    return large if zero is None else pc.or_(large, zero)


def _zeros(numbers: pa.Array, written: _ObjectTexts) -> pa.Array | None:
    """Which numbers are zero, if there may be small ones among them."""
    nothing = Decimal(0) if pa.types.is_decimal(numbers.type) else 0.0
    zero = pc.equal(numbers, pa.scalar(nothing, numbers.type))
    count = pc.sum(zero).as_py() or 0
    if not count or (count * _RARE > len(numbers) and not written.has_small_numbers):
        return None
    return zero


def _is_kept(number: str, kind: pa.DataType) -> bool:
    """Whether a number that became a float or a decimal of a type is still what it was."""
    if not pa.types.is_decimal(kind):
        return is_faithful(number, kind.bit_width)
    written = Decimal(number.strip('"')) if number != "null" else Decimal(0)
    return not written or abs(written) >= Decimal(1).scaleb(-kind.scale)


def is_faithful(number: str, width: int) -> bool:
    """Whether a number, as written in JSON, may become a float of this many bits."""
    if _NAMED.match(number):
        return True
    try:
        written = Decimal(number)
    except InvalidOperation:  # an exponent of very many digits
        return False
    with np.errstate(over="ignore"):
        value = np.float32(number) if width == 32 else np.float64(number)
    if np.isinf(value) or not value:
        return not written and not np.isinf(value)
    if "e" in number.lower() or written != written.to_integral_value():
        return True
    return written in (Decimal(float(value)), Decimal(str(value)))
