"""Kafka Connect's StringConverter and ByteArrayConverter, and those of numbers and booleans, which
Java's serializers write in a fixed number of bytes."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import Converter, Decoded, Failure, Unwritable
from semel.converters.json.text import as_text, place
from semel.core.errors import ConfigError
from semel.core.records import DATA_EXCEPTION


class StringConverter(Converter):
    """UTF-8 bytes to strings; bytes that are not UTF-8 are failures, never replaced."""

    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        text, failures = as_text(values)
        return Decoded(text, failures)

    def encode(self, values: pa.Array) -> pa.Array:
        if pa.types.is_struct(values.type) and values.type.num_fields == 1:
            values = values.flatten()[0]
        if pa.types.is_nested(values.type):
            return super().encode(values)
        if pa.types.is_floating(values.type):
            values = java_floats(values)
        try:
            return values.cast(pa.string()).cast(pa.binary())
        except pa.ArrowInvalid:  # bytes that are not UTF-8
            raise ConfigError(
                "StringConverter writes UTF-8, but was given other bytes. Set the converter to "
                "ByteArrayConverter"
            ) from None


def java_floats(array: pa.Array) -> pa.Array:
    """Fractions as Java's ``toString`` writes them: plain from a thousandth to ten million,
    otherwise with an exponent; always with a point."""
    array = array.cast(pa.float32()) if pa.types.is_float16(array.type) else array
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


class ByteArrayConverter(Converter):
    """Passes the bytes on."""

    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        return Decoded(values)

    def encode(self, values: pa.Array) -> pa.Array:
        kind = values.type
        if not any(is_(kind) for is_ in (pa.types.is_binary, pa.types.is_null)):
            raise Unwritable(
                f"ByteArrayConverter writes bytes as they are, but was given {kind}. Set the "
                "converter to StringConverter or JsonConverter"
            )
        return values.cast(pa.binary())


class NumberConverter(Converter):
    """Big-endian numbers. Values of another length are failures."""

    TYPE: ClassVar[pa.DataType]
    NAME: ClassVar[str]
    """The type's name in Kafka Connect's messages."""
    READER: ClassVar[str]
    """The class that Kafka's messages name."""
    LAYOUT: ClassVar[np.dtype]

    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        width = self.LAYOUT.itemsize
        fits = pc.equal(pc.binary_length(values), width)
        wrong = f"Size of data received by {self.READER} is not {width}"
        failures = [self._failure(row, wrong) for row in _rows(pc.invert(fits))]
        rows = pc.indices_nonzero(fits)
        numbers = np.frombuffer(_content(values.take(rows)), self.LAYOUT)
        kept, more = self._parsed(numbers, rows)
        decoded = place(kept, None if len(rows) == len(values) else rows, len(values))
        return Decoded(decoded, sorted([*failures, *more], key=lambda f: f.index))

    def encode(self, values: pa.Array) -> pa.Array:
        if pa.types.is_null(values.type):
            return values.cast(pa.binary())
        if values.type != self.TYPE:
            raise Unwritable(self._refusal(values.type))
        filled = pc.fill_null(self._numbers(values), 0).to_numpy(zero_copy_only=False)
        content = pa.py_buffer(np.ascontiguousarray(filled).astype(self.LAYOUT).tobytes())
        width = self.LAYOUT.itemsize
        fixed = pa.Array.from_buffers(pa.binary(width), len(values), [None, content])
        written = fixed.cast(pa.binary())
        return pc.if_else(values.is_valid(), written, None) if values.null_count else written

    def _parsed(self, numbers: np.ndarray, rows: pa.Array) -> tuple[pa.Array, list[Failure]]:
        return pa.array(numbers.astype(self.LAYOUT.newbyteorder("=")), self.TYPE), []

    def _numbers(self, values: pa.Array) -> pa.Array:
        return values

    def _failure(self, row: int, why: str) -> Failure:
        return Failure(row, DATA_EXCEPTION, f"Failed to deserialize {self.NAME}: {why}")

    def _refusal(self, kind: pa.DataType) -> str:
        return (
            f"{type(self).__name__} writes {self.TYPE}, but was given {kind} "
            f"(Failed to serialize to {self.NAME}). Let a transform cast it, or set another "
            "converter"
        )


class ShortConverter(NumberConverter):
    """16 bits."""

    TYPE, NAME = pa.int16(), "short"
    READER, LAYOUT = "ShortDeserializer", np.dtype(">i2")


class IntegerConverter(NumberConverter):
    """32 bits."""

    TYPE, NAME = pa.int32(), "integer"
    READER, LAYOUT = "IntegerDeserializer", np.dtype(">i4")


class LongConverter(NumberConverter):
    """64 bits."""

    TYPE, NAME = pa.int64(), "long"
    READER, LAYOUT = "LongDeserializer", np.dtype(">i8")


class FloatConverter(NumberConverter):
    """IEEE 754, 32 bits."""

    TYPE, NAME = pa.float32(), "float"
    READER, LAYOUT = "Deserializer", np.dtype(">f4")


class DoubleConverter(NumberConverter):
    """IEEE 754, 64 bits."""

    TYPE, NAME = pa.float64(), "double"
    READER, LAYOUT = "Deserializer", np.dtype(">f8")


class BooleanConverter(NumberConverter):
    """A byte that is 0 or 1."""

    TYPE, NAME = pa.bool_(), "boolean"
    READER, LAYOUT = "BooleanDeserializer", np.dtype("i1")

    def _parsed(self, numbers: np.ndarray, rows: pa.Array) -> tuple[pa.Array, list[Failure]]:
        strange = (numbers != 0) & (numbers != 1)
        why = f"Unexpected byte received by {self.READER}: "
        at = rows.take(pa.array(np.flatnonzero(strange))).to_pylist()
        failures = [
            self._failure(row, f"{why}{byte}")
            for row, byte in zip(at, numbers[strange].tolist(), strict=True)
        ]
        return pa.array(numbers == 1, self.TYPE, mask=strange), failures

    def _numbers(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.int8())

    def _refusal(self, kind: pa.DataType) -> str:
        return (
            f"Invalid schema type for BooleanConverter: {kind}. Let a transform cast it, or set "
            "another converter"
        )


def _rows(mask: pa.Array) -> list[int]:
    rows: list[int] = pc.indices_nonzero(mask).to_pylist()
    return rows


def _content(values: pa.Array) -> bytes:
    """The bytes of all values, one after the other."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return b""
    ends = np.frombuffer(offsets, np.int32)
    return bytes(memoryview(data)[ends[values.offset] : ends[values.offset + len(values)]])
