"""Text in transaction identifiers, which hold only numbers: seven bytes in each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

EMPTY = 1
"""The only number of an empty text."""

_BYTES = 7


def numbers(name: str, text: str) -> dict[str, int]:
    """The identifiers that hold a text; the last one is not full, which marks the end."""
    raw = text.encode()
    parts = [raw[at : at + _BYTES] for at in range(0, len(raw) + 1, _BYTES)]
    return {f"{name}:{n}": int.from_bytes(b"\x01" + part) for n, part in enumerate(parts)}


def text(name: str, number: Callable[[str], int | None]) -> str:
    """The text that identifiers hold; empty if there is none."""
    raw = b""
    for n in count():
        found = number(f"{name}:{n}")
        if found is None:
            return ""
        part = found.to_bytes(_BYTES + 1).lstrip(b"\x00")[1:]
        raw += part
        if len(part) < _BYTES:
            return raw.decode()
    raise AssertionError
