"""Tables: the latest value of each key, and changes that are held back until their time has come.

Changes that are held back are gone through one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.core.errors import SemelError
from semel.streams.codec import distinct, pack, pack_keys, time_bytes, unpack
from semel.streams.operators.state import (
    FIRST,
    Clock,
    Entries,
    TimedValues,
    entries,
    last_rows,
    previous_rows,
    read,
    taken,
    write,
)
from semel.streams.records import NONE, Records
from semel.streams.store import Readable, Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import END, EntryKeys


@dataclass(frozen=True)
class Table:
    """Keeps the latest value of each key, and tells which value each record replaces. Records
    without a key are dropped. Whatever comes later wins, even with an earlier time."""

    store: str
    logged: bool = True

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store, logged=self.logged),)

    def named(self, keys: pa.Array) -> EntryKeys:
        return EntryKeys(unpack(keys))

    def shown(self, keys: pa.Array, values: pa.Array) -> Records:
        stored = entries(values)
        return Records(unpack(keys), stored.values, stored.times)

    def start(self, stores: Mapping[str, Store]) -> Run:
        store = stores[self.store]

        def run(records: Records) -> Records:
            records = records.only(np.asarray(records.keys.is_valid()))
            if not len(records):
                return records.holding(olds=records.values, old_times=records.times)
            codes, keys = distinct(pack_keys(records.keys))
            before = read(store, keys)
            rows = previous_rows(codes)
            rows = np.where(rows < 0, len(records) + codes, rows)
            olds = taken([records.values, before.values], rows)
            old_times = taken([records.times, before.times], rows)
            last = pa.array(last_rows(codes, len(keys)))
            write(store, keys, records.values.take(last), records.times.take(last))
            return records.holding(olds=olds, old_times=old_times)

        return run


def as_of(store: Readable, changes: Records, records: Records, keys: pa.Array) -> TimedValues:
    """The value and time that a table had for each key when each record came: ``changes`` are those
    of the table in this step, whose store has them already. A change and a record of the same place
    came in this order."""
    packed = pack_keys(keys)
    together = pa.concat_arrays([pack_keys(changes.keys), packed.fill_null(b"")])
    codes, names = distinct(together)
    of_changes, of_records = codes[: len(changes)], codes[len(changes) :]
    number = len(changes)
    first = np.full(len(names), -1)
    first[of_changes[::-1]] = np.arange(number)[::-1]
    # For each record, the last change of its key that is not behind it.
    which = np.concatenate([np.arange(number), np.full(len(records), -1)])
    order = np.concatenate([changes.order, records.order])
    is_record = np.repeat([0, 1], [number, len(records)])
    turn = np.lexsort((np.arange(len(order)), is_record, order, codes))
    seen = np.where(is_record[turn] == 0, np.arange(len(turn)), -1)
    group_start = np.flatnonzero(np.concatenate([[True], np.diff(codes[turn]) != 0]))
    groups = np.cumsum(np.concatenate([[True], np.diff(codes[turn]) != 0])) - 1
    latest = np.maximum.accumulate(seen)
    fits = latest >= group_start[groups]
    change = np.full(len(order), -1)
    change[turn] = np.where(fits, which[turn][np.maximum(latest, 0)], -1)
    change = change[number:]
    # Records before the first change of their key see what that replaced, others what is stored.
    untouched = first[of_records] < 0
    stored = read(store, names.take(pa.array(of_records[untouched])))
    rows = np.where(change >= 0, change, number + first[of_records])
    rows[untouched] = 2 * number + np.arange(np.count_nonzero(untouched))
    nulls = pa.nulls(number)
    olds = nulls if changes.olds is None else changes.olds
    old_times = pa.nulls(number, pa.int64()) if changes.old_times is None else changes.old_times
    values = taken([changes.values, olds, stored.values], rows)
    times = taken([changes.times, old_times, stored.times], rows)
    absent = pa.array(np.asarray(keys.is_null()) | np.asarray(values.is_null()))
    if not absent.true_count:
        return TimedValues(values, times)
    there = np.where(np.asarray(absent), -1, np.arange(len(records)))
    return TimedValues(taken([values], there), taken([times], there))


@dataclass(frozen=True)
class Suppress:
    """Keeps only the last change of each key until ``wait`` milliseconds have passed since the
    first, or since the end of its window (``of_windows``). Time is that of the changes or, with a
    second input, that of its records: windows of ``strict`` operators are still open when their
    time is exactly over. With more than ``most`` keys, the oldest go on early, or ``overflow`` is
    an error.

    The store has an entry of each key that is held back, by its time, and its time by the key.
    """

    store: str
    wait: int
    of_windows: bool = False
    strict: bool = False
    most: int | None = None
    overflow: bool = False

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store, "internal"),)

    def start(self, stores: Mapping[str, Store]) -> Run:
        store = stores[self.store]
        clock, number = Clock(store), Clock(store, b"number")

        def run(changes: Records, clocks: Records | None = None) -> Records:
            before, now = clock.time, clock.time
            ticks = changes if clocks is None else clocks
            if len(ticks):
                now = max(now, int(np.asarray(ticks.times).max()))
            packed = pack_keys(changes.keys).to_pylist()
            buffer = Entries(store)
            buffer.fetch(FIRST + key for key in packed)
            buffer.fetch(self._entry(time, key[1:]) for key, time in buffer.range(FIRST, b"\x02"))
            buffer.load([(b"\x02", self._until(now))])
            if self.most is not None:
                buffer.load([(b"\x02", b"\xff")])
            step = _Held(self, buffer, max(0, number.time))
            self._go(step, changes, ticks, packed, before)
            buffer.flush()
            clock.set(now)
            number.set(step.number)
            return step.records(changes)

        return run

    def _until(self, now: int) -> bytes:
        """Behind the entries whose time has come."""
        return b"\x02" + time_bytes(now - self.wait + (0 if self.strict else 1))

    @staticmethod
    def _entry(time: bytes, key: bytes) -> bytes:
        return b"\x02" + time + key

    def _go(
        self, step: _Held, changes: Records, ticks: Records, packed: Sequence[bytes], now: int
    ) -> None:
        is_separate = ticks is not changes
        times = changes.times
        if self.of_windows:
            times = changes.keys.field(END).cast(pa.int64()) if len(changes) else changes.times
        events = [(int(place), 0, row) for row, place in enumerate(changes.order)]
        if is_separate:
            events += [(int(place), 1, row) for row, place in enumerate(ticks.order)]
            events.sort()
        of_changes, clock = np.asarray(times).tolist(), np.asarray(ticks.times).tolist()
        encoded = pack(_both(changes)).to_pylist() if len(changes) else []
        for place, is_tick, row in events:
            if not is_tick:
                step.put(packed[row], of_changes[row], encoded[row])
            if is_tick or not is_separate:
                now = max(now, clock[row])
                step.evict(self._until(now), place)


def _both(changes: Records) -> pa.Array:
    columns = [changes.keys, changes.values, changes.olds, changes.times]
    return pa.StructArray.from_arrays(columns, names=["key", "new", "old", "time"])


class _Held:
    def __init__(self, plan: Suppress, buffer: Entries, number: int) -> None:
        self._plan = plan
        self._buffer = buffer
        self.number = number
        self._made: list[tuple[int, bytes, bytes]] = []

    def put(self, key: bytes, time: int, change: bytes) -> None:
        name = FIRST + key
        old_time = self._buffer.get(name)
        if old_time is None:
            old_time = time_bytes(time)
            self._buffer.put(name, old_time)
            self.number += 1
            first = change
        else:
            # The value that is replaced in the end is that of the first change.
            before = self._buffer.get(Suppress._entry(old_time, key))
            first = before[8 : 8 + int.from_bytes(before[:8])]
        value = len(first).to_bytes(8) + first + change
        self._buffer.put(Suppress._entry(old_time, key), value)

    def evict(self, until: bytes, place: int) -> None:
        plan = self._plan
        while (oldest := self._buffer.first(b"\x02")) is not None:
            is_full = plan.most is not None and self.number > plan.most
            if oldest[0] >= until and not is_full:
                return
            if is_full and plan.overflow and oldest[0] >= until:
                raise SemelError(
                    f"{plan.store}: more than {plan.most} keys are held back. Allow more records, "
                    "or let the oldest go on early: suppress(..., when_full='emit')"
                )
            name, value = oldest
            length = int.from_bytes(value[:8])
            self._made.append((place, value[8 : 8 + length], value[8 + length :]))
            self._buffer.put(name, None)
            self._buffer.put(FIRST + name[9:], None)
            self.number -= 1

    def records(self, changes: Records) -> Records:
        if not self._made:
            return NONE
        places, firsts, lasts = zip(*self._made, strict=True)
        first = unpack(pa.array(firsts, pa.binary()))
        last = unpack(pa.array(lasts, pa.binary()))
        times = last.field("time")
        records = Records(
            last.field("key"),
            last.field("new"),
            times,
            order=np.array(places, np.int64),
            olds=first.field("old"),
            old_times=times,
        )
        if self._plan.of_windows:  # nobody has seen a window that is gone before it closes
            records = records.only(np.asarray(records.values.is_valid()))
        return records
