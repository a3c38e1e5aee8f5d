"""Aggregates by key: one get and one put for each distinct key of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.streams.aggregates import Aggregation
from semel.streams.codec import distinct, pack_keys, unpack
from semel.streams.operators.state import entries, last_rows, latest, read, write
from semel.streams.records import Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run
from semel.streams.windows import EntryKeys


@dataclass(frozen=True)
class Aggregated:
    """The aggregate of each key, as a table. Records without a key or a value are dropped; of a
    table's changes, ``of_table``, old values are taken back. A step gives one change for a key."""

    store: str
    aggregation: Aggregation
    of_table: bool = False

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store),)

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
                stores[self.store], self.aggregation, records.only(np.asarray(there)), self.of_table
            )

        return run


def folded(
    store: Store,
    aggregation: Aggregation,
    records: Records,
    of_table: bool = False,
    groups: tuple[np.ndarray, pa.Array] | None = None,
) -> Records:
    """Add records to the states of their groups in a store, and return the changes.

    ``groups`` has a number for each record, and the store's key for each number; otherwise they are
    grouped by their keys.
    """
    if not len(records):
        return records.holding(olds=records.values, old_times=records.times)
    codes, keys = distinct(pack_keys(records.keys)) if groups is None else groups
    count = len(keys)
    before = read(store, keys)
    fold = aggregation.replace if of_table else aggregation.fold
    states = fold(codes, count, records, before.values)
    times = latest(codes, np.asarray(records.times), count)
    times = np.maximum(times, np.asarray(before.times.fill_null(-1)))
    write(store, keys, states, pa.array(times))
    last = last_rows(codes, count)
    results = Records(
        records.keys.take(pa.array(last)),
        aggregation.result(states),
        pa.array(times),
        order=records.order[last],
        olds=aggregation.result(before.values),
        old_times=before.times,
    )
    return results.take(np.argsort(results.order, kind="stable"))
