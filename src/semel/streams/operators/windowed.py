"""Aggregates by key and window, tumbling or hopping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from semel.streams.aggregates import Aggregation
from semel.streams.codec import (
    behind,
    big_endian,
    binary,
    distinct,
    from_big_endian,
    joined,
    pack_keys,
    slices,
    time_bytes,
    unpack,
)
from semel.streams.operators.aggregate import folded
from semel.streams.operators.state import Clock, entries, expired
from semel.streams.records import NONE, Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import EntryKeys, TimeWindows, windowed


@dataclass(frozen=True)
class Windowed:
    """The aggregate of each key and window, as a table. Records without a key are dropped, and so
    is, window by window, what comes when the window's end and grace are over. ``final``: only what
    a window holds when it closes, and once. ``retention`` is how long windows stay in the store.
    ``each``: a step gives a change for each record, not one for each key and window.

    The store has a window's start before the key: windows that close are entries in a row.
    """

    store: str
    aggregation: Aggregation
    windows: TimeWindows
    retention: int
    final: bool = False
    each: bool = field(default=False, compare=False)

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store, "windows", self.retention),)

    def named(self, keys: pa.Array) -> EntryKeys:
        starts = from_big_endian(slices(keys, 0, 8))
        return EntryKeys(unpack(behind(keys, 8)), starts, starts + self.windows.size)

    def shown(self, keys: pa.Array, values: pa.Array) -> Records:
        stored = entries(values)
        return Records(self.named(keys).whole, self.aggregation.result(stored.values), stored.times)

    def start(self, stores: Mapping[str, Store]) -> Run:
        store = stores[self.store]
        clock = Clock(store)
        windows = self.windows

        def run(records: Records) -> Records:
            records = records.only(np.asarray(records.keys.is_valid()))
            if not len(records):
                return NONE
            before = clock.time
            seen = clock.advance(records.times)
            rows, starts = windows.starts(np.asarray(records.times))
            is_open = starts + windows.size > seen[rows] - windows.grace
            rows, starts = rows[is_open], starts[is_open]
            results = self._added(store, records, rows, starts) if len(rows) else NONE
            if self.final:
                closing = _passed(before, clock.time, windows.retention)
                results = NONE if closing is None else self._closed(store, *closing, records, seen)
            gone = _passed(before, clock.time, self.retention)
            if gone is not None:
                expired(store, *gone)
            return results

        return run

    def _added(
        self, store: Store, records: Records, rows: np.ndarray, starts: np.ndarray
    ) -> Records:
        codes, keys = distinct(pack_keys(records.keys))
        names = keys.take(pa.array(codes[rows]))
        groups = distinct(joined(binary(big_endian(starts)), names))
        selected = records.take(rows)
        ends = starts + self.windows.size
        selected = selected.holding(keys=windowed(selected.keys, starts, ends))
        return folded(store, self.aggregation, selected, groups=groups, each=self.each)

    def _closed(
        self, store: Store, first: bytes, stop: bytes, records: Records, seen: np.ndarray
    ) -> Records:
        """What windows hold that this step has closed, at the place of the record that closed
        each."""
        stored = list(store.range(first, stop))
        if not stored:
            return NONE
        names = pa.array([key for key, _ in stored], pa.binary())
        values = pa.array([value for _, value in stored], pa.binary())
        shown = self.shown(names, values)
        ends = from_big_endian(slices(names, 0, 8)) + self.windows.size
        by = np.searchsorted(seen, ends + self.windows.grace)
        closed = shown.holding(
            order=records.order[by],
            olds=pa.nulls(len(stored), shown.values.type),
            old_times=pa.nulls(len(stored), pa.int64()),
        )
        return closed.take(np.argsort(closed.order, kind="stable"))


def _passed(before: int, now: int, span: int) -> tuple[bytes, bytes] | None:
    """Where the windows are that pass between two times: those that began less than a span before
    the first, and at least a span before the second."""
    old, new = max(before - span + 1, 0), now - span + 1
    return (time_bytes(old), time_bytes(new)) if new > old else None
