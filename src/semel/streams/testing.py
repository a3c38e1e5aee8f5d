"""Tests a topology without a broker: records in, records out."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.streams.codec import column, from_wire, to_wire
from semel.streams.kstream import Streams
from semel.streams.operators.state import FIRST
from semel.streams.records import Records
from semel.streams.store import MemoryStore
from semel.streams.topology import Topology


@dataclass(frozen=True, slots=True)
class Record:
    """A record in Python's values. A None is a null key, or a tombstone."""

    key: Any
    value: Any
    timestamp: int | None = 0


class TestDriver:
    """Runs a topology with one partition of each topic, on stores in memory.

    A record is processed to its end before :meth:`pipe` returns, repartition topics included, as in
    Kafka Streams' TopologyTestDriver. :meth:`pipe_all` processes many in one step, as a running
    connector does: then aggregates give one change for each key, unless a stream is joined with
    them.
    """

    __test__ = False  # pytest: this is no test

    def __init__(self, streams: Streams | Topology) -> None:
        topology = streams.topology() if isinstance(streams, Streams) else streams
        self._topology, self._subs = topology, topology.subs
        specs = [spec for sub in self._subs for spec in sub.stores]
        self._stores = {spec.name: MemoryStore() for spec in specs}
        self._processors = [(sub, sub.processor(self._stores)) for sub in self._subs]
        self._outputs: dict[str, list[Records]] = defaultdict(list)
        self._waiting: deque[tuple[str, Records]] = deque()

    def pipe(self, topic: str, key: Any = None, value: Any = None, timestamp: int = 0) -> None:
        """Process one record."""
        self.pipe_all({topic: [Record(key, value, timestamp)]})

    def pipe_all(self, records: Mapping[str, Records | Iterable[Record]]) -> None:
        """Process records of several topics in one step, in the order of their times."""
        by_topic = {t: r if isinstance(r, Records) else _columns(r) for t, r in records.items()}
        for topic in by_topic:
            if all(topic not in sub.topics for sub in self._subs):
                raise ConfigError(f"the topology does not read the topic {named(topic)}")
        self._process(by_topic)
        while self._waiting:
            topic, part = self._waiting.popleft()
            self._process({topic: part})

    def read(self, sink: str) -> list[Record]:
        """What has been written since the last call: to a topic or, by the name that ``to()`` was
        given, to the store of a sink."""
        return [record for part in self.read_columns(sink) for record in _records(part)]

    def read_columns(self, sink: str) -> list[Records]:
        """Like :meth:`read`, as batches."""
        return self._outputs.pop(sink, [])

    def entries(self, store: str) -> list[Record]:
        """What a store has, by its name: keys, with their windows, values and times."""
        if store not in self._stores:
            raise ConfigError(f"the topology has no store {named(store)}")
        entries = dict(self._stores[store].range(FIRST, None))
        keys, values = (pa.array(list(part), pa.binary()) for part in (entries, entries.values()))
        return list(_records(self._topology.shown(store, keys, values)))

    def _process(self, records: Mapping[str, Records]) -> None:
        for sub, processor in self._processors:
            inputs = {topic: part for topic, part in records.items() if topic in sub.topics}
            if not inputs:
                continue
            processor.process(inputs)
            for name, parts in processor.finish().items():
                sink = sub.sinks[name]
                for part in parts:
                    if sink.topic is None:
                        self._outputs[name].append(part)
                        continue
                    if not sink.is_repartition:
                        self._outputs[sink.topic].append(part)
                    if any(sink.topic in other.topics for other in self._subs):
                        self._waiting.append((sink.topic, from_wire(*to_wire(part), part.times)))


def _columns(records: Iterable[Record]) -> Records:
    all_records = list(records)
    return Records(
        column([r.key for r in all_records]),
        column([r.value for r in all_records]),
        pa.array([r.timestamp for r in all_records], pa.int64()),
    )


def _records(records: Records) -> Iterator[Record]:
    columns = (records.keys.to_pylist(), records.values.to_pylist())
    for key, value, time in zip(*columns, records.times.to_pylist(), strict=True):
        yield Record(key, value, time)
