"""The parts of states that columns make: what records add to one, and how two become one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.streams.records import concatenated

_WIDE = Context(prec=76)

KINDS: Mapping[str, Sequence[str]] = {
    "count": ["count"],
    "sum": ["sum"],
    "min": ["min"],
    "max": ["max"],
    "avg": ["sum", "number"],
    "first": ["first"],
    "last": ["last"],
    "collect": ["list"],
}
"""The parts of each kind's state."""
SUBTRACTED = frozenset({"count", "sum", "number"})
"""Parts that a value can be taken back from."""
Combine = Callable[[pa.Array, pa.Array], pa.Array]
"""Makes one part of states of two."""


def reduction(part: str, name: str) -> tuple[Any, ...]:
    """How Arrow makes this part of the values of a column, group by group."""
    if part == "count":
        return ([], "count_all")
    if part == "number":
        return (name, "count")
    return (name, part)


_LONG = 2**63 - 1
_DIGITS = 38
_EXACT = pa.decimal256(40, 0)
"""The type of sums of integers that 64 bits may not hold; no sum of decimals has it."""


def checked_numbers(values: pa.Array, what: str) -> pa.Array:
    """Values of which ``what`` makes a sum; booleans count as 1 and 0."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.int64())
    is_ = (pa.types.is_null, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not any(check(kind) for check in is_):
        raise pa.ArrowTypeError(f"{what}() needs numbers, but it is given {kind}")
    return values


def addends(values: pa.Array, most: int) -> pa.Array:
    """Values that Arrow may add up to so many of: beyond the bounds of a type it wraps around, and
    does not tell."""
    kind = values.type
    if pa.types.is_decimal(kind) and kind.precision + len(str(most)) > _DIGITS:
        return values.cast(pa.decimal256(76, kind.scale))
    if pa.types.is_integer(kind) and len(values) > values.null_count:
        ends = pc.min_max(values).as_py()
        if most * max(-ends["min"], ends["max"]) > _LONG:
            return values.cast(pa.decimal128(_DIGITS, 0))
    return values


def totals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Sums of :func:`addends` values, which had this type before."""
    if pa.types.is_decimal(values.type) and not pa.types.is_decimal(kind):
        return values.cast(_EXACT)
    return values.cast(pa.int64()) if pa.types.is_unsigned_integer(values.type) else values


# Arrow's own aggregate functions take neither structs nor lists, nor decimals for first and last.


def _firsts(codes: np.ndarray, count: int, values: pa.Array) -> pa.Array:
    rows = np.flatnonzero(np.asarray(values.is_valid()))[::-1]
    return _at(codes, count, values, rows)


def _lasts(codes: np.ndarray, count: int, values: pa.Array) -> pa.Array:
    return _at(codes, count, values, np.flatnonzero(np.asarray(values.is_valid())))


def _at(codes: np.ndarray, count: int, values: pa.Array, rows: np.ndarray) -> pa.Array:
    """The value of each group at the last of its rows."""
    place = np.full(count, -1)
    place[codes[rows]] = rows
    return values.take(pa.array(place, mask=place < 0))


def _lists(codes: np.ndarray, count: int, values: pa.Array) -> pa.Array:
    ends = np.cumsum(np.bincount(codes, minlength=count))
    together = values.take(pa.array(np.argsort(codes, kind="stable")))
    return pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), together)


PICK: Mapping[str, Callable[[np.ndarray, int, pa.Array], pa.Array]] = {
    "first": _firsts,
    "last": _lasts,
    "list": _lists,
}
"""Parts that hold values as they are."""


def _plus(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return _WIDE.add(_as_decimal(one), _as_decimal(other))
    return one + other


def _as_decimal(number: Any) -> Decimal:
    """The number as it is written: a float's own digits are those of a binary fraction."""
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def _minus(one: Any, other: Any) -> Any:
    if other is None:
        return one
    return _plus(one, other.copy_negate() if isinstance(other, Decimal) else -other)


def _least(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return other if _is_nan(one) or _is_less(other, one) else one


def _most(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return other if _is_nan(one) or _is_less(one, other) else one


def _is_nan(value: Any) -> bool:
    """Whether it is passed over."""
    return isinstance(value, float) and math.isnan(value)


def _is_less(one: Any, other: Any) -> bool:
    try:
        return bool(one < other)
    except TypeError:
        raise pa.ArrowTypeError(f"{one!r} and {other!r} cannot be compared") from None


def _either(one: Any, other: Any) -> Any:
    return other if one is None else one


def _other(one: Any, other: Any) -> Any:
    return one if other is None else other


ADD: Mapping[str, Callable[[Any, Any], Any]] = {
    "count": lambda state, _: state + 1,
    "number": lambda state, value: state + (value is not None),
    "sum": _plus,
    "min": _least,
    "max": _most,
    "first": _either,
    "last": _other,
    "list": lambda state, value: [*(state or ()), value],
}
"""Each part with one more value, record by record."""
SUBTRACT: Mapping[str, Callable[[Any, Any], Any]] = {
    "count": lambda state, _: state - 1,
    "number": lambda state, value: state - (value is not None),
    "sum": _minus,
}
"""Each part with one value less."""
MERGE: Mapping[str, Callable[[Any, Any], Any]] = {
    **ADD,
    "count": _plus,
    "number": _plus,
    "list": lambda one, other: [*(one or ()), *(other or ())],
}
"""Each part of two groups that become one; the first is the earlier."""


def _added(one: pa.Array, other: pa.Array) -> pa.Array:
    return _sums(one, other, pc.add_checked)


def _subtracted(one: pa.Array, other: pa.Array) -> pa.Array:
    return _sums(one, other, pc.subtract_checked)


def _wrapped(one: pa.Array, other: pa.Array) -> pa.Array:
    return _sums(one, other, pc.add, fits=False)


def _sums(
    one: pa.Array, other: pa.Array, combine: Callable[..., pa.Array], fits: bool = True
) -> pa.Array:
    if pa.types.is_null(other.type):
        return one
    if other.type == _EXACT and pa.types.is_floating(one.type):
        other = other.cast(one.type)
    elif other.type == _EXACT and not pa.types.is_decimal(one.type):
        return _exact_sums(one, other, combine)
    zero = pa.scalar(0).cast(other.type)
    if pa.types.is_null(one.type):
        one = pa.nulls(len(other), other.type)
    if pa.types.is_decimal(one.type) or pa.types.is_decimal(other.type):
        return _decimals(one, other, combine, fits)
    both = combine(one.fill_null(pa.scalar(0).cast(one.type)), other.fill_null(zero))
    return pc.if_else(pc.and_(one.is_null(), other.is_null()), None, both)


def _exact_sums(one: pa.Array, other: pa.Array, combine: Callable[..., pa.Array]) -> pa.Array:
    zero = pa.scalar(0).cast(_EXACT)
    both = combine(*(a.cast(_EXACT).fill_null(zero) for a in (one, other)))
    try:
        total = both.cast(pa.int64())
    except pa.ArrowInvalid:
        raise pa.ArrowInvalid("overflow") from None  # as where 64 bits are added
    return pc.if_else(pc.and_(one.is_null(), other.is_null()), None, total)


def _decimals(
    one: pa.Array, other: pa.Array, combine: Callable[..., pa.Array], fits: bool
) -> pa.Array:
    scale = np.max([getattr(a.type, "scale", 0) for a in (one, other)])
    wide = pa.decimal256(75, int(scale))
    zero = pa.scalar(0).cast(wide)
    both = combine(*(a.cast(wide).fill_null(zero) for a in (one, other)))
    total = both.cast(pa.decimal128(38, int(scale)) if fits else wide)
    return pc.if_else(pc.and_(one.is_null(), other.is_null()), None, total)


def _appended(one: pa.Array, other: pa.Array) -> pa.Array:
    if pa.types.is_null(one.type):
        return other
    parts = [pc.list_value_length(a).fill_null(0).to_numpy() for a in (one, other)]
    lengths = parts[0] + parts[1]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.concatenate([np.repeat(2 * np.arange(len(one)) + n, p) for n, p in enumerate(parts)])
    values = concatenated([one.flatten(), other.flatten()])
    ordered = values.take(pa.array(np.argsort(rows, kind="stable")))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ordered)


def _chosen(choose: Combine, wins: Combine) -> Combine:
    def combine(one: pa.Array, other: pa.Array) -> pa.Array:
        if pa.types.is_null(one.type) or pa.types.is_null(other.type):
            return other if pa.types.is_null(one.type) else one
        if one.type == other.type and pa.types.is_floating(one.type):
            return choose(one, other)  # it passes over NaN
        first = np.asarray(pc.or_kleene(wins(one, other), other.is_null()).fill_null(False))
        rows = np.arange(len(one)) + np.where(first, 0, len(one))
        return concatenated([one, other]).take(pa.array(rows))

    return combine


def _present(one: pa.Array, other: pa.Array) -> pa.Array:
    """The one or, where it is null, the other."""
    rows = np.arange(len(one)) + np.where(np.asarray(one.is_valid()), 0, len(one))
    return concatenated([one, other]).take(pa.array(rows))


COMBINE: Mapping[str, Combine] = {
    "count": _added,
    "number": _added,
    "sum": _added,
    "min": _chosen(pc.min_element_wise, pc.less_equal),
    "max": _chosen(pc.max_element_wise, pc.greater_equal),
    "first": _present,
    "last": lambda one, other: _present(other, one),
    "list": _appended,
}
"""Each part of two columns of states; the first is the earlier."""
WRAP: Mapping[str, Combine] = {
    **COMBINE,
    "count": _wrapped,
    "number": _wrapped,
    "sum": _wrapped,
}
"""The same, for sums that may overflow where no state does: they wrap around."""
TAKE: Mapping[str, Combine] = {"count": _subtracted, "number": _subtracted, "sum": _subtracted}
"""Each part of a column of states, less that of another."""
