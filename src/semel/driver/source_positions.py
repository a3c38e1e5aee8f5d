"""Shows and changes source offsets by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from semel.driver.planning import SourcePlan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.sources.offsets.owner import alter
from semel.sources.offsets.store import SourceOffsets

Facts = Mapping[str, Any]


def source_offsets(planned: SourcePlan) -> Sequence[tuple[Facts, Facts]]:
    """Each source partition with its offset; empty if there is no offsets topic yet."""
    with closing(_offsets(planned)) as offsets:
        return offsets.read(expected=False).offsets


def set_source_offsets(
    planned: SourcePlan, wanted: Sequence[tuple[Facts, Facts | None]], *, force: bool = False
) -> None:
    """Let a connector continue at these offsets; None forgets a partition. A running connector is
    fenced. With ``force``, the source is not asked whether it could begin there.

    Raises:
        ConfigError: the source has no such partition or offset.
    """
    for partition, offset in wanted:
        if offset is not None and not force:
            planned.source.check_offset(partition, offset)
    _alter(planned, wanted)


def reset_source_offsets(planned: SourcePlan) -> None:
    """Forget all offsets, including those that a running connector stores before it is fenced."""
    if source_offsets(planned):
        _alter(planned, None)


def _alter(planned: SourcePlan, wanted: Sequence[tuple[Facts, Facts | None]] | None) -> None:
    with closing(_offsets(planned)) as offsets:
        offsets.prepare()
        alter(planned.connector, offsets, wanted)


def _offsets(planned: SourcePlan) -> SourceOffsets:
    connector = planned.connector
    return SourceOffsets(connector, Cluster(client_config(connector, "admin")))
