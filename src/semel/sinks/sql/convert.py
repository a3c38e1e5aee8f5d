"""Converts Arrow values to the exact type that the database takes for a column, without loss.

PostgreSQL's server casts texts that Arrow cannot read, except those that it would cut or round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import typed
from semel.core.records import check_years, lists_like, one_array
from semel.databases.columns import Column, is_binary, is_list, is_number, is_text
from semel.sinks import jsontext
from semel.sinks.casts import NOT_FINITE, NUMBER, UNFIT, by_kind, cast, check_text, only_null

__all__ = ["UNFIT", "ConvertedValues", "convert", "json_text", "text_of"]

# The first and last values that both PostgreSQL and Arrow can hold.
_FIRST_TIMESTAMP = -210_866_803_200_000_000  # 4714-11-24 BC
_LAST_TIMESTAMP = 9_223_371_331_200_000_000 - 1  # 294277-01-01, exclusive
_FIRST_DATE, _LAST_DATE = -2_440_588, 2_145_031_948
_LAST_TIME = 86_400_000_000 - 1

_DIGITS = {"s": 0, "ms": 3, "us": 6}
"""The digits of a second's fraction in each unit of time."""

_MONEY = r"-?[0-9]+(\.[0-9]{1,2})?"
_ENDS_WITH_ZONE = r":[0-9]{2}.*([+-][0-9]|[A-Za-z]{3})"
_FINER = (r":60|[.][0-9]{7}", "it has a leap second, or digits finer than a microsecond")
_DATED = (r"[0-9]{4}-[0-9]|[A-Za-z]{3}.*[0-9]:", "it has a date")
_LOST: dict[str, Sequence[tuple[str, str]]] = {
    "date": [(r"[0-9]:[0-9]|[0-9] *[AaPp][Mm]", "it has a time of day")],
    "time": [_FINER, _DATED],
    "timetz": [_FINER, _DATED],
    "timestamp": [_FINER, (_ENDS_WITH_ZONE, "it has a time zone, which the column would drop")],
    "timestamptz": [_FINER],
    "interval": [_FINER],
}
"""Forms of text, by type, that the server would shorten or round."""


class ConvertedValues(NamedTuple):
    """Values that are ready for COPY; if ``staged``, they are text (or floats) that the server must
    cast."""

    values: pa.ChunkedArray
    staged: bool


def convert(values: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """Convert to what COPY takes for ``column``.

    Raises:
        one of UNFIT: some value does not fit.
    """
    values = _plain(values)
    source, target = values.type, column.copied
    if only_null(values):
        return ConvertedValues(
            pa.chunked_array([pa.nulls(len(values), target or pa.string())]), False
        )
    if column.is_json:
        return _json(values, column)
    if isinstance(source, pa.JsonType) and not _is_nested(values):
        return _by_kind(values, column)
    if column.element is not None:
        return _array(values, column)
    if pa.types.is_nested(source) or isinstance(source, pa.JsonType):
        if target is not None and not is_text(target):
            raise pa.ArrowTypeError(f"{_named(source)} is not {column.type}")
        return ConvertedValues(json_text(values), target is None)
    if target is None:
        return _left_to_the_server(text_of(values), column)
    if is_text(target):
        return ConvertedValues(_within_length(text_of(values), column), False)
    if _mixes_time_and_number(source, target):
        raise pa.ArrowTypeError(
            f"{source} is not {column.type}: a number does not say which unit of time it counts"
        )
    if is_text(source) and target != pa.binary():
        return _parse(values, column)
    if pa.types.is_decimal(target):
        return _number(values, column)
    return ConvertedValues(_whole(_cast(values, target), column), False)


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values without dictionaries, and without extension types other than JSON."""
    source = values.type
    if pa.types.is_dictionary(source):
        return _plain(values.cast(source.value_type))
    if isinstance(source, pa.BaseExtensionType) and not isinstance(source, pa.JsonType):
        return pa.chunked_array([c.storage for c in values.chunks], source.storage_type)
    return values


def _storage(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([c.storage for c in values.chunks], values.type.storage_type)


def _named(kind: pa.DataType) -> str:
    return "JSON" if isinstance(kind, pa.JsonType) else typed(kind)


def _is_nested(json: pa.ChunkedArray) -> bool:
    """Whether JSON values are objects only: they have no other type."""
    return bool(pc.all(pc.match_substring_regex(_storage(json), r"^[ \t\n\r]*\{")).as_py())


def _by_kind(json: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """JSON of several kinds, each converted as it would be without the others."""
    conversions: list[ConvertedValues] = []

    def of_one(part: pa.ChunkedArray) -> pa.ChunkedArray:
        nested = isinstance(part.type, pa.JsonType) and not _is_nested(part)
        conversions.append(_as_nested(part, column) if nested else convert(part, column))
        return conversions[-1].values

    values = by_kind(json, of_one)
    staged = any(c.staged for c in conversions) or len({c.values.type for c in conversions}) > 1
    return ConvertedValues(values, staged)


def _as_nested(json: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """JSON that has no other type: text of objects, of nested lists, of very large numbers."""
    number = pc.all(pc.match_substring_regex(_storage(json), r"^-?[0-9]")).as_py()
    if number:
        return convert(_storage(json), column)
    if column.element is not None or not (column.copied is None or is_text(column.copied)):
        raise pa.ArrowTypeError(f"{_named(json.type)} is not {column.type}")
    return ConvertedValues(json_text(json), column.copied is None)


def _json(values: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """For json and jsonb. Text must itself be JSON; the server checks it."""
    if isinstance(values.type, pa.JsonType):
        text = _storage(values).cast(pa.string())
    elif is_text(values.type):
        text = values.cast(pa.string())
    else:
        text = json_text(values)
    if column.copied != pa.json_():
        return ConvertedValues(text, column.copied is None)
    wrapped = [pa.ExtensionArray.from_storage(pa.json_(), c) for c in text.chunks]
    return ConvertedValues(pa.chunked_array(wrapped, pa.json_()), False)


def json_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as JSON text; null remains null."""
    if isinstance(values.type, pa.JsonType):
        return _storage(values).cast(pa.string())
    array = one_array(values)
    jsontext.check(array)
    written = pc.if_else(array.is_valid(), jsontext.text(array), pa.scalar(None, pa.string()))
    return pa.chunked_array([written], pa.string())


def text_of(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values of a primitive type as the text that PostgreSQL reads."""
    if is_binary(values.type) and pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    if pa.types.is_duration(values.type):
        raise pa.ArrowNotImplementedError("a duration has no text form")  # Arrow writes a count
    check_years(values)
    return values.cast(pa.string())


def _within_length(text: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Refuse spaces beyond the length of a column: the server would cut them. It refuses all other
    characters there by itself."""
    if column.length is None:
        return text
    spaced = pc.ends_with(text, " ")
    if not pc.any(spaced).as_py():
        return text
    if pc.any(pc.and_(spaced, pc.greater(pc.utf8_length(text), column.length))).as_py():
        raise pa.ArrowInvalid(f"it is too long for {column.type}")
    return text


def _left_to_the_server(text: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """Check text that the server must cast: the cast must not cut or round it."""
    if column.any_numeric:
        check_text(text, rf"\s*({NUMBER}|{NOT_FINITE})\s*", "a number in decimal digits")
    elif column.base == "money":
        check_text(text, _MONEY, "an amount of digits and at most two decimals")
    for pattern, why in _LOST.get(column.base, ()):
        if pc.any(pc.match_substring_regex(text, pattern)).as_py():
            raise pa.ArrowInvalid(why)
    return ConvertedValues(text, True)


def _parse(values: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """Convert text for a column of another type, by Arrow or by the server, which knows more
    forms."""
    text = values.cast(pa.string())
    target = column.copied
    assert target is not None
    if column.any_numeric:
        return _left_to_the_server(text, column)
    if target == pa.binary(16):
        uuids = _uuids(text)
        return ConvertedValues(text, True) if uuids is None else ConvertedValues(uuids, False)
    try:
        parsed = _within_range(cast(text, target))
    except UNFIT:
        if is_number(target):
            raise  # the server knows hexadecimal digits, and would round
        return _left_to_the_server(text, column)
    return ConvertedValues(_whole(parsed, column), False)


def _cast(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    finer = pa.types.is_duration(values.type) and values.type.unit == "ns"
    if finer and pa.types.is_duration(target):  # PostgreSQL has microseconds
        return values.cast(target, safe=False)
    return _within_range(cast(values, target))


def _number(values: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """For numeric columns: whole numbers and decimals as they are, floats by their shortest
    form."""
    source = values.type
    if not column.any_numeric:
        return ConvertedValues(cast(values, column.copied), False)
    if column.digits is not None or pa.types.is_floating(source):  # the server compares
        if pa.types.is_float16(source):
            values = values.cast(pa.float32())
        return ConvertedValues(values.cast(pa.string()), True)
    if pa.types.is_decimal(source):
        return ConvertedValues(values, False)
    return ConvertedValues(cast(values, pa.decimal128(38, 0)), False)


def _whole(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Refuse finer fractions of a second than the column keeps; it would round them silently."""
    if column.digits is None or not pa.types.is_temporal(values.type):
        return values
    step = 10 ** (_DIGITS[values.type.unit] - column.digits)
    if step > 1:
        counts = values.cast(pa.int32() if pa.types.is_time32(values.type) else pa.int64())
        whole = pc.multiply(pc.divide(counts, step), step)
        if pc.any(pc.not_equal(whole, counts)).as_py():
            raise pa.ArrowInvalid(f"its seconds have more than {column.digits} decimal digits")
    return values


def _within_range(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Refuse times that PostgreSQL cannot hold; the driver would fail without naming a row."""
    if pa.types.is_timestamp(values.type):
        first, last, stored = _FIRST_TIMESTAMP, _LAST_TIMESTAMP, pa.int64()
    elif pa.types.is_date32(values.type):
        first, last, stored = _FIRST_DATE, _LAST_DATE, pa.int32()
    elif pa.types.is_time64(values.type):
        first, last, stored = 0, _LAST_TIME, pa.int64()
    else:
        return values
    extremes = pc.min_max(values.cast(stored)).as_py()
    if extremes["min"] is not None and (extremes["min"] < first or extremes["max"] > last):
        raise pa.ArrowInvalid("out of the column's range")
    return values


def _mixes_time_and_number(source: pa.DataType, target: pa.DataType) -> bool:
    return bool(
        (is_number(source) and pa.types.is_temporal(target))
        or (pa.types.is_temporal(source) and is_number(target))
    )


_HEX = np.full(256, 255, dtype=np.uint8)
for _digit, _character in enumerate("0123456789abcdef"):
    _HEX[ord(_character)] = _HEX[ord(_character.upper())] = _digit
_DASHES = (8, 13, 18, 23)


def _uuids(text: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """UUIDs in their usual form of 36 characters as 16 bytes; None if some are written
    otherwise."""
    texts = one_array(text.drop_null())
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if len(texts) and (lengths["min"], lengths["max"]) != (36, 36):
        return None
    _, offsets, data = texts.buffers()
    start = np.frombuffer(offsets, np.int32)[texts.offset] if len(texts) else 0
    size = len(texts) * 36
    letters = np.frombuffer(data, np.uint8)[start : start + size] if size else np.empty(0, np.uint8)
    letters = letters.reshape(-1, 36)
    digits = _HEX[np.delete(letters, _DASHES, axis=1)]
    if (letters[:, _DASHES] != ord("-")).any() or (digits == 255).any():
        return None
    packed = (digits[:, 0::2] << 4) | digits[:, 1::2]
    uuids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(texts), [None, pa.py_buffer(packed.tobytes())]
    )
    if text.null_count:
        place = pc.subtract(pc.cumulative_sum(one_array(text).is_valid().cast(pa.int64())), 1)
        uuids = uuids.take(
            pc.if_else(one_array(text).is_valid(), place, pa.scalar(None, pa.int64()))
        )
    return pa.chunked_array([uuids])


def _array(values: pa.ChunkedArray, column: Column) -> ConvertedValues:
    """For array columns. The driver writes null elements as garbage, so arrays that hold some go
    as text, as do arrays of types that the driver does not name."""
    if is_text(values.type):
        return ConvertedValues(values.cast(pa.string()), True)
    if not is_list(values.type):
        raise pa.ArrowTypeError(f"{_named(values.type)} is not {column.type}")
    lists = one_array(values.cast(pa.list_(values.type.value_type)))
    elements = lists.flatten()
    assert column.element is not None
    if not is_list(elements.type):  # each must fit, whichever way it goes
        converted = convert(pa.chunked_array([elements]), column.element)
        if column.copied is not None and not elements.null_count and not converted.staged:
            whole = lists_like(lists, one_array(converted.values).cast(column.copied.value_type))
            return ConvertedValues(pa.chunked_array([whole]), False)
    return ConvertedValues(pa.chunked_array([_array_text(lists)]), True)


def _array_text(lists: pa.Array) -> pa.Array:
    """Lists in PostgreSQL's form: ``{1,NULL,"a b"}``."""
    elements = lists.flatten()
    if is_list(elements.type):
        inner = _array_text(elements.cast(pa.list_(elements.type.value_type)))
    else:
        chunks = pa.chunked_array([elements])
        nested = pa.types.is_nested(elements.type) or isinstance(elements.type, pa.JsonType)
        plain = one_array(json_text(chunks) if nested else _element_text(chunks))
        escaped = pc.replace_substring(pc.replace_substring(plain, "\\", "\\\\"), '"', '\\"')
        inner = pc.binary_join_element_wise('"', escaped, '"', "")
    joined = pc.binary_join(lists_like(lists, pc.fill_null(inner, "NULL")), ",")
    return pc.binary_join_element_wise("{", joined, "}", "")


def _element_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not is_binary(values.type):
        return text_of(_plain(values))
    # no kernel writes hexadecimal; arrays of bytea with null elements are rare enough
    texts = [None if v is None else f"\\x{v.hex()}" for v in values.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])
