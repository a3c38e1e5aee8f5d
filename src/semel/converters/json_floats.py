"""Whether the floats that a parser made of JSON are the numbers that were written.

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

from semel.converters.json_text import array_elements, members

_WHOLE = {32: 1 << 24, 64: 1 << 53}
"""Up to these, floats of 32 and 64 bits hold every whole number."""
_SUSPICIOUS = {
    32: r"[0-9]{8}|[0-9.][eE][+-]?[0-9]{2}",
    64: r"[0-9]{16}|[0-9.][eE][+-]?[0-9]{3}",
}
"""What only a text can match that holds a number which is not its float."""
_NAMED = re.compile(r"-?Inf|NaN|null")


_RARE = 20
"""If fewer than one number in so many is zero, each is looked at instead of all of the text."""

_PIECE = 1 << 18


class Written:
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


def unfaithful(written: Written, name: str, values: pa.Array) -> str | None:
    """The first number in a field, of numbers or of lists of them, that its float is not; None if
    there is none."""
    lists = pa.types.is_list(values.type)
    floats = values.flatten() if lists else values
    width = floats.type.bit_width
    doubtful = _doubtful(floats, _WHOLE[width], written)
    if doubtful is None:
        return None
    rows = pc.indices_nonzero(doubtful)
    if lists:
        rows = pc.unique(pc.list_parent_indices(values).take(rows))
    texts = written.text.take(rows)
    for one in texts.filter(pc.match_substring_regex(texts, _SUSPICIOUS[width])).to_pylist():
        found = members(one)[0].get(name, "null")
        for number in array_elements(found) if found.startswith("[") else [found]:
            if not is_faithful(number, width):
                return number
    return None


def _doubtful(floats: pa.Array, whole: int, written: Written) -> pa.Array | None:
    """Which floats are large, or zero where small numbers are written; None for none."""
    least, greatest = pc.min_max(floats).as_py().values()
    if least is None:
        return None
    large = zero = None
    if greatest >= whole or least <= -whole:
        large = pc.greater_equal(pc.abs(floats), float(whole))
    if least <= 0 <= greatest:
        zero = pc.equal(floats, 0.0)
        count = pc.sum(zero).as_py() or 0
        if not count or (count * _RARE > len(floats) and not written.has_small_numbers):
            zero = None
    if large is None or zero is None:
        return large if zero is None else zero
    return pc.or_(large, zero)


def is_faithful(number: str, width: int) -> bool:
    """Whether a number, as it stands in JSON, may become a float of so many bits."""
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
