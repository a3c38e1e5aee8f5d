"""The direct engine's driver: one long-running Spark job whose tasks move the records.

Spark places and restarts the tasks; Kafka's group protocol spreads the partitions; the ledger says
where each begins. The driver starts the job, listens to the tasks and stops them. Nothing passes
through it, and killing it loses nothing.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
from pyspark import SparkContext, TaskContext

from semel import failpoints
from semel.engine import firsts, ranges, sample, startup
from semel.engine.base import Progress, Run, SparkGone, first_error, not_shipped, spark_gone
from semel.engine.control import ControlServer, Report, rebuild
from semel.engine.direct.attempt import run_task
from semel.engine.direct.placeholder import Placeholder
from semel.engine.direct.task import TaskSpec
from semel.engine.pipeline import Transform
from semel.errors import LedgerConflict, SemelError
from semel.ledger import TopicPartition

log = logging.getLogger(__name__)

_BACKOFF = (1.0, 60.0)
_SETTLE = 20.0
_LAST_WORDS = 2.0
"""Seconds for what tasks have told at their ends, unless a frozen one still holds its line."""
_SUCCESSOR = 1.0
"""Seconds that the first word of a task's new attempt may come after the last of its old one."""
_SILENT = 60.0
_ATTEMPTS = 1_000_000
"""Attempts are numbered through all jobs of a run; Spark begins anew with each job."""


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
        self._newest: dict[int, int] = {}
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
            run.raw,
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
        schemas = sample.schemas(
            run.connector, run.raw, run.sink, run.cluster, self._transform, positions
        )
        # Those of tables that the sample has made just now.
        firsts.check_targets(run.connector, run.sink, run.sink.entries(), topics)
        self._progress.positions = dict(positions)
        return schemas, startup.targets(run)

    def _supervise(
        self, server: ControlServer, spec: TaskSpec, targets: Mapping[TopicPartition, int]
    ) -> None:
        backoff = _BACKOFF[0]
        while True:
            job = _Job(self._spark(), spec, self._progress.restarts)
            started = time.monotonic()
            try:
                self._watch(server, job, targets)
            finally:
                job.end()  # or Spark would start its tasks again and again
            if self._error is not None or self._run.over(self._progress, targets):
                return
            if job.gone is not None:
                raise job.gone
            if time.monotonic() - started > _BACKOFF[1]:
                backoff = _BACKOFF[0]
            log.warning(
                "the Spark job ended (%s); it starts again in %.0f s",
                job.failure or "early",
                backoff,
            )
            self._progress.restarts += 1
            if self._run.stop.wait(backoff):
                return
            backoff = min(2 * backoff, _BACKOFF[1])

    def _watch(
        self, server: ControlServer, job: _Job, targets: Mapping[TopicPartition, int]
    ) -> None:
        """Listen to the tasks until the job has ended."""
        deadline: float | None = None
        began = time.monotonic()
        while not job.ended:
            self._listen(server)
            if not (server.reached or self._warned) and time.monotonic() - began > _SILENT:
                self._warned = True
                log.warning(
                    "no task has reached this driver at %s:%d for %.0f s: are there executors, and "
                    "does spark.driver.host lead here from them?",
                    *(job.spec.control.host, job.spec.control.port, _SILENT),
                )
            self._run.observe(self._progress)
            done = self._error is not None or self._run.over(self._progress, targets)
            if done and deadline is None:
                server.stop_tasks()
                deadline = time.monotonic() + _SETTLE
            if deadline is not None and time.monotonic() > deadline:
                job.cancel()  # an open transaction rolls back
        server.hear_out(_LAST_WORDS)
        self._listen(server, wait=0.0)
        missing = not_shipped(self._run.connector, job.report)
        if missing is not None:
            self._end(missing)
        self._run.observe(self._progress)

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
        self._newest[report.task] = max(report.attempt, self._newest.get(report.task, -1))
        if report.kind == "log":
            log.warning("task %d: %s", report.task, report.message)
        elif report.attempt == self._newest[report.task] and report.kind in ("fenced", "failed"):
            # One that was frozen and is replaced has nothing to say of the connector: it was fenced
            # by its successor, and what fails for good fails for that one too.
            self._end(rebuild(report))
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


class _Job:
    """The Spark job, started in a thread of its own because it lasts."""

    def __init__(self, context: SparkContext, spec: TaskSpec, number: int) -> None:
        self._first_attempt = number * _ATTEMPTS
        self._context = context
        self._group = f"semel-{spec.connector.name}-{time.time_ns()}"
        self.spec = spec
        self.failure = ""
        self.report = ""
        self.gone: SparkGone | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name="semel-job")
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # Spark may have gone
            self._context.cancelJobGroup(self._group)

    def end(self) -> None:
        """Leave nothing of it behind. Spark cancels what it knows: this job may be on its way."""
        deadline = time.monotonic() + _SETTLE
        while not self.ended and time.monotonic() < deadline:
            self.cancel()
            self._thread.join(0.1)

    def _work(self) -> None:
        spec, tasks = self.spec, self.spec.connector.tasks_max
        first = self._first_attempt

        def body(index: int, _rows: Iterable[int]) -> Iterable[int]:
            context = TaskContext.get()
            run_task(spec, index, first + (context.attemptNumber() if context else 0))
            return ()

        try:
            self._context.setJobGroup(self._group, f"connector {spec.connector.name}", True)
            self._context.parallelize(range(tasks), tasks).mapPartitionsWithIndex(body).count()
        except Exception as error:
            self.report = text = str(error)
            self.gone = spark_gone(spec.connector, error)
            self.failure = first_error(text)
            log.debug("the job failed: %s", text)
