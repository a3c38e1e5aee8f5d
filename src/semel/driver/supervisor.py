"""The driver's side of long-running tasks: it starts them, listens to them and stops them.

Each task is a Spark job of one partition, with a state, restarts and an end of its own. If its
process dies, Spark restarts the task at once, a few times per job. If anything else ends the job,
the driver starts a new one, with a backoff while jobs end early. Nothing passes through the driver,
and killing it loses nothing.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from pyspark import SparkContext, TaskContext

from semel.core.context import kept
from semel.core.errors import Fenced, LedgerConflict, SemelError
from semel.driver.base import FencesInARow, Progress, RunControl, State, Status, WaitKind, waiting
from semel.spark.job_errors import SparkGone, first_error, not_shipped, spark_gone
from semel.tasks import memory
from semel.tasks.attempt import TaskSpec, run_task
from semel.tasks.control import FROZEN, STANDS_STILL, ControlServer, Deliveries, Report, rebuild
from semel.tasks.retry import Backoff
from semel.tasks.unplaced import sum_of

log = logging.getLogger(__name__)

SETTLE = 20.0
"""Seconds that a stopping task gets to finish what is in hand."""
_LAST_WORDS = 2.0
"""Seconds, at most, to wait for the last reports of a task: a frozen one still holds its line."""
_ATTEMPTS = 1_000_000
"""Attempts of a task are numbered across all of its jobs; Spark starts over with each job."""
_SUCCESSOR = 1.0
"""Seconds by which the first report of a task's new attempt may follow the last one of its old
attempt."""
_SILENT = 60.0
_TIDIES_AFTER = 2.0
_LISTENS = 0.1
"""The most seconds to wait for news before the next look, while not all tasks run."""
_CALM = 10.0
"""The same while all of them run: any change then wakes the driver."""


class Supervisor:
    """The tasks of one run, and its totals.

    A task that another worker may have run before survives up to ``fences`` fences in a row: they
    may come from its older process, which was cut off or frozen, and has yet to be told to stop.
    """

    def __init__(
        self, run_control: RunControl, spark: Callable[[], SparkContext], *, fences: int = 0
    ) -> None:
        self._control = run_control
        self._spark = spark
        self._fences = fences
        self.progress = Progress()
        self._totals: dict[tuple[int, int, int], Report] = {}
        self._tasks: dict[int, TaskJobs] = {}
        self._leaving: dict[int, float] = {}
        self._jobs: dict[int, int] = {}
        self._round = 0
        self._paused = False
        self._warned = False
        self._begun = False
        self._error: SemelError | None = None

    def begin(self, server: ControlServer, spec: TaskSpec, count: int) -> None:
        """Start the tasks, out of ``count``, that must run here, while the run is being prepared.
        They wait for their plan, which :meth:`supervise` gives them.

        Raises:
            SparkGone: there is no Spark to start them.
        """
        self._round += 1
        self._error = None
        self._paused = False
        self.progress.tasks.clear()
        self._tasks, self._leaving, self._jobs = {}, {}, {}
        self._begun = True
        self._apply_assignment(server, spec, count)
        self._look((), stopping=False)

    def give_up(self, server: ControlServer) -> None:
        """End tasks that were started for a run that cannot be prepared."""
        server.stop_tasks()
        self._end_jobs()
        self._control.assignment.let_go()

    def supervise(
        self,
        server: ControlServer,
        spec: TaskSpec,
        count: int,
        over: Callable[[Progress], bool],
        plan: object = None,
        calm: float = _CALM,
    ) -> Progress:
        """Start the tasks, out of ``count``, that must run here; listen to them and restart them
        until the run is ``over`` and all tasks have ended. May be called again, with other tasks.
        ``plan`` is what those that have begun wait for. While all of them run and nothing happens,
        ``over`` is called every ``calm`` seconds.

        Raises:
            SemelError: what ended the run.
        """
        server.disconnected = server.wake
        with self._control.notifier.subscribed(server.wake):
            return self._supervise(server, spec, count, over, plan, calm)

    def _supervise(
        self,
        server: ControlServer,
        spec: TaskSpec,
        count: int,
        over: Callable[[Progress], bool],
        plan: object,
        calm: float,
    ) -> Progress:
        began, deadline, is_tidy = time.monotonic(), None, False
        try:
            if not self._begun:
                self.begin(server, spec, count)
            self._begun = False
            self._follow_orders(server)  # a paused task must not read first
            self._apply_assignment(server, spec, count)  # a task that has moved away must not begin
            if self._control.stop.is_set():  # tasks that have begun must no longer fence anybody
                server.stop_tasks()
            else:
                server.announce(plan)
            while deadline is None or any(task.job for task in self._tasks.values()):
                are_new = deadline is None and self._apply_assignment(server, spec, count)
                connected = {n for n in self._tasks if server.is_connected(n)}
                settled = all(
                    task.is_settled(is_connected=n in connected) for n, task in self._tasks.items()
                )
                ends_soon = deadline is not None or self._control.stop.is_set()
                is_calm = settled and not self._leaving and not ends_soon
                wait = calm if is_calm else _LISTENS
                self._listen(server, 0.0 if are_new else wait)
                self._look(connected, stopping=deadline is not None)
                self._follow_orders(server)
                self._warn_if_unreached(server, spec, began)
                if not is_tidy and time.monotonic() - began > _TIDIES_AFTER:
                    is_tidy = True
                    memory.give_back()  # what the preparation has used
                self._control.observe(self.progress)
                ends = self._error is not None or over(self.progress)
                if ends and deadline is None:
                    server.stop_tasks()
                    deadline = time.monotonic() + SETTLE
                if deadline is not None and time.monotonic() > deadline:
                    self._cancel()  # an open transaction rolls back
        finally:
            self._end_jobs()
            self._control.assignment.let_go()
        self._control.observe(self.progress)
        if self._error is not None:
            raise self._error
        return self.progress

    def _apply_assignment(self, server: ControlServer, spec: TaskSpec, count: int) -> bool:
        """Add the tasks that must run here now, and end those that no longer must. Returns whether
        some were added or have ended: then the next look must not wait for others' reports."""
        wanted = self._control.assignment.hold(count, self._tasks)
        added = sorted(wanted - self._tasks.keys())
        for n in added:
            server.want_task(n)
            self._tasks[n] = TaskJobs(self._spark, spec, n, self._jobs.get(n, 0))
        now, before = time.monotonic(), len(self._tasks)
        for n in [n for n in self._tasks if n not in wanted or n in self._leaving]:
            task, due = self._tasks[n], self._leaving.setdefault(n, now + SETTLE)
            server.stop_task(n, for_good=True)  # again and again: it may have started just now
            if now > due:
                task.cancel()
            if task.job is None:
                self._jobs[n] = task.jobs
                self.progress.tasks.pop(n, None)
                del self._tasks[n], self._leaving[n]
        has_released = len(self._tasks) < before
        if has_released:  # another worker waits for it
            self._control.assignment.hold(count, self._tasks)
        return bool(added) or has_released

    def _look(self, connected: Collection[int], *, stopping: bool) -> None:
        """Start the tasks that are due, and handle those that have ended."""
        for n, task in self._tasks.items():
            try:
                task.look(is_connected=n in connected, stopping=stopping or n in self._leaving)
            except SparkGone:
                if self._error is None and not self._control.stop.is_set():
                    raise  # otherwise Spark was stopped first
            error = task.error
            if (
                error is None
                or n in self._leaving
                or (not stopping and self._outlived(task, error))
            ):
                continue
            if self._fails_all(error):
                self._end(error)
            else:
                task.tell()
        self.progress.errors = {n: t.error for n, t in self._tasks.items() if t.error is not None}
        self.progress.states = {n: task.status for n, task in self._tasks.items()}
        self.progress.restarts = sum(task.restarts for task in self._tasks.values())

    def _outlived(self, task: TaskJobs, error: SemelError) -> bool:
        moves = self._control.assignment.moves
        outlived = moves and isinstance(error, Fenced) and task.outlives(error, self._fences)
        self.progress.fences += outlived
        return outlived

    def _fails_all(self, error: SemelError) -> bool:
        """Whether an error fails the run. Any fenced task means that another run is at work."""
        return isinstance(error, Fenced) or not self._control.keeps_going

    def _follow_orders(self, server: ControlServer) -> None:
        """Pause, resume and restart tasks as the connector's handle asks."""
        paused = self._control.paused.is_set()
        if paused is not self._paused:
            self._paused = paused
            server.pause_tasks() if paused else server.resume_tasks()
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get(self._control.restarts.get_nowait())
                if task is not None:
                    server.stop_task(task.index)
                    task.restart()

    def _warn_if_unreached(self, server: ControlServer, spec: TaskSpec, began: float) -> None:
        if server.reached or self._warned or time.monotonic() - began < _SILENT:
            return
        self._warned = True
        log.warning(
            "no task has reached this driver at %s:%d for %.0f s: are there executors, and "
            "can they reach this host at spark.driver.host?",
            *(spec.control.host, spec.control.port, _SILENT),
        )

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _end_jobs(self) -> None:
        """End all jobs, because Spark would start their tasks again."""
        deadline = time.monotonic() + SETTLE
        while not all(task.ended for task in self._tasks.values()):
            if time.monotonic() > deadline:
                return
            self._cancel()
            time.sleep(0.1)

    def _listen(self, server: ControlServer, wait: float) -> None:
        """Take the reports that have arrived. A fence is judged a moment later: each line has its
        own thread, and the thread of the attempt that replaced the fenced one may be slower."""
        reports: list[Report] = []
        until, fenced = time.monotonic() + wait, False
        with contextlib.suppress(queue.Empty):
            while True:
                remaining = until - time.monotonic()
                reports.append(server.reports.get(remaining > 0, max(remaining, 0.0)))
                if not fenced:
                    fenced = reports[-1].kind == "fenced"
                    until = time.monotonic() + _SUCCESSOR if fenced else 0.0
        for report in sorted(reports, key=lambda r: r.kind == "fenced"):
            self._hear(report)

    def _hear(self, report: Report) -> None:
        if report.kind in ("log", "dying"):
            about = {"task": report.task}
            log.warning("task %d: %s", report.task, report.message, extra=about)
        task = self._tasks.get(report.task)
        if task is None:
            return  # it has ended, and belongs to another worker
        task.hear(report)
        if report.kind in ("progress", "assigned"):
            self._count(report)

    def _end(self, error: SemelError) -> None:
        if self._error is None or isinstance(self._error, LedgerConflict):
            self._error = error

    def _count(self, report: Report) -> None:
        self._totals[self._round, report.task, report.attempt] = report
        progress = self.progress
        progress.tasks[report.task] = report
        totals = self._totals.values()
        progress.records = sum(r.records for r in totals)
        progress.rows = sum(r.rows for r in totals)
        progress.failed = sum(r.failed for r in totals)
        progress.commits = sum(r.commits for r in totals)
        progress.deliveries = sum((r.deliveries for r in totals), Deliveries())
        progress.sent = dict(sum((Counter(r.sent) for r in totals), Counter()))
        progress.unplaced = sum_of(r.unplaced for r in totals)
        for tp, at in report.positions.items():
            progress.positions[tp] = max(at, progress.positions.get(tp, 0))


class TaskJobs:
    """The successive jobs of one task, and the task's state. ``restarts`` counts those that have
    ended early; ``jobs`` counts all, including those from when the task ran here before."""

    def __init__(
        self, spark: Callable[[], SparkContext], spec: TaskSpec, index: int, jobs: int = 0
    ) -> None:
        self._spark = spark
        self._spec = spec
        self.index = index
        self.job: Job | None = None
        self.status = Status(State.UNASSIGNED)
        self.error: SemelError | None = None
        self.restarts = 0
        self.jobs = jobs
        self._newest = -1
        self._backoff = Backoff()
        self._started = self._due = time.monotonic()
        self._ended: float | None = None
        self._again = False
        self._spoke = False
        self._elsewhere = False
        self._silence = 0.0
        self._looked = time.monotonic()
        self._fences = FencesInARow()
        self._told: SemelError | None = None
        self._last_words = ""

    @property
    def ended(self) -> bool:
        """Whether no job is left."""
        return self.job is None or self.job.ended

    def is_settled(self, *, is_connected: bool) -> bool:
        """Whether it needs no attention: its job runs and an attempt of it holds its line, or it
        has failed."""
        if self.job is None:
            return self.error is not None
        return is_connected and not self.job.ended and not self._again

    def hear(self, report: Report) -> None:
        """Handle an attempt's report. One that was frozen and replaced says nothing about the task:
        its successor has fenced it, and a permanent failure would hit the successor, too."""
        self._newest = max(report.attempt, self._newest)
        if report.attempt < self._newest:
            return
        self._spoke, self._silence = True, 0.0
        if report.kind == "dying":
            self._last_words = report.message
            self.status = Status(State.RESTARTING, report.message)
        if report.kind in ("fenced", "failed"):
            self.error = rebuild(report)
            self.status = Status(State.FAILED, str(self.error))
        elif report.kind in ("started", "assigned"):
            self.status = Status(State.RUNNING, executor=self._place(report))
        elif report.kind == "paused":
            self.status = Status(State.PAUSED, executor=self._place(report))
        elif report.kind == "waiting":
            held_up = waiting(WaitKind.SERVICE, report.message, self.status.waiting)
            self.status = replace(self.status, waiting=held_up)
        elif report.kind == "progress":
            self.status = replace(self.status, waiting=None)

    def tell(self) -> None:
        """Log why the task has failed, once."""
        if self.error is not None and self.error is not self._told:
            self._told = self.error
            log.error(
                "connector %s: task %d has failed, and stays so until it is restarted: %s",
                *(self._spec.connector.name, self.index, self.error),
            )

    def _place(self, report: Report) -> str:
        return f"{report.host}:{report.pid}" if self._elsewhere else ""

    def look(self, *, is_connected: bool, stopping: bool) -> None:
        """Start the task when that is due, and note its end. ``is_connected`` is whether an attempt
        of it held its line a moment ago: if so, its last reports may not have been heard yet. A
        task that is ``stopping`` is not started any more.

        Raises:
            SparkGone: there is no Spark to start it.
        """
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        if self.job is None:
            if self.error is None and not stopping and now >= self._due:
                self._start()
            return
        if not self.job.ended:
            if self._again and now > self._due + SETTLE:
                self.cancel()
            self._watch_silence(passed)
            return
        self._ended = self._ended or now
        if self.job.gone is None and is_connected and now - self._ended < _LAST_WORDS:
            return
        self._note_end(self.job, now, stopping)

    def _watch_silence(self, passed: float) -> None:
        """End a process that does not report. Time in which the driver itself stood still
        does not count."""
        self._silence += min(passed, STANDS_STILL)
        if self._spoke and self._silence > FROZEN:
            log.warning(
                "connector %s: task %d has not reported for %.0f s; ending its process",
                *(self._spec.connector.name, self.index, self._silence),
            )
            self._spoke = False
            self.cancel()

    def restart(self) -> None:
        """Restart the task: a failed one now, a running one once its job has ended."""
        self.error = None
        self._again = True
        self._due = time.monotonic()
        self.status = Status(State.RESTARTING)

    def outlives(self, fence: Fenced, most: int) -> bool:
        """Start again after a fence, with a backoff, unless there were more than ``most`` in a
        row."""
        now = time.monotonic()
        pause = self._fences.one_more(now - self._started)
        if self._fences.count > most:
            return False
        self.restart()
        self.restarts += 1
        self._due = now + pause
        log.warning(
            "connector %s: task %d was fenced, perhaps by an older process on another worker; "
            "starting it again (%d of %d)",
            *(self._spec.connector.name, self.index, self._fences.count, most),
        )
        log.debug("%s", fence)
        return True

    def cancel(self) -> None:
        """Cancel the job; an open transaction rolls back."""
        if self.job is not None:
            self.job.cancel()

    def _start(self) -> None:
        self._again = False
        context = self._spark()
        self._elsewhere = re.match(r"local(\[|$)", str(context.master)) is None
        self.job = Job(context, self._spec, self.index, self.jobs)
        self.jobs += 1
        self._started, self._ended = time.monotonic(), None
        self._spoke = False

    def _note_end(self, job: Job, now: float, stopping: bool) -> None:
        if job.gone is not None:
            raise job.gone
        self.job = None
        missing = not_shipped(self._spec.connector, job.report)
        if missing is not None:
            self.error, self.status = missing, Status(State.FAILED, str(missing))
        if self.error is not None or self._again or stopping:
            return
        pause = self._backoff.after(now - self._started)
        why, self._last_words = self._last_words or job.failure, ""
        log.warning(
            "connector %s: the Spark job of task %d ended (%s); restarting it in %.0f s",
            *(self._spec.connector.name, self.index, why or "early", pause),
        )
        self.restarts += 1
        self.status = Status(State.RESTARTING, why)
        self._due = now + pause


class Job:
    """A Spark job of one partition, in a thread of its own because it runs long."""

    def __init__(self, context: SparkContext, spec: TaskSpec, index: int, number: int) -> None:
        self._first_attempt = number * _ATTEMPTS
        self._context = context
        self._index = index
        self._group = f"semel-{spec.connector.name}-{index}-{time.time_ns()}"
        self._spec = spec
        self.report = ""
        self.gone: SparkGone | None = None
        self._thread = threading.Thread(target=kept(self._work), daemon=True, name="semel-job")
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def failure(self) -> str:
        """Spark's reason for the end of the job; empty if it ended by itself."""
        return first_error(self.report)

    def cancel(self) -> None:
        """Cancel the job. Spark cancels only jobs that it knows, and this one may still be on its
        way."""
        with contextlib.suppress(Exception):  # Spark may have stopped
            self._context.cancelJobGroup(self._group)

    def _work(self) -> None:
        spec, index, first = self._spec, self._index, self._first_attempt

        def body(_partition: int, _rows: Iterable[int]) -> Iterable[int]:
            context = TaskContext.get()
            run_task(spec, index, first + (context.attemptNumber() if context else 0))
            return ()

        try:
            self._context.setJobGroup(
                self._group, f"connector {spec.connector.name}, task {index}", True
            )
            self._context.parallelize([index], 1).mapPartitionsWithIndex(body).count()
        except Exception as error:
            self.report = str(error) or type(error).__name__
            self.gone = spark_gone(spec.connector, error)
            log.debug("the job of task %d failed: %s", index, self.report)
