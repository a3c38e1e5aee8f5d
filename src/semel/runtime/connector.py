"""A connector of a runtime: its state, its tasks' states, and the operations on it."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel import watchdog
from semel.engine import fences
from semel.engine.fences import FencesInARow
from semel.engine.orders import Orders, Share
from semel.engine.states import State, Status
from semel.errors import LedgerConflict, SemelError, ServiceError, TopicMissing, about
from semel.planning import AnyPlan, SourcePlan, plan_any
from semel.redact import redacted
from semel.runtime.driving import LEAVE, check_runnable, drive, introduce
from semel.runtime.sharing import SharedSpark
from semel.runtime.topics import wait_for_topics

if TYPE_CHECKING:
    from semel.engine.base import Progress

log = logging.getLogger(__name__)

_FORMER_ENDS_IN = LEAVE + 5.0
"""Seconds for which a run waits for the one before, which leaves behind what does not end."""
_FIRST_WORD = 2.0
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """The answer of Kafka Connect's ``GET /connectors/{name}/status``, in Python."""

    name: str
    connector: Status
    tasks: Mapping[int, Status] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """How often a connector was started, has failed, and was fenced by another run of it, whether
    or not it has survived that."""

    starts: int = 0
    failures: int = 0
    fences: int = 0


class Connector:
    """A connector, in a thread of its own while it runs.

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
        check_runnable(planned, transform)
        self._first: AnyPlan | None = planned
        self._planned = planned
        self._spark = spark
        self._transform = transform
        self._until_caught_up = until_caught_up
        self._observe = observe or (lambda _progress: None)
        self._wanted = initial_state
        self._share = Share(tasks, moves=moves)
        self._lock = threading.RLock()
        self._run: _Run | None = None
        self._starts = False
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
        return ConnectorStatus(self.name, Status(wanted), self._task_states(run))

    @property
    def has_first(self) -> bool:
        """Whether the first task belongs to this process."""
        return self._share.has_first

    def share(self, tasks: Collection[int] | None) -> None:
        """Run only these tasks here, or all of them; others end after their current work."""
        self._share.want(tasks)
        if (run := self._run) is not None:
            run.orders.bell.ring()

    def holds(self, task: int) -> bool:
        """Whether one of its tasks runs here, or may start any moment. Never waits, either."""
        starts, run = self._starts, self._run
        return (starts or (run is not None and run.alive)) and self._share.holds(task)

    def pause(self) -> None:
        """Pause: keep the tasks, which commit what they have in hand and then read nothing."""
        with self._lock:
            was, self._wanted = self._wanted, State.PAUSED
            if (run := self._going_on(was)) is not None:
                run.orders.pause()
            else:
                self._start()

    def resume(self) -> None:
        """Continue after a pause or a stop. A failed connector must be restarted instead."""
        with self._lock:
            was, self._wanted = self._wanted, State.RUNNING
            if (run := self._going_on(was)) is not None:
                run.orders.resume()
            else:
                self._start()

    def stop(self, timeout: float | None = None) -> bool:
        """End the tasks after their current work, and wait; returns whether they ended within
        ``timeout`` seconds."""
        with self._lock:
            self._wanted = State.STOPPED
            run = self._run
        if run is None:
            return True
        run.orders.stop.set()
        return run.join(timeout)

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
                    self._run.orders.restart(number)

    def restart_task(self, number: int) -> None:
        """Restart one task.

        Raises:
            LookupError: it has no such task.
        """
        with self._lock:
            if number not in self._numbers():
                raise LookupError(f"connector {self.name} has no task {number}")
            if self._run is not None and self._run.alive:
                self._run.orders.restart(number)
            elif self._wanted is not State.STOPPED:
                self._start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, because it was stopped, has caught up or has failed; returns
        whether it has within ``timeout`` seconds."""
        run = self._run
        return run is None or run.join(timeout)

    @property
    def error(self) -> SemelError | None:
        """The error that ended it; None while it runs and after a stop."""
        return self._run.error if self._run is not None else None

    def _going_on(self, was: State) -> _Run | None:
        """The run that goes on, or has failed and has to be restarted; None for a new one."""
        run = self._run
        if was is State.STOPPED or run is None or not (run.alive or run.error):
            return None
        return run

    def _numbers(self) -> list[int]:
        return self._share.of(self._planned.connector.tasks_max)

    def _task_states(self, run: _Run) -> dict[int, Status]:
        progress = run.progress
        known = progress.states if progress is not None else {}
        if isinstance(self._planned, SourcePlan):
            return dict(known)  # there may be fewer source partitions than tasks.max
        return {n: known.get(n, Status(State.UNASSIGNED)) for n in self._numbers()}

    def _start(self) -> None:
        """Begin a run. Sinks and sources hold connections, so each run plans again to get its
        own."""
        self._starts = True
        try:
            planned, self._first = self._first, None
            self._planned = planned or plan_any(self._planned.connector.originals, self._transform)
            orders = Orders(
                until_caught_up=self._until_caught_up,
                keeps_going=not self._until_caught_up,  # it would never catch up
                observe=self._observe,
                share=self._share,
            )
            if self._wanted is State.PAUSED:
                orders.paused.set()
            self._tally.starts += 1
            introduce(self._planned)
            self._run = _Run(
                self._planned, self._spark, self._transform, orders, self._tally, self._run
            )
        finally:
            self._starts = False


class _Run:
    """A run of a connector, in its thread. It begins once the one before has ended."""

    def __init__(
        self,
        planned: AnyPlan,
        spark: SharedSpark,
        transform: Callable[..., Any] | None,
        orders: Orders,
        tally: Tally,
        before: _Run | None,
    ) -> None:
        self.orders = orders
        self._tally = tally
        self.progress: Progress | None = None
        self.error: SemelError | None = None
        self.trace = ""
        self._before = before
        self._arguments = (planned, spark, transform)
        self._thread = threading.Thread(
            target=self._work, daemon=True, name=f"semel-{planned.connector.name}"
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float | None) -> bool:
        self._thread.join(timeout)
        return not self.alive

    def _work(self) -> None:
        planned, spark, transform = self._arguments
        orders, observe = self.orders, self.orders.observe

        def note(progress: Progress) -> None:
            self._tally.fences += progress.fences - (self.progress.fences if self.progress else 0)
            self.progress = progress
            observe(progress)

        is_next = False
        try:
            if is_next := self._is_next(planned.connector.name):
                self._drive(planned, spark, transform, orders.observed_by(note))
        except SemelError as error:
            self.trace = redacted(_trace(error))
            self.error = error
            self._tally.failures += 1
            self._tally.fences += isinstance(error, LedgerConflict)
            log.error("%s", about(planned.connector.name, error))
        finally:
            if not is_next:
                planned.close()

    def _drive(
        self,
        planned: AnyPlan,
        spark: SharedSpark,
        transform: Callable[..., Any] | None,
        orders: Orders,
    ) -> None:
        """Run the connector to its end. In a cluster, begin again after a fence, which may come
        from an older process; where tasks do so one by one, the engine sees to it.

        Raises:
            SemelError: what ended it.
        """
        direct = not isinstance(planned, SourcePlan) and planned.engine == "direct"
        begins_again = orders.share.moves and orders.share.is_whole and not direct
        fenced, shown = FencesInARow(), None
        while True:
            began = time.monotonic()
            try:
                drive(planned, spark.of(planned), transform, orders)
                return
            except LedgerConflict as error:
                last = self.progress
                worked = last is not None and last is not shown and last.records
                pause = fenced.one_more(time.monotonic() - began if worked else 0.0)
                if not begins_again or fenced.count > fences.MOST:
                    raise
                self._tally.fences += 1
                log.warning(
                    "connector %s was fenced, perhaps by an older process on another worker; "
                    "starting it again (%d of %d): %s",
                    *(planned.connector.name, fenced.count, fences.MOST, error),
                )
                shown = self._shown_restarting(orders, error)
            except TopicMissing:
                if orders.until_caught_up or isinstance(planned, SourcePlan):
                    raise
                wait_for_topics(planned, orders)
                pause = 0.0
            woken = threading.Event()
            with orders.bell.heard_by(woken.set), orders.bell.rung_by(orders.stop):
                if orders.restarts.empty():
                    woken.wait(pause)
            if orders.stop.is_set():
                return
            orders.drop_restarts()
            planned = plan_any(planned.connector.originals, transform)

    def _shown_restarting(self, orders: Orders, why: SemelError) -> Progress | None:
        """Show that all tasks begin again, until the next run has something to tell."""
        if (last := self.progress) is not None:
            status = Status(State.RESTARTING, redacted(str(why)))
            orders.observe(replace(last, states=dict.fromkeys(last.states, status)))
        return self.progress

    def _is_next(self, connector: str) -> bool:
        """Wait until earlier runs have ended; returns whether they have, because this run may be
        stopped meanwhile.

        Raises:
            ServiceError: one does not end.
        """
        began, told = time.monotonic(), False
        while (former := self._former()) is not None and not self.orders.stop.is_set():
            waited = time.monotonic() - began
            waits = "".join(f" ({wait})" for wait in watchdog.waits()[:1])
            if waited > _FORMER_ENDS_IN:
                raise ServiceError(
                    f"connector {connector}: its previous run has not ended within "
                    f"{_FORMER_ENDS_IN:.0f} s{waits}; two would conflict. Restart the connector "
                    "later, or this process"
                )
            if waited > _FIRST_WORD and not told:
                told = True
                log.warning("connector %s waits until its previous run ends%s", connector, waits)
            former.join(_LOOK)
        return former is None

    def _former(self) -> _Run | None:
        """The last run before this one that has not ended."""
        while self._before is not None and not self._before.alive:
            self._before = self._before._before
        return self._before


def _trace(error: SemelError) -> str:
    """The trace for users: the message, with a stack trace if the error was unexpected."""
    if error.__cause__ is None:
        return str(error)
    return "".join(traceback.format_exception(error))
