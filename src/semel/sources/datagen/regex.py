"""Text that matches a regular expression, many at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.sources.datagen.values import Block, salt

Pieces = Callable[[Block], Any]
"""Makes a text for each record: an array, or one text for all."""

_PARSER: Any = import_module("re._parser")
_PRINTABLE = frozenset(range(32, 127))
_CATEGORIES = {
    "CATEGORY_DIGIT": frozenset(map(ord, "0123456789")),
    "CATEGORY_SPACE": frozenset(map(ord, " \t\n\r\f\v")),
    "CATEGORY_WORD": frozenset(
        map(ord, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
    ),
}
_BEYOND = 10
"""The most repetitions beyond the minimum for an unbounded quantifier."""
_LONGEST = 4096


def texts(pattern: str, *place: object) -> Callable[[Block], pa.Array]:
    """A maker of texts that match a pattern.

    Raises:
        ValueError: says why it cannot be done.
    """
    try:
        parsed = _PARSER.parse(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    make = _sequence(parsed, _Places(place))

    def maker(block: Block) -> pa.Array:
        value = make(block)
        return pa.repeat(pa.scalar(value, pa.string()), len(block)) if _constant(value) else value

    return maker


class _Places:
    """A place of its own for each random choice of a pattern."""

    def __init__(self, place: Sequence[object]) -> None:
        self._place = place
        self._count = 0

    def next(self) -> int:
        self._count += 1
        if self._count > _LONGEST:
            raise ValueError("makes strings that are too long: limit its repetitions")
        return salt(*self._place, self._count)


def _constant(value: Any) -> bool:
    return isinstance(value, str)


def _joined(pieces: Sequence[Any]) -> Any:
    if all(map(_constant, pieces)):
        return "".join(pieces)
    return pc.binary_join_element_wise(*pieces, "")


def _sequence(parsed: Any, places: _Places) -> Pieces:
    parts = [part for op, value in parsed for part in _parts(str(op), value, places)]

    def pieces(block: Block) -> Any:
        return _joined([part(block) for part in parts]) if parts else ""

    return pieces


def _parts(op: str, value: Any, places: _Places) -> Iterator[Pieces]:
    """The makers of the pieces of one element."""
    if op == "LITERAL":
        yield _literal(chr(value))
    elif op in ("ANY", "NOT_LITERAL"):
        yield _one_of(_PRINTABLE - ({value} if op == "NOT_LITERAL" else set()), places)
    elif op == "IN":
        yield _one_of(_members(value), places)
    elif op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        yield from _repeated(value, places)
    elif op == "SUBPATTERN":
        yield _sequence(value[3], places)
    elif op == "ATOMIC_GROUP":
        yield _sequence(value, places)
    elif op == "BRANCH":
        yield _branch(value[1], places)
    elif op != "AT":  # the beginning or the end
        raise ValueError(f"has {op.lower().replace('_', ' ')}, for which no text can be made")


def _literal(text: str) -> Pieces:
    return lambda _block: text


def _one_of(codes: frozenset[int] | set[int], places: _Places) -> Pieces:
    if not codes:
        raise ValueError("has a set without characters")
    characters = pa.array([chr(code) for code in sorted(codes)], pa.string())
    place = places.next()
    return lambda block: characters.take(pa.array(block.below(place, len(characters))))


def _members(items: Any) -> set[int]:
    members: set[int] = set()
    negated = False
    for op, value in items:
        match str(op):
            case "NEGATE":
                negated = True
            case "LITERAL":
                members.add(value)
            case "RANGE":
                members.update(range(value[0], value[1] + 1))
            case _:
                name = str(value)
                inverse = "_NOT_" in name
                category = _CATEGORIES[name.replace("_NOT_", "_")]
                members |= _PRINTABLE - category if inverse else category
    return set(_PRINTABLE - members) if negated else members


def _repeated(repeat: Any, places: _Places) -> Iterator[Pieces]:
    least, most, inner = repeat
    unbounded = not isinstance(most, int) or most == _PARSER.MAXREPEAT
    until = least + _BEYOND if unbounded else most
    place = places.next()
    for number in range(until):
        places.next()
        make = _sequence(inner, places)
        yield make if number < least else _optional(make, place, number - least, until - least)


def _optional(make: Pieces, place: int, number: int, most: int) -> Pieces:
    def pieces(block: Block) -> Any:
        present = block.below(place, most + 1) > np.uint64(number)
        return pc.if_else(pa.array(present), make(block), "")

    return pieces


def _branch(choices: Sequence[Any], places: _Places) -> Pieces:
    place = places.next()
    makes = [_sequence(choice, places) for choice in choices]

    def pieces(block: Block) -> Any:
        chosen = pa.array(block.below(place, len(makes)).astype(np.int64))
        return pc.choose(chosen, *(_whole(make(block), len(block)) for make in makes))

    return pieces


def _whole(value: Any, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows) if _constant(value) else value
