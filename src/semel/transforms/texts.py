"""Values as the text that Java writes: :func:`java_text`, and :class:`DateFormat`, Java's
SimpleDateFormat in UTC and in English, for whole columns.

Like Java's it parses leniently: numbers may have any length and be out of range (month 13 is next
year's January), and text after the date is ignored. Dates before 15 October 1582 are those of the
Julian calendar.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON
from semel.converters.json.infer import of_one_kind
from semel.converters.json.text import place
from semel.converters.json.write import Writer
from semel.converters.primitives import java_floats
from semel.converters.semantic import floor_divided, milliseconds

Longs = npt.NDArray[np.int64]

_WRITER = Writer(embedded=True, numeric=True)
_DAY = 86_400_000
_CUTOVER = -141_427
"""The day of 15 October 1582, counted from 1970."""
_JULIAN = 2_440_588
"""The Julian day of 1 January 1970."""

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ZONES = {
    **{"GMT": 0, "UTC": 0, "UT": 0, "EST": -300, "EDT": -240, "CST": -360, "CDT": -300},
    **{"MST": -420, "MDT": -360, "PST": -480, "PDT": -420, "CET": 60, "CEST": 120},
}
"""Minutes that a zone is ahead of UTC."""
_NUMBERS = frozenset("ydHkKhmsSDuML")
_LETTERS = _NUMBERS | frozenset("aEXZzY")
_OF_FIXED_WIDTH = frozenset("yMdHmsS")
_ZONED = frozenset("XZz")
_WEEK_YEAR = "Y"
"""Written, but not read: Java reads a different day from the one that was written."""
_JAVAS = frozenset("GwWF")


@dataclass(frozen=True, slots=True)
class _Token:
    """A run of one letter in a pattern, or literal text if ``letter`` is empty."""

    letter: str
    text: str

    @property
    def count(self) -> int:
        return len(self.text)

    @property
    def is_name(self) -> bool:
        return self.letter in "aE" or (self.letter in "ML" and self.count > 2)


def _tokens(pattern: str) -> list[_Token]:
    """Split a pattern.

    Raises:
        ValueError: it is not a pattern of Java's, or has a letter that is not available here; the
            message continues after its value.
    """
    runs: list[_Token] = []
    for part in re.finditer(r"'(?:[^']|'')*'?|([A-Za-z])\1*|[^A-Za-z']+", pattern):
        text = part[0]
        if text[0] == "'":
            if len(text) == 1 or text[-1] != "'":
                raise ValueError("is not a pattern of SimpleDateFormat: Unterminated quote")
            runs.append(_Token("", text[1:-1].replace("''", "'") or "'"))
        elif part[1] is None:
            runs.append(_Token("", text))
        elif part[1] in _LETTERS:
            runs.append(_Token(part[1], text))
        elif part[1] in _JAVAS:
            raise ValueError(f"uses the pattern letter {part[1]}, which is not available.")
        else:
            raise ValueError(
                f"is not a pattern of SimpleDateFormat: Illegal pattern character '{part[1]}'"
            )
    return runs


_UNITS = {"S": 1, "s": 1000, "m": 60_000, **dict.fromkeys("HkKha", 3_600_000)}
"""For how many milliseconds a letter's text stays the same, if for less than a day."""


class DateFormat:
    """A pattern of SimpleDateFormat."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._tokens = _tokens(pattern)
        self._regex = _regex(self._tokens)
        self._fixed = all(map(_has_fixed_width, self._tokens))
        self._unit = min((_UNITS.get(t.letter, _DAY) for t in self._tokens), default=_DAY)
        self.has_zone = any(t.letter in _ZONED for t in self._tokens)

    def check_it_reads(self) -> None:
        """Raises ValueError: the pattern can only write."""
        if any(t.letter == _WEEK_YEAR for t in self._tokens):
            raise ValueError(
                "uses the pattern letter Y, the year of a week: use y for the year of a date"
            )

    def format(self, stamps: pa.Array) -> pa.Array:
        """Milliseconds since 1970 as text; null where null."""
        filled = pc.fill_null(stamps.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        times = filled // self._unit
        encoded = pa.array(times).dictionary_encode()  # many have the same text
        distinct = encoded.dictionary.to_numpy()
        if len(distinct) * 2 > len(times):
            texts = self._formatted(times)
        else:
            texts = self._formatted(distinct).take(encoded.indices)
        return pc.if_else(stamps.is_valid(), texts, None) if stamps.null_count else texts

    def _formatted(self, times: Longs) -> pa.Array:
        """Format times that are counted in units since 1970."""
        per_day = _DAY // self._unit
        fields = _Fields(times // per_day, times % per_day * self._unit)
        texts = [t.text if not t.letter else fields.text(t) for t in self._tokens]
        if not any(isinstance(t, pa.Array) for t in texts):
            return pa.repeat(pa.scalar("".join(texts)), len(times))
        return pc.binary_join_element_wise(*texts, "")

    def parse(self, text: pa.Array) -> pa.Array:
        """Text as milliseconds since 1970; null where null, or where it does not match."""
        quick = self._parse_fixed(text.cast(pa.string())) if self._fixed else None
        return self._parse_any(text) if quick is None else quick

    def _parse_fixed(self, text: pa.Array) -> pa.Array | None:
        """Like :meth:`parse`; None unless all texts have the width and digits of the pattern."""
        present = text.drop_null() if text.null_count else text
        width = sum(t.count for t in self._tokens)
        widths = pc.min_max(pc.binary_length(present)).as_py()
        if not len(present) or {width} != set(widths.values()):
            return None
        _, offsets, characters = present.buffers()
        first = int(np.frombuffer(offsets, np.int32)[present.offset])
        size = len(present) * width
        grid = np.frombuffer(characters, np.uint8, size, first).reshape(-1, width)
        values: dict[str, Longs] = {}
        at = 0
        for token in self._tokens:
            part = grid[:, at : at + token.count]
            at += token.count
            if not token.letter:
                if (part != np.frombuffer(token.text.encode("latin-1"), np.uint8)).any():
                    return None
                continue
            digits = part - np.uint8(ord("0"))
            if (digits > 9).any():
                return None
            values[token.letter] = digits @ 10 ** np.arange(token.count - 1, -1, -1)
        stamps = np.zeros(len(text), np.int64)
        valid = np.asarray(text.is_valid())
        stamps[valid] = _stamps(values, len(present))
        return pa.array(stamps, pa.int64(), mask=~valid if text.null_count else None)

    def _parse_any(self, text: pa.Array) -> pa.Array:
        matches = pc.extract_regex(text.cast(pa.string()), self._regex)
        parts = matches.flatten() if matches.type.num_fields else []
        values: dict[str, Longs] = {}
        valid = np.asarray(matches.is_valid())
        letters = [t for t in self._tokens if t.letter]
        for token, part in zip(letters, parts, strict=True):
            read = _value(token, pc.fill_null(part, ""), valid)
            if token.letter == "y" and token.count <= 2:
                read = _with_century(read, part)
            values["M" if token.letter == "L" else token.letter] = read
        return pa.array(_stamps(values, len(text)), pa.int64(), mask=~valid)


def _has_fixed_width(token: _Token) -> bool:
    """Whether its texts usually have as many characters as the pattern."""
    if not token.letter:
        return token.text.isascii()
    if token.letter not in _OF_FIXED_WIDTH or token.is_name:
        return False
    return token.count == 4 if token.letter == "y" else token.count > 1


def _regex(pattern_tokens: Sequence[_Token]) -> str:
    """What a text must begin with."""
    parts = ["(?is)^"]
    number = 0
    for at, token in enumerate(pattern_tokens):
        if not token.letter:
            parts.append(f"(?-i:{re.escape(token.text)})")
            continue
        followed = at + 1 < len(pattern_tokens) and bool(pattern_tokens[at + 1].letter)
        parts.append(f"[ \\t]*(?P<f{number}>{_shape(token, followed)})")
        number += 1
    return "".join(parts)


def _shape(token: _Token, followed: bool) -> str:
    """What a field of a pattern matches. If another one follows, its length is that of the
    pattern."""
    if token.letter == "X":
        minutes = ("", r"\d\d", r":\d\d")[min(token.count, 3) - 1]
        return rf"Z|[+-]\d\d?{minutes}"
    if token.letter in "Zz":
        names = "|".join(sorted(_ZONES, key=len, reverse=True))
        return rf"(?:GMT)?[+-]\d\d?:?\d\d|{names}"
    if token.is_name:
        names_of = {"a": ("AM", "PM"), "E": _DAYS}.get(token.letter, _MONTHS)
        both = [n for name in names_of for n in (name, name[:3])]
        return "|".join(both)
    return rf"\d{{1,{token.count}}}" if followed else r"-?\d{1,18}"


def _value(token: _Token, part: pa.Array, valid: npt.NDArray[np.bool_]) -> Longs:
    if token.letter in _ZONED:
        return _by_text(part, _zone)
    if token.is_name:
        if token.letter == "a":
            return _by_text(part, lambda t: int(t.upper() == "PM"))
        if token.letter == "E":
            return np.zeros(len(part), np.int64)  # the date says which day of the week it is
        months = {m[:3].lower(): n for n, m in enumerate(_MONTHS, start=1)}
        return _by_text(part, lambda t: months.get(t[:3].lower(), 1))
    digits = pc.if_else(pa.array(valid), part, "0")
    return np.asarray(digits.cast(pa.int64()), np.int64)


def _by_text(part: pa.Array, meaning: Callable[[str], int]) -> Longs:
    encoded = part.dictionary_encode()
    meanings = [meaning(t) for t in encoded.dictionary.to_pylist()]
    return np.array(meanings, np.int64).take(np.asarray(encoded.indices))


def _zone(text: str) -> int:
    """Minutes ahead of UTC."""
    upper = text.upper()
    if upper in ("", "Z"):
        return 0
    if upper in _ZONES:
        return _ZONES[upper]
    signed = upper.removeprefix("GMT")
    digits = signed[1:].replace(":", "")
    hours, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    ahead = int(hours) * 60 + int(minutes)
    return -ahead if signed[0] == "-" else ahead


def _with_century(years: Longs, part: pa.Array) -> Longs:
    """Two-digit years fall within the 80 years before now and the 20 after."""
    two = np.asarray(pc.fill_null(pc.match_substring_regex(part, r"^\d\d$"), False))
    first = datetime.now(UTC).year - 80
    near = years + first // 100 * 100
    return np.where(two, np.where(near < first, near + 100, near), years)


def _stamps(values: Mapping[str, Longs], count: int) -> Longs:
    zero = np.zeros(count, np.int64)
    year = values.get("y", zero + 1970)
    month = values.get("M", zero + 1) - 1
    day = values.get("d", zero + 1) - 1
    if "D" in values and "d" not in values:
        month, day = zero, values["D"] - 1
    hour = values.get("H", zero)
    if "k" in values:
        hour = np.where(values["k"] == 24, 0, values["k"])
    if "h" in values or "K" in values:
        half = values.get("h", values.get("K", zero))
        hour = np.where(half == 12, 0, half) if "h" in values else half
        hour = hour + 12 * values.get("a", zero)
    seconds = (hour * 60 + values.get("m", zero)) * 60 + values.get("s", zero)
    for zone in _ZONED:
        seconds = seconds - values.get(zone, zero) * 60
    return _days(year * 12 + month, day) * _DAY + seconds * 1000 + values.get("S", zero)


def _days(months: Longs, day: Longs) -> Longs:
    """Days of months, both counted from 0; the first month is January of the year 0."""
    year, month = months // 12, months % 12 + 1
    first = (months - 1970 * 12).astype("datetime64[M]").astype("datetime64[D]")
    days = first.astype(np.int64) + day
    early = (year < 1582) | ((year == 1582) & (days < _CUTOVER))
    if not early.any():
        return days
    shift = (14 - month) // 12
    years, months = year + 4800 - shift, month + 12 * shift - 3
    julian = 1 + day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083 - _JULIAN
    return np.where(early, julian, days)


class _Fields:
    """The fields of times, computed on demand from days since 1970 and milliseconds of the day."""

    def __init__(self, days: Longs, within: Longs) -> None:
        self._days = days
        self._within = within
        months = self._days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
        self._year, self._month = months // 12 + 1970, months % 12
        first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        self._day = self._days - first + 1
        early = self._days < _CUTOVER
        if early.any():
            c = self._days + _JULIAN + 32082
            d = (4 * c + 3) // 1461
            e = c - 1461 * d // 4
            m = (5 * e + 2) // 153
            self._day = np.where(early, e - (153 * m + 2) // 5 + 1, self._day)
            self._month = np.where(early, m + 2 - 12 * (m // 10), self._month)
            self._year = np.where(early, d - 4800 + m // 10, self._year)

    @property
    def _shown_year(self) -> Longs:
        """Before the year 1, years count backwards."""
        return np.where(self._year < 1, 1 - self._year, self._year)

    @property
    def _week_year(self) -> Longs:
        """A week, from Sunday to Saturday, belongs to the year of its last day, as in Java's
        English locale."""
        to_saturday = (5 - (self._days + 3) % 7) % 7
        return _Fields(self._days + to_saturday, self._within)._shown_year

    def text(self, token: _Token) -> pa.Array | str:
        letter, count = token.letter, token.count
        hour = self._within // 3_600_000
        if letter in _ZONED:
            return {"X": "Z", "Z": "+0000", "z": "UTC"}[letter]
        if letter == "a":
            return _chosen(hour // 12, ("AM", "PM"))
        if letter == "E":
            weekday = (self._days + 3) % 7
            return _chosen(weekday, _DAYS if count > 3 else [d[:3] for d in _DAYS])
        if token.is_name:
            return _chosen(self._month, _MONTHS if count > 3 else [m[:3] for m in _MONTHS])
        if letter in "yY" and count == 2:
            year = self._shown_year if letter == "y" else self._week_year
            return _padded(year % 100, 2)
        numbers: Mapping[str, Callable[[], Longs]] = {
            "y": lambda: self._shown_year,
            "Y": lambda: self._week_year,
            "M": lambda: self._month + 1,
            "L": lambda: self._month + 1,
            "d": lambda: self._day,
            "D": lambda: self._days - _days(self._year * 12, 0 * self._year) + 1,
            "u": lambda: (self._days + 3) % 7 + 1,
            "H": lambda: hour,
            "k": lambda: np.where(hour == 0, 24, hour),
            "K": lambda: hour % 12,
            "h": lambda: np.where(hour % 12 == 0, 12, hour % 12),
            "m": lambda: self._within // 60_000 % 60,
            "s": lambda: self._within // 1000 % 60,
            "S": lambda: self._within % 1000,
        }
        return _padded(numbers[letter](), count)


def _chosen(index: Longs, names: Sequence[str]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(index))


def _padded(numbers: Longs, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


_TIME = DateFormat("HH:mm:ss.SSS'Z'")
_DATE = DateFormat("yyyy-MM-dd")
_TIMESTAMP = DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def java_text(array: pa.Array) -> pa.Array:
    """Each value as text, null where null: numbers as Java's ``toString`` writes them, bytes in
    base64, dates and times as Kafka Connect's Cast does, in UTC, what is nested as JSON."""
    kind, kinds = array.type, pa.types
    if kinds.is_string(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind):
        return array.cast(pa.string())
    if kinds.is_null(kind) or kinds.is_large_string(kind):
        return array.cast(pa.string())
    if kinds.is_floating(kind):
        return java_floats(array)
    if kinds.is_decimal(kind):
        return _each(array, str)
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return _each(array, lambda value: base64.b64encode(value).decode())
    if kinds.is_temporal(kind):
        return _dates(milliseconds(array))
    if kind == JSON:
        return array.storage.cast(pa.string())
    return pc.if_else(array.is_valid(), _WRITER.texts(array), None)


def java_texts(array: pa.Array) -> pa.Array:
    """:func:`java_text` of each value by its own type, also where plain JSON has several types."""
    kinds = of_one_kind(array.storage) if array.type == JSON else []
    if not kinds:
        return java_text(array)
    rows, values = zip(*kinds, strict=True)
    return place(pa.concat_arrays(map(java_text, values)), pa.concat_arrays(rows), len(array))


def _each(array: pa.Array, change: Callable[[Any], str]) -> pa.Array:
    encoded = array.dictionary_encode()
    texts = [change(v) for v in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _dates(stamps: pa.Array) -> pa.Array:
    early = pc.less(stamps, _DAY)
    whole = pc.equal(stamps, pc.multiply(floor_divided(stamps, _DAY), _DAY))
    late = pc.if_else(whole, _DATE.format(stamps), _TIMESTAMP.format(stamps))
    return pc.if_else(early, _TIME.format(stamps), late)
