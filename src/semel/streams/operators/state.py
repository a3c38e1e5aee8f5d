"""What operators keep in stores: values with their times, and entries that they go through one by
one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from semel.streams.codec import (
    behind,
    big_endian,
    binary,
    from_big_endian,
    joined,
    pack,
    slices,
    time_bytes,
    time_of,
    unpack,
)
from semel.streams.records import concatenated
from semel.streams.store import Readable, Store

NEVER = -1
"""A time before all times, as in Kafka Streams."""
_CLOCK = b"\0clock"
_FEW = 8
MOST_EXPIRED = 100_000
"""How many expired entries one step deletes at most, because it holds them in memory and deletes
them in one transaction. The next steps delete the others."""
FIRST = b"\x01"
"""Where entries begin. What is before it is an operator's own."""


@dataclass(frozen=True, slots=True)
class TimedValues:
    """Values of a table with their times; null for keys that are absent."""

    values: pa.Array
    times: pa.Array


def read(store: Readable, keys: pa.Array) -> TimedValues:
    """The values of keys."""
    stored = store.get(keys)
    there = np.flatnonzero(np.asarray(stored.is_valid()))
    if not len(there):
        return TimedValues(pa.nulls(len(keys)), pa.nulls(len(keys), pa.int64()))
    times = np.zeros(len(keys), np.int64)
    times[there] = from_big_endian(slices(stored.take(pa.array(there)), 0, 8))
    gone = np.asarray(stored.is_null())
    return TimedValues(unpack(behind(stored, 8)), pa.array(times, mask=gone))


def entries(values: pa.Array) -> TimedValues:
    """The values and times of a store's entries."""
    return TimedValues(unpack(behind(values, 8)), pa.array(from_big_endian(slices(values, 0, 8))))


def write(store: Store, keys: pa.Array, values: pa.Array, times: pa.Array) -> None:
    """Store values with their times; a null deletes."""
    numbers = np.asarray(times.fill_null(0)).astype(np.int64)
    store.put(keys, joined(binary(big_endian(numbers)), pack(values)))


class Clock:
    """A time that is stored, ``at_first`` before: without a name, the greatest one of the records
    that an operator has seen."""

    def __init__(self, store: Store, name: bytes = b"", at_first: int = NEVER) -> None:
        self._store = store
        self._key = pa.array([_CLOCK + name], pa.binary())
        self._at_first = at_first
        self._time: int | None = None

    @property
    def time(self) -> int:
        if self._time is None:
            value = self._store.get(self._key)
            self._time = time_of(value[0].as_py()) if value[0].is_valid else self._at_first
        return self._time

    def set(self, time: int) -> None:
        if time != self.time:
            self._time = time
            self._store.put(self._key, binary(big_endian(np.array([time], np.int64))))

    def advance(self, times: pa.Array) -> np.ndarray:
        """The stream time as it is after each of the records."""
        seen = np.maximum.accumulate(np.concatenate([[self.time], np.asarray(times)]))[1:]
        if len(seen):
            self.set(int(seen[-1]))
        return seen.astype(np.int64)


class Entries:
    """Some entries of a store at hand, for operators that go through records one by one. Many are
    read and written at once: ``decode`` makes values of their bytes, ``encode`` bytes of them."""

    def __init__(
        self,
        store: Store,
        decode: Callable[[pa.Array], Sequence[Any]] = pa.Array.to_pylist,
        encode: Callable[[Sequence[Any]], pa.Array] = lambda values: pa.array(values, pa.binary()),
    ) -> None:
        self._store = store
        self._decode = decode
        self._encode = encode
        self._held: dict[bytes, Any] = {}
        self._order: list[bytes] = []
        self._changed: set[bytes] = set()

    def load(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        """Take up what is stored in these ranges: what is not loaded is not there."""
        stored = {k: v for start, stop in ranges for k, v in self._store.range(start, stop)}
        self._take(
            {k: v for k, v in stored.items() if k not in self._held and k not in self._changed}
        )

    def fetch(self, keys: Iterable[bytes]) -> None:
        """Take up what is stored under these keys."""
        missing = sorted(set(keys) - self._held.keys() - self._changed)
        if missing:
            values = self._store.get(pa.array(missing, pa.binary())).to_pylist()
            self._take({k: v for k, v in zip(missing, values, strict=True) if v is not None})

    def _take(self, stored: Mapping[bytes, bytes]) -> None:
        if stored:
            values = self._decode(pa.array(list(stored.values()), pa.binary()))
            self._held |= zip(stored, values, strict=True)
            if len(stored) < _FEW:
                for key in stored:
                    insort(self._order, key)
            else:
                self._order = sorted([*self._order, *stored])

    def get(self, key: bytes) -> Any:
        return self._held.get(key)

    def put(self, key: bytes, value: Any) -> None:
        """None deletes."""
        if value is None:
            if self._held.pop(key, None) is not None:
                del self._order[bisect_left(self._order, key)]
        else:
            if key not in self._held:
                insort(self._order, key)
            self._held[key] = value
        self._changed.add(key)

    def range(self, start: bytes, stop: bytes) -> list[tuple[bytes, Any]]:
        low, high = bisect_left(self._order, start), bisect_left(self._order, stop)
        return [(key, self._held[key]) for key in self._order[low:high]]

    def first(self, start: bytes) -> tuple[bytes, Any] | None:
        """The first entry from a key on."""
        at = bisect_left(self._order, start)
        return (self._order[at], self._held[self._order[at]]) if at < len(self._order) else None

    def flush(self) -> None:
        """Store what has changed, and forget everything."""
        kept = [key for key in sorted(self._changed) if key in self._held]
        gone = sorted(self._changed - self._held.keys())
        if kept:
            values = self._encode([self._held[key] for key in kept])
            self._store.put(pa.array(kept, pa.binary()), values)
        if gone:
            self._store.put(pa.array(gone, pa.binary()), pa.nulls(len(gone), pa.binary()))
        self._held, self._order, self._changed = {}, [], set()


class Segments:
    """The layout of a store by key and time: entries of a while stand together, so that those of
    one key and time are near each other, and what has expired is in a row. ``now`` is the greatest
    time up to which the store has been filled: only segments that may have entries are looked
    into, however far apart the times of a step are."""

    def __init__(self, retention: int, now: int) -> None:
        self.retention = retention
        self._interval = max(retention // 2, 60_000)
        first = max(0, (now - retention) // self._interval)
        self._live = list(range(first, now // self._interval + 1))

    def key(self, packed: bytes, time: int, behind: bytes = b"") -> bytes:
        number = time // self._interval
        at = bisect_left(self._live, number)
        if self._live[at : at + 1] != [number]:
            self._live.insert(at, number)
        return time_bytes(number) + packed + time_bytes(time) + behind

    def ranges(self, packed: bytes, first: int, last: int) -> Iterator[tuple[bytes, bytes]]:
        """Where the entries of a key are, from the first to the last time."""
        low = bisect_left(self._live, first // self._interval)
        high = bisect_right(self._live, last // self._interval)
        for number in self._live[low:high]:
            before = time_bytes(number) + packed
            yield before + time_bytes(first), before + time_bytes(last + 1)

    def expire(self, store: Store, now: int) -> None:
        """Delete what has expired at a stream time."""
        expire(store, (now - self.retention) // self._interval)


def last_rows(codes: np.ndarray, count: int) -> np.ndarray:
    """The last row of each group."""
    last = np.zeros(count, np.int64)
    last[codes] = np.arange(len(codes))
    return last


def previous_rows(codes: np.ndarray) -> np.ndarray:
    """For each row the row before it in its group; -1 for the first."""
    by_group = np.argsort(codes, kind="stable")
    before = np.full(len(codes), -1)
    same = codes[by_group][1:] == codes[by_group][:-1]
    before[by_group[1:][same]] = by_group[:-1][same]
    return before


def latest(codes: np.ndarray, times: np.ndarray, count: int) -> np.ndarray:
    """The greatest time of each group."""
    newest = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(newest, codes, times)
    return newest


def taken(arrays: Iterable[pa.Array], rows: np.ndarray) -> pa.Array:
    """Values of several arrays, as if they were joined end to end; null for -1."""
    together = concatenated(list(arrays))
    return together.take(pa.array(rows, mask=rows < 0))


def expire(store: Store, until: int, most: int = MOST_EXPIRED) -> None:
    """Delete entries whose keys begin with an earlier time, at most ``most`` of them. The others
    stay for later steps; until then, queries of the store still find them."""
    reached = Clock(store, b"expired", 0)
    if until <= reached.time:
        return
    entries = store.range(time_bytes(reached.time), time_bytes(until))
    gone = [key for key, _ in islice(entries, most)]
    if gone:
        store.put(pa.array(gone, pa.binary()), pa.nulls(len(gone), pa.binary()))
    reached.set(until if len(gone) < most else time_of(gone[-1][:8]))
