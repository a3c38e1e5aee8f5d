"""What the engines share: what a run was asked to do, and its progress."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.driver.run_control import RunControl, TaskAssignment
from semel.driver.states import Awaited, State, Status, Waiting, waiting
from semel.tasks.control import Deliveries, Report

if TYPE_CHECKING:
    from semel.config import ConnectorConfig
    from semel.core.delivery import Guarantee
    from semel.core.errors import SemelError
    from semel.core.ledger import TopicPartition
    from semel.kafka.cluster import Cluster
    from semel.kafka.groups import Groups
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
    """One run of a sink connector, and what it is asked to do (``run_control``).

    ``topics`` are those that existed at the start, with their numbers of partitions; their targets
    have been prepared. ``groups`` has begun to look for the consumer group's coordinator.
    """

    connector: ConnectorConfig
    guarantee: Guarantee
    sink: Sink
    cluster: Cluster
    topics: Mapping[str, int]
    run_control: RunControl
    groups: Groups | None = None

    @property
    def stop(self) -> threading.Event:
        """Ends the run."""
        return self.run_control.stop

    @property
    def paused(self) -> threading.Event:
        """Keeps it from reading."""
        return self.run_control.paused

    @property
    def until_caught_up(self) -> bool:
        """Whether it ends once what Kafka held at the start is committed."""
        return self.run_control.until_caught_up

    @property
    def assignment(self) -> TaskAssignment:
        """The tasks that run in this process."""
        return self.run_control.assignment

    def observe(self, progress: Progress) -> None:
        """Pass the totals to the observer."""
        self.run_control.observe(progress)

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
