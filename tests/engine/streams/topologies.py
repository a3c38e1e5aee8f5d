"""Topologies for tests of what runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.streams import KGroupedStream, KTable, Streams, count, sum


def _totals(group: KGroupedStream) -> KTable:
    return group.aggregate(count=count(), total=sum("id"), store="counts")


def counting(config: Mapping[str, Any], topic: str) -> Streams:
    """Counts by key."""
    made = Streams(config)
    _totals(made.stream(topic).group_by_key()).to(TARGET)
    return made


def distributing(config: Mapping[str, Any], topic: str) -> Streams:
    """Counts by a field of the value, after a repartition topic."""
    made = Streams(config)
    _totals(made.stream(topic).group_by("color", name="colors")).to(TARGET)
    return made


def to_kafka(config: Mapping[str, Any], topic: str) -> Streams:
    """Counts by key, to a topic."""
    made = Streams(config)
    _totals(made.stream(topic).group_by_key()).to_topic(f"{topic}-counts")
    return made


TARGET = {
    "connector.class": "postgresql",
    "table.name.format": "counts",
    "insert.mode": "upsert",
    "pk.mode": "record_key",
    "pk.fields": "key",
}
