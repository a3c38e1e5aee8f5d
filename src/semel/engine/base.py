"""What both engines share: what a run was asked to do, and how far it is."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from semel.config import ConnectorConfig
from semel.delivery import Guarantee
from semel.engine.control import Report
from semel.errors import ConfigError, SemelError
from semel.kafka import Cluster
from semel.ledger import TopicPartition
from semel.sinks.base import Sink


@dataclass(slots=True)
class Progress:
    """Totals since this run started, for whoever watches."""

    records: int = 0
    rows: int = 0
    failed: int = 0
    commits: int = 0
    restarts: int = 0
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    tasks: dict[int, Report] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was asked to do, shared by both engines.

    ``observe`` is called with the progress several times a second; ``stop`` is set from outside.
    """

    connector: ConnectorConfig
    raw: Mapping[str, str] = field(repr=False)
    guarantee: Guarantee
    sink: Sink
    cluster: Cluster
    stop: threading.Event
    until_caught_up: bool = False
    observe: Callable[[Progress], None] = lambda _progress: None

    def over(self, progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
        """Whether it was asked to stop, or was to end at ``targets`` and has reached them."""
        at = progress.positions
        caught_up = all(at.get(tp, 0) >= end for tp, end in targets.items())
        return self.stop.is_set() or (self.until_caught_up and caught_up)


_NOT_THERE = re.compile(r"No module named '([\w.]+)'")


def not_shipped(connector: ConnectorConfig, failure: str) -> ConfigError | None:
    """What a failed Spark job means whose Python workers lack a module; None for other failures."""
    missing = _NOT_THERE.search(failure)
    if missing is None:
        return None
    return ConfigError(
        f"connector {connector.name}: Spark's Python workers cannot import {missing[1]}. Install "
        "semel, and what the transform imports, on every node with pip; or ship a packed "
        "environment in spark.archives; or, where semel's dependencies are installed, the packages "
        "alone with --py-files"
    )


def unexpected(connector: ConnectorConfig, task: int, error: Exception) -> SemelError:
    """What ends the connector when its task has failed in a way that nobody foresaw: it would most
    likely do so again."""
    return not_shipped(connector, str(error)) or SemelError(
        f"connector {connector.name}: task {task} failed unexpectedly: {type(error).__name__}: "
        f"{error}"
    )
