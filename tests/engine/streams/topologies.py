"""Topologies for tests of what runs them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from semel.streams import KGroupedStream, KTable, Streams, count, sum, tumbling

TOPIC = "SEMEL_TEST_TOPIC"
"""The variable that names the topic of a topology that is named in a configuration."""


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


def joining(config: Mapping[str, Any], topic: str) -> Streams:
    """The colors of tables for keys, counted: a table beside the stream, and a repartition."""
    made = Streams(config)
    shades = made.table(f"{topic}-shades", store="shades")
    shaded = made.stream(topic).join(shades, {"id": "this.id", "shade": "other.shade"})
    _totals(shaded.group_by("shade", name="by-shade")).to(TARGET)
    return made


def enriching(config: Mapping[str, Any], topic: str) -> Streams:
    """Joins records with a table by a field of theirs."""
    made = Streams(config)
    hues = made.table(f"{topic}-hues", store="hues")
    by_color = made.stream(topic).select_key("color")
    hued = by_color.join(hues, {"id": "this.id", "hue": "other.hue"})
    _totals(hued.group_by("hue", name="by-hue")).to(TARGET)
    return made


def looking_up(config: Mapping[str, Any], topic: str) -> Streams:
    """Joins records with a global table by a field of theirs."""
    made = Streams(config)
    hues = made.global_table(f"{topic}-hues", store="hues")
    hued = made.stream(topic).join(hues, {"id": "this.id", "hue": "other.hue"}, key="color")
    _totals(hued.group_by("hue", name="by-hue")).to(TARGET)
    return made


def visits() -> Streams:
    """Totals by two fields, after a repartition topic, and counts by key and minute."""
    made = Streams({"name": "visits"})
    stream = made.stream(os.environ[TOPIC])
    _totals(stream.group_by({"color": "color", "odd": "id % 2 = 1"}, name="kinds")).to(TARGET)
    minutes = tumbling(60_000, grace=3_600_000)
    stream.group_by_key().windowed_by(minutes).count(store="minutes")
    return made


TARGET = {
    "connector.class": "postgresql",
    "table.name.format": "counts",
    "insert.mode": "upsert",
    "pk.mode": "record_key",
    "pk.fields": "key",
}
