"""How much a source connector still has to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semel.driver.planning import SourcePlan
from semel.driver.source_positions import source_offsets
from semel.sources.base import Measurable
from semel.sources.offsets.store import StoredOffsets
from semel.tasks.source.readers import stored_offset

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How much is left of a source partition after its stored offset; ``lag`` is None if that is
    not known."""

    partition: Facts
    offset: Facts | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class SourceLag:
    """What a source connector still has to read, counted in ``unit``."""

    unit: str
    partitions: Sequence[PartitionLag]

    @property
    def total(self) -> int | None:
        """The sum; None if a part of it is not known."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if len(known) == len(self.partitions) else None


def source_lag(planned: SourcePlan) -> SourceLag | None:
    """What is left to read now, after the offsets that are committed; None if the source cannot
    tell. Reads the offsets topic.

    Raises:
        SemelError: the offsets, or the source, cannot be read.
    """
    source = planned.source
    if not isinstance(source, Measurable) or source.unit is None:
        return None
    known = StoredOffsets(planned.connector.name, source_offsets(planned)).lookup()

    def stored(partition: Facts) -> Facts | None:
        return stored_offset(planned.source, partition, known)

    lags = [
        PartitionLag(partition, stored(partition), lag) for partition, lag in source.lag(stored)
    ]
    return SourceLag(source.unit, lags)
