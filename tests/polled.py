"""Records in columns, as a poll of one topic gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from semel.core.records import HEADERS_TYPE


def polled(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    *,
    offsets: Sequence[int] | None = None,
    partitions: Sequence[int] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Sequence[Mapping[str, Any]] | None] | None = None,
) -> pa.Table:
    """By default without keys and headers, of partition 0 from offset 0 on, and of 1970."""
    count = len(values)
    columns = {
        "key": pa.array(keys if keys is not None else [None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array(partitions or [0] * count, pa.int32()),
        "offset": pa.array(offsets if offsets is not None else range(count), pa.int64()),
        "timestamp": pa.array(timestamps or [0] * count, pa.timestamp("ms", "UTC")),
    }
    if headers is not None:
        columns["headers"] = pa.array(headers, HEADERS_TYPE)
    return pa.table(columns)
