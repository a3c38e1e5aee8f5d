"""Sets of offsets, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semel.ledger import Hole, OffsetRange


class Seen:
    """Kafka's offsets of one partition below the position."""

    def __init__(self) -> None:
        self.offsets: list[np.ndarray] = []
        self.replaced = np.array([], dtype=np.int64)
        self.unsure = np.array([], dtype=np.int64)

    def all(self) -> np.ndarray:
        return np.concatenate(self.offsets) if self.offsets else np.array([], dtype=np.int64)


def within(offsets: np.ndarray, ranges: Sequence[Hole | OffsetRange]) -> np.ndarray:
    """Which offsets lie in one of the ranges."""
    found = np.zeros(len(offsets), dtype=bool)
    for r in ranges:
        found |= (offsets >= r.from_offset) & (offsets < r.until_offset)
    return found


def offsets_of(table: pa.Table | None, partition: int) -> np.ndarray:
    if table is None or not table.num_rows:
        return np.array([], dtype=np.int64)
    partitions = table.column("partition").to_numpy()
    offsets: np.ndarray = table.column("offset").to_numpy()[partitions == partition]
    return offsets


def beyond_kafka(rows: np.ndarray, kafka: np.ndarray) -> int:
    """How many of the rows have offsets at which Kafka has no record. ``rows`` may repeat."""
    return int((~np.isin(rows, kafka)).sum())


def surplus(rows: np.ndarray, kafka: np.ndarray, ranges: Sequence[Hole | OffsetRange]) -> int:
    """How many rows in the ranges there are beyond one for each of Kafka's records."""
    offsets, counts = np.unique(rows[within(rows, ranges)], return_counts=True)
    return int((counts - np.isin(offsets, kafka)).sum())
