"""Aggregates by key and session. Records are gone through one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semel.streams.aggregates import Aggregation
from semel.streams.codec import (
    from_big_endian,
    pack,
    pack_keys,
    slices,
    time_bytes,
    time_of,
    unpack,
    without,
)
from semel.streams.operators.state import Clock, Entries, Segments
from semel.streams.records import NONE, Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import EntryKeys, SessionWindows, windowed


@dataclass(frozen=True)
class Sessions:
    """The aggregate of each key and session, as a table. A record that closes the pause between
    sessions makes them one: the old ones get tombstones. Records without a key are dropped, and so
    are those whose session is over. The store's keys are key, end and start."""

    store: str
    aggregation: Aggregation
    windows: SessionWindows
    retention: int

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store, "sessions", self.retention),)

    def named(self, keys: pa.Array) -> EntryKeys:
        ends, starts = (from_big_endian(slices(keys, at, 8)) for at in (-16, -8))
        return EntryKeys(unpack(without(keys, 8, 16)), starts, ends)

    def shown(self, keys: pa.Array, values: pa.Array) -> Records:
        named = self.named(keys)
        result = self.aggregation.result(unpack(values))
        return Records(named.whole, result, pa.array(named.ends))

    def start(self, stores: Mapping[str, Store]) -> Run:
        store = stores[self.store]
        clock = Clock(store)
        segments = Segments(self.retention)
        aggregation = self.aggregation

        def run(records: Records) -> Records:
            records = records.only(np.asarray(records.keys.is_valid()))
            if not len(records):
                return NONE
            before = clock.time
            seen = clock.advance(records.times).tolist()
            sessions = Entries(
                store,
                lambda data: unpack(data).to_pylist(),
                lambda states: pack(aggregation.states(states)),
            )
            packed = pack_keys(records.keys).to_pylist()
            times = np.asarray(records.times)
            reach = (int(times.min()) - self.windows.gap, max(before, int(times.max())))
            sessions.load(
                span
                for key in set(packed)
                for span in segments.ranges(key, max(0, reach[0]), reach[1])
            )
            changes = _StepChanges(records, aggregation)
            inputs = aggregation.inputs(records, records.values).to_pylist()
            keys = records.keys.to_pylist()
            for row, time in enumerate(times.tolist()):
                visible = (seen[row - 1] if row else before) - segments.retention
                closes = seen[row] - self.windows.grace - self.windows.gap
                overlapping = [
                    (name, state, *_window(name))
                    for start, stop in segments.ranges(
                        packed[row], max(0, time - self.windows.gap, visible + 1), reach[1]
                    )
                    for name, state in sessions.range(start, stop)
                    if _window(name)[0] <= time + self.windows.gap
                ]
                first = min([time, *(start for *_, start, _ in overlapping)])
                last = max([time, *(end for *_, end in overlapping)])
                if last < closes:
                    continue
                state: Any = None
                for name, stored, start, end in overlapping:
                    state = aggregation.merge(keys[row], state, stored)
                    if (first, last) != (time, time):
                        sessions.put(name, None)
                        changes.add(row, start, end, stored, None)
                state = aggregation.begin() if state is None else state
                state = aggregation.add(keys[row], inputs[row], state)
                sessions.put(segments.key(packed[row], last, time_bytes(first)), state)
                changes.add(row, first, last, None, state)
            sessions.flush()
            segments.expire(store, before, clock.time)
            return changes.records()

        return run


def _window(name: bytes) -> tuple[int, int]:
    """The start and the end of a session."""
    return time_of(name[-8:]), time_of(name[-16:-8])


class _StepChanges:
    """The changes of a step."""

    def __init__(self, records: Records, aggregation: Aggregation) -> None:
        self._records = records
        self._aggregation = aggregation
        self._rows: list[int] = []
        self._windows: list[tuple[int, int]] = []
        self._olds: list[Any] = []
        self._news: list[Any] = []

    def add(self, row: int, start: int, end: int, old: Any, new: Any) -> None:
        self._rows.append(row)
        self._windows.append((start, end))
        self._olds.append(old)
        self._news.append(new)

    def records(self) -> Records:
        if not self._rows:
            return NONE
        taken = self._records.take(np.array(self._rows))
        starts, ends = np.array(self._windows).T
        olds, news = (
            self._aggregation.result(self._aggregation.states(states))
            for states in (self._olds, self._news)
        )
        times = pa.array(ends)
        return taken.holding(
            keys=windowed(taken.keys, starts, ends),
            values=news,
            times=times,
            olds=olds,
            old_times=times,
            headers=None,
        )
