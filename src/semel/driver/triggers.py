"""What a trigger of the bounded direct engine reads, and which task reads which part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from semel.core.errors import misconfigured
from semel.core.ledger import OffsetRange, TopicPartition

_SHARE = 50_000
"""Up to this many records go to a single task, so that small triggers make few files."""

_UNITS = {
    "microsecond": 1e-6,
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_TERM = rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})s?"


def seconds(interval: str) -> float:
    """An interval as Spark writes it, such as ``10 seconds`` or ``1 minute 30 seconds``.

    Raises:
        ConfigError: it is not an interval.
    """
    text = interval.strip().lower().removeprefix("interval ").strip()
    if re.fullmatch(rf"{_TERM}(?:\s+{_TERM})*", text) is None:
        raise misconfigured(
            "processingTime",
            f"processingTime={interval!r} is not an interval, such as '10 seconds' or '1 minute'",
        )
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(_TERM, text))


def bounded(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int
) -> list[OffsetRange]:
    """About ``most`` offsets in all: the same share of each partition's lag, but at least one."""
    lags = {tp: ends[tp] - at for tp, at in positions.items() if ends[tp] > at}
    total = sum(lags.values())
    ranges = []
    for tp, lag in sorted(lags.items()):
        size = lag if total <= most else max(1, lag * most // total)
        ranges.append(OffsetRange(*tp, positions[tp], positions[tp] + size))
    return ranges


def shared(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Ranges cut into parts of equal size, at most one per task; a large partition is split across
    several."""
    total = sum(r.until_offset - r.from_offset for r in ranges)
    count = max(1, min(tasks, -(-total // _SHARE)))
    size = -(-total // count)
    parts: list[list[OffsetRange]] = [[]]
    room = size
    for r in ranges:
        at = r.from_offset
        while at < r.until_offset:
            if not room:
                parts.append([])
                room = size
            end = min(r.until_offset, at + room)
            parts[-1].append(OffsetRange(r.topic, r.partition, at, end))
            room -= end - at
            at = end
    return parts


def before(ranges: Sequence[OffsetRange], tp: TopicPartition, offset: int) -> list[OffsetRange]:
    """The ranges, with one partition's cut before ``offset``."""
    kept = []
    for r in ranges:
        until = min(r.until_offset, offset) if r.topic_partition == tp else r.until_offset
        if until > r.from_offset:
            kept.append(OffsetRange(r.topic, r.partition, r.from_offset, until))
    return kept
