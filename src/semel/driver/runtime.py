"""Many connectors in one process, on one Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.core import watchdog
from semel.core.errors import ConfigError
from semel.driver.base import Progress, RunControl, State, Status, TaskAssignment, Wait, WaitKind
from semel.driver.planning import AnyPlan, plan_any
from semel.driver.run import ConnectorRun, SharedSpark, Tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semel.driver.base import Progress

log = logging.getLogger(__name__)


class Runtime:
    """Runs connectors until it is closed. Use it in a ``with`` statement.

    Args:
        spark: the session to run in; otherwise the active one, or a new one that is made from the
            ``spark.*`` keys of the first connector and ends with the runtime.
        patience: seconds in which connectors finish what is in hand when the runtime closes.
    """

    def __init__(self, spark: SparkSession | None = None, *, patience: float = 60.0) -> None:
        self._patience = patience
        self._spark = SharedSpark(spark)
        self._connectors: dict[str, Connector] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def connectors(self) -> Mapping[str, Connector]:
        """The connectors by their names."""
        with self._lock:
            return dict(self._connectors)

    def begin(self, settings: Mapping[str, str], *, for_any: bool = True) -> None:
        """Start a local Spark's JVM with these ``spark.*`` settings, so that the first connector
        need not wait for it; without ``for_any``, one that suits only a connector of this
        configuration."""
        self._spark.begin(settings, for_any=for_any)

    def start(
        self,
        config: str | Path | Mapping[str, Any] | AnyPlan,
        transform: Callable[..., Any] | None = None,
        *,
        until_caught_up: bool = False,
        observe: Callable[[Progress], None] | None = None,
        initial_state: State = State.RUNNING,
        tasks: Collection[int] | None = None,
        moves: bool = False,
    ) -> Connector:
        """Add a connector, and start it unless its initial state is ``STOPPED`` (KIP-980). With
        ``tasks``, only these run here, and other processes run the rest; with ``moves``, it may
        have run in another process until now.

        Other arguments are those of :func:`semel.run`.

        Raises:
            ConfigError: the configuration cannot be run, or a connector of that name exists.
        """
        planned = config if isinstance(config, AnyPlan) else plan_any(config, transform)
        name = planned.connector.name
        with self._lock:
            if name in self._connectors:
                planned.close()
                raise ConfigError(f"connector {name} already exists")
            connector = Connector(
                planned,
                self._spark,
                transform,
                until_caught_up=until_caught_up,
                observe=observe,
                initial_state=initial_state,
                tasks=tasks,
                moves=moves,
            )
            self._connectors[name] = connector
        return connector

    def remove(self, name: str) -> None:
        """Stop a connector, wait for its end and forget it. Its ledger and its group stay.

        Raises:
            KeyError: there is no connector of that name.
        """
        self.connectors[name].retire()
        with self._lock:
            self._connectors.pop(name, None)

    def close(self) -> None:
        """Stop all connectors after their current work, and the Spark that was started."""
        connectors = list(self.connectors.values())
        try:
            for connector in connectors:
                connector.stop(timeout=0)
            for connector in connectors:
                connector.wait(self._patience)
        finally:
            self._spark.end()


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """The answer of Kafka Connect's ``GET /connectors/{name}/status``, in Python."""

    name: str
    connector: Status
    tasks: Mapping[int, Status] = field(default_factory=dict)


class Connector:
    """A connector. It runs in a thread of its own, or in the thread that calls :meth:`run`.

    States and transitions are Kafka Connect's: a failed task leaves the others running, and stays
    failed until it is restarted; a paused connector keeps its tasks, a stopped one has none
    (KIP-875). All methods may be called from any thread, and return at once unless they say that
    they wait.
    """

    def __init__(
        self,
        planned: AnyPlan,
        spark: SharedSpark,
        transform: Callable[..., Any] | None = None,
        *,
        until_caught_up: bool = False,
        observe: Callable[[Progress], None] | None = None,
        initial_state: State = State.RUNNING,
        tasks: Collection[int] | None = None,
        moves: bool = False,
    ) -> None:
        planned.check_runnable(transform)
        self._first: AnyPlan | None = planned
        self._planned = planned
        self._spark = spark
        self._transform = transform
        self._until_caught_up = until_caught_up
        self._observe = observe or (lambda _progress: None)
        self._wanted = initial_state
        self._assignment = TaskAssignment(tasks, moves=moves)
        self._lock = threading.RLock()
        self._run: ConnectorRun | None = None
        self._starts = self._retired = False
        self._tally = Tally()
        if initial_state is not State.STOPPED:
            self._start()

    @property
    def name(self) -> str:
        """The connector's name."""
        return self._planned.connector.name

    @property
    def planned(self) -> AnyPlan:
        """The plan of its configuration."""
        return self._planned

    @property
    def tally(self) -> Tally:
        """The outcomes of its runs."""
        return self._tally

    @property
    def wanted(self) -> State:
        """The state that was last requested."""
        return self._wanted

    @property
    def progress(self) -> Progress | None:
        """The totals of its last run; None before the first."""
        run = self._run
        return run.progress if run is not None else None

    def status(self) -> ConnectorStatus:
        """Its state and those of its tasks. Never waits, not even for a start, which may wait for
        what the configuration refers to."""
        run, wanted = self._run, self._wanted
        if run is None or wanted is State.STOPPED:
            return ConnectorStatus(self.name, Status(State.STOPPED))
        if run.error is not None:
            failed = Status(State.FAILED, run.trace)
            return ConnectorStatus(self.name, failed, dict.fromkeys(self._numbers(), failed))
        if not run.alive:
            return ConnectorStatus(self.name, Status(State.STOPPED))
        held_up = self._waiting(run) if wanted is State.RUNNING else None
        return ConnectorStatus(self.name, Status(wanted, waiting=held_up), self._task_states(run))

    def _waiting(self, run: ConnectorRun) -> Wait | None:
        """What holds up the driver of a run."""
        if run.progress is not None and run.progress.waiting is not None:
            return run.progress.waiting
        silent = watchdog.silent(self.name)
        return None if silent is None else Wait(WaitKind.SERVICE, *silent)

    @property
    def moved(self) -> float:
        """When it last counted a record, or began, in seconds since 1970."""
        return self._run.moved if self._run is not None else 0.0

    @property
    def has_first(self) -> bool:
        """Whether the first task belongs to this process."""
        return self._assignment.has_first

    def assign(self, tasks: Collection[int] | None) -> None:
        """Run only these tasks here, or all of them; others end after their current work."""
        self._assignment.want(tasks)
        if (run := self._run) is not None:
            run.run_control.notifier.notify()

    def holds(self, task: int) -> bool:
        """Whether this task runs here, or may start at any moment. Never waits."""
        starts, run = self._starts, self._run
        return (starts or (run is not None and run.alive)) and self._assignment.holds(task)

    def pause(self) -> None:
        """Pause: keep the tasks, which commit what they have in hand and then read nothing."""
        with self._lock:
            was, self._wanted = self._wanted, State.PAUSED
            if (run := self._going_on(was)) is not None:
                run.run_control.pause()
            else:
                self._start()

    def resume(self) -> None:
        """Continue after a pause or a stop. A failed connector must be restarted instead."""
        with self._lock:
            was, self._wanted = self._wanted, State.RUNNING
            if (run := self._going_on(was)) is not None:
                run.run_control.resume()
            else:
                self._start()

    def stop(self, timeout: float | None = None) -> bool:
        """End the tasks after their current work, and wait; returns whether they ended within
        ``timeout`` seconds."""
        with self._lock:
            self._wanted = State.STOPPED
            run = self._run
        if run is None or not run.alive:
            return True
        run.run_control.stop.set()
        return run.join(timeout)

    def retire(self) -> None:
        """Stop for good, and wait: whoever resumes it now gets a ``RuntimeError``."""
        with self._lock:
            self._retired = True
        self.stop()

    def restart(self, *, include_tasks: bool = False, only_failed: bool = False) -> None:
        """Restart a failed connector; with ``include_tasks`` its tasks, too, or only the failed
        ones (KIP-745). A stopped connector stays stopped."""
        with self._lock:
            if self._wanted is State.STOPPED:
                return
            if self._run is None or not self._run.alive:
                self._start()
                return
            for number, status in self._task_states(self._run).items():
                if include_tasks and (status.state is State.FAILED or not only_failed):
                    self._run.run_control.restart(number)

    def restart_task(self, number: int) -> None:
        """Restart one task.

        Raises:
            LookupError: it has no such task.
        """
        with self._lock:
            if number not in self._numbers():
                raise LookupError(f"connector {self.name} has no task {number}")
            if self._run is not None and self._run.alive:
                self._run.run_control.restart(number)
            elif self._wanted is not State.STOPPED:
                self._start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, because it was stopped, has caught up or has failed; returns
        whether it has within ``timeout`` seconds."""
        run = self._run
        return run is None or run.join(timeout)

    def run(self, stop: threading.Event | None = None) -> Progress:
        """Run a stopped connector in the caller's thread, until it is stopped or ``stop`` is set;
        returns the totals. It also ends when one of its tasks fails or a topic is missing: its
        caller waits and cannot restart it.

        Raises:
            RuntimeError: it is running already.
            semel.core.errors.SemelError: what ended it; see the error's class.
            BaseException: what ``observe`` raised, or a signal's handler.
        """
        with self._lock:
            if self._wanted is not State.STOPPED and self._run is not None and self._run.alive:
                raise RuntimeError(f"connector {self.name} is running already")
            self._wanted = State.RUNNING
            run = self._next(RunControl(stop=stop or threading.Event()))
        return run.run()

    @property
    def error(self) -> BaseException | None:
        """The error that ended it; None while it runs and after a stop."""
        return self._run.error if self._run is not None else None

    def _going_on(self, was: State) -> ConnectorRun | None:
        """The run that is alive, or failed and must be restarted; None if a new one is needed."""
        run = self._run
        if was is State.STOPPED or run is None or not (run.alive or run.error is not None):
            return None
        return run

    def _numbers(self) -> list[int]:
        return self._assignment.of(self._planned.connector.tasks_max)

    def _task_states(self, run: ConnectorRun) -> dict[int, Status]:
        progress = run.progress
        states = progress.states if progress is not None else {}
        if self._planned.is_source:
            return dict(states)  # there may be fewer source partitions than tasks.max
        return {n: states.get(n, Status(State.UNASSIGNED)) for n in self._numbers()}

    def _start(self) -> None:
        """Begin a run in a thread of its own. Sinks and sources hold connections, so each run
        plans again to get its own."""
        self._starts = True
        try:
            # With a failed task it would never catch up.
            run_control = RunControl(keeps_going=not self._until_caught_up)
            if self._wanted is State.PAUSED:
                run_control.paused.set()
            self._next(run_control).begin()
        finally:
            self._starts = False

    def _next(self, run_control: RunControl) -> ConnectorRun:
        """The next run, which has yet to begin."""
        if self._retired:
            raise RuntimeError(f"connector {self.name} has been removed")
        planned, self._first = self._first, None
        self._planned = planned or plan_any(self._planned.connector.originals, self._transform)
        run_control = replace(
            run_control,
            until_caught_up=self._until_caught_up,
            observe=self._observe,
            assignment=self._assignment,
        )
        self._tally.starts += 1
        _log_start(self._planned)
        self._run = ConnectorRun(
            self._planned, self._spark, self._transform, run_control, self._tally, self._run
        )
        return self._run


def _log_start(planned: AnyPlan) -> None:
    """Log the guarantee, the engine and the warnings of a connector that starts."""
    name = planned.connector.name
    for warning in planned.warnings:
        log.warning("connector %s: %s", name, warning)
    log.info(
        "connector %s: %s, %s engine: %s",
        name,
        planned.guarantee,
        planned.engine,
        planned.guarantee.why,
    )
