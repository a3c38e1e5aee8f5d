"""The driver of a topology: that of the direct engine, with other tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark import SparkContext

from semel.core.errors import TransientError
from semel.core.ledger import TopicPartition
from semel.driver import sample
from semel.driver.base import Progress, Run
from semel.driver.direct import DirectEngine
from semel.streams.changelog import Topics
from semel.streams.topology import Topology
from semel.tasks import ranges
from semel.tasks.direct.task import DirectSpec
from semel.tasks.streams.task import StreamsSpec
from semel.tasks.streams.unit import Decoder


class StreamsEngine(DirectEngine):
    """One run of a topology."""

    def __init__(self, run: Run, spark: Callable[[], SparkContext], topology: Topology) -> None:
        super().__init__(run, spark, _made_by_topology)
        self._topology = topology

    def _spec(self, **facts: Any) -> DirectSpec:
        return StreamsSpec(
            connector=self._run.connector,
            guarantee=self._run.guarantee,
            transform=self._transform,
            topology=self._topology,
            **facts,
        )

    def _over(self, progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
        if not super()._over(progress, targets) or self._run.stop.is_set():
            return self._run.stop.is_set()
        # A task has brought the state of its partitions to the ledger's positions before it reports
        # them. Until then, what the repartition topics should hold may be missing.
        if not progress.partitions.issuperset(ranges.partitions(self._run.topics)):
            return False
        # What was there at the start has been committed, and with it what it leads to: records of a
        # transaction that is still open are counted.
        topics = Topics(self._run.connector.name, self._topology)
        inside = self._run.topics.keys() - set(topics.outside())
        places = ranges.partitions({topic: self._run.topics[topic] for topic in inside})
        try:
            ends = self._run.cluster.latest(places, committed=False)
        except TransientError:
            return False
        return all(progress.positions.get(tp, 0) >= end for tp, end in ends.items())

    def _schemas(self, positions: Mapping[TopicPartition, int]) -> dict[str, pa.Schema]:
        connector = self._run.connector
        read = Topics(connector.name, self._topology).read
        infer = {
            topic: Decoder(connector, source).infer
            for topic, (_, source) in read.items()
            if not source.is_repartition
        }
        return sample.inferred(connector, self._run.cluster, positions, infer)


def _made_by_topology(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Stands for a transform: a program makes the rows, which have a schema."""
    return batch
