"""The input of metrics: a connector at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from semel.driver.base import Progress, Wait
from semel.driver.planning import AnyPlan
from semel.driver.run import Tally
from semel.driver.runtime import Runtime
from semel.tasks.control import Report

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
