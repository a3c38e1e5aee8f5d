"""The tasks of a run are started before anything is known of Kafka and the store: what they need
first is time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context

from pyspark import SparkContext

from semel import failpoints
from semel.abandoned import Started
from semel.config import ConnectorConfig
from semel.delivery import Guarantee
from semel.engine.control import ControlServer
from semel.engine.direct.task import DirectSpec
from semel.engine.lines import serving
from semel.engine.orders import Orders
from semel.engine.rowtransform import Transform
from semel.engine.supervisor import Supervisor

_FENCES = 10
"""So often in a row, a task may be fenced by an older process of it on another worker."""


class Launch:
    """Starts the tasks, in a thread of its own, while the run is being prepared; an error meanwhile
    ends them. ``spark`` waits for the Spark that they need. Use it in a ``with`` statement."""

    def __init__(
        self,
        connector: ConnectorConfig,
        guarantee: Guarantee,
        orders: Orders,
        spark: Callable[[], SparkContext],
        transform: Transform | None,
    ) -> None:
        self._connector = connector
        self._guarantee = guarantee
        self._spark = spark
        self.transform = transform
        self.supervisor = Supervisor(orders, spark, fences=_FENCES)
        self._lock = threading.Lock()
        self._cancelled = self._taken = False
        self._server: ControlServer | None = None
        what, context = f"starting tasks of connector {connector.name}", copy_context()
        self._started = Started(what, lambda: context.run(self._work))

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, error: type[BaseException] | None, *_details: object) -> None:
        if error is not None and not self._taken:
            self._cancel()

    def result(self) -> tuple[ControlServer, DirectSpec]:
        """Wait until the tasks have been started. From then on the caller ends them."""
        found = self._started.wait()
        self._taken = True
        return found

    def _cancel(self) -> None:
        """End the tasks. Does not wait for Spark if that has not started yet."""
        with self._lock:
            self._cancelled = True
            if self._server is not None:
                self.supervisor.give_up(self._server)
                self._server.close()

    def _work(self) -> tuple[ControlServer, DirectSpec]:
        context, connector = self._spark(), self._connector
        with self._lock:
            server, address = serving(context)
            spec = DirectSpec(
                connector=connector,
                control=address,
                environment=failpoints.environment(),
                guarantee=self._guarantee,
                transform=self.transform,
            )
            if self._cancelled:
                server.close()
            else:
                self._server = server
                self.supervisor.begin(server, spec, connector.tasks_max)
            return server, spec
