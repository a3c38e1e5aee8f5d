"""The direct engine's driver: long-running tasks move the records, each a Spark job of its own.

Spark places the tasks; Kafka's group protocol spreads the partitions; the ledger says where each
begins. The driver starts the tasks, listens to them and stops them. Nothing passes through it, and
killing it loses nothing.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Collection, Mapping

import pyarrow as pa
from pyspark import SparkContext

from semel import failpoints
from semel.engine import firsts, ranges, sample, startup
from semel.engine.base import Progress, Run, SparkGone
from semel.engine.control import ControlServer, Report
from semel.engine.direct.jobs import SETTLE, TaskJobs
from semel.engine.direct.placeholder import Placeholder
from semel.engine.direct.task import TaskSpec
from semel.engine.rowtransform import Transform
from semel.errors import Fenced, LedgerConflict, SemelError
from semel.ledger import TopicPartition

log = logging.getLogger(__name__)

_SUCCESSOR = 1.0
"""Seconds that the first word of a task's new attempt may come after the last of its old one."""
_SILENT = 60.0


class DirectEngine:
    """One run of a connector."""

    def __init__(
        self, run: Run, spark: Callable[[], SparkContext], transform: Transform | None
    ) -> None:
        self._run = run
        self._spark = spark
        self._transform = transform
        self._progress = Progress()
        self._totals: dict[tuple[int, int], Report] = {}
        self._tasks: dict[int, TaskJobs] = {}
        self._paused = False
        self._warned = False
        self._error: SemelError | None = None

    def run(self) -> Progress:
        """Run until stopped, caught up, or an error ends the connector.

        Raises:
            SemelError: what ended it.
        """
        run = self._run
        placeholder = Placeholder(run)
        try:
            return self._run_tasks(placeholder)
        finally:
            placeholder.close()

    def _run_tasks(self, placeholder: Placeholder) -> Progress:
        run = self._run
        schemas, targets = self._prepare()
        context = self._spark()
        placeholder.wait(run.stop)
        host = context.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
        local = str(context.master).startswith("local")
        server = ControlServer("127.0.0.1" if local else "0.0.0.0")
        spec = TaskSpec(
            run.connector,
            run.guarantee,
            server.address("127.0.0.1" if local else host),
            failpoints.environment(),
            self._transform,
            schemas,
        )
        try:
            self._supervise(server, spec, targets)
        finally:
            server.close()
        if self._error is not None:
            raise self._error
        return self._progress

    def _prepare(self) -> tuple[dict[str, pa.Schema], dict[TopicPartition, int]]:
        run = self._run
        topics = run.topics
        startup.enter(run)
        partitions = ranges.partitions(topics)
        positions = ranges.positions(run.connector, run.sink, run.cluster, partitions)
        schemas = sample.schemas(run.connector, run.sink, run.cluster, self._transform, positions)
        # Those of tables that the sample has made just now.
        firsts.check_targets(run.connector, run.sink, run.sink.entries(), topics)
        self._progress.positions = dict(positions)
        return schemas, startup.targets(run)

    def _supervise(
        self, server: ControlServer, spec: TaskSpec, targets: Mapping[TopicPartition, int]
    ) -> None:
        """Start the tasks, listen to them, and start them again, until it is over and all of them
        have ended."""
        count = spec.connector.tasks_max
        self._tasks = {n: TaskJobs(self._spark, spec, n) for n in range(count)}
        began, deadline = time.monotonic(), None
        try:
            while deadline is None or any(task.job for task in self._tasks.values()):
                speak = {n for n in self._tasks if server.speaks(n)}
                self._listen(server)
                self._look(speak, stopping=deadline is not None)
                self._follow_orders(server)
                self._complain(server, spec, began)
                self._run.observe(self._progress)
                over = self._error is not None or self._run.over(self._progress, targets)
                if over and deadline is None:
                    server.stop_tasks()
                    deadline = time.monotonic() + SETTLE
                if deadline is not None and time.monotonic() > deadline:
                    self._cancel()  # an open transaction rolls back
        finally:
            self._end_jobs()
        self._run.observe(self._progress)

    def _look(self, speak: Collection[int], *, stopping: bool) -> None:
        """Start what is due, and judge what has ended."""
        for n, task in self._tasks.items():
            try:
                task.look(speaks=n in speak, stopping=stopping)
            except SparkGone:
                if self._error is None and not self._run.stop.is_set():
                    raise  # otherwise who stops all has stopped Spark first
            if task.error is not None and self._fails_all(task.error):
                self._end(task.error)
        self._progress.states = {n: task.status for n, task in self._tasks.items()}
        self._progress.restarts = sum(task.restarts for task in self._tasks.values())

    def _fails_all(self, error: SemelError) -> bool:
        """A task that is fenced says that another run is at work, whichever task it is."""
        return isinstance(error, Fenced) or not self._run.keeps_going

    def _follow_orders(self, server: ControlServer) -> None:
        """Pause, resume and restart tasks as the connector's handle wants it."""
        paused = self._run.paused.is_set()
        if paused is not self._paused:
            self._paused = paused
            server.pause_tasks() if paused else server.resume_tasks()
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get(self._run.restarts.get_nowait())
                if task is not None:
                    server.stop_task(task.index)
                    task.restart()

    def _complain(self, server: ControlServer, spec: TaskSpec, began: float) -> None:
        if server.reached or self._warned or time.monotonic() - began < _SILENT:
            return
        self._warned = True
        log.warning(
            "no task has reached this driver at %s:%d for %.0f s: are there executors, and "
            "does spark.driver.host lead here from them?",
            *(spec.control.host, spec.control.port, _SILENT),
        )

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _end_jobs(self) -> None:
        """Leave no job behind: Spark would start its tasks again."""
        deadline = time.monotonic() + SETTLE
        while not all(task.ended for task in self._tasks.values()):
            if time.monotonic() > deadline:
                return
            self._cancel()
            time.sleep(0.1)

    def _listen(self, server: ControlServer, wait: float = 0.1) -> None:
        """Hear what has come. A fence is judged a moment later: each line has a thread of its own,
        and that of the attempt which has replaced the fenced one may be the slower of them."""
        reports: list[Report] = []
        until, fenced = time.monotonic() + wait, False
        with contextlib.suppress(queue.Empty):
            while True:
                left = until - time.monotonic()
                reports.append(server.reports.get(left > 0, max(left, 0.0)))
                if not fenced:
                    fenced = reports[-1].kind == "fenced"
                    until = time.monotonic() + _SUCCESSOR if fenced else 0.0
        for report in sorted(reports, key=lambda r: r.kind == "fenced"):
            self._hear(report)

    def _hear(self, report: Report) -> None:
        if report.kind == "log":
            log.warning("task %d: %s", report.task, report.message)
        self._tasks[report.task].hear(report)
        if report.kind in ("progress", "assigned"):
            self._count(report)

    def _end(self, error: SemelError) -> None:
        if self._error is None or isinstance(self._error, LedgerConflict):
            self._error = error

    def _count(self, report: Report) -> None:
        self._totals[report.task, report.attempt] = report
        progress = self._progress
        progress.tasks[report.task] = report
        totals = self._totals.values()
        progress.records = sum(r.records for r in totals)
        progress.rows = sum(r.rows for r in totals)
        progress.failed = sum(r.failed for r in totals)
        progress.commits = sum(r.commits for r in totals)
        for tp, at in report.positions.items():
            progress.positions[tp] = max(at, progress.positions.get(tp, 0))
