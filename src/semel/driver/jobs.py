"""A task as a Spark job of one partition, which starts again when it ends early.

If a task's process dies, Spark restarts the task at once, a few times per job. If anything else
ends a job, the driver starts a new one, with a backoff while jobs end early.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from pyspark import SparkContext, TaskContext

from semel.core.context import kept
from semel.core.errors import Fenced, SemelError
from semel.driver.base import FencesInARow
from semel.driver.states import State, Status, WaitKind, waiting
from semel.spark.job_errors import SparkGone, first_error, not_shipped, spark_gone
from semel.tasks.attempt import TaskSpec, run_task
from semel.tasks.control import FROZEN, STANDS_STILL, Report, rebuild
from semel.tasks.retry import Backoff

log = logging.getLogger(__name__)

SETTLE = 20.0
"""Seconds that a stopping task gets to finish what is in hand."""
_LAST_WORDS = 2.0
"""Seconds, at most, to wait for the last reports of a task: a frozen one still holds its line."""
_ATTEMPTS = 1_000_000
"""Attempts of a task are numbered across all of its jobs; Spark starts over with each job."""


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
