"""Runs what this worker is assigned, and reports its states. Each connector starts and ends in a
thread of its own."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from semel.config.worker import ClusterConfig
from semel.core.context import CONNECTOR
from semel.core.errors import SemelError, TransientError, about
from semel.core.quoting import harmless
from semel.core.redact import redacted
from semel.driver.base import State, Status
from semel.driver.runtime import Connector, ConnectorStatus, Runtime
from semel.worker.cluster.membership import Membership
from semel.worker.cluster.records import (
    Record,
    Restart,
    StateRecord,
    left,
    stated,
    task_stated,
    topic_used,
)
from semel.worker.cluster.store import Store

log = logging.getLogger(__name__)

_FREE = Status(State.UNASSIGNED)
_READ_BACK = 2.0
"""Seconds in which a report should have been read back; then it is written again."""


class Follower:
    """Makes this worker run what it is assigned.

    :meth:`look` and :meth:`write` are called again and again, each by a thread of its own: writing
    waits while Kafka cannot be reached, and that is when connectors must be stopped.
    """

    def __init__(
        self, config: ClusterConfig, store: Store, membership: Membership, runtime: Runtime
    ) -> None:
        self._config = config
        self._store = store
        self._membership = membership
        self._runtime = runtime
        self._hosted: dict[str, HostedConnector] = {}
        self._waiting: dict[tuple[str, int], float] = {}
        self._absences = 0
        self._leaves = False
        self._reported: dict[bytes, tuple[bytes | None, float]] = {}
        self._unwritten: dict[bytes, bytes | None] = {}
        self._writing = threading.Lock()
        self._topics: dict[str, Mapping[str, int]] = {}

    def look(self) -> None:
        """Start and stop connectors as assigned, without waiting for them, and report changes."""
        assigned = self._assigned()
        for name in [*assigned, *(n for n in self._hosted if n not in assigned)]:
            if name not in self._hosted:
                self._hosted[name] = HostedConnector(name, self._runtime, self._config)
            if self._hosted[name].want(assigned.get(name)) and name not in assigned:
                del self._hosted[name]
        hosted = [name for name in assigned if name in self._hosted]
        self._report([record for name in hosted for record in self._changed(name)])
        # Also those that ended while this worker was absent, when nothing is reported.
        with self._store.changed:
            known = self._store.statuses.known()
        former = [name for name in known if name not in self._hosted and name not in assigned]
        self._report([record for name in former for record in self._released(name)])
        # Not before it is a member: the leader would take it for dead and give its work away.
        with self._store.changed:
            is_back = self._config.url in self._store.statuses.leaving
        if is_back and not self._leaves:
            self._report([left(self._config.url, None)])

    def leave(self) -> None:
        """Ask the others to wait for this worker. A worker that has never joined does not ask:
        another one may have its address."""
        self._leaves = True
        if not self._membership.absences:
            return
        with self._writing:
            self._unwritten |= dict([left(self._config.url, int(time.time() * 1000))])
        self.write()

    def end(self) -> None:
        """End all connectors, and report that others may have them. Waits until they have shut down
        cleanly, within a bound."""
        deadline = time.monotonic() + max(1.0, self._config.graceful_timeout_ms / 1000)
        for hosted in self._hosted.values():
            hosted.want(None)
        while self._hosted and time.monotonic() < deadline:
            for name, hosted in list(self._hosted.items()):
                if hosted.want(None):
                    self._report(list(self._released(name)))
                    del self._hosted[name]
            self.write()
            time.sleep(0.02)
        self.write()

    def write(self) -> None:
        """Write the reports that have gathered: the last one of each connector and task. Waits for
        Kafka."""
        with self._writing:
            records, self._unwritten = self._unwritten, {}
        try:
            self._store.report(list(records.items()))
        except TransientError as error:
            log.warning("group %s: states could not be reported: %s", self._config.group_id, error)

    def hosted(self, name: str) -> HostedConnector | None:
        """A connector that runs here."""
        return self._hosted.get(name)

    def restart(self, request: Restart) -> None:
        """Restart a connector as requested, if it runs here."""
        hosted = self._hosted.get(request.connector)
        if hosted is not None:
            hosted.restart(include_tasks=request.include_tasks, only_failed=request.only_failed)

    # What is to run here

    def _assigned(self) -> dict[str, DesiredState]:
        group = self._membership.group
        if self._config.url not in group.members or self._was_absent():
            return {}
        with self._store.changed:
            configs = self._store.configs
            names = [
                name
                for name, owners in configs.assignment.workers.items()
                if self._config.url in owners and name in configs.connectors
            ]
            runnable = {name: self._runnable(name, _ids(group.members)) for name in names}
        return {name: wanted for name, wanted in runnable.items() if wanted is not None}

    def _was_absent(self) -> bool:
        """Whether others may have taken over this worker's work meanwhile. Then it first drops all
        of that work, which they have fenced."""
        if self._absences == self._membership.absences:
            return False
        if self._hosted:
            return True
        self._absences = self._membership.absences
        return False

    def _runnable(self, name: str, members: Collection[str]) -> DesiredState | None:
        """The part of a connector that can run here now; None for nothing."""
        configs = self._store.configs
        config = configs.connectors[name]
        numbers = configs.assignment.tasks(name, self._config.url)
        hosted = self._hosted.get(name)
        before = hosted.wanted if hosted is not None else None
        goes_on = before is not None and before.config == config
        tasks: frozenset[int] | None = None
        if numbers is None:
            has_all = goes_on and before is not None and before.tasks is None
            if not has_all and not self._is_released(name, None, members):
                return None
        else:
            # The first task's worker prepares the store and divides the source for all.
            if 0 not in numbers and not goes_on and not self._is_prepared(name, members):
                return None
            tasks = frozenset(
                n
                for n in numbers
                if (hosted is not None and hosted.holds(n)) or self._is_released(name, n, members)
            )
            if hosted is None and not tasks:
                return None
        return DesiredState(
            config, configs.target(name), configs.run(name), tasks, configs.version(name)
        )

    def _is_prepared(self, name: str, members: Collection[str]) -> bool:
        """Whether the first task has been started with the current configuration, or its worker is
        not there."""
        first = self._store.statuses.tasks.get(name, {}).get(0)
        if first is None:
            return False
        begun = first.state in (State.RUNNING, State.PAUSED, State.FAILED)
        is_current = first.version == self._store.configs.version(name)
        return first.worker not in members or (begun and is_current)

    def _is_released(self, name: str, task: int | None, members: Collection[str]) -> bool:
        """Whether the worker that had a task, or with None any task of the connector, has released
        it, is gone, or takes too long. Two at a time would do no harm, but would conflict."""
        statuses = self._store.statuses
        tasks = statuses.tasks.get(name, {})
        whole = [*tasks.values(), statuses.connectors.get(name)]
        parts = whole if task is None else [tasks.get(task)]
        waiting = (name, -1 if task is None else task)
        if all(part is None or self._is_free(part, members) for part in parts):
            self._waiting.pop(waiting, None)
            return True
        since = self._waiting.setdefault(waiting, time.monotonic())
        return time.monotonic() - since > self._config.rebalance_timeout_ms / 1000

    def _is_free(self, part: StateRecord, members: Collection[str]) -> bool:
        free = part.state == State.UNASSIGNED or part.worker not in members
        return free or part.worker == self._config.id

    # Reports

    def _changed(self, name: str) -> Iterator[Record]:
        """The states of what runs here that the status topic does not have yet."""
        hosted = self._hosted[name]
        status, wanted = hosted.status, hosted.wanted
        if status is None or wanted is None:
            return
        with self._store.changed:
            statuses = self._store.statuses
            connector = statuses.connectors.get(name)
            used = set(statuses.topics.get(name, ()))
        if wanted.has(0):
            now = self._part(status.connector)
            if connector != now:
                yield stated(name, now)
        elif connector is not None and self._is_left(hosted, 0, connector):
            yield stated(name, self._part(_FREE))
        yield from self._tasks_changed(hosted, status, wanted)
        positions, before = hosted.topics, self._topics.get(name, {})
        self._topics[name] = positions
        for topic, at in positions.items():
            if topic not in used and before.get(topic) != at and self._config.topic_tracking:
                yield topic_used(name, topic, int(time.time() * 1000))

    def _tasks_changed(
        self, hosted: HostedConnector, status: ConnectorStatus, wanted: DesiredState
    ) -> Iterator[Record]:
        """What the status topic must say of tasks, where it says something else.

        ================================================  ===========================
        a task                                            its record
        ================================================  ===========================
        of this worker, which it runs                     the task's state
        of this worker, once all that exist are known     none: the task has gone
        of this worker, before that                       UNASSIGNED
        of another one, but beyond the connector's tasks  none, from the first task's
        of another one that has stopped it                none, from the first task's
        of another one, once it has ended here            UNASSIGNED
        of another one                                    as it is
        ================================================  ===========================
        """
        name = hosted.name
        with self._store.changed:
            records = dict(self._store.statuses.tasks.get(name, {}))
            shares = len(self._store.configs.assignment.workers.get(name, ()))
        members = _ids(self._membership.group.members)
        is_stopped = wanted.state is State.STOPPED
        by_state = {State.STOPPED: is_stopped, State.FAILED: True}
        are_all = by_state.get(status.connector.state, hosted.has_begun)
        free = self._part(_FREE)
        for number in {*status.tasks, *records}:
            task, record = status.tasks.get(number), records.get(number)
            report = record
            if wanted.has(number):
                if task is not None:
                    report = self._part(task, "" if number else hosted.version)
                else:  # without a state yet, or any more, it may still be one of the connector's
                    report = None if are_all else free
            elif record is not None:
                stopped = is_stopped and self._is_free(record, members)
                if wanted.has(0) and (number >= shares or stopped):
                    report = None
                elif self._is_left(hosted, number, record):
                    report = free
            if report != record:
                yield task_stated(name, number, report)

    def _is_left(self, hosted: HostedConnector, task: int, record: StateRecord) -> bool:
        """Whether a task ran here and the status topic does not yet say that it no longer does."""
        is_mine = record.worker == self._config.id and record.state != State.UNASSIGNED
        return is_mine and not hosted.holds(task)

    def _released(self, name: str) -> Iterator[Record]:
        """The record that this worker no longer runs a connector, unless another one already runs
        it."""
        free = self._part(_FREE)
        self._topics.pop(name, None)
        with self._store.changed:
            statuses = self._store.statuses
            if name not in self._store.configs.connectors:
                return
            connector = statuses.connectors.get(name)
            if connector is not None and _runs(connector, free.worker):
                yield stated(name, free)
            for number, task in statuses.tasks.get(name, {}).items():
                if _runs(task, free.worker):
                    yield task_stated(name, number, free)

    def _part(self, status: Status, version: str = "") -> StateRecord:
        state, trace = str(status.state), harmless(status.trace)
        facts = state, self._config.id, trace, status.executor, status.waiting
        return StateRecord(*facts, self._store.configs.assignment.epoch, version)

    def _is_member(self) -> bool:
        try:
            return self._config.url in self._membership.group.members
        except SemelError:
            return False

    def _report(self, records: list[Record]) -> None:
        """Let these records be written, unless other workers may have taken over: then only they
        know the states."""
        if not self._is_member():
            with self._writing:
                self._unwritten.clear()
            return
        now = time.monotonic()
        new = {}
        for key, value in records:
            reported, at = self._reported.get(key, (None, 0.0))
            if reported != value or now - at > _READ_BACK:
                new[key] = value
        self._reported |= {key: (value, now) for key, value in new.items()}
        if new:
            with self._writing:
                self._unwritten |= new
            self._store.wake()


def _runs(part: StateRecord, worker: str) -> bool:
    return part.worker == worker and part.state != State.UNASSIGNED


def _ids(urls: Collection[str]) -> set[str]:
    """The workers' ids, from their URLs."""
    return {urlsplit(url).netloc for url in urls}


@dataclass(frozen=True, slots=True)
class DesiredState:
    """How a connector must run."""

    config: Mapping[str, str]
    state: State
    run: Mapping[str, str] = field(compare=False)
    """what it is started with"""
    tasks: frozenset[int] | None = None
    """those that run here; None for all"""
    version: str = field(default="", compare=False)

    def has(self, task: int) -> bool:
        """Whether a task runs here."""
        return self.tasks is None or task in self.tasks

    def __str__(self) -> str:
        """For the log."""
        if self.tasks is None:
            what = "all tasks"
        else:
            numbers = ", ".join(map(str, sorted(self.tasks)))
            what = f"task{'s' if len(self.tasks) > 1 else ''} {numbers}"
        return f"{what} on this worker, {self.state}"


class HostedConnector:
    """Brings the runtime's connector to its target state, in a thread of its own: starting and
    ending wait for stores, and no connector should wait for another."""

    def __init__(self, name: str, runtime: Runtime, worker: ClusterConfig) -> None:
        self.name = name
        self._runtime = runtime
        self._worker = worker
        self._has: DesiredState | None = None
        self._wants: DesiredState | None = None
        self._failed: Status | None = None
        self._again = False
        self._thread: threading.Thread | None = None

    def want(self, wanted: DesiredState | None) -> bool:
        """Start or change the connector, or end it if None; returns whether it already is as
        wanted."""
        if self._thread is not None and self._thread.is_alive():
            return False
        if wanted == self._has and not self._again:
            return True
        self._wants = wanted
        self._thread = threading.Thread(
            target=self._reconcile, args=(wanted,), daemon=True, name=f"semel-hosted-{self.name}"
        )
        self._thread.start()
        return False

    def restart(self, *, include_tasks: bool = False, only_failed: bool = False) -> None:
        """Restart the connector; see :meth:`Connector.restart`. One that cannot start is FAILED."""
        connector = self._connector
        if self._failed is not None or connector is None:
            self._again = True
            return
        try:
            connector.restart(include_tasks=include_tasks, only_failed=only_failed)
        except Exception as error:
            self._fail(error)

    def restart_task(self, number: int) -> None:
        """Restart one task.

        Raises:
            LookupError: it has no such task.
        """
        connector = self._connector
        if self._failed is not None:
            self._again = True
            return
        if connector is None:
            raise LookupError(f"connector {self.name} has no task {number}")
        connector.restart_task(number)

    @property
    def wanted(self) -> DesiredState | None:
        """The state that it was last put into, or is being put into."""
        return self._wants

    @property
    def version(self) -> str:
        """The version of the configuration that it was started with."""
        return self._has.version if self._has is not None else ""

    def holds(self, task: int) -> bool:
        """Whether a task runs here, or may start any moment."""
        if any(wanted is not None and wanted.has(task) for wanted in (self._has, self._wants)):
            return True
        connector = self._connector
        return connector is not None and connector.holds(task)

    @property
    def status(self) -> ConnectorStatus | None:
        """Its states; None while it does not run here."""
        if self._failed is not None:
            tasks = self._wants.tasks if self._wants is not None else None
            return ConnectorStatus(
                self.name, self._failed, dict.fromkeys(tasks or (), self._failed)
            )
        connector = self._connector
        return None if connector is None else connector.status()

    @property
    def has_begun(self) -> bool:
        """Whether its tasks are known: a source's may be fewer than ``tasks.max``."""
        connector = self._connector
        return connector is not None and connector.progress is not None

    @property
    def topics(self) -> Mapping[str, int]:
        """The topics that it has used here; see :attr:`~semel.driver.base.Progress.topics`."""
        connector = self._connector
        progress = connector.progress if connector is not None else None
        return progress.topics if progress is not None else {}

    @property
    def _connector(self) -> Connector | None:
        return self._runtime.connectors.get(self.name)

    def _reconcile(self, wanted: DesiredState | None) -> None:
        CONNECTOR.set(self.name)
        before, self._again = self._has, False
        try:
            self._change(before, wanted)
        except Exception as error:
            self._fail(error)
        self._has = wanted

    def _fail(self, error: Exception) -> None:
        """Show an error. An unexpected one ends only this connector."""
        known = isinstance(error, SemelError) and error.__cause__ is None
        trace = str(error) if known else "".join(traceback.format_exception(error))
        self._failed = Status(State.FAILED, redacted(trace))
        log.error("%s", about(self.name, error))

    def _change(self, before: DesiredState | None, wanted: DesiredState | None) -> None:
        connector = self._connector
        same = before is not None and wanted is not None and before.config == wanted.config
        if connector is not None and wanted is not None and same and self._failed is None:
            log.info("connector %s: %s", self.name, wanted)
            connector.assign(wanted.tasks)
            if wanted.state is State.PAUSED:
                connector.pause()
            elif wanted.state is State.STOPPED:
                connector.stop()
            else:
                connector.resume()
            return
        if connector is not None:
            self._runtime.remove(self.name)
        self._failed = None
        if wanted is None:
            log.info("connector %s: no longer runs on this worker", self.name)
        else:
            log.info("connector %s: %s", self.name, wanted)
            run = self._worker.inherited(self._worker.permitted(wanted.run))
            self._runtime.start(run, initial_state=wanted.state, tasks=wanted.tasks, moves=True)
