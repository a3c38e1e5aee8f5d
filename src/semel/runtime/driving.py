"""One run of a connector, from its plan to its end."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel import watchdog
from semel.errors import ConfigError, SemelError, ServiceError, TransientError
from semel.kafka.clients import client_config
from semel.kafka.contact import meet
from semel.plan import Plan
from semel.sinks.staging import StagingSink

if TYPE_CHECKING:
    from semel.engine.base import Progress
    from semel.kafka.cluster import Cluster

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """What is wanted of a run.

    ``stop`` ends it after the batch in hand, ``paused`` keeps it from reading, ``restarts`` holds
    the numbers of tasks to start anew: all three may change while it runs. ``until_caught_up`` ends
    it when what Kafka held at the start is committed; with ``keeps_going`` a task that fails leaves
    the others running. ``observe`` is called with the totals several times a second.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    restarts: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    until_caught_up: bool = False
    keeps_going: bool = False
    observe: Callable[[Progress], None] = lambda _progress: None

    def observed_by(self, observe: Callable[[Progress], None]) -> Orders:
        """The same orders, with another observer."""
        return replace(self, observe=observe)


def check_runnable(planned: Plan, transform: Callable[..., Any] | None) -> None:
    """Raises ConfigError: the sink commits on the driver, and the engine in tasks."""
    connector = planned.connector
    lake = isinstance(planned.sink, StagingSink)
    if planned.engine == "micro-batch" and lake and transform is None:
        raise ConfigError(
            f"connector {connector.name}: engine=micro-batch without a transform commits in tasks, "
            f"but connector.class={connector.connector_class} commits on the driver. Remove engine"
        )


def drive(
    planned: Plan,
    spark: Callable[[], Any],
    transform: Callable[..., Any] | None,
    orders: Orders,
) -> Progress:
    """Run a connector to its end, in the caller's thread.

    Args:
        spark: waits for the Spark that the engine needs: a session for the micro-batch engine, a
            context for the others.

    Raises:
        semel.errors.SemelError: what ended the connector; see the error's class.
    """
    connector = planned.connector
    watchdog.stops_with(connector.name, orders.stop)
    try:
        cluster, topics = _met(planned)

        from semel.engine.base import Run

        run = Run(
            connector,
            planned.guarantee,
            planned.sink,
            cluster,
            topics,
            orders.stop,
            orders.until_caught_up,
            orders.observe,
            orders.paused,
            orders.restarts,
            orders.keeps_going,
        )
        if planned.engine == "micro-batch":
            from semel.engine.microbatch.engine import MicroBatchEngine

            return MicroBatchEngine(run, spark, transform).run()
        if planned.engine == "bounded":
            from semel.engine.bounded.engine import BoundedEngine

            return BoundedEngine(run, spark, transform).run()
        from semel.engine.direct.engine import DirectEngine

        return DirectEngine(run, spark, transform).run()
    except TransientError as error:
        raise ServiceError(str(error)) from None
    except SemelError:
        raise
    except Exception as error:
        log.exception("connector %s", connector.name)
        raise SemelError(
            f"connector {connector.name} failed unexpectedly: {type(error).__name__}: {error}"
        ) from error
    finally:
        planned.sink.close()


def _met(planned: Plan) -> tuple[Cluster, dict[str, int]]:
    """The cluster, and the topics with their targets prepared: what is wrong with Kafka or with the
    store is told while Spark starts, and Spark finds nothing left to wait for."""
    from semel.kafka.cluster import Cluster

    connector = planned.connector
    client = client_config(connector, "admin")
    meet(client, say=lambda line: log.warning("connector %s: %s", connector.name, line))
    cluster = Cluster(client)
    topics = cluster.matching(connector)
    planned.sink.prepare(topics)
    return cluster, topics
