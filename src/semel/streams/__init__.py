"""KStream and KTable: topologies in Kafka Streams' words, over Arrow batches."""

from semel.streams.aggregates import avg, collect, count, first, last, max, min, sum
from semel.streams.expressions import arrow
from semel.streams.kstream import KStream, Streams
from semel.streams.ktable import (
    GlobalKTable,
    KGroupedStream,
    KGroupedTable,
    KTable,
    WindowedKStream,
)
from semel.streams.operators.process import Context
from semel.streams.records import Records
from semel.streams.windows import hopping, session, sliding, tumbling, within

__all__ = [
    "Context",
    "GlobalKTable",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "Records",
    "Streams",
    "WindowedKStream",
    "arrow",
    "avg",
    "collect",
    "count",
    "first",
    "hopping",
    "last",
    "max",
    "min",
    "session",
    "sliding",
    "sum",
    "tumbling",
    "within",
]
