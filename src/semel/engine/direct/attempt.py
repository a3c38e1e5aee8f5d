"""One attempt of Spark's at a task of the direct engine, and how its end is told to the driver."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time

from semel import watchdog
from semel.engine import memory
from semel.engine.base import unexpected
from semel.engine.control import ControlLine, Report
from semel.engine.direct.task import Task, TaskSpec, TooManyLeft
from semel.engine.failure import Failure
from semel.errors import Fenced, SemelError

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds before Spark hears of a lost line: it starts the task again at once, also while it ends
itself because its driver has died."""


def run_task(spec: TaskSpec, index: int, attempt: int) -> None:
    """Run one task to its end.

    Errors that end the connector are told to the driver, not raised: Spark would only try again. So
    is an error that nobody expected: it would most likely come again too. A task whose fence proves
    nothing is started again, unless another task of this run is fenced meanwhile without that
    excuse: then another run is at work, and must not be fenced in turn.

    Raises:
        Fenced: the fence proves nothing.
        ConnectionError: there is no line to the driver. If it lives, Spark starts the task again.
    """
    os.environ.update(spec.environment)
    memory.limit_caches()
    # Automatic collections walk over all messages of a poll again and again, for nearly half the
    # time it takes to consume them, and find nothing: the task collects between commits instead.
    gc.freeze()
    gc.disable()
    try:
        line = ControlLine(spec.control)
        try:
            _run(spec, index, attempt, line)
            lost = "it has hung up" if line.orphaned else ""
        finally:
            line.close()
    except (OSError, EOFError) as error:
        lost = str(error) or "it hangs up"
    finally:
        gc.unfreeze()  # Spark may use this worker again
        gc.enable()
    if lost:
        time.sleep(_PAUSE)
        where = f"{spec.control.host}:{spec.control.port}"
        raise ConnectionError(f"task {index} has no line to its driver at {where}: {lost}")


def _end_process() -> None:
    """Spark starts the task again, in a new process."""
    os.kill(os.getpid(), signal.SIGKILL)


def _run(spec: TaskSpec, index: int, attempt: int, line: ControlLine) -> None:
    def tell(kind: str, message: str = "", error: SemelError | None = None) -> None:
        failure = Failure.of(error) if error is not None else None
        line.send(Report(kind, index, attempt, os.getpid(), message=message, failure=failure))

    task = None
    watchdog.stops_with(spec.connector.name, line.stop)
    try:
        with watchdog.in_task(lambda message: tell("log", message), _end_process):
            task = Task(spec, index, attempt, line)
            task.run()
        tell("stopped")
    except TooManyLeft as error:
        tell("log", f"{error}; starts again in a new process")
        _end_process()
    except Fenced as error:
        if task is not None and (excuse := task.excuse(error)):
            tell("log", f"was fenced, but {excuse}; starts again")
            if not line.stop.wait(task.heartbeats):
                raise  # Spark starts it again, unless it has done so already
            tell("stopped")
            return
        tell("fenced", error=error)
    except SemelError as error:
        tell("failed", error=error)
    except Exception as error:
        log.exception("task %d", index)
        tell("failed", error=unexpected(spec.connector, index, error))
