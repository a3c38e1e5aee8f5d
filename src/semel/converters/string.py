"""Text: Kafka Connect's StringConverter."""

from __future__ import annotations

import pyarrow as pa

from semel.converters.base import Converter, Decoded
from semel.converters.json.text import as_text


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
        return values.cast(pa.string()).cast(pa.binary())
