"""Many connectors in one process, on one Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.core.errors import ConfigError
from semel.driver.connector import Connector
from semel.driver.planning import AnyPlan, plan_any
from semel.driver.sharing import SharedSpark
from semel.driver.states import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semel.driver.base import Progress


class Runtime:
    """Runs connectors until it is closed. Use it in a ``with`` statement.

    Args:
        spark: the session to run in; otherwise the active one, or a new one that is made from the
            ``spark.*`` keys of the first connector and ends with the runtime.
        patience: seconds in which connectors finish what is in hand when the runtime closes.
    """

    def __init__(self, spark: SparkSession | None = None, *, patience: float = 60.0) -> None:
        self._patience = patience
        self._spark = SharedSpark(spark)
        self._connectors: dict[str, Connector] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def connectors(self) -> Mapping[str, Connector]:
        """The connectors by their names."""
        with self._lock:
            return dict(self._connectors)

    def begin(self, settings: Mapping[str, str], *, for_any: bool = True) -> None:
        """Start a local Spark's JVM with these ``spark.*`` settings, so that the first connector
        need not wait for it; without ``for_any``, one that suits only a connector of this
        configuration."""
        self._spark.begin(settings, for_any=for_any)

    def start(
        self,
        config: str | Path | Mapping[str, Any] | AnyPlan,
        transform: Callable[..., Any] | None = None,
        *,
        until_caught_up: bool = False,
        observe: Callable[[Progress], None] | None = None,
        initial_state: State = State.RUNNING,
        tasks: Collection[int] | None = None,
        moves: bool = False,
    ) -> Connector:
        """Add a connector, and start it unless its initial state is ``STOPPED`` (KIP-980). With
        ``tasks``, only these run here, and other processes run the rest; with ``moves``, it may
        have run in another process until now.

        Other arguments are those of :func:`semel.run`.

        Raises:
            ConfigError: the configuration cannot be run, or a connector of that name exists.
        """
        planned = config if isinstance(config, AnyPlan) else plan_any(config, transform)
        name = planned.connector.name
        with self._lock:
            if name in self._connectors:
                planned.close()
                raise ConfigError(f"connector {name} already exists")
            made = Connector(
                planned,
                self._spark,
                transform,
                until_caught_up=until_caught_up,
                observe=observe,
                initial_state=initial_state,
                tasks=tasks,
                moves=moves,
            )
            self._connectors[name] = made
        return made

    def remove(self, name: str) -> None:
        """Stop a connector, wait for its end and forget it. Its ledger and its group stay.

        Raises:
            KeyError: there is no connector of that name.
        """
        self.connectors[name].stop()
        with self._lock:
            self._connectors.pop(name, None)

    def close(self) -> None:
        """Stop all connectors after their current work, and the Spark that was started."""
        connectors = list(self.connectors.values())
        try:
            for connector in connectors:
                connector.stop(timeout=0)
            for connector in connectors:
                connector.wait(self._patience)
        finally:
            self._spark.end()
