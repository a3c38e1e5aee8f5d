"""One of Spark's attempts at a long-running task, and how it reports its end to the driver."""

from __future__ import annotations

import gc
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from semel.config import CommonConfig
from semel.core import abandoned, watchdog
from semel.core.context import log_of_task
from semel.core.errors import Failure, Fenced, SemelError
from semel.spark.job_errors import unexpected
from semel.tasks import memory
from semel.tasks.control import Address, ControlLine, Report

log = logging.getLogger(__name__)

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
