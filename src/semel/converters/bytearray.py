"""Bytes as they came: Kafka Connect's ByteArrayConverter."""

from __future__ import annotations

import pyarrow as pa

from semel.converters.base import Converter, Decoded, Unwritable


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
