"""Tables: the latest value of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.streams.codec import distinct, pack_keys, unpack
from semel.streams.operators.state import (
    TimedValues,
    entries,
    last_rows,
    previous_rows,
    read,
    taken,
    write,
)
from semel.streams.records import Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import EntryKeys


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


def as_of(store: Store, changes: Records, records: Records, keys: pa.Array) -> TimedValues:
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
