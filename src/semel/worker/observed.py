"""A connector at one moment, as metrics and the page see it: its counts, how far it is behind, and
what it waits for. Its lag is asked for in the background, so that no scrape or page waits for
brokers and sources."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from semel.core.ledger import TopicPartition
from semel.driver.base import Progress, State, Wait, WaitKind, waiting
from semel.driver.offsets import Lag as SourceLag
from semel.driver.planning import AnyPlan
from semel.driver.run import Tally
from semel.driver.runtime import Runtime
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.tasks.control import Report

log = logging.getLogger(__name__)

Lag = Mapping[TopicPartition, int]
T = TypeVar("T")
_RECENT = 10.0
"""Seconds for which an answer from Kafka says that there is nothing to read."""
_TOGETHER = 5.0
"""Seconds for an answer about all connectors of a cluster."""
_LONG_TASKS = ("direct", "source")
"""The engines whose tasks count for themselves. For the others, the driver counts."""


@dataclass(frozen=True, slots=True)
class ObservedConnector:
    """A connector; ``tasks`` has the state of each of its tasks that runs in this process.
    ``is_counted`` is false if another worker, which has its first task, counts it. ``waiting`` is
    what holds up the driver and these tasks, and ``moved`` when a record was last counted."""

    planned: AnyPlan
    state: str
    tasks: Mapping[int, str]
    progress: Progress
    tally: Tally = field(default_factory=Tally)
    is_counted: bool = True
    waiting: Sequence[Wait] = ()
    moved: float = 0.0

    @property
    def name(self) -> str:
        """The connector's name."""
        return self.planned.connector.name

    @property
    def is_source(self) -> bool:
        """Whether it is a source connector."""
        return self.planned.is_source

    @property
    def reports(self) -> Mapping[int, Report]:
        """The counts of its tasks; where the driver counts, task 0 gets its counts."""
        progress = self.progress
        if self.planned.engine in _LONG_TASKS:
            return progress.tasks
        total = Report(
            "progress",
            0,
            0,
            positions=progress.positions,
            records=progress.records,
            rows=progress.rows,
            failed=progress.failed,
            unplaced=progress.unplaced,
            commits=progress.commits,
            deliveries=progress.deliveries,
        )
        return {0: total}


def of_runtime(runtime: Runtime) -> list[ObservedConnector]:
    """The connectors of a runtime."""
    observed = []
    for connector in runtime.connectors.values():
        status = connector.status()
        tasks = {number: str(task.state) for number, task in status.tasks.items()}
        progress = connector.progress or Progress()
        state = str(status.connector.state)
        parts = (status.connector, *status.tasks.values())
        observed.append(
            ObservedConnector(
                connector.planned,
                state,
                tasks,
                progress,
                connector.tally,
                connector.has_first,
                [part.waiting for part in parts if part.waiting is not None],
                connector.moved,
            )
        )
    return observed


class Answers(ABC, Generic[T]):
    """The last answer about each connector."""

    fresh: ClassVar[float]
    """Seconds for which an answer is used again."""
    patience: ClassVar[float]
    """Seconds that a scrape waits for an answer."""
    kept: ClassVar[float]
    """Seconds after which an answer is too old to be used."""
    rest: ClassVar[float] = 0.0
    """The pause before the next request, as a multiple of the time that the last one took."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[float, T]] = {}
        self._failed: dict[str, Wait] = {}
        self._asking: threading.Thread | None = None
        self._due = 0.0
        self._lock = threading.Lock()

    def of(self, connectors: Sequence[ObservedConnector]) -> Mapping[str, T]:
        """The answers by connector name; connectors without an answer are left out."""
        names = {each.name for each in connectors}
        with self._lock:
            asking = self._asking
            if asking is None or not asking.is_alive():
                asking = None
                if time.monotonic() >= self._due:
                    self._forget_all_but(names)
                    self._due = time.monotonic() + self.fresh
                    asking = self._asking = threading.Thread(
                        target=self._ask, args=(connectors,), daemon=True, name="semel-lag"
                    )
                    asking.start()
        if asking is not None:
            asking.join(self.patience)
        oldest = time.monotonic() - self.kept
        answers = dict(self._answers)
        return {name: lag for name, (at, lag) in answers.items() if name in names and at > oldest}

    def _forget_all_but(self, names: Collection[str]) -> None:
        self._answers = {name: self._answers[name] for name in self._answers if name in names}
        self._failed = {name: self._failed[name] for name in self._failed if name in names}

    def trouble(self, name: str) -> Wait | None:
        """Why there is no answer about a connector, and since when; None if there is one."""
        return self._failed.get(name)

    def _ask(self, connectors: Sequence[ObservedConnector]) -> None:
        began = time.monotonic()
        for each in connectors:
            try:
                answer = self._answer(each)
            except Exception as error:  # a third party's source may raise anything
                log.debug("connector %s: lag: %s", each.name, error)
                before = self._failed.get(each.name)
                failed = waiting(WaitKind.SERVICE, str(error) or type(error).__name__, before)
                self._failed |= {each.name: failed} if failed is not None else {}
                continue
            self._note(each.name, answer)
        took = time.monotonic() - began
        rest = min(self.rest * took, self.kept / 3)
        self._due = max(self._due, time.monotonic() + rest)

    def _note(self, name: str, answer: T | None) -> None:
        self._failed.pop(name, None)
        if answer is None:
            self._answers.pop(name, None)
        else:
            self._answers[name] = time.monotonic(), answer

    @abstractmethod
    def _answer(self, each: ObservedConnector) -> T | None: ...


class Lags(Answers[Lag]):
    """The last known lag of each sink connector."""

    fresh, patience, kept = 5.0, 2.0, 60.0

    def __init__(self) -> None:
        super().__init__()
        self._clusters: dict[str, Cluster] = {}

    def recent(self, name: str, seconds: float) -> Lag:
        """The lag of a connector, if the answer is not older than this; else empty."""
        at, lag = self._answers.get(name, (0.0, {}))
        return lag if time.monotonic() - at < seconds else {}

    def _ask(self, connectors: Sequence[ObservedConnector]) -> None:
        """Ask each cluster once for all of its connectors. Where it has no answer soon, each of
        them asks for itself: a topic of one may be gone."""
        asked: dict[Cluster, dict[str, Mapping[TopicPartition, int]]] = {}
        for each in connectors:
            with suppress(Exception):  # its own answer, below, says why
                if not each.is_source:
                    of_cluster = asked.setdefault(self._cluster(each), {})
                    of_cluster[each.name] = dict(each.progress.positions)
        # Clients of deleted connectors, and of former logins, would stay connected.
        self._clusters = {key: of for key, of in self._clusters.items() if of in asked}
        answered = set()
        for cluster, positions in asked.items():
            with suppress(Exception):
                partitions = {tp for own in positions.values() for tp in own}
                ends = cluster.latest(partitions, timeout=_TOGETHER)
                for name, own in positions.items():
                    self._note(name, _behind(own, ends))
                    answered.add(name)
        super()._ask([each for each in connectors if each.name not in answered])

    def _answer(self, each: ObservedConnector) -> Lag | None:
        if each.is_source:
            return None
        positions = dict(each.progress.positions)
        return _behind(positions, self._cluster(each).latest(positions, timeout=self.kept / 2))

    def _cluster(self, each: ObservedConnector) -> Cluster:
        """A client, shared by connectors with the same settings."""
        config = client_config(each.planned.connector, "admin")
        key = repr(sorted(config.items(), key=lambda item: item[0]))
        if key not in self._clusters:
            self._clusters[key] = Cluster(config)
        return self._clusters[key]


def _behind(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Lag:
    return {tp: max(0, ends[tp] - at) for tp, at in positions.items() if tp in ends}


class SourceLags(Answers[SourceLag]):
    """What each source connector still had to read. Asking reads the offsets topic, so it is done
    rarely, and no scrape waits for it."""

    fresh, patience, kept, rest = 30.0, 0.0, 600.0, 10.0

    def __init__(self) -> None:
        super().__init__()
        self._own: dict[str, tuple[AnyPlan, AnyPlan]] = {}

    def _ask(self, connectors: Sequence[ObservedConnector]) -> None:
        names = {each.name for each in connectors}
        self._own = {name: own for name, own in self._own.items() if name in names}
        super()._ask(connectors)

    def _answer(self, each: ObservedConnector) -> SourceLag | None:
        if not each.is_source or not each.is_counted:
            return None
        of, own = self._own.get(each.name, (None, each.planned))
        if of is not each.planned:
            own = each.planned.apart()
            self._own[each.name] = each.planned, own
        try:
            return own.offsets.lag()
        finally:
            own.close()


def waits(observed: Sequence[ObservedConnector], lags: Lags) -> dict[str, Wait]:
    """What each connector waits for; those that work, or do not run, are left out. ``lags`` has
    been asked about them."""
    held_up = {each.name: _held_up(each, lags) for each in observed if each.state == State.RUNNING}
    return {name: waiting for name, waiting in held_up.items() if waiting is not None}


def _held_up(each: ObservedConnector, lags: Lags) -> Wait | None:
    if each.waiting:
        return min(each.waiting, key=lambda waiting: waiting.since)
    reports = each.reports
    if set(each.tasks.values()) != {State.RUNNING} or not reports:
        return None
    if each.is_source:
        idles = len(reports) == len(each.tasks) and all(r.caught_up for r in reports.values())
        why = "the source has nothing new"
    else:
        trouble = lags.trouble(each.name)
        if trouble is not None and trouble.since >= each.moved:
            return trouble
        lag = lags.recent(each.name, _RECENT)
        partitions = [tp for report in reports.values() for tp in report.positions]
        idles = bool(partitions) and all(lag.get(tp) == 0 for tp in partitions)
        why = "all that Kafka holds is committed"
    return Wait(WaitKind.RECORDS, why, each.moved) if idles else None
