"""Values that nobody expects, and valid ones with something wrong in them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

TEXTS = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(
    [
        *("", " ", "\0", "\n", "\ud800", "\u202e", "é", "a.b", "a\x1b[31m", "NaN", "null", "1e999"),
        *("-", "1_0", "١", "0x1F", "1.5f", "2024-02-30", "99999999999999999999", "${file:/x:y}"),
        "💥" * 20,
    ]
)
NUMBERS = st.sampled_from(
    [0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**40, 1.5, 1e308, float("inf"), float("nan")]
)
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Any JSON."""


@st.composite
def damaged(draw: st.DrawFn, valid: Any, more: tuple[Any, ...] = ()) -> Any:
    """A JSON value in which some parts are others, are missing, or are there twice."""
    found = copy.deepcopy(valid)
    for _ in range(draw(st.integers(0, 3))):
        places = list(_places(found))
        if not places:
            return draw(JUNK)
        holder, key = draw(st.sampled_from(places))
        match draw(st.integers(0, 3)):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2 if more:
                holder[key] = copy.deepcopy(draw(st.sampled_from(more)))
            case _:
                holder[key] = draw(JUNK)
    return found


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        items: Any = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return
    for key, inner in items:
        yield value, key
        yield from _places(inner)


@st.composite
def cut(draw: st.DrawFn, valid: bytes) -> bytes:
    """Bytes with some changed, missing or added."""
    found = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(found)))
        match draw(st.integers(0, 3)):
            case 0:
                del found[at : at + draw(st.integers(1, 4))]
            case 1:
                found[at:at] = draw(st.binary(max_size=6))
            case 2:
                found[at : at + 1] = draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x80"]))
            case _:
                found = found[:at]
    return bytes(found)
