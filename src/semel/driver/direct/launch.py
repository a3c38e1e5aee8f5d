"""Starting the tasks of a run while it is being prepared."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark import SparkContext

from semel.core import failpoints
from semel.core.abandoned import BackgroundCall
from semel.core.context import RUN
from semel.driver.base import Run
from semel.driver.supervisor import Supervisor
from semel.tasks.control import ControlServer
from semel.tasks.direct.task import DirectSpec
from semel.tasks.lines import serving
from semel.tasks.rowtransform import Transform


class Launch:
    """Starts the tasks, in a thread of its own, while the run is being prepared; an error meanwhile
    ends them. Use it in a ``with`` statement."""

    def __init__(
        self,
        run: Run,
        spark: Callable[[], SparkContext],
        transform: Transform | None,
        supervisor: Supervisor,
        name: str,
    ) -> None:
        self._run = run
        self._name = name
        self._spark = spark
        self._transform = transform
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._cancelled = False
        self._server: ControlServer | None = None
        self._started = BackgroundCall(
            f"starting tasks of connector {run.connector.name}", self._work
        )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, error: type[BaseException] | None, *_details: object) -> None:
        if error is not None:
            self._cancel()

    def result(self) -> tuple[ControlServer, DirectSpec]:
        """Wait until the tasks have been started."""
        return self._started.wait()

    def _cancel(self) -> None:
        """End the tasks. Does not wait for Spark if that has not started yet."""
        with self._lock:
            self._cancelled = True
            if self._server is not None:
                self._supervisor.give_up(self._server)
                self._server.close()

    def _work(self) -> tuple[ControlServer, DirectSpec]:
        context, run = self._spark(), self._run
        with self._lock:
            server, address = serving(context)
            spec = DirectSpec(
                connector=run.connector,
                control=address,
                environment={**failpoints.environment(), RUN: self._name},
                guarantee=run.guarantee,
                transform=self._transform,
            )
            if self._cancelled:
                server.close()
            else:
                self._server = server
                self._supervisor.begin(server, spec, run.connector.tasks_max)
            return server, spec
