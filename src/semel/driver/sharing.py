"""The Spark that the connectors of a process share: started with the first of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from semel.driver.planning import AnyPlan
from semel.spark import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semel.spark.gateway import Jvm
    from semel.spark.session import Starting


class SharedSpark:
    """The user's own session, or one that ends with this object.

    Args:
        given: the session to use; otherwise the active one, or a new one that is made from the
            ``spark.*`` keys of the first connector.
    """

    def __init__(self, given: SparkSession | None = None) -> None:
        self._given = given
        self._lock = threading.Lock()
        self._starting: Starting[Any] | None = None
        self._jvm: Jvm | None = None

    def begin(self, raw: Mapping[str, str], *, for_any: bool) -> None:
        """Start what a connector of this configuration is likely to need, while it is planned; or,
        ``for_any`` connector, what suits all engines."""
        if self._given is None:
            self._jvm = launch.begin(raw, for_any=for_any)

    def of(self, planned: AnyPlan) -> Callable[[], Any]:
        """Spark for a connector's engine, started if necessary: call the result to
        wait for it. The micro-batch engine gets a session, the others a context, which starts
        sooner."""
        from semel.spark import session as spark

        with self._lock:
            if self._starting is None or self._starting.gone:
                self._starting = self._start(planned)
            starting = self._starting
        if planned.engine == "micro-batch":
            return lambda: spark.session_of(starting(), planned.connector)
        if planned.engine == "bounded":  # its jobs are short, and each worker keeps connections
            return lambda: spark.context_of(starting.with_worker())
        return lambda: spark.context_of(starting())

    def end(self) -> None:
        """Stop what was started here; nothing happens to the user's own."""
        with self._lock:
            starting, self._starting = self._starting, None
            jvm, self._jvm = self._jvm, None
        if starting is not None:
            starting.end()
        elif jvm is not None:
            jvm.end()

    def _start(self, planned: AnyPlan) -> Starting[Any]:
        from semel.spark import session as spark

        connector, given = planned.connector, self._given
        jvm, self._jvm = self._jvm, None
        if planned.engine == "micro-batch":
            return spark.Starting(
                lambda jvm: spark.micro_batch_session(connector, jvm),
                given or spark.active_session(),
                jvm,
            )
        return spark.Starting(
            lambda jvm: spark.context(connector, jvm=jvm),
            given.sparkContext if given is not None else spark.active_context(),
            jvm,
        )
