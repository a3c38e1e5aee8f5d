"""What both engines share: what a run was asked to do, and how far it is."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from py4j.protocol import Py4JNetworkError

from semel.config import ConnectorConfig
from semel.delivery import Guarantee
from semel.engine.control import Report
from semel.engine.states import State, Status
from semel.errors import ConfigError, SemelError, ServiceError
from semel.kafka.cluster import Cluster
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
    states: dict[int, Status] = field(default_factory=dict)

    def all_tasks(self, count: int, state: State) -> None:
        """Give every task this state, where the driver commits and none has a life of its own."""
        self.states = dict.fromkeys(range(count), Status(state))


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was asked to do, shared by both engines.

    ``topics`` are those there were at the start, with their numbers of partitions; their targets
    have been prepared. ``observe`` is called with the progress several times a second; ``stop`` and
    ``paused`` are set from outside, and ``restarts`` holds the tasks to start anew. With
    ``keeps_going`` a task that fails leaves the others running, as in Kafka Connect; otherwise it
    ends the connector.
    """

    connector: ConnectorConfig
    guarantee: Guarantee
    sink: Sink
    cluster: Cluster
    topics: Mapping[str, int]
    stop: threading.Event
    until_caught_up: bool = False
    observe: Callable[[Progress], None] = lambda _progress: None
    paused: threading.Event = field(default_factory=threading.Event)
    restarts: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    keeps_going: bool = False

    def over(self, progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
        """Whether it was asked to stop, or was to end at ``targets`` and has reached them."""
        at = progress.positions
        caught_up = all(at.get(tp, 0) >= end for tp, end in targets.items())
        return self.stop.is_set() or (self.until_caught_up and caught_up)


class Stopped(Exception):
    """The run was asked to stop; nothing of what it has in hand is lost."""


class SparkGone(ServiceError):
    """Spark has ended, and takes no more jobs."""


def spark_gone(connector: ConnectorConfig, error: Exception) -> SparkGone | None:
    """What a failed call to Spark means whose process has gone, or whose context has ended, as a
    cluster may end it; None for other failures."""
    text = str(error)
    refused = isinstance(error, (Py4JNetworkError, ConnectionRefusedError))
    if not refused and not any(sign in text for sign in _STOPPED):
        return None
    return SparkGone(f"connector {connector.name}: Spark has gone: {first_error(text)}")


def first_error(failure: str) -> str:
    """The line of a failed Spark job's report that says what happened."""
    lines = [line for line in failure.splitlines() if "Error" in line or "Exception" in line]
    return (lines or [failure])[0].strip()[:300]


_STOPPED = ("stopped SparkContext", "'NoneType' object has no attribute 'setJobGroup'")
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
