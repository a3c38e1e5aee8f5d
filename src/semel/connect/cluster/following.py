"""Runs what this worker is assigned, and reports its states."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from semel.config.cluster import ClusterConfig
from semel.connect.cluster.hosted import Hosted, Wanted
from semel.connect.cluster.membership import Membership
from semel.connect.cluster.records import (
    Record,
    Restart,
    StateRecord,
    stated,
    task_stated,
    topic_used,
)
from semel.connect.cluster.store import Store
from semel.connect.cluster.took_over import as_taken_over
from semel.engine.states import State, Status
from semel.errors import TransientError
from semel.runtime import Runtime

log = logging.getLogger(__name__)

_READ_BACK = 2.0
"""Seconds in which a report should have been read back; then it is written again."""


class Following:
    """Compares what this worker is to run with what it runs."""

    def __init__(
        self, config: ClusterConfig, store: Store, membership: Membership, runtime: Runtime
    ) -> None:
        self._config = config
        self._store = store
        self._membership = membership
        self._runtime = runtime
        self._hosted: dict[str, Hosted] = {}
        self._waiting: dict[str, float] = {}
        self._written: dict[bytes, tuple[bytes | None, float]] = {}
        self._topics: dict[str, Mapping[str, int]] = {}

    def look(self) -> None:
        """Begin what is to be done, without waiting for it, and report what has changed."""
        mine = self._assigned()
        for name in [*mine, *(n for n in self._hosted if n not in mine)]:
            if name not in self._hosted:
                self._hosted[name] = Hosted(name, self._runtime, self._config)
            if self._hosted[name].want(mine.get(name)) and name not in mine:
                self._report(list(self._released(name)))
                del self._hosted[name]
        self._report([record for name in mine for record in self._changed(name)])

    def end(self) -> None:
        """End all connectors, and say that others may have them. Waits for that as long as it may
        take to end in order."""
        deadline = time.monotonic() + max(1.0, self._config.graceful_timeout_ms / 1000)
        for hosted in self._hosted.values():
            hosted.want(None)
        while self._hosted and time.monotonic() < deadline:
            for name, hosted in list(self._hosted.items()):
                if hosted.want(None):
                    self._report(list(self._released(name)))
                    del self._hosted[name]
            time.sleep(0.02)

    def hosted(self, name: str) -> Hosted | None:
        """A connector that runs here."""
        return self._hosted.get(name)

    def restart(self, request: Restart) -> None:
        """Do as the cluster is asked to, if the connector is here."""
        hosted = self._hosted.get(request.connector)
        if hosted is not None:
            hosted.restart(include_tasks=request.include_tasks, only_failed=request.only_failed)

    # What is to run here

    def _assigned(self) -> dict[str, Wanted]:
        group = self._membership.group
        me = self._config.url
        if me not in group.members:
            return {}
        with self._store.changed:
            configs = self._store.configs
            mine = {
                name: self._wanted(name)
                for name, worker in configs.assignment.workers.items()
                if worker == me and name in configs.connectors
            }
            released = {n for n in mine if n in self._hosted or self._is_released(n, group.members)}
        for name in list(self._waiting):
            if name not in mine or name in released:
                del self._waiting[name]
        return {name: wanted for name, wanted in mine.items() if name in released}

    def _wanted(self, name: str) -> Wanted:
        configs = self._store.configs
        config = configs.connectors[name]
        run = as_taken_over(config, configs.tasks.get(name))
        return Wanted(config, configs.target(name), run)

    def _is_released(self, name: str, members: frozenset[str]) -> bool:
        """Whether the worker that had a connector has let go of it, has gone, or takes too long:
        two at a time would do no harm, but conflict."""
        part = self._store.statuses.connectors.get(name)
        if part is None or part.state == State.UNASSIGNED or part.worker == self._config.id:
            return True
        if part.worker not in {urlsplit(url).netloc for url in members}:
            return True
        since = self._waiting.setdefault(name, time.monotonic())
        return time.monotonic() - since > self._config.rebalance_timeout_ms / 1000

    # Reports

    def _changed(self, name: str) -> Iterator[Record]:
        """What the status topic does not say of a connector yet."""
        status = self._hosted[name].status
        if status is None:
            return
        with self._store.changed:
            statuses = self._store.statuses
            connector = statuses.connectors.get(name)
            tasks = dict(statuses.tasks.get(name, {}))
            used = set(statuses.topics.get(name, ()))
        now = self._part(status.connector)
        if connector != now:
            yield stated(name, now)
        for number, task in status.tasks.items():
            if tasks.pop(number, None) != (part := self._part(task)):
                yield task_stated(name, number, part)
        for number in tasks:
            yield task_stated(name, number, None)
        positions, before = self._hosted[name].topics, self._topics.get(name, {})
        self._topics[name] = positions
        for topic, at in positions.items():
            if topic not in used and before.get(topic) != at and self._config.topic_tracking:
                yield topic_used(name, topic, int(time.time() * 1000))

    def _released(self, name: str) -> Iterator[Record]:
        """That this worker runs a connector no more, unless another one runs it already."""
        free = self._part(Status(State.UNASSIGNED))
        self._topics.pop(name, None)
        with self._store.changed:
            statuses = self._store.statuses
            if name not in self._store.configs.connectors:
                return
            connector = statuses.connectors.get(name)
            if connector is not None and connector.worker == free.worker:
                yield stated(name, free)
            for number, task in statuses.tasks.get(name, {}).items():
                if task.worker == free.worker:
                    yield task_stated(name, number, free)

    def _part(self, status: Status) -> StateRecord:
        epoch = self._store.configs.assignment.epoch
        return StateRecord(str(status.state), self._config.id, epoch, status.trace)

    def _report(self, records: list[Record]) -> None:
        now = time.monotonic()
        new = []
        for key, value in records:
            written, at = self._written.get(key, (None, 0.0))
            if written != value or now - at > _READ_BACK:
                new.append((key, value))
        try:
            self._store.report(new)
        except TransientError as error:
            log.warning("group %s: states could not be reported: %s", self._config.group_id, error)
            return
        self._written |= {key: (value, now) for key, value in new}
