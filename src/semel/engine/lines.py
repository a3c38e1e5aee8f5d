"""Connections between a driver that commits and the worker processes of its Spark jobs.

Workers write to the driver's log, for example which store does not answer, and learn that the run
must stop. Nothing else is exchanged.
"""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING

from semel.engine.control import Address, ControlServer, Report

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)


def serving(context: SparkContext) -> tuple[ControlServer, Address]:
    """A server on this driver, and the address that the tasks of this Spark reach it by."""
    if str(context.master).startswith("local"):
        server = ControlServer("127.0.0.1")
        return server, server.address("127.0.0.1")
    server = ControlServer("0.0.0.0")
    return server, server.address(context.getConf().get("spark.driver.host", "") or "127.0.0.1")


class Lines:
    """The driver's end for one run. It listens once the first job needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ControlServer | None = None
        self._address: Address | None = None
        self._stopping = False
        self._context = copy_context()

    def address(self, context: SparkContext) -> Address:
        """Where this run's workers find the driver."""
        with self._lock:
            if self._address is None:
                self._server, self._address = serving(context)
                self._server.hear = self._log
                if self._stopping:
                    self._server.stop_tasks()
            return self._address

    def stop(self) -> None:
        """The run was asked to stop: calls to a store that does not answer end soon."""
        with self._lock:
            if self._server is not None and not self._stopping:
                self._server.stop_tasks()
            self._stopping = True

    def close(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.close()

    def _log(self, report: Report) -> None:
        """Called in a thread for each worker; sets the thread's connector."""
        about = {"task": report.task}
        line = ("task %d: %s", report.task, report.message)
        self._context.copy().run(lambda: log.warning(*line, extra=about))
