"""The herder of a standalone worker. Configurations are kept in memory, as ``connect-standalone``
does; positions are in the ledgers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError
from semel.core.quoting import harmless
from semel.driver.base import State, Status
from semel.driver.runtime import Connector, Runtime
from semel.worker import loggers
from semel.worker.errors import BadRequest, Conflict, NotFound
from semel.worker.herder import Answer, Herder, Part, Parts


class StandaloneHerder(Herder):
    """Runs connectors in this process, one request at a time for each, because ending one may take
    long."""

    def __init__(self, runtime: Runtime, worker: WorkerConfig) -> None:
        super().__init__(worker)
        self._runtime = runtime
        self._given: dict[str, dict[str, str]] = {}
        self._known_topics: dict[str, Mapping[str, int]] = {}
        self._locks: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()
        self._guard = threading.Lock()

    def _lock(self, name: str) -> threading.RLock:
        with self._guard:
            return self._locks.setdefault(name, threading.RLock())

    @property
    def _configs(self) -> Mapping[str, Mapping[str, str]]:
        return self._given

    def create(self, name: str, config: Mapping[str, str], state: State) -> Answer:
        warned = self.check(config)
        with self._lock(name):
            if name in self._given:
                raise Conflict(f"Connector {name} already exists")
            self._start(name, config, state)
            self._log(name, "created")
            return self.info(name) | warned

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, Answer]:
        warned = self.check(self.kept(name, config))
        with self._lock(name):
            config = self.kept(name, config)  # a secret may have changed since
            before = self._given.get(name)
            if before is None:
                self._start(name, config, State.RUNNING)
                self._log(name, "created")
                return True, self.info(name) | warned
            connector = self._runtime.connectors.get(name)
            state = State.RUNNING if connector is None else connector.wanted
            self._remove(name)
            try:
                self._start(name, config, state)
            except Exception:
                self._start(name, before, state)
                raise
            self._log(name, "reconfigured")
            return False, self.info(name) | warned

    def patch(self, name: str, changes: Mapping[str, str | None]) -> Answer:
        with self._lock(name):
            return super().patch(name, changes)

    def delete(self, name: str) -> None:
        with self._lock(name):
            self.config(name)
            self._remove(name)
            del self._given[name]
            self._known_topics.pop(name, None)
            self._log(name, "deleted")

    def _remove(self, name: str) -> None:
        with suppress(KeyError):  # neither its last configuration nor the one before could start
            self._runtime.remove(name)

    def _start(self, name: str, config: Mapping[str, str], state: State) -> None:
        try:
            run = self._worker.inherited(self._worker.permitted(config))
            self._runtime.start(run, initial_state=state)
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        self._given[name] = dict(config)

    def target(self, name: str, state: State) -> None:
        with self._lock(name):  # a connector that is being removed must not start again
            self._known(name)
            connector = self._connector(name)
            self._log(name, f"target state {state}")
            if state is State.PAUSED:
                connector.pause()
            elif state is State.STOPPED:
                connector.stop(self._worker.graceful_timeout_ms / 1000)
            else:
                connector.resume()

    def restart(self, name: str) -> None:
        with self._lock(name):
            self.config(name)
            self._connector(name).restart()
            self._log_restart(name)

    def restart_all(self, name: str, *, tasks: bool, only_failed: bool) -> Answer:
        with self._lock(name):
            answer = self._restarting(name, tasks=tasks, only_failed=only_failed)
            self._connector(name).restart(include_tasks=tasks, only_failed=only_failed)
            self._log_restart(name, tasks=tasks, only_failed=only_failed)
            return answer

    def restart_task(self, name: str, task: int) -> None:
        with self._lock(name):
            self.config(name)
            try:
                self._connector(name).restart_task(task)
            except LookupError:
                raise NotFound(f"Task {name}-{task} not found") from None
            self._log_restart(f"{name}, task {task}")

    def _parts(self, name: str) -> Parts | None:
        if name not in self._given:
            return None
        connector = self._runtime.connectors.get(name)
        if connector is None:  # a request is replacing or deleting it
            return Parts(self._part(Status(State.UNASSIGNED)), {})
        status = connector.status()
        tasks = {number: self._part(task) for number, task in status.tasks.items()}
        return Parts(self._part(status.connector), tasks)

    def _part(self, status: Status) -> Part:
        state, worker = str(status.state), self._worker.id
        return Part(state, worker, harmless(status.trace), status.executor, status.waiting)

    def _tasks(self, name: str) -> Sequence[int]:
        connector = self._runtime.connectors.get(name)
        return [] if connector is None else sorted(connector.status().tasks)

    def _is_stopped(self, name: str) -> bool:
        connector = self._runtime.connectors.get(name)
        return connector is not None and connector.wanted is State.STOPPED and connector.wait(0)

    def _connector(self, name: str) -> Connector:
        try:
            return self._runtime.connectors[name]
        except KeyError:  # a request is replacing or deleting it
            raise NotFound(f"Connector {name} not found") from None

    def _used_topics(self, name: str) -> Sequence[str]:
        before = self._known_topics.get(name, {})
        return sorted(t for t, at in self._topics(name).items() if before.get(t) != at)

    def _forget_topics(self, name: str) -> None:
        with self._lock(name):
            if name in self._given:  # Kafka Connect answers 202 for any name
                self._known_topics[name] = self._topics(name)

    def _topics(self, name: str) -> Mapping[str, int]:
        connector = self._runtime.connectors.get(name)
        progress = connector.progress if connector is not None else None
        return progress.topics if progress is not None else {}

    def set_level(self, logger: str, level: str) -> None:
        loggers.set_level(logger, level)
