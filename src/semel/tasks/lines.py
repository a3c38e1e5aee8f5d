"""Connections between a driver that commits and the worker processes of its Spark jobs.

Workers write to the driver's log, for example which store does not answer, give signs of life, and
learn that the run must stop. Nothing else is exchanged.
"""

from __future__ import annotations

import logging
import threading
import time
from contextvars import copy_context
from typing import TYPE_CHECKING

from semel.tasks.control import FROZEN, STANDS_STILL, Address, ControlServer, Process, Report

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)


def serving(context: SparkContext) -> tuple[ControlServer, Address]:
    """A server on this driver, and the address that the tasks of this Spark reach it by."""
    if str(context.master).startswith("local"):
        server = ControlServer("127.0.0.1")
        return server, server.address("127.0.0.1")
    conf = context.getConf()
    host = conf.get("spark.driver.host", "") or "127.0.0.1"
    server = ControlServer(conf.get("spark.driver.bindAddress", "") or host)
    return server, server.address(host)


class Lines:
    """The driver's end for one run. It listens once the first job needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ControlServer | None = None
        self._address: Address | None = None
        self._stopping = False
        self._context = copy_context()
        self._silence: dict[Process, float] = {}
        """For how many seconds each process that is at work has not reported."""
        self._looked = 0.0

    def address(self, context: SparkContext) -> Address:
        """Where this run's workers find the driver."""
        with self._lock:
            if self._address is None:
                self._server, self._address = serving(context)
                self._server.hear = self._hear
                if self._stopping:
                    self._server.stop_tasks()
            return self._address

    def stop(self) -> None:
        """The run was asked to stop: calls to a store that does not answer end soon."""
        with self._lock:
            if self._server is not None and not self._stopping:
                self._server.stop_tasks()
            self._stopping = True

    def frozen(self) -> str:
        """Name a process that is at work and has not reported for 2 minutes; empty if there is
        none. To be called several times a second while a job runs. Time in which the driver itself
        stood still does not count."""
        now = time.monotonic()
        with self._lock:
            passed, self._looked = min(now - self._looked, STANDS_STILL), now
            there = self._server.processes() if self._server is not None else set()
            before = {process: s for process, s in self._silence.items() if process in there}
            self._silence = {process: seconds + passed for process, seconds in before.items()}
            silent = [process for process, seconds in self._silence.items() if seconds > FROZEN]
            self._silence |= dict.fromkeys(silent, 0.0)
        return f"process {silent[0][1]} on {silent[0][0]}" if silent else ""

    def begin(self) -> None:
        """A job begins: no process is at work yet."""
        with self._lock:
            self._silence, self._looked = {}, time.monotonic()

    def close(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.close()

    def _hear(self, report: Report) -> None:
        """Called in a thread for each worker; sets the thread's connector."""
        process = report.host, report.pid
        with self._lock:
            if report.kind == "working" or process in self._silence:
                self._silence[process] = 0.0
            if report.kind == "idle":
                self._silence.pop(process, None)
        if report.kind != "log":
            return
        about = {"task": report.task}
        line = ("task %d: %s", report.task, report.message)
        self._context.copy().run(lambda: log.warning(*line, extra=about))
