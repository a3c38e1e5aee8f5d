"""Whether the parsed floats and decimals are the numbers that the JSON holds.

A fraction becomes the nearest float. A number beyond the largest float must not become infinite, a
small one must not become zero, and a whole number must not become another whole number.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.text import array_elements, members

_WHOLE = {32: 1 << 24, 64: 1 << 53}
"""Up to these, floats of 32 and 64 bits hold every whole number."""
_SUSPICIOUS = {
    32: r"[0-9]{8}|[0-9.][eE][+-]?[0-9]{2}",
    64: r"[0-9]{16}|[0-9.][eE][+-]?[0-9]{3}",
}
"""Only a text with a number that differs from its float can match this."""
_NAMED = re.compile(r"-?Inf|NaN|null")


_RARE = 20
"""If fewer than one number in this many is zero, each zero is checked instead of the whole text."""

_PIECE = 1 << 18


class ObjectTexts:
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


def unfaithful(written: ObjectTexts, name: str, values: pa.Array) -> str | None:
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


def _large_or_zero(floats: pa.Array, written: ObjectTexts) -> pa.Array | None:
    whole = _WHOLE[floats.type.bit_width]
    least, greatest = pc.min_max(floats).as_py().values()
    if least is None:
        return None
    zero = _zeros(floats, written) if least <= 0 <= greatest else None
    if greatest < whole and least > -whole:
        return zero
    large = pc.greater_equal(pc.abs(floats), float(whole))
    return large if zero is None else pc.or_(large, zero)


def _zeros(numbers: pa.Array, written: ObjectTexts) -> pa.Array | None:
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
