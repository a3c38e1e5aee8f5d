"""What a Python worker process keeps from one Spark job to the next, because connecting again would
cost more than a small job takes."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from semel import sinks
from semel.config import ConnectorConfig
from semel.core import abandoned, watchdog
from semel.core.context import log_of_task
from semel.tasks import memory
from semel.tasks.batch import Batcher
from semel.tasks.control import Address, ControlLine, Report
from semel.tasks.pipeline import Pipeline
from semel.tasks.transform import Transform

log = logging.getLogger(__name__)

_REACHED = 10.0
"""Seconds within which to reach the driver: a firewall may swallow the attempt."""
_KEPT = 4
"""A process keeps the workers of this many runs; the least recently used is dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The facts of a run; they travel in the closure of each job.

    ``schemas`` are the value fields that the driver knows; ``version`` changes with them.
    ``control`` is where the driver hears what a worker has to say.
    """

    run: str
    connector: ConnectorConfig
    environment: Mapping[str, str]
    version: int = 0
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    control: Address | None = None


def new_run() -> str:
    """A new name for a run, for which worker processes keep nothing yet."""
    return uuid.uuid4().hex[:12]


class RunWorker:
    """What a worker process keeps for a run whose tasks stage or commit: a sink, and what makes
    batches for it. The other arguments are those of :class:`~semel.tasks.pipeline.Pipeline`."""

    def __init__(
        self, spec: Spec, *, transform: Transform | None = None, frames: bool = False
    ) -> None:
        self.spec = spec
        self.sink = sink = sinks.create(spec.connector)
        self._new_pipeline = partial(
            Pipeline, spec.connector, sink, target=sink.schema, transform=transform, frames=frames
        )
        self.batcher = self._new_batcher()

    def renew(self, spec: Spec) -> None:
        """Take the driver's newer schemas."""
        if spec.version != self.spec.version:
            self.spec = spec
            self.batcher = self._new_batcher()

    def close(self) -> None:
        self.sink.close()

    def _new_batcher(self) -> Batcher:
        return Batcher(self.spec.connector, self._new_pipeline(schemas=self.spec.schemas))


class _Worker(Protocol):
    def renew(self, spec: Any, /) -> None: ...

    def close(self) -> None: ...


W = TypeVar("W", bound=_Worker)


class Workers(Generic[W]):
    """Keeps one worker for each of the latest runs."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[W, ControlLine | None]] = {}

    @contextmanager
    def at_work(self, spec: Spec, task: int, make: Callable[[], W]) -> Iterator[W]:
        """The worker of a run, updated with what the driver sent last; created if there is none
        yet. Meanwhile the driver is told about calls that get no answer.

        A process in which too many calls wait forever ends itself first, and so does one whose
        call cannot be ended. The job fails, and runs again in a new process.
        """
        log_of_task(spec.connector.name, task)
        try:
            abandoned.check()
        except abandoned.TooManyAbandoned as error:
            log.warning("%s; ending this process", error)
            abandoned.end_process()
        kept = self._kept.pop(spec.run, None)
        if kept is None:
            os.environ.update(spec.environment)
            memory.limit_caches()
            kept = _made(spec, task, make)
        worker, line = kept
        try:
            worker.renew(spec)
        except BaseException:
            _close(worker, line)
            raise
        self._kept[spec.run] = kept
        while len(self._kept) > _KEPT:
            _close(*self._kept.pop(next(iter(self._kept))))
        if line is None:
            yield worker
            return
        line.send(_report("working", task))

        def log_there(message: str) -> None:
            line.send(Report("log", task, 0, message=message))

        def end(used: str) -> None:
            log_there(f"{used}; its process ends")

        try:
            with (
                watchdog.in_task(log_there, abandoned.end_process),
                memory.guarded(spec.connector.task_memory, end),
            ):
                yield worker
        finally:
            line.send(_report("idle", task))


def _made(spec: Spec, task: int, make: Callable[[], W]) -> tuple[W, ControlLine | None]:
    """A worker, and its line to the driver, which comes first: connecting may take long."""
    line = _line(spec, task)
    if line is not None:
        line.send(_report("working", task))
    try:
        return make(), line
    except BaseException:
        if line is not None:
            line.close()
        raise


def _close(worker: _Worker, line: ControlLine | None) -> None:
    try:
        worker.close()
    finally:
        if line is not None:
            line.close()


def _report(kind: str, task: int) -> Report:
    return Report(kind, task, 0, os.getpid(), socket.gethostname())


def _line(spec: Spec, task: int) -> ControlLine | None:
    """A connection to the driver, if it can be reached; nothing that is stored depends on it."""
    if spec.control is None:
        return None
    try:
        line = abandoned.within(_REACHED, "reaching the driver", partial(ControlLine, spec.control))
    except (abandoned.Abandoned, OSError, EOFError) as error:
        log.warning("the driver cannot be told about calls that get no answer: %s", error)
        return None
    watchdog.stops_with(spec.connector.name, line.stop)
    line.beat(_report("alive", task))
    return line
