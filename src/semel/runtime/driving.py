"""Carries out one plan of a connector, to its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semel import watchdog
from semel.abandoned import Started
from semel.config import CommonConfig, ConnectorConfig
from semel.context import CONNECTOR
from semel.engine.orders import Orders
from semel.errors import ConfigError, SemelError, ServiceError, TransientError
from semel.kafka.clients import client_config
from semel.kafka.contact import wait_for_brokers
from semel.planning import AnyPlan, Plan, SourcePlan
from semel.sinks.staging import StagingSink

if TYPE_CHECKING:
    from semel.engine.base import Progress, Run
    from semel.kafka.cluster import Cluster
    from semel.kafka.groups import Groups

log = logging.getLogger(__name__)

LEAVE = 25.0
"""Seconds after a stop until work that does not end is abandoned: the engines cancel it after 20,
and Kubernetes kills the process after 30."""
_GAP, _CALM = 0.1, 10.0
"""Seconds between checks of the run: the least and, without news, the most."""
_AT_ONCE = 0.25
"""Seconds within which a cluster that can be reached answers."""


def check_runnable(planned: AnyPlan, transform: Callable[..., Any] | None) -> None:
    """Raises ConfigError: the sink commits on the driver, and the engine in tasks."""
    if isinstance(planned, SourcePlan):
        return
    connector = planned.connector
    lake = isinstance(planned.sink, StagingSink)
    if planned.engine == "micro-batch" and lake and transform is None:
        raise ConfigError(
            f"connector {connector.name}: engine=micro-batch without a transform commits in tasks, "
            f"but connector.class={connector.connector_class} commits on the driver. Remove engine"
        )


def drive(
    planned: AnyPlan,
    spark: Callable[[], Any],
    transform: Callable[..., Any] | None,
    orders: Orders,
) -> Progress:
    """Run a connector to its end. It runs in a thread of its own, so whatever it waits for there,
    such as a silent store, does not hold up a stop.

    Args:
        spark: waits for the Spark that the engine needs: a session for the micro-batch engine, a
            context for the others.

    Raises:
        semel.errors.SemelError: what ended the connector; see the error's class.
    """
    from semel.engine.base import Progress

    news = threading.Event()
    latest = _Latest(news, orders.observe)
    run = replace(orders, observe=latest.note)
    what = f"running connector {planned.connector.name}"
    work = Started(what, lambda: _work(planned, spark, transform, run), then=news.set)
    with orders.notifier.subscribed(news.set), orders.notifier.notified_by(orders.stop):
        try:
            _wait(work, orders.stop, latest)
        except BaseException:  # Ctrl-C, or an observer that fails
            orders.stop.set()
            _wait(work, orders.stop, _Latest(news))
            raise
    if not work.ended(0):
        work.abandon()
        log.warning(
            "connector %s: its current work does not finish%s. A commit happens as a whole or "
            "not at all; the next start sees in the ledger whether this one did",
            planned.connector.name,
            "".join(f"; {wait}" for wait in watchdog.waits()[:1]),
        )
        return latest.progress or Progress()
    return work.result()


def introduce(planned: AnyPlan) -> None:
    """Log the guarantee, the engine and the warnings of a connector that starts."""
    name = planned.connector.name
    for warning in planned.warnings:
        log.warning("connector %s: %s", name, warning)
    log.info(
        "connector %s: %s, %s engine: %s",
        name,
        planned.guarantee,
        planned.engine,
        planned.guarantee.why,
    )


class _Latest:
    """The totals that a run reported last, copied because it keeps counting. ``news`` is set with
    each report, and may be set by others."""

    def __init__(
        self,
        news: threading.Event,
        observe: Callable[[Progress], None] = lambda _progress: None,
    ) -> None:
        self.news = news
        self._observe = observe
        self.progress: Progress | None = None

    def note(self, progress: Progress) -> None:
        if progress == self.progress:
            return
        self.progress = replace(
            progress,
            positions=dict(progress.positions),
            tasks=dict(progress.tasks),
            states=dict(progress.states),
            errors=dict(progress.errors),
        )
        self.news.set()

    def show(self) -> None:
        if self.progress is not None:
            self._observe(self.progress)


def _wait(work: Started[Progress], stop: threading.Event, latest: _Latest) -> None:
    """Wait for the end, but not for long once it was asked to stop."""
    asked: float | None = None
    while not work.ended(_GAP):
        latest.news.wait(_CALM if asked is None else _GAP)
        latest.news.clear()
        latest.show()
        now = time.monotonic()
        if asked is None:
            asked = now if stop.is_set() else None
        elif now - asked > LEAVE:
            break
    latest.show()


def _work(
    planned: AnyPlan,
    spark: Callable[[], Any],
    transform: Callable[..., Any] | None,
    orders: Orders,
) -> Progress:
    connector = planned.connector
    CONNECTOR.set(connector.name)
    watchdog.stops_with(connector.name, orders.stop)
    try:
        if isinstance(planned, SourcePlan):
            return _run_source(planned, spark, orders)
        run = _prepared(planned, orders)
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
        planned.close()


def _prepared(planned: Plan, orders: Orders) -> Run:
    """A run, once Kafka and the store have been reached."""
    cluster, topics, groups = _met(planned)

    from semel.engine.base import Run

    connector, guarantee, sink = planned.connector, planned.guarantee, planned.sink
    return Run(connector, guarantee, sink, cluster, topics, orders, groups)


def _run_source(planned: SourcePlan, spark: Callable[[], Any], orders: Orders) -> Progress:
    from semel.engine.source.engine import SourceEngine, SourceRun

    cluster = _cluster(planned.connector)
    _reached(planned.source.check, planned.source.address)
    run = SourceRun(planned.connector, planned.guarantee, planned.source, cluster, orders)
    return SourceEngine(run, spark).run()


def _cluster(connector: CommonConfig) -> Cluster:
    """The cluster, once it has answered."""
    from semel.kafka.cluster import Cluster

    client = client_config(connector, "admin")
    wait_for_brokers(client, say=lambda line: log.warning("connector %s: %s", connector.name, line))
    return Cluster(client)


def _met(planned: Plan) -> tuple[Cluster, dict[str, int], Groups | None]:
    """The cluster, and the topics with their targets prepared: mistakes about Kafka or the store
    are reported while Spark starts, so nothing remains to be done when it is up."""
    from semel.kafka.groups import Groups
    from semel.sinks import protocols

    connector, sink, context = planned.connector, planned.sink, copy_context()
    unwanted = threading.Event()
    store = Started(
        f"connecting {connector.name} to its store",
        lambda: context.run(protocols.connect_early, sink),
        then=lambda: sink.close() if unwanted.is_set() else None,
    )
    try:
        cluster, topics = _topics(connector)
        groups = None
        if not sink.capabilities.ledger_in_group:
            groups = Groups(cluster.config)
            groups.find_coordinator(connector.group_id)
    except BaseException:  # a silent store must not hold up the error
        unwanted.set()
        if not store.ended(0):
            store.abandon()
        raise
    _reached(store.wait, sink.address)
    _reached(lambda: sink.prepare(topics), sink.address)
    return cluster, topics, groups


def _topics(connector: ConnectorConfig) -> tuple[Cluster, dict[str, int]]:
    """The cluster, and the partitions of each topic."""
    from semel.kafka.cluster import Cluster

    try:  # most clusters answer at once; then one client and one request are enough
        cluster = Cluster(client_config(connector, "admin"))
        return cluster, cluster.matching(connector, _AT_ONCE)
    except (ServiceError, TransientError):
        cluster = _cluster(connector)
        return cluster, cluster.matching(connector)


def _reached(meets: Callable[[], None], key: str) -> None:
    """Contact a store. Raises ServiceError: it cannot be reached; names the key of its address."""
    try:
        meets()
    except TransientError as error:
        if not key or key in str(error):
            raise
        text = str(error)
        stop = "" if text.endswith(("?", ".")) else "."  # libpq asks whether the server runs
        raise ServiceError(f"{text}{stop} Check {key}, and that the store runs") from None
