"""Columns of values for Avro's types, and of text for regular expressions, each made from random
numbers: these follow from a seed, a place in the schema and the number of a record."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LETTERS = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8
)
_MEMBER_BITS = np.uint64(20)
"""How many bits of a member's number hold its place in the array."""


_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FRACTION = 2.0**-53


def salt(*parts: object) -> int:
    """A number of 64 bits for a place."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Block:
    """Records by their numbers, and the seed of their task."""

    numbers: np.ndarray
    seed: int

    def __len__(self) -> int:
        return len(self.numbers)

    def integers(self, place: int) -> np.ndarray:
        """64 random bits for each record, by SplitMix64."""
        with np.errstate(over="ignore"):
            mixed = (self.numbers + np.uint64(1)) * _STEP + np.uint64(self.seed ^ place)
            for shift, factor in ((30, _FIRST), (27, _SECOND)):
                mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
            return mixed ^ (mixed >> np.uint64(31))

    def below(self, place: int, bound: int) -> np.ndarray:
        """A random whole number from 0 to less than a bound."""
        if bound == 1 << 64:
            return self.integers(place)
        return self.integers(place) % np.uint64(bound)

    def fractions(self, place: int) -> np.ndarray:
        """A random number from 0 to less than 1."""
        return (self.integers(place) >> np.uint64(11)) * _FRACTION


@dataclass(frozen=True, slots=True)
class Lengths:
    """Random lengths from ``least`` on, less than ``below``."""

    place: int
    least: int
    below: int

    @property
    def most(self) -> int:
        return self.below - 1

    def __call__(self, block: Block) -> np.ndarray:
        return block.below(self.place, self.below - self.least).astype(np.int64) + self.least


class Maker(ABC):
    """Makes the values of one place in a schema."""

    type: pa.DataType
    nullable = False
    most = 1
    """The most characters, bytes and members of a value."""

    @abstractmethod
    def values(self, block: Block) -> pa.Array:
        """A value for each record."""

    def plain(self, value: Any) -> Any:
        """An option from JSON, as Arrow takes it.

        Raises:
            TypeError, ValueError: it is none of this type.
        """
        if value is None:
            raise TypeError("it is null")
        return value


class Integers(Maker):
    """Whole numbers from ``least`` on, less than ``least + span``, in the type's own unit."""

    def __init__(self, kind: pa.DataType, place: int, least: int, span: int) -> None:
        self.type = kind
        self._place, self._least, self._span = place, least, span

    def values(self, block: Block) -> pa.Array:
        numbers = block.below(self._place, self._span)
        with np.errstate(over="ignore"):
            return cast((numbers + np.uint64(self._least % (1 << 64))).view(np.int64), self.type)

    def plain(self, value: Any) -> Any:
        if pa.types.is_decimal(self.type):
            return _decimal(value, self.type)
        if not isinstance(value, int):
            raise TypeError(f"{value!r} is not a whole number")
        return value


class Floats(Maker):
    """Numbers from ``least`` on, less than ``most``."""

    def __init__(self, kind: pa.DataType, place: int, least: float, most: float) -> None:
        self.type = kind
        self._place, self._least, self._most = place, least, most

    def values(self, block: Block) -> pa.Array:
        numbers = self._least + block.fractions(self._place) * (self._most - self._least)
        return pa.array(numbers).cast(self.type)

    def plain(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{value!r} is not a number")
        return float(value)


@dataclass(frozen=True, slots=True)
class Iteration:
    """A sequence of numbers; ``restart`` is None if it does not begin again."""

    start: float
    step: float
    initial: float
    restart: float | None

    def numbers(self, block: Block, kind: Any) -> np.ndarray:
        """The number of each record."""
        if self.restart is None:
            steps = block.numbers.astype(kind)
            with np.errstate(over="ignore"):
                return np.asarray(kind(self.initial) + steps * kind(self.step))
        span = self.restart - self.start
        with np.errstate(over="ignore"):
            steps = block.numbers.astype(kind)
            if kind is np.int64:
                steps = steps % np.int64(abs(int(span)))
            ahead = kind(self.initial - self.start) + steps * kind(self.step)
        return np.asarray(kind(self.start) + np.mod(ahead, kind(span)))


class IterationValues(Maker):
    """The values of an iteration, as numbers or as text."""

    def __init__(self, kind: pa.DataType, iteration: Iteration) -> None:
        self.type = kind
        self._iteration = iteration

    def values(self, block: Block) -> pa.Array:
        if pa.types.is_boolean(self.type):
            odd = (block.numbers & np.uint64(1)).astype(bool)
            return pa.array(odd ^ bool(self._iteration.start))
        if pa.types.is_floating(self.type):
            return pa.array(self._iteration.numbers(block, np.float64)).cast(self.type)
        numbers = self._iteration.numbers(block, np.int64)
        if pa.types.is_string(self.type):
            return pa.array(numbers).cast(pa.string())
        if pa.types.is_int32(self.type):
            return pa.array(numbers.astype(np.int32))
        return cast(numbers, self.type)


class Booleans(Maker):
    """True with some odds."""

    type = pa.bool_()

    def __init__(self, place: int, odds: float) -> None:
        self._place, self._odds = place, odds

    def values(self, block: Block) -> pa.Array:
        return pa.array(block.fractions(self._place) < self._odds)


class Bytes(Maker):
    """Random bytes, or random letters and digits, of random lengths; those of a fixed ``size`` have
    just one."""

    def __init__(
        self, kind: pa.DataType, place: int, lengths: Lengths, size: int | None = None
    ) -> None:
        self.type, self.most = kind, lengths.most
        self._place, self._lengths, self._size = place, lengths, size

    def values(self, block: Block) -> pa.Array:
        ends, members = spread(block, self._lengths(block))
        numbers = members.integers(self._place)
        if pa.types.is_string(self.type):
            content = _LETTERS[numbers % np.uint64(len(_LETTERS))]
        else:
            content = (numbers >> np.uint64(32)).astype(np.uint8)
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(content)]
        return pa.Array.from_buffers(self.type, len(block), buffers)

    def plain(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
        if not pa.types.is_binary(self.type):
            return value
        content = value.encode("latin-1")
        if self._size not in (None, len(content)):
            raise ValueError(f"{value!r} has {len(content)} bytes instead of {self._size}")
        return content


class Texts(Maker):
    """Text made by a function, such as one for a regular expression."""

    type = pa.string()

    def __init__(self, make: Callable[[Block], pa.Array], most: int = 1) -> None:
        self._make, self.most = make, most

    def values(self, block: Block) -> pa.Array:
        return self._make(block)


class SurroundedTexts(Maker):
    """Text between a prefix and a suffix."""

    type = pa.string()

    def __init__(self, inner: Maker, prefix: str, suffix: str) -> None:
        self._inner, self._prefix, self._suffix = inner, prefix, suffix
        self.most = len(prefix) + inner.most + len(suffix)

    def values(self, block: Block) -> pa.Array:
        texts = self._inner.values(block)
        return pc.binary_join_element_wise(self._prefix, texts, self._suffix, "")


class Choices(Maker):
    """One of several options, of any type."""

    def __init__(self, inner: Maker, place: int, options: Sequence[Any]) -> None:
        self.type, self.nullable = inner.type, inner.nullable
        self._place = place
        self._inner = inner
        self._options = pa.array([inner.plain(o) for o in options], inner.type)
        self.most = 1 + max(self._options.slice(n, 1).nbytes for n in range(len(options)))

    def values(self, block: Block) -> pa.Array:
        return self._options.take(pa.array(block.below(self._place, len(self._options))))

    def plain(self, value: Any) -> Any:
        return self._inner.plain(value)


class Symbols(Choices):
    """One of an enum's symbols."""

    def plain(self, value: Any) -> Any:
        if value not in self._options.to_pylist():
            raise ValueError(f"{value!r} is not a symbol")
        return value


class Nulls(Maker):
    """Null."""

    type = pa.null()
    nullable = True

    def plain(self, value: Any) -> Any:
        return value

    def values(self, block: Block) -> pa.Array:
        return pa.nulls(len(block))


class OptionalValues(Maker):
    """A value, or null half the time: each of the union's two branches is equally likely."""

    nullable = True

    def __init__(self, inner: Maker, place: int) -> None:
        self.type, self.most = inner.type, inner.most
        self._inner, self._place = inner, place

    def values(self, block: Block) -> pa.Array:
        values = self._inner.values(block)
        there = np.flatnonzero(block.below(self._place, 2)).astype(np.int64)
        positions = np.full(len(block), -1, np.int64)
        positions[there] = there
        return values.take(pa.array(positions, mask=positions < 0))

    def plain(self, value: Any) -> Any:
        return None if value is None else self._inner.plain(value)


class Records(Maker):
    """A record of fields."""

    def __init__(self, fields: dict[str, Maker]) -> None:
        self.fields = fields
        self._fields = [pa.field(n, m.type, nullable=m.nullable) for n, m in fields.items()]
        self.type = pa.struct(self._fields)
        self.most = sum(maker.most for maker in fields.values())

    def values(self, block: Block) -> pa.Array:
        arrays = [maker.values(block) for maker in self.fields.values()]
        return pa.StructArray.from_arrays(arrays, fields=self._fields)

    def plain(self, value: Any) -> Any:
        return {n: m.plain(value[n]) for n, m in self.fields.items()}


class Arrays(Maker):
    """Arrays of random lengths."""

    def __init__(self, inner: Maker, lengths: Lengths) -> None:
        self.most = lengths.most * inner.most
        self.type = pa.list_(pa.field("item", inner.type, nullable=inner.nullable))
        self._inner, self._lengths = inner, lengths

    def values(self, block: Block) -> pa.Array:
        ends, members = spread(block, self._lengths(block))
        items = self._inner.values(members)
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), items, type=self.type)

    def plain(self, value: Any) -> Any:
        return [self._inner.plain(v) for v in value]


class Maps(Maker):
    """Maps of random lengths; their keys are random."""

    def __init__(self, keys: Maker, inner: Maker, lengths: Lengths) -> None:
        self.most = lengths.most * (keys.most + inner.most)
        self.type = pa.map_(pa.string(), pa.field("value", inner.type, nullable=inner.nullable))
        self._keys, self._inner, self._lengths = keys, inner, lengths

    def values(self, block: Block) -> pa.Array:
        ends, members = spread(block, self._lengths(block))
        keys, items = self._keys.values(members), self._inner.values(members)
        return pa.MapArray.from_arrays(pa.array(ends.astype(np.int32)), keys, items, type=self.type)

    def plain(self, value: Any) -> Any:
        return [(k, self._inner.plain(v)) for k, v in value.items()]


def spread(block: Block, counts: np.ndarray) -> tuple[np.ndarray, Block]:
    """Where the members of each record end, after a 0, and all members as a block."""
    ends = np.concatenate(([0], np.cumsum(counts)))
    records = np.repeat(block.numbers, counts)
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], counts)
    with np.errstate(over="ignore"):
        numbers = (records << _MEMBER_BITS) + within.astype(np.uint64)
    return ends, Block(numbers, block.seed)


def cast(numbers: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Whole numbers in the unit of a type as that type."""
    if pa.types.is_decimal(kind):
        halves = np.stack([numbers, numbers >> np.int64(63)], axis=1)  # low and high
        buffer = pa.py_buffer(np.ascontiguousarray(halves))
        return pa.Array.from_buffers(kind, len(numbers), [None, buffer])
    if kind.bit_width == 32:
        return pa.array(numbers.astype(np.int32)).view(kind)
    return pa.array(numbers).view(kind)


def _decimal(value: Any, kind: pa.Decimal128Type) -> Decimal:
    """A number, or the bytes of an unscaled one as Avro's JSON has them."""
    if isinstance(value, str):
        unscaled = int.from_bytes(value.encode("latin-1"), "big", signed=True)
        return Decimal(unscaled).scaleb(-kind.scale)
    return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))


# Text that matches a regular expression

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
_CHOICES = 4096
"""The most random choices of a pattern."""
_MOST = 1 << 20
"""The most characters of a pattern's texts."""
_TOO_LONG = "makes strings that are too long: limit its repetitions"


def matching(pattern: str, *place: object) -> Texts:
    """The maker of texts that match a pattern.

    Raises:
        ValueError: says why it cannot be done.
    """
    try:
        parsed = _PARSER.parse(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    most = _longest(parsed)
    if most > _MOST:
        raise ValueError(_TOO_LONG)
    make = _sequence(parsed, _Places(place))

    def texts(block: Block) -> pa.Array:
        value = make(block)
        return pa.repeat(pa.scalar(value, pa.string()), len(block)) if _constant(value) else value

    return Texts(texts, most)


class _Places:
    """A place of its own for each random choice of a pattern."""

    def __init__(self, place: Sequence[object]) -> None:
        self._place = place
        self._count = 0

    def next(self) -> int:
        self._count += 1
        if self._count > _CHOICES:
            raise ValueError(_TOO_LONG)
        return salt(*self._place, self._count)


def _constant(value: Any) -> bool:
    return isinstance(value, str)


def _joined(pieces: Sequence[Any]) -> Any:
    if all(map(_constant, pieces)):
        return "".join(pieces)
    return pc.binary_join_element_wise(*pieces, "")


def _longest(parsed: Any) -> int:
    """The length of the longest text."""
    lengths = []
    for op, value in parsed:
        match str(op):
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                lengths.append(_times(value) * _longest(value[2]))
            case "SUBPATTERN":
                lengths.append(_longest(value[3]))
            case "ATOMIC_GROUP":
                lengths.append(_longest(value))
            case "BRANCH":
                lengths.append(max(map(_longest, value[1])))
            case _:
                lengths.append(1)
    return sum(lengths)


def _times(repeat: Any) -> int:
    """How often something is repeated at most."""
    least, most, _ = repeat
    unbounded = not isinstance(most, int) or most == _PARSER.MAXREPEAT
    return int(least + _BEYOND if unbounded else most)


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
    least, _, inner = repeat
    until = _times(repeat)
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
        texts = [make(block) for make in makes]
        if all(map(_constant, texts)):
            return pa.array(texts, pa.string()).take(chosen)
        return pc.choose(chosen, *(_whole(text, len(block)) for text in texts))

    return pieces


def _whole(value: Any, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows) if _constant(value) else value
