"""The topologies that are measured. The topics are named by the environment of the process."""

from __future__ import annotations

import os

from semel.streams import KGroupedStream, Streams, count, last, sum, tumbling

SOURCE, TABLE, TARGET = "BENCHMARK_SOURCE", "BENCHMARK_TABLE", "BENCHMARK_TARGET"
MINUTE = 60_000
_JSON = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
}


def _grouped(streams: Streams) -> KGroupedStream:
    return streams.stream(os.environ[SOURCE]).group_by_key()


def counting() -> Streams:
    """Count and sum by key."""
    topology = Streams({"name": os.environ[TARGET]})
    totals = {"count": count(), "total": sum("amount"), "last": last("ts")}
    _grouped(topology).aggregate(**totals, store="totals").to_topic(os.environ[TARGET])
    return topology


def joining() -> Streams:
    """A stream with a table."""
    topology = Streams({"name": os.environ[TARGET]})
    table = topology.table(os.environ[TABLE], store="table")
    both = {"id": "this.id", "amount": "this.amount", "name": "other.name"}
    topology.stream(os.environ[SOURCE]).join(table, both).to_topic(os.environ[TARGET])
    return topology


def windowing() -> Streams:
    """Count and sum by key and minute."""
    topology = Streams({"name": os.environ[TARGET]})
    windows = _grouped(topology).windowed_by(tumbling(MINUTE, grace=MINUTE))
    totals = {"count": count(), "total": sum("amount"), "last": last("ts")}
    windows.aggregate(**totals, store="totals").to_topic(os.environ[TARGET], _JSON)
    return topology


def keeping() -> Streams:
    """Keep the last record of each key, which is large."""
    topology = Streams({"name": os.environ[TARGET]})
    kept = _grouped(topology).aggregate(last=last("ts"), note=last("note"), store="kept")
    kept.map_values({"last": "last"}).to_stream().to_topic(os.environ[TARGET])
    return topology
