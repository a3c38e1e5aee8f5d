"""The Spark job of a trigger: it runs the tasks and returns their results to the driver."""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from pyspark import SparkContext

from semel.core.errors import TransientError
from semel.core.ledger import LogId, OffsetRange
from semel.driver.base import Stopped
from semel.spark.job_errors import first_error, not_shipped, spark_gone
from semel.tasks.bounded import BoundedSpec, TaskResult, run_task
from semel.tasks.control import FROZEN
from semel.tasks.lines import Lines

log = logging.getLogger(__name__)

SETTLE = 20.0
"""Seconds for a job to end once the run was asked to stop."""
_LOOK = 0.2


class Jobs:
    """The jobs of one run, one at a time.

    ``look`` is called several times a second while a job is waited for; it returns whether the run
    was asked to stop.
    """

    def __init__(
        self, connector: str, spark: Callable[[], SparkContext], look: Callable[[], bool]
    ) -> None:
        self._connector = connector
        self._spark = spark
        self._look = look
        self._lines = Lines()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semel-job")

    def close(self) -> None:
        self._lines.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def results(
        self,
        spec: BoundedSpec,
        parts: Sequence[Sequence[OffsetRange]],
        logs: Sequence[Mapping[str, LogId]],
    ) -> list[TaskResult]:
        """Run a job whose task ``i`` stages ``parts[i]``, which are of ``logs[i]``.

        Raises:
            TransientError: the job has failed as a whole.
            Stopped: the job does not end although the run was asked to stop.
        """
        self._lines.begin()
        return self._watched(self._thread.submit(self._run, spec, parts, logs), spec)

    def _watched(self, future: Future[list[TaskResult]], spec: BoundedSpec) -> list[TaskResult]:
        """Wait for a job. Cancel it if one of its processes is frozen, so that Spark ends the
        process, or if the job does not end soon after a stop."""
        asked: float | None = None
        frozen = ""
        while not wait([future], timeout=_LOOK).done:
            stopping, now = self._look(), time.monotonic()
            if found := self._lines.frozen():
                frozen = found
                self._cancel(spec)
            if asked is None:
                if stopping:
                    asked = now
                    self._lines.stop()
            elif now - asked > 2 * SETTLE:
                log.warning("connector %s: its Spark job does not end", self._connector)
                raise Stopped
            elif now - asked > SETTLE:
                self._cancel(spec)
        try:
            return future.result()
        except TransientError:
            if not frozen:
                raise
            raise TransientError(
                f"connector {self._connector}: {frozen} has not reported for {FROZEN:.0f} s, and "
                "was ended"
            ) from None

    def _cancel(self, spec: BoundedSpec) -> None:
        with contextlib.suppress(Exception):  # Spark may have stopped
            self._spark().cancelJobGroup(_group(spec))

    def _run(
        self,
        spec: BoundedSpec,
        parts: Sequence[Sequence[OffsetRange]],
        logs: Sequence[Mapping[str, LogId]],
    ) -> list[TaskResult]:
        context = self._spark()
        try:
            told = replace(spec, control=self._lines.address(context))

            def body(index: int, _rows: Iterable[int]) -> Iterator[bytes]:
                yield pickle.dumps(run_task(told, index, parts[index], logs[index]))

            context.setJobGroup(_group(spec), f"connector {self._connector}", True)
            job = context.parallelize(range(len(parts)), len(parts))
            answers: list[Any] = job.mapPartitionsWithIndex(body).collect()
        except Exception as error:
            text = str(error)
            missing = not_shipped(spec.connector, text)
            if missing is not None:
                raise missing from None
            gone = spark_gone(spec.connector, error)
            if gone is not None:
                raise gone from None
            log.debug("the job failed: %s", text)
            raise TransientError(
                f"connector {self._connector}: the Spark job failed: {first_error(text)}"
            ) from None
        return [pickle.loads(answer) for answer in answers]


def _group(spec: BoundedSpec) -> str:
    return f"semel-{spec.run}"
