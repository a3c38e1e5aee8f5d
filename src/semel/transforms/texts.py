"""Values as the text that Java writes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON
from semel.converters.semantic import counts
from semel.transforms.dates import DateFormat

_DAY = 86_400_000
_TIME = DateFormat("HH:mm:ss.SSS'Z'")
_DATE = DateFormat("yyyy-MM-dd")
_TIMESTAMP = DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def java_text(array: pa.Array) -> pa.Array:
    """Each value as text, null where null: numbers as Java's ``toString`` writes them, bytes in
    base64, dates and times as Kafka Connect's Cast does, in UTC."""
    kind, kinds = array.type, pa.types
    if kinds.is_string(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind):
        return array.cast(pa.string())
    if kinds.is_null(kind) or kinds.is_large_string(kind):
        return array.cast(pa.string())
    if kinds.is_floating(kind):
        return _floats(array)
    if kinds.is_decimal(kind):
        return _each(array, str)
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return _each(array, lambda value: base64.b64encode(value).decode())
    if kinds.is_temporal(kind):
        return _dates(milliseconds(array))
    if kind == JSON:
        return array.storage.cast(pa.string())
    return _each(array, str)


def _each(array: pa.Array, change: Callable[[Any], str]) -> pa.Array:
    encoded = array.dictionary_encode()
    texts = [change(v) for v in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _floats(array: pa.Array) -> pa.Array:
    """Plain from a thousandth to ten million, otherwise with an exponent; always with a point."""
    size = pc.abs(array)
    plain = pc.and_(pc.greater_equal(size, 1e-3), pc.less(size, 1e7))
    plain = pc.fill_null(pc.or_(plain, pc.equal(size, 0)), True)
    text = array.cast(pa.string())
    pointed = pc.match_substring(text, ".")
    text = pc.if_else(pointed, text, pc.binary_join_element_wise(text, ".0", ""))
    others = np.flatnonzero(~np.asarray(plain))
    if not len(others):
        return text
    odd = array.take(pa.array(others)).to_numpy(zero_copy_only=False)
    return pc.replace_with_mask(
        text, pc.invert(plain), pa.array([_scientific(v) for v in odd], pa.string())
    )


def _scientific(value: np.floating) -> str:
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, exponent = np.format_float_scientific(value, unique=True, trim="0").split("e")
    return f"{mantissa}E{int(exponent)}"


def milliseconds(array: pa.Array) -> pa.Array:
    """Dates and times as the milliseconds that a ``java.util.Date`` holds; finer digits are cut
    off."""
    kind = array.type
    if pa.types.is_date(kind):
        return pc.multiply(array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _DAY)
    numbers = counts(array).cast(pa.int64())
    if kind.unit in ("s", "ms"):
        return pc.multiply(numbers, 1000) if kind.unit == "s" else numbers
    return floor_divided(numbers, 1000 if kind.unit == "us" else 1_000_000)


def floor_divided(numbers: pa.Array, by: int) -> pa.Array:
    """Division that rounds down, also for times before 1970."""
    filled = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return pa.array(filled // by, mask=np.asarray(numbers.is_null()))


def _dates(stamps: pa.Array) -> pa.Array:
    early = pc.less(stamps, _DAY)
    whole = pc.equal(stamps, pc.multiply(floor_divided(stamps, _DAY), _DAY))
    late = pc.if_else(whole, _DATE.format(stamps), _TIMESTAMP.format(stamps))
    return pc.if_else(early, _TIME.format(stamps), late)
