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
        self.times: list[np.ndarray] = []
        self.replaced = np.array([], dtype=np.int64)
        self.unsure = np.array([], dtype=np.int64)

    def all(self) -> np.ndarray:
        return np.concatenate(self.offsets) if self.offsets else np.array([], dtype=np.int64)

    def all_times(self) -> np.ndarray:
        """Milliseconds of the records of :meth:`all`; empty if they were not read."""
        return np.concatenate(self.times) if self.times else np.array([], dtype=np.int64)


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


def times_of(table: pa.Table | None, partition: int) -> np.ndarray | None:
    """The times of a partition's rows in milliseconds, -1 where a row has none; None if the store
    does not keep them."""
    if table is None or "timestamp" not in table.column_names:
        return None
    mine = table.column("partition").to_numpy() == partition
    found: np.ndarray = table.column("timestamp").fill_null(-1).to_numpy()[mine]
    return found


def strangers(
    rows: np.ndarray, times: np.ndarray | None, kafka: np.ndarray, stamps: np.ndarray
) -> np.ndarray:
    """Which rows stand at the offset of a record that has another time."""
    found = np.zeros(len(rows), dtype=bool)
    if times is None or len(stamps) != len(kafka) or not len(kafka):
        return found
    order = np.argsort(kafka)
    at = np.minimum(np.searchsorted(kafka[order], rows), len(kafka) - 1)
    matches = kafka[order][at] == rows
    found[matches] = stamps[order][at][matches] != times[matches]
    return found & (times >= 0)


def copies(rows: np.ndarray, kafka: np.ndarray) -> np.ndarray:
    """Which rows are more than the one that a record of Kafka's accounts for."""
    firsts = np.zeros(len(rows), dtype=bool)
    firsts[np.unique(rows, return_index=True)[1]] = True
    extra: np.ndarray = ~(firsts & np.isin(rows, kafka))
    return extra
