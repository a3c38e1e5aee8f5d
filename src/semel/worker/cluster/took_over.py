"""Connectors that Kafka Connect ran before."""

from __future__ import annotations

from collections.abc import Mapping

from semel.sources import is_source
from semel.worker.cluster.records import Tasks

_FIRST_POSITION = "first.position"
_OF_CONNECT = "task.class"
"""A key that Kafka Connect adds to the configurations of tasks."""


def as_taken_over(config: Mapping[str, str], tasks: Tasks | None) -> Mapping[str, str]:
    """A connector's configuration; if its ``tasks`` are still Kafka Connect's, a sink continues
    where they stopped, at its consumer group's offsets. Otherwise such offsets are not trusted:
    they might be copies of a ledger that is gone."""
    of_connect = tasks is not None and _OF_CONNECT in tasks.config
    if not of_connect or _FIRST_POSITION in config or is_source(config.get("connector.class", "")):
        return config
    return {**config, _FIRST_POSITION: "group"}
