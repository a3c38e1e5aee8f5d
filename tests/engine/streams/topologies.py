"""Topologies for tests of what runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.streams import codec
from semel.streams.records import Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Node, Run, Sink, Source, Topology


@dataclass(frozen=True)
class KeyBy:
    """A field of the value becomes the key."""

    field: str
    stores: Sequence[StoreSpec] = ()

    def start(self, stores: Mapping[str, Store]) -> Run:
        return lambda records: records.holding(keys=pc.struct_field(records.values, self.field))


@dataclass(frozen=True)
class Count:
    """The number of records of each key, and the sum of a field, after each step."""

    store: str
    field: str

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store),)

    def start(self, stores: Mapping[str, Store]) -> Run:
        store = stores[self.store]

        def run(records: Records) -> Records:
            keys = codec.pack_keys(records.keys)
            totals = {}
            found = store.get(keys).to_pylist()
            for key, held in zip(keys.to_pylist(), found, strict=True):
                totals.setdefault(key, codec.unpack(pa.array([held]))[0].as_py() if held else None)
            last = {}
            amounts = pc.struct_field(records.values, self.field).to_pylist()
            for row, (key, amount) in enumerate(zip(keys.to_pylist(), amounts, strict=True)):
                before = totals[key] or {"count": 0, "total": 0}
                totals[key] = {
                    "count": before["count"] + 1,
                    "total": before["total"] + amount,
                }
                last[key] = row
            rows = np.array(sorted(last.values()))
            made = records.take(rows)
            kept = keys.take(pa.array(rows))
            values = pa.array([totals[key] for key in kept.to_pylist()])
            store.put(kept, codec.pack(values))
            return made.holding(values=values)

        return run


def counting(topic: str) -> Topology:
    """Counts by key."""
    return Topology(
        "counting",
        (
            Node("source", (), Source(topic)),
            Node("count", ("source",), Count("counts", "id")),
            Node("counted", ("count",), Sink()),
        ),
    )


def distributing(topic: str) -> Topology:
    """Counts by a field of the value, after a repartition topic."""
    return Topology(
        "distributing",
        (
            Node("source", (), Source(topic)),
            Node("key", ("source",), KeyBy("color")),
            Node("by-color", ("key",), Sink("colors", is_repartition=True)),
            Node("distributed", (), Source("colors", is_repartition=True)),
            Node("count", ("distributed",), Count("counts", "id")),
            Node("counted", ("count",), Sink()),
        ),
    )
