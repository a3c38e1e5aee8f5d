"""Bytes as they came: Kafka Connect's ByteArrayConverter."""

from __future__ import annotations

import pyarrow as pa

from semel.converters.base import Converter, Decoded


class ByteArrayConverter(Converter):
    """Passes the bytes on."""

    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        return Decoded(values)
