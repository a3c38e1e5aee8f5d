"""Windowed joins of two streams. Records are gone through one by one; their values are not: they
stay bytes until all pairs are known, and are joined by the column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.streams.codec import pack, pack_keys, time_bytes, time_of, unpack
from semel.streams.expressions import Expression
from semel.streams.operators.joins import joiner_of
from semel.streams.operators.state import FIRST, Clock, Entries, Segments
from semel.streams.records import NONE, Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import JoinWindows

LEFT, RIGHT = 0, 1
_NOTHING = (1 << 63) - 1
"""The time of the oldest record without a partner, if there is none."""


@dataclass(frozen=True)
class StreamStream:
    """Joins records of two streams with equal keys whose times are near enough. Records without a
    key or value are dropped. ``kind`` is inner, left or outer: a record without a partner goes on
    alone when its window and grace are over; in an outer join, one without a key at once.

    Both stores have all records of their side, by key and time and a number. ``waiting`` has those
    that have found no partner yet, by time, side and key.
    """

    left: str
    right: str
    waiting: str
    joiner: Expression | None
    windows: JoinWindows
    kind: str

    @property
    def stores(self) -> Sequence[StoreSpec]:
        sides = [StoreSpec(s, "windows") for s in (self.left, self.right)]
        return (*sides, StoreSpec(self.waiting, "internal"))

    def start(self, stores: Mapping[str, Store]) -> Run:
        join = joiner_of(self.joiner)

        def run(*inputs: Records) -> Records:
            step = _Step(self, stores, inputs)
            for _, side, row in sorted(
                (int(place), side, row)
                for side, records in enumerate(inputs)
                for row, place in enumerate(records.order)
            ):
                step.take(side, row)
            step.flush()
            if not step.pairs:
                return NONE
            records = step.records()
            this, other = (step.values(side) for side in (LEFT, RIGHT))
            return records.holding(values=join(records, this, other))

        return run


class _Side:
    """One stream in a step."""

    def __init__(self, store: Store, windows: JoinWindows, records: Records) -> None:
        self.store = store
        self.entries = Entries(store)
        self.clock = Clock(store)
        self.segments = Segments(windows.retention, self.clock.time)
        self.number = Clock(store, b"number")
        self.newest, self.next = self.clock.time, self.number.time + 1
        self.keys: list[bytes | None] = pack_keys(records.keys).to_pylist()
        self.values: list[bytes | None] = pack(records.values).to_pylist()
        self.times: list[int] = np.asarray(records.times).tolist()

    def flush(self) -> None:
        self.entries.flush()
        self.segments.expire(self.store, self.newest)
        self.clock.set(self.newest)
        self.number.set(self.next - 1)


class _Step:
    def __init__(
        self, plan: StreamStream, stores: Mapping[str, Store], inputs: Sequence[Records]
    ) -> None:
        self._plan = plan
        windows = plan.windows
        self._inputs = inputs
        self._sides = [
            _Side(stores[name], windows, records)
            for name, records in zip((plan.left, plan.right), inputs, strict=True)
        ]
        # How far the other side's records may be before and after those of each side.
        self._reach = [(windows.before, windows.after), (windows.after, windows.before)]
        self._outer = [plan.kind in ("left", "outer"), plan.kind == "outer"]
        waiting = stores[plan.waiting]
        self._waiting = Entries(waiting)
        self._all_waiting = False
        self._clock, self._oldest = Clock(waiting), Clock(waiting, b"oldest", _NOTHING)
        self._time, self._min = self._clock.time, self._oldest.time
        self.pairs: list[tuple[int, int, bytes | None, bytes | None, bytes | None]] = []
        self._load()

    def _load(self) -> None:
        """Take up what records of this step may meet."""
        for this, other, reach in (
            (self._sides[LEFT], self._sides[RIGHT], self._reach[LEFT]),
            (self._sides[RIGHT], self._sides[LEFT], self._reach[RIGHT]),
        ):
            spans: dict[bytes, tuple[int, int]] = {}
            for key, time in zip(this.keys, this.times, strict=True):
                if key is not None:
                    first, last = spans.get(key, (time, time))
                    spans[key] = (min(first, time), max(last, time))
            other.entries.load(
                span
                for key, (first, last) in spans.items()
                for span in other.segments.ranges(
                    key, max(0, first - reach[0]), max(0, last + reach[1])
                )
            )

    def take(self, side: int, row: int) -> None:
        this, other = self._sides[side], self._sides[1 - side]
        key, value, time = this.keys[row], this.values[row], this.times[row]
        if key is not None and value is not None:
            this.newest = max(this.newest, time)
            if time > this.newest - this.segments.retention:  # else nothing can meet it any more
                this.entries.put(this.segments.key(key, time, time_bytes(this.next)), value)
            this.next += 1
        self._time = max(self._time, time)
        if value is None:
            return
        if key is None:
            if self._outer[side]:
                self._add(side, row, time, None, value, None)
            return
        before, after = self._reach[side]
        if time == self._time and any(self._outer):
            self._emit(side, row, after)
        first, last = max(0, time - before), max(0, time + after)
        visible = other.newest - other.segments.retention + 1
        matches = (
            [
                entry
                for start, stop in other.segments.ranges(key, max(first, visible), last)
                for entry in other.entries.range(start, stop)
            ]
            if max(first, visible) <= last
            else []
        )
        for name, other_value in matches:
            at = time_of(name[-16:-8])
            if any(self._outer):
                place = _place(at, 1 - side, key)
                self._waiting.load([place])
                for waiting, _ in self._waiting.range(*place):
                    self._waiting.put(waiting, None)
            self._add(side, row, max(time, at), key, value, other_value)
        if not matches and self._outer[side]:
            if last < self._time:
                self._add(side, row, time, key, value, None)
            else:
                self._min = min(self._min, time)
                start, _ = _place(time, side, key)
                self._waiting.put(start + time_bytes(this.next), value)

    def _emit(self, side: int, row: int, after: int) -> None:
        """Let records whose window is over go on alone."""
        grace = self._plan.windows.grace
        if self._min + after + grace >= self._time:
            return
        if not self._all_waiting:
            self._waiting.load([(FIRST, b"\xff")])
            self._all_waiting = True
        self._min = _NOTHING
        is_open = [False, False]
        name = FIRST
        while (found := self._waiting.first(name + b"\0")) is not None:
            name, value = found
            time = time_of(name[:8])
            self._min = time
            if all(is_open):
                break
            of = LEFT if name[8] else RIGHT
            if time + self._reach[of][1] + grace >= self._time:
                is_open[of] = True
                continue
            self._add(of, row, time, name[9:-8], value, None, place_of=side)
            self._waiting.put(name, None)

    def _add(
        self,
        side: int,
        row: int,
        time: int,
        key: bytes | None,
        value: bytes | None,
        other: bytes | None,
        place_of: int | None = None,
    ) -> None:
        sides = (value, other) if side == LEFT else (other, value)
        place = int(self._inputs[side if place_of is None else place_of].order[row])
        self.pairs.append((place, time, key, *sides))

    def records(self) -> Records:
        places, times, keys, *_ = zip(*self.pairs, strict=True)
        packed = pa.array(keys, pa.binary())
        return Records(
            unpack(packed),
            pa.nulls(len(packed)),
            pa.array(times, pa.int64()),
            order=np.array(places, np.int64),
        )

    def values(self, side: int) -> pa.Array:
        return unpack(pa.array([pair[3 + side] for pair in self.pairs], pa.binary()))

    def flush(self) -> None:
        for side in self._sides:
            side.flush()
        self._waiting.flush()
        self._clock.set(self._time)
        self._oldest.set(self._min)


def _place(time: int, side: int, key: bytes) -> tuple[bytes, bytes]:
    """Where records of this time, side and key wait."""
    start = time_bytes(time) + bytes([side == LEFT]) + key
    return start, start + b"\xff" * 8
