"""What the engines share: what a run is asked to do, its progress, and the states of a connector
and of its tasks."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.core.context import kept
from semel.core.quoting import harmless
from semel.tasks.control import Deliveries, Report
from semel.tasks.retry import Backoff

if TYPE_CHECKING:
    from semel.config import ConnectorConfig
    from semel.core.delivery import Guarantee
    from semel.core.errors import SemelError
    from semel.core.ledger import TopicPartition
    from semel.kafka.cluster import Cluster
    from semel.kafka.groups import Groups
    from semel.sinks.base import Sink

import time
from enum import StrEnum

_FOLLOWS = 10.0
"""Seconds after which a thread that waits for an event checks whether it still should."""
MOST_FENCES = 10
"""How many fences in a row are survived."""
_IN_A_ROW = 60.0
"""A fence within this many seconds of a start counts as following the one before."""


class State(StrEnum):
    """What a connector or a task is doing, by the names of Kafka Connect's REST API.

    ``UNASSIGNED`` waits for one of Spark's slots, ``RESTARTING`` has ended early and starts again
    after a pause, ``FAILED`` stays so until it is restarted by hand. A ``PAUSED`` one keeps its
    place and reads nothing; a ``STOPPED`` connector has no tasks left.
    """

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


class WaitKind(StrEnum):
    """What a running connector may wait for: a topic that does not exist, a service that does not
    answer (its store, Kafka, or the system that a source reads), partitions that its consumer group
    has not given to its tasks, or new records."""

    TOPIC = "topic"
    SERVICE = "service"
    PARTITIONS = "partitions"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Wait:
    """What is waited for, why, and since when, in seconds since 1970."""

    on: WaitKind
    why: str
    since: float


def waiting(on: WaitKind, why: str, before: Wait | None) -> Wait | None:
    """What is waited for now; None if ``why`` is empty. If ``before`` it was the same, it has
    been waited for since then, even if the reason is another one."""
    if not why:
        return None
    since = before.since if before is not None and before.on is on else time.time()
    return Wait(on, harmless(why), since)


@dataclass(frozen=True, slots=True)
class Status:
    """A state, and the error that led to it. ``executor`` is the host and the process of a task
    that runs in a Spark cluster; ``waiting`` is what holds a running one up."""

    state: State
    trace: str = ""
    executor: str = ""
    waiting: Wait | None = None


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
    waiting: Wait | None = None
    """What holds up the driver, where tasks do not tell."""

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that tasks have."""
        return {tp for report in self.tasks.values() for tp in report.positions}

    @property
    def topics(self) -> Counter[str]:
        """The topics that have been read or written so far, each with a number that grows with
        its records."""
        counts = Counter(self.sent)
        for tp, at in self.positions.items():
            counts[tp.topic] += at
        return counts

    def all_tasks(self, count: int, state: State) -> None:
        """Set the state of every task, where the driver commits and tasks have no states of their
        own."""
        self.states = dict.fromkeys(range(count), Status(state))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a sink connector, and what it is asked to do (``run_control``).

    ``topics`` are those that existed at the start, with their numbers of partitions; their targets
    have been prepared. ``results`` is what results are called in the target, if they are not called
    as the topics. ``groups`` has begun to look for the consumer group's coordinator.
    """

    connector: ConnectorConfig
    guarantee: Guarantee
    sink: Sink
    cluster: Cluster
    topics: Mapping[str, int]
    run_control: RunControl
    groups: Groups | None = None
    results: Collection[str] | None = None

    @property
    def stop(self) -> threading.Event:
        """The event that ends the run."""
        return self.run_control.stop

    @property
    def paused(self) -> threading.Event:
        """The event that keeps it from reading."""
        return self.run_control.paused

    @property
    def interrupted(self) -> bool:
        """Whether what reads has to end, although the run continues."""
        return self.paused.is_set() or not self.run_control.restarts.empty()

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
        progress.waiting = waiting(WaitKind.SERVICE, why, progress.waiting)
        self.observe(progress)

    def over(self, progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
        """Whether the run was asked to stop, or has reached the ``targets`` at which it ends."""
        at = progress.positions
        caught_up = all(at.get(tp, 0) >= end for tp, end in targets.items())
        return self.stop.is_set() or (self.until_caught_up and caught_up)


class Stopped(Exception):
    """The run was asked to stop; nothing of what it has in hand is lost."""


class TaskAssignment:
    """Which of a connector's tasks run in this process: all, or those that a cluster of workers has
    given it. May be changed while the connector runs, from any thread."""

    def __init__(self, tasks: Collection[int] | None = None, *, moves: bool = False) -> None:
        self.moves = moves
        """Whether other workers may run these tasks before and after this process."""
        self._lock = threading.Lock()
        self._wanted = None if tasks is None else frozenset(tasks)
        self._held: frozenset[int] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether all tasks run here."""
        return self._wanted is None

    @property
    def has_first(self) -> bool:
        """Whether the first task runs here. Its driver does what only one driver may do."""
        wanted = self._wanted
        return wanted is None or 0 in wanted

    def want(self, tasks: Collection[int] | None) -> None:
        """Change the assignment: tasks that no longer belong to it end after their current work."""
        with self._lock:
            self._wanted = None if tasks is None else frozenset(tasks)

    def of(self, count: int) -> list[int]:
        """The tasks, out of ``count``, that must run here."""
        wanted = self._wanted
        return [n for n in range(count) if wanted is None or n in wanted]

    def hold(self, count: int, running: Iterable[int]) -> frozenset[int]:
        """Note which tasks are at work: those that must run here, and those that are ``running``
        and have yet to end. Returns the tasks to run."""
        with self._lock:
            tasks = frozenset(self.of(count))
            self._held = tasks | frozenset(running)
        return tasks

    def let_go(self) -> None:
        """Note that no task is at work."""
        with self._lock:
            self._held = frozenset()

    def holds(self, task: int) -> bool:
        """Whether a task is at work here, or may be in a moment."""
        with self._lock:
            return task in self._held or self._wanted is None or task in self._wanted


class Notifier:
    """Wakes up those that wait for news about a run. Any thread may notify."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []

    @contextmanager
    def subscribed(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` for each notification within a ``with`` block."""
        self._subscribers.append(wake)
        try:
            yield
        finally:
            self._subscribers.remove(wake)

    @contextmanager
    def notified_by(self, event: threading.Event) -> Iterator[None]:
        """Notify when the event is set within a ``with`` block, whoever sets it."""
        over = threading.Event()

        def follow() -> None:
            while not over.is_set():
                if event.wait(_FOLLOWS):
                    self.notify()
                    return

        threading.Thread(target=kept(follow), daemon=True, name="semel-notifier").start()
        try:
            yield
        finally:
            over.set()

    def notify(self) -> None:
        """Wake all subscribers."""
        for wake in list(self._subscribers):
            wake()


@dataclass(frozen=True, slots=True)
class RunControl:
    """What a run is asked to do.

    ``stop`` ends it after the batch in hand, ``paused`` keeps it from reading, ``restarts`` holds
    the numbers of tasks to restart: all three may change while it runs. ``until_caught_up`` ends
    it when what Kafka held at the start is committed; with ``keeps_going`` a task that fails leaves
    the others running. ``observe`` is called with the totals several times a second while records
    flow. ``assignment`` is the tasks that run in this process; it may change, too. ``notifier``
    reports a change at once; otherwise it is noticed after a few seconds.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    restarts: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    until_caught_up: bool = False
    keeps_going: bool = False
    observe: Callable[[Progress], None] = lambda _progress: None
    assignment: TaskAssignment = field(default_factory=TaskAssignment)
    notifier: Notifier = field(default_factory=Notifier)

    def pause(self) -> None:
        """Keep the tasks from reading."""
        self.paused.set()
        self.notifier.notify()

    def resume(self) -> None:
        """Let the tasks read again."""
        self.paused.clear()
        self.notifier.notify()

    def restart(self, task: int) -> None:
        """Restart a task."""
        self.restarts.put(task)
        self.notifier.notify()

    def drop_restarts(self) -> bool:
        """Forget which tasks to restart, because all of them begin again; returns whether there
        was any."""
        dropped = False
        with suppress(queue.Empty):
            while True:
                self.restarts.get_nowait()
                dropped = True
        return dropped

    def observed_by(self, observe: Callable[[Progress], None]) -> RunControl:
        """The same, with another observer."""
        return replace(self, observe=observe)


class FencesInARow:
    """The fences of something that starts again after each: where workers share a connector, the
    older process that caused one may have been cut off or frozen, and will be told to stop once it
    is back."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self.count = 0

    def one_more(self, lasted: float) -> float:
        """Count a fence after ``lasted`` seconds of work; returns the seconds to pause before the
        next start."""
        self.count = self.count + 1 if lasted < _IN_A_ROW else 1
        return self._backoff.after(lasted)
