"""People's own operators: a function of each record, with stores and timers. It is the slow path:
records are gone through one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from semel.core.errors import SemelError
from semel.streams.codec import column, objects, pack, pack_keys, unpack
from semel.streams.operators.state import FIRST, Clock
from semel.streams.records import NONE, Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import EntryKeys


class KeyValueStore:
    """A store of Python's values, for functions that are given to ``process()``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: Any) -> Any:
        """The value of a key, or None."""
        return objects(unpack(self._store.get(_key(key))))[0]

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; None deletes it."""
        self._store.put(_key(key), pack(column([value])))

    def delete(self, key: Any) -> None:
        """Delete a key."""
        self.put(key, None)

    def items(self, first: Any = None, last: Any = None) -> Iterator[tuple[Any, Any]]:
        """Keys and their values, from the first to the last: numbers and times in their order,
        texts by their lengths and then in their order."""
        start = FIRST if first is None else _key(first)[0].as_py()
        stop = None if last is None else _key(last)[0].as_py() + b"\0"
        for key, value in list(self._store.range(start, stop)):
            yield tuple(objects(unpack(pa.array([b], pa.binary())))[0] for b in (key, value))


def _key(key: Any) -> pa.Array:
    if key is None:
        raise SemelError("process: None cannot be the key of a store")
    return pack_keys(pa.array([key]))


class Context:
    """What a function of ``process()`` may use besides its record."""

    def __init__(self, stores: Mapping[str, KeyValueStore]) -> None:
        self._stores = stores
        self.timestamp = 0
        """The time of the record, or of the timer."""
        self.made: list[tuple[Any, Any, int]] = []

    def store(self, name: str) -> KeyValueStore:
        """One of the operator's stores."""
        return self._stores[name]

    def forward(self, key: Any, value: Any, timestamp: int | None = None) -> None:
        """Send a record on."""
        self.made.append((key, value, self.timestamp if timestamp is None else timestamp))


@dataclass(frozen=True)
class Process:
    """Calls a function with each record's key and value and a :class:`Context`. ``timers`` are
    called with the time and the context when the stream's time reaches a new multiple of so many
    milliseconds; ``clock`` is the store that has their times."""

    function: Callable[[Any, Any, Context], Any]
    names: tuple[str, ...]
    timers: tuple[tuple[int, Callable[[int, Context], Any]], ...]
    clock: str

    @property
    def stores(self) -> Sequence[StoreSpec]:
        own = [StoreSpec(self.clock, "internal")] if self.timers else []
        return (*(StoreSpec(name) for name in self.names), *own)

    def named(self, keys: pa.Array) -> EntryKeys:
        return EntryKeys(unpack(keys))

    def shown(self, keys: pa.Array, values: pa.Array) -> Records:
        return Records(unpack(keys), unpack(values), pa.nulls(len(keys), pa.int64()))

    def start(self, stores: Mapping[str, Store]) -> Run:
        context = Context({name: KeyValueStore(stores[name]) for name in self.names})
        timers: list[tuple[Clock, int, Callable[[int, Context], Any]]] = []
        time = Clock(stores[self.clock]) if self.timers else None
        for number, (interval, function) in enumerate(self.timers):
            timers.append((Clock(stores[self.clock], b"%d" % number), interval, function))

        def run(records: Records, clock: Records | None = None) -> Records:
            outputs: list[tuple[int, Any, Any, int]] = []

            def call(place: int, at: int, function: Callable[[], Any]) -> None:
                context.timestamp, context.made = at, []
                function()
                outputs.extend((place, *record) for record in context.made)

            rows = zip(
                records.order.tolist(),
                np.asarray(records.times).tolist(),
                objects(records.keys),
                objects(records.values),
                strict=True,
            )
            events: list[tuple[int, int, int, Any]] = [
                (place, 0, at, arguments) for place, at, *arguments in rows
            ]
            if clock is not None:
                ticks = zip(clock.order.tolist(), np.asarray(clock.times).tolist(), strict=True)
                events += [(place, 1, at, ()) for place, at in ticks]
            for place, is_tick, at, arguments in sorted(events, key=lambda event: event[:2]):
                if not is_tick:
                    call(place, at, partial(self.function, arguments[0], arguments[1], context))
                elif time is not None:
                    time.set(max(time.time, at))
                    for due, interval, function in timers:
                        if time.time >= due.time:
                            call(place, time.time, partial(function, time.time, context))
                            due.set(_next(max(due.time, 0), interval, time.time))
            return _records(outputs)

        return run


def _next(due: int, interval: int, now: int) -> int:
    """When a timer is due again, that was due at a time and is called now."""
    return due + ((now - due) // interval + 1) * interval


def _records(outputs: Sequence[tuple[int, Any, Any, int]]) -> Records:
    if not outputs:
        return NONE
    places, keys, values, times = zip(*outputs, strict=True)
    return Records(
        column(keys), column(values), pa.array(times, pa.int64()), order=np.array(places, np.int64)
    )
