"""Aggregates by key and window: tumbling and hopping windows by the column, sliding windows and
sessions record by record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.streams.aggregates import Aggregation
from semel.streams.codec import (
    behind,
    big_endian,
    binary,
    distinct,
    from_big_endian,
    joined,
    objects,
    pack,
    pack_keys,
    slices,
    time_bytes,
    time_of,
    unpack,
    without,
)
from semel.streams.operators.aggregate import LARGE_VALUES, folded
from semel.streams.operators.state import Clock, Entries, Segments, entries, expire
from semel.streams.records import NONE, Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import (
    MOST_WINDOWS,
    EntryKeys,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    windowed,
)

_Window = tuple[int, Any]
"""The time and the state of a sliding window."""


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
        return (StoreSpec(self.store, "windows"),)

    @property
    def records_per_step(self) -> int | None:
        of_windows = MOST_WINDOWS // self.windows.per_record
        if self.each and self.aggregation.grows:
            return min(of_windows, LARGE_VALUES)
        return of_windows if self.windows.per_record > 1 else None

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
            expire(store, clock.time - self.retention + 1)
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


@dataclass(frozen=True)
class Sliding:
    """The aggregate of each key and sliding window, as a table. A record is in all windows of
    records that are near it; it makes one that ends with it, and one that begins behind it if there
    are later records. Records without a key or a value are dropped, and so are late ones. Records
    before the first ``difference`` share the window that begins at 0. The store's keys are key and
    start."""

    store: str
    aggregation: Aggregation
    windows: SlidingWindows
    retention: int

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store, "windows"),)

    def named(self, keys: pa.Array) -> EntryKeys:
        starts = from_big_endian(slices(keys, -8, 8))
        return EntryKeys(unpack(without(keys, 8, 8)), starts, starts + self.windows.difference)

    def shown(self, keys: pa.Array, values: pa.Array) -> Records:
        stored = entries(values)
        return Records(self.named(keys).whole, self.aggregation.result(stored.values), stored.times)

    def start(self, stores: Mapping[str, Store]) -> Run:
        store = stores[self.store]
        clock, newest = Clock(store), Clock(store, b"newest")
        span = self.windows.difference

        def run(records: Records) -> Records:
            there = pc.and_(records.keys.is_valid(), records.values.is_valid())
            records = records.only(np.asarray(there))
            if not len(records):
                return NONE
            before = newest.time
            segments = Segments(self.retention, before)
            seen = clock.advance(records.times).tolist()
            windows = Entries(store, _decoded, lambda data: _encoded(self.aggregation, data))
            packed = pack_keys(records.keys).to_pylist()
            times = np.asarray(records.times)
            reach = (max(0, int(times.min()) - 2 * span), int(times.max()) + 1)
            windows.load(span for key in set(packed) for span in segments.ranges(key, *reach))
            step = _SlidingStep(self, segments, windows, records, packed, before)
            for row, time in enumerate(times.tolist()):
                closes = seen[row] - self.windows.grace
                if time + span >= closes:
                    step.take(row, time, closes)
            windows.flush()
            newest.set(step.newest)
            segments.expire(store, step.newest)
            return step.records()

        return run


def _decoded(data: pa.Array) -> list[_Window]:
    times = from_big_endian(slices(data, 0, 8)).tolist()
    return list(zip(times, objects(unpack(behind(data, 8))), strict=True))


def _encoded(aggregation: Aggregation, windows: Sequence[_Window]) -> pa.Array:
    times = np.array([time for time, _ in windows], np.int64)
    states = aggregation.states([state for _, state in windows])
    return joined(binary(big_endian(times)), pack(states))


class _SlidingStep:
    """The records of a step, one after another."""

    def __init__(
        self,
        plan: Sliding,
        segments: Segments,
        entries: Entries,
        records: Records,
        packed: Sequence[bytes],
        newest: int,
    ) -> None:
        self._aggregation = plan.aggregation
        self._span = plan.windows.difference
        self._retention = plan.retention
        self._segments = segments
        self._entries = entries
        self._records = records
        self._packed = packed
        self.newest = newest
        self._keys = objects(records.keys)
        self._inputs = objects(plan.aggregation.inputs(records, records.values))
        self._made: list[tuple[int, int, int, Any, Any]] = []

    def take(self, row: int, time: int, closes: int) -> None:
        """Add a record to its windows."""
        windows = {
            time_of(name[-8:]): window
            for start, stop in self._segments.ranges(
                self._packed[row],
                max(0, time - 2 * self._span, self.newest - self._retention + 1),
                time + 1,
            )
            for name, window in self._entries.range(start, stop)
        }
        if time < self._span:
            self._early(row, time, closes, windows)
            return
        ending = [start for start in windows if start + self._span < time]
        covering = [start for start in windows if start <= time <= start + self._span]
        left = time - self._span
        earlier = windows[max(ending)] if ending else None
        previous = earlier[0] if earlier else None
        for start in sorted(covering, reverse=True):
            self._update(row, start, windows[start], time, closes)
        if left in windows:
            if windows[left][0] >= time:
                return
            previous = windows[left][0] if previous is None else previous
        later = [start for start in covering if start != left]
        behind = windows[max(later)] if later else None
        if (
            previous is not None
            and previous + 1 not in windows
            and previous + 1 + self._span >= time
        ):
            self._update(row, previous + 1, None, time, closes)
        if left not in windows:
            near = earlier is not None and previous is not None and left <= previous
            state = earlier[1] if near and earlier else None
            self._update(row, left, None if state is None else (time, state), time, closes)
        if time + 1 not in windows and behind is not None and behind[0] > time:
            self._create(row, time + 1, behind)

    def _early(self, row: int, time: int, closes: int, windows: Mapping[int, _Window]) -> None:
        shared = windows.get(0)
        previous = shared[0] if shared is not None and shared[0] < time else None
        behind = None
        for start in sorted(windows):
            if 0 < start <= time:
                behind = windows[start]
                self._update(row, start, behind, time, closes)
        if behind is None and shared is not None and shared[0] > time:
            behind = shared
        if time + 1 not in windows and behind is not None and behind[0] > time:
            self._create(row, time + 1, behind)
        if previous is not None and previous + 1 not in windows:
            self._update(row, previous + 1, None, time, closes)
        self._update(row, 0, shared, time, closes)

    def _update(self, row: int, start: int, window: _Window | None, time: int, closes: int) -> None:
        if start + self._span < closes:
            return
        old = None if window is None else window[1]
        state = self._aggregation.begin() if old is None else old
        new = self._aggregation.add(self._keys[row], self._inputs[row], state)
        at = time if window is None else max(time, window[0])
        self._store(row, start, (at, new))
        self._made.append((row, start, at, old, new))

    def _create(self, row: int, start: int, window: _Window) -> None:
        self._store(row, start, window)
        self._made.append((row, start, window[0], None, window[1]))

    def _store(self, row: int, start: int, window: _Window) -> None:
        self.newest = max(self.newest, start)
        kept = None if window[1] is None else window
        self._entries.put(self._segments.key(self._packed[row], start), kept)

    def records(self) -> Records:
        if not self._made:
            return NONE
        rows, starts, times, olds, news = zip(*self._made, strict=True)
        taken = self._records.take(np.array(rows))
        begin = np.array(starts, np.int64)
        aggregation = self._aggregation
        values = aggregation.result(aggregation.states(news))
        at = pa.array(times, pa.int64())
        return taken.holding(
            keys=windowed(taken.keys, begin, begin + self._span),
            values=values,
            times=at,
            olds=aggregation.result(aggregation.states(olds)),
            old_times=at,
            headers=None,
        )


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
        return (StoreSpec(self.store, "sessions"),)

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
        aggregation = self.aggregation

        def run(records: Records) -> Records:
            records = records.only(np.asarray(records.keys.is_valid()))
            if not len(records):
                return NONE
            before = clock.time
            segments = Segments(self.retention, before)
            seen = clock.advance(records.times).tolist()
            sessions = Entries(
                store,
                lambda data: objects(unpack(data)),
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
            changes = _SessionChanges(records, aggregation)
            inputs = objects(aggregation.inputs(records, records.values))
            keys = objects(records.keys)
            for row, time in enumerate(times.tolist()):
                visible = (seen[row - 1] if row else before) - segments.retention
                closes = seen[row] - self.windows.grace - self.windows.gap
                overlapping = [
                    (name, state, *_session(name))
                    for start, stop in segments.ranges(
                        packed[row], max(0, time - self.windows.gap, visible + 1), seen[row]
                    )
                    for name, state in sessions.range(start, stop)
                    if _session(name)[0] <= time + self.windows.gap
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
            segments.expire(store, clock.time)
            return changes.records()

        return run


def _session(name: bytes) -> tuple[int, int]:
    """The start and the end of a session."""
    return time_of(name[-8:]), time_of(name[-16:-8])


class _SessionChanges:
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
