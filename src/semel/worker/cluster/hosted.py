"""A connector that this worker must run, or must stop running."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.config.cluster import ClusterConfig
from semel.core.context import CONNECTOR
from semel.core.errors import SemelError, about
from semel.core.redact import redacted
from semel.driver.base import State, Status
from semel.driver.runtime import Connector, ConnectorStatus, Runtime

log = logging.getLogger(__name__)


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
