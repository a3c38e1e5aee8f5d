"""A long-running task from its start to its end, in one of Spark's attempts, and what it reports to
the driver: its positions, its counts, lines for the log, and how it has ended."""

from __future__ import annotations

import gc
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from semel.config import CommonConfig
from semel.core import abandoned, watchdog
from semel.core.context import log_of_task
from semel.core.errors import Failure, Fenced, SemelError
from semel.core.ledger import TopicPartition
from semel.spark.job_errors import unexpected
from semel.tasks import memory
from semel.tasks.batch import Batch
from semel.tasks.commit import CommitCounter
from semel.tasks.control import Address, ControlLine, Report
from semel.tasks.unplaced import sum_of

log = logging.getLogger(__name__)

_EVERY = 0.2
_PAUSE = 1.0
"""Seconds to wait before telling Spark that the line is lost: Spark restarts the task at once, even
while it shuts down because its driver has died."""


class LongRunningTask(Protocol):
    """Lives for as long as the connector runs, or until it is restarted elsewhere."""

    @property
    def heartbeats(self) -> float:
        """Seconds to wait for the driver's word after a fence that proves no takeover."""

    def run(self) -> None:
        """Work until the driver says stop."""

    def false_fence_reason(self, error: Fenced) -> str | None:
        """Why a fence does not prove that another run has taken over; None if it does. It may wait
        to find that out, until the driver says stop."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec(ABC):
    """What the tasks of a run need; it travels in the Spark closure."""

    connector: CommonConfig
    control: Address
    environment: Mapping[str, str]

    @abstractmethod
    def task(self, index: int, attempt: int, line: ControlLine) -> LongRunningTask:
        """Create the task with this number."""


def run_task(spec: TaskSpec, index: int, attempt: int) -> None:
    """Run one task to its end.

    Errors that end the connector are reported to the driver, not raised, because Spark would only
    try again. The same goes for unexpected errors, which would most likely recur. A task whose
    fence does not prove a takeover is started again, unless another task of this run is fenced
    meanwhile and has lost its place: then another run is at work and must not be fenced in turn.

    Raises:
        Fenced: the fence does not prove that another run has taken over.
        ConnectionError: the driver cannot be reached. If it is alive, Spark starts the task again.
    """
    os.environ.update(spec.environment)
    log_of_task(spec.connector.name, index)
    memory.limit_caches()
    # Automatic collections walk over all messages of a poll again and again, for nearly half the
    # time it takes to consume them, and find nothing: the task collects between commits instead.
    gc.freeze()
    gc.disable()
    try:
        line = ControlLine(spec.control)
        line.beat(Report("alive", index, attempt))
        try:
            _run(spec, index, attempt, line)
            lost = "the driver closed it" if line.orphaned else ""
        finally:
            line.close()
    except (OSError, EOFError) as error:
        lost = str(error) or "the driver hung up"
    finally:
        gc.unfreeze()  # Spark may use this worker again
        gc.enable()
    if lost:
        time.sleep(_PAUSE)
        where = f"{spec.control.host}:{spec.control.port}"
        raise ConnectionError(f"task {index} has no connection to its driver at {where}: {lost}")


def _run(spec: TaskSpec, index: int, attempt: int, line: ControlLine) -> None:
    def tell(kind: str, message: str = "", error: SemelError | None = None) -> None:
        failure = Failure.of(error) if error is not None else None
        line.send(Report(kind, index, attempt, os.getpid(), message=message, failure=failure))

    task = None

    def end(used: str) -> None:
        reads = getattr(task, "reads", "")
        tell("dying", f"{used}{f', while it reads {reads}' if reads else ''}; its process ends")

    watchdog.stops_with(spec.connector.name, line.stop)
    try:
        with (
            watchdog.in_task(
                lambda message: tell("log", message),
                abandoned.end_process,
                lambda why: tell("waiting", why),
            ),
            memory.guarded(spec.connector.task_memory, end),
        ):
            task = spec.task(index, attempt, line)
            task.run()
        tell("stopped")
    except abandoned.TooManyAbandoned as error:
        tell("log", f"{error}; starting again in a new process")
        abandoned.end_process()
    except Fenced as error:
        if task is not None and (reason := task.false_fence_reason(error)):
            goes_on = "" if line.stop.is_set() else "; starting again"
            tell("log", f"was fenced, but {reason}{goes_on}")
            if not line.stop.wait(task.heartbeats):
                raise  # Spark starts it again, unless it has already done so
            tell("stopped")
            return
        tell("fenced", error=error)
    except SemelError as error:
        tell("failed", error=error)
    except Exception as error:
        log.exception("task %d", index)
        tell("failed", error=unexpected(spec.connector, index, error))


class Reporter:
    """Totals since the task started, reported at most every 0.2 s."""

    def __init__(self, line: ControlLine, index: int, attempt: int) -> None:
        self._line = line
        self._index = index
        self._attempt = attempt
        self._positions: dict[TopicPartition, int] = {}
        self._sent: Counter[str] = Counter()
        self._unplaced: Counter[tuple[str, str]] = Counter()
        self._records = self._rows = self._failed = self._commits = 0
        self._told = 0.0
        self._untold = False
        self._caught_up = False
        self.counter = CommitCounter()
        """Counts the task's commits."""

    def tell(self, message: str) -> None:
        """Write a line to the driver's log; the committer's thread calls this, too."""
        self._line.send(Report("log", self._index, self._attempt, pid=os.getpid(), message=message))

    def waits(self, why: str) -> None:
        """Report which service does not answer; an empty text once it does."""
        self._line.send(Report("waiting", self._index, self._attempt, os.getpid(), message=why))

    def assigned(self, positions: Mapping[TopicPartition, int]) -> None:
        """Report that the task now reads these partitions, from these positions."""
        self._positions = dict(positions)
        self.report("assigned")

    def given_up(self) -> None:
        """Report that the task has no partitions until the group assigns some."""
        self._positions = {}
        self.report("progress")

    def committed(self, batch: Batch) -> None:
        """Count a batch."""
        self._positions.update(batch.until)
        self._records += sum(a.read for a in batch.advances)
        self._rows += sum(a.written for a in batch.advances)
        self._failed += sum(a.failed for a in batch.advances)
        self._unplaced.update(sum_of(a.unplaced for a in batch.advances))
        self._commits += 1
        self._untold = True
        self.report_in_time()

    def sent(self, records: int, by_topic: Mapping[str, int], failed: int) -> None:
        """Count a commit of this many ``records``: how many were written, by topic, and how many
        were left out because they are bad."""
        self._sent.update(by_topic)
        self._records += records
        self._rows += sum(by_topic.values())
        self._failed += failed
        self._commits += 1
        self._untold = True
        self.report_in_time()

    def caught_up(self, is_so: bool) -> None:
        """Note whether nothing is left to read now, and everything is committed."""
        self._untold |= is_so and not self._caught_up
        self._caught_up = is_so

    def report_in_time(self) -> None:
        """Report what is new, unless that was done a moment ago."""
        if self._untold and time.monotonic() - self._told > _EVERY:
            self.report("progress")

    def report_rest(self) -> None:
        """Report what is new, before the task says how it has ended."""
        if self._untold:
            self.report("progress")

    def report(self, kind: str) -> None:
        """Report everything; see :class:`~semel.tasks.control.Report` for the kinds."""
        self._told = time.monotonic()
        self._untold = False
        self._line.send(
            Report(
                kind,
                self._index,
                self._attempt,
                pid=os.getpid(),
                host=socket.gethostname(),
                positions=dict(self._positions),
                sent=dict(self._sent),
                records=self._records,
                rows=self._rows,
                failed=self._failed,
                commits=self._commits,
                unplaced=dict(self._unplaced),
                deliveries=self.counter.totals,
                caught_up=self._caught_up,
            )
        )
