"""Aggregates by key: one get and one put for each distinct key of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.streams.aggregates import Aggregation
from semel.streams.codec import distinct, pack_keys, unpack
from semel.streams.operators.state import (
    TimedValues,
    entries,
    last_rows,
    latest,
    previous_rows,
    read,
    taken,
    write,
)
from semel.streams.records import Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import EntryKeys

LARGE_VALUES = 1000
"""The most records of a step where each may give a large value."""


@dataclass(frozen=True)
class Aggregated:
    """The aggregate of each key, as a table. Records without a key or a value are dropped; of a
    table's changes, ``of_table``, old values are taken back. A step gives one change for a key or,
    with ``each``, one for each record."""

    store: str
    aggregation: Aggregation
    of_table: bool = False
    each: bool = field(default=False, compare=False)

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store),)

    @property
    def records_per_step(self) -> int | None:
        return LARGE_VALUES if self.each and self.aggregation.grows else None

    def named(self, keys: pa.Array) -> EntryKeys:
        return EntryKeys(unpack(keys))

    def shown(self, keys: pa.Array, values: pa.Array) -> Records:
        stored = entries(values)
        return Records(unpack(keys), self.aggregation.result(stored.values), stored.times)

    def start(self, stores: Mapping[str, Store]) -> Run:
        def run(records: Records) -> Records:
            there = records.keys.is_valid()
            if not self.of_table:
                there = pc.and_(there, records.values.is_valid())
            return folded(
                stores[self.store],
                self.aggregation,
                records.only(np.asarray(there)),
                self.of_table,
                each=self.each,
            )

        return run


def folded(
    store: Store,
    aggregation: Aggregation,
    records: Records,
    of_table: bool = False,
    groups: tuple[np.ndarray, pa.Array] | None = None,
    each: bool = False,
) -> Records:
    """Add records to the states of their groups in a store, and return the changes: the last one of
    each group or, with ``each``, all of them.

    ``groups`` has a number for each record, and the store's key for each number; otherwise they are
    grouped by their keys.
    """
    if not len(records):
        return records.holding(olds=records.values, old_times=records.times)
    codes, keys = distinct(pack_keys(records.keys)) if groups is None else groups
    count = len(keys)
    before = read(store, keys)
    last = last_rows(codes, count)
    if each:
        states = aggregation.running(codes, records, before.values, of_table)
        times = _latest_so_far(codes, records.times, before.times)
        rows = previous_rows(codes)
        rows = np.where(rows < 0, len(records) + codes, rows)
        olds = TimedValues(taken([states, before.values], rows), taken([times, before.times], rows))
        write(store, keys, states.take(pa.array(last)), times.take(pa.array(last)))
        return _changes(records, aggregation, TimedValues(states, times), olds)
    fold = aggregation.replace if of_table else aggregation.fold
    states = fold(codes, count, records, before.values)
    newest = latest(codes, np.asarray(records.times), count)
    times = pa.array(np.maximum(newest, np.asarray(before.times.fill_null(-1))))
    write(store, keys, states, times)
    results = _changes(records.take(last), aggregation, TimedValues(states, times), before)
    return results.take(np.argsort(results.order, kind="stable"))


def _changes(
    records: Records, aggregation: Aggregation, states: TimedValues, olds: TimedValues
) -> Records:
    """The changes that records brought about: states, and those before."""
    return Records(
        records.keys,
        aggregation.result(states.values),
        states.times,
        order=records.order,
        olds=aggregation.result(olds.values),
        old_times=olds.times,
    )


def _latest_so_far(codes: np.ndarray, times: pa.Array, before: pa.Array) -> pa.Array:
    """The greatest time of each record's group, up to that record."""
    stored = np.asarray(before.fill_null(-1))
    known, ranks = np.unique(np.maximum(np.asarray(times), stored[codes]), return_inverse=True)
    by_group = np.argsort(codes, kind="stable")
    base = codes[by_group] * len(known)
    result = np.empty(len(codes), np.int64)
    result[by_group] = known[np.maximum.accumulate(base + ranks[by_group]) - base]
    return pa.array(result)
