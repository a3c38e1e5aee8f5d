"""A topology that a drill runs: counts by a field of the value, after a repartition topic."""

from __future__ import annotations

from semel.streams import KTable, Streams, count, max, sum


def counts(name: str) -> tuple[Streams, KTable]:
    made = Streams({"name": name})
    by = made.stream("drill").group_by("id % 20", name="buckets")
    return made, by.aggregate(n=count(), total=sum("id"), latest=max("id"), store="counts")


def to_table() -> Streams:
    made, table = counts("drill-streams")
    table.to({"connector.class": "postgresql"}, name="buckets")
    return made


def to_topic() -> Streams:
    made, table = counts("drill-streams-kafka")
    table.to_topic("drill-buckets")
    return made
