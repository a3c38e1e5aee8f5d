"""What the engines share: what a run was asked to do, and its progress."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from py4j.protocol import Py4JNetworkError

from semel.config import CommonConfig, ConnectorConfig
from semel.delivery import Guarantee
from semel.engine.control import Deliveries, Report
from semel.engine.orders import Orders, Share
from semel.engine.states import Awaited, State, Status, Waiting, waiting
from semel.errors import ConfigError, SemelError, ServiceError
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups
from semel.ledger import TopicPartition
from semel.quoting import harmless
from semel.sinks.base import Sink


@dataclass(slots=True)
class Progress:
    """Totals since this run started, for observers."""

    records: int = 0
    rows: int = 0
    failed: int = 0
    commits: int = 0
    restarts: int = 0
    fences: int = 0
    deliveries: Deliveries = field(default_factory=Deliveries)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    unplaced: dict[tuple[str, str], int] = field(default_factory=dict)
    """The values that reached no column, by topic and field."""
    tasks: dict[int, Report] = field(default_factory=dict)
    states: dict[int, Status] = field(default_factory=dict)
    errors: dict[int, SemelError] = field(default_factory=dict)
    """The errors of tasks that have failed while the others continue."""
    waiting: Waiting | None = None
    """What holds up the driver, where tasks do not tell."""

    @property
    def topics(self) -> Counter[str]:
        """The topics that have been read or written so far, each with a number that grows with
        its records."""
        found = Counter(self.sent)
        for tp, at in self.positions.items():
            found[tp.topic] += at
        return found

    def all_tasks(self, count: int, state: State) -> None:
        """Set the state of every task, where the driver commits and tasks have no states of their
        own."""
        self.states = dict.fromkeys(range(count), Status(state))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a sink connector, and what it is asked to do (``orders``).

    ``topics`` are those that existed at the start, with their numbers of partitions; their targets
    have been prepared. ``groups`` has begun to look for the consumer group's coordinator.
    """

    connector: ConnectorConfig
    guarantee: Guarantee
    sink: Sink
    cluster: Cluster
    topics: Mapping[str, int]
    orders: Orders
    groups: Groups | None = None

    @property
    def stop(self) -> threading.Event:
        """Ends the run."""
        return self.orders.stop

    @property
    def paused(self) -> threading.Event:
        """Keeps it from reading."""
        return self.orders.paused

    @property
    def until_caught_up(self) -> bool:
        """Whether it ends once what Kafka held at the start is committed."""
        return self.orders.until_caught_up

    @property
    def share(self) -> Share:
        """The tasks that run in this process."""
        return self.orders.share

    def observe(self, progress: Progress) -> None:
        """Pass the totals to the observer."""
        self.orders.observe(progress)

    def waits(self, progress: Progress, why: str) -> None:
        """Show which service does not answer the driver; an empty text once it does."""
        progress.waiting = waiting(Awaited.SERVICE, why, progress.waiting)
        self.observe(progress)

    def over(self, progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
        """Whether the run was asked to stop, or has reached the ``targets`` at which it ends."""
        at = progress.positions
        caught_up = all(at.get(tp, 0) >= end for tp, end in targets.items())
        return self.stop.is_set() or (self.until_caught_up and caught_up)


class Stopped(Exception):
    """The run was asked to stop; nothing of what it has in hand is lost."""


class SparkGone(ServiceError):
    """Spark has stopped and takes no more jobs."""


def spark_gone(connector: CommonConfig, error: Exception) -> SparkGone | None:
    """The error of a call to Spark that failed because its process or its context has ended; None
    for other failures."""
    text = str(error)
    refused = isinstance(error, (Py4JNetworkError, ConnectionError))
    if not refused and not any(sign in text for sign in _STOPPED):
        return None
    from semel import gateway  # it needs PySpark, and tasks do not need it

    if gateway.out_of_memory():
        given = connector.originals.get(gateway.MEMORY, "")
        now = f"{gateway.MEMORY}={given}" if given else f"{gateway.MEMORY}, its heap"
        return SparkGone(
            f"connector {connector.name}: Spark's JVM has run out of memory. Increase {now}. With "
            "the micro-batch engine, each of tasks.max tasks needs about 16 times the size of its "
            "largest record"
        )
    return SparkGone(f"connector {connector.name}: Spark has stopped: {first_error(text)}")


def first_error(failure: str) -> str:
    """The line of a failed Spark job's report that says what happened."""
    if CRASHED in failure:
        return _DIED
    lines = [line for line in failure.splitlines() if "Error" in line or "Exception" in line]
    return harmless((lines or [failure])[0].strip()[:300])


CRASHED = "Python worker exited unexpectedly"
_DIED = (
    "its process died without reporting an error. A task can allocate at most eight times "
    "task.max.memory.bytes. If it reads batches that are larger once they are decompressed, "
    "increase it"
)
_STOPPED = ("stopped SparkContext", "'NoneType' object has no attribute 'setJobGroup'")
_NOT_THERE = re.compile(r"No module named '([\w.]+)'")
_NO_VALUE = re.compile(r"semel\.errors\.Unresolvable: (.+)")


def not_shipped(connector: CommonConfig, failure: str) -> ConfigError | None:
    """The error of a Spark job whose Python workers lack a module, or what a reference of the
    configuration refers to; None for other failures."""
    unresolved = _NO_VALUE.search(failure)
    if unresolved is not None:
        return ConfigError(
            f"connector {connector.name}: a task cannot resolve a reference of the configuration. "
            f"Provide it on every node: {unresolved[1]}"
        )
    missing = _NOT_THERE.search(failure)
    if missing is None:
        return None
    return ConfigError(
        f"connector {connector.name}: Spark's Python workers cannot import {missing[1]}. Install "
        "semel, and what the transform imports, on every node with pip; or ship a packed "
        "environment in spark.archives; or, where semel's dependencies are installed, the packages "
        "alone with --py-files"
    )


def unexpected(connector: CommonConfig, task: int, error: Exception) -> SemelError:
    """The error that ends the connector after a task failed unexpectedly: it would most likely fail
    again."""
    return not_shipped(connector, str(error)) or SemelError(
        f"connector {connector.name}: task {task} failed unexpectedly: {type(error).__name__}: "
        f"{error}"
    )
