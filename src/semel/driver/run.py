"""A run of a connector, to its end.

It waits for the previous run, reaches Kafka and the store, runs the engine, and starts over where
needed.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from semel.config import CommonConfig, ConnectorConfig
from semel.core import watchdog
from semel.core.abandoned import BackgroundCall
from semel.core.context import CONNECTOR
from semel.core.errors import (
    LedgerConflict,
    SemelError,
    ServiceError,
    TopicMissing,
    TransientError,
    about,
)
from semel.core.redact import redacted
from semel.driver.base import (
    MOST_FENCES,
    FencesInARow,
    Progress,
    Run,
    RunControl,
    State,
    Status,
    Wait,
    WaitKind,
    waiting,
)
from semel.driver.planning import AnyPlan, Plan, SourcePlan, plan_any
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster, wait_for_brokers
from semel.spark import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semel.driver.source import SourceRun
    from semel.spark.gateway import Jvm
    from semel.spark.session import SparkStart
    from semel.streams.topology import Topology

log = logging.getLogger(__name__)

LEAVE = 25.0
"""Seconds after a stop until work that does not end is abandoned: the engines cancel it after 20,
and Kubernetes kills the process after 30."""
_GAP, _CALM = 0.1, 10.0
"""Seconds between checks of the run: the least and, without news, the most."""
_AT_ONCE = 0.25
"""Seconds within which a cluster that can be reached answers."""
_FORMER_ENDS_IN = LEAVE + 5.0
"""Seconds that a run waits for the previous one, which abandons what does not end."""
_FIRST_WORD = 2.0
_LOOK = 0.1
_LOOKS = 3.0
_ANSWERS = 5.0


@dataclass(slots=True)
class Tally:
    """How often a connector was started, has failed, and was fenced by another run of it, whether
    or not it has survived that."""

    starts: int = 0
    failures: int = 0
    fences: int = 0


class ConnectorRun:
    """A run of a connector. It begins once the one before has ended."""

    def __init__(
        self,
        planned: AnyPlan,
        spark: SharedSpark,
        transform: Callable[..., Any] | None,
        run_control: RunControl,
        tally: Tally,
        before: ConnectorRun | None,
    ) -> None:
        self.run_control = run_control
        self.progress: Progress | None = None
        self.moved = time.time()
        """When it last counted a record, or began, in seconds since 1970."""
        self.error: BaseException | None = None
        self.trace = ""
        self._tally = tally
        self._before = before
        self._planned = planned
        self._spark = spark
        self._transform = transform
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def join(self, timeout: float | None) -> bool:
        """Wait for its end; returns whether it has ended. Its own thread, as in an observer, does
        not wait: it would wait for itself."""
        if self._thread is threading.current_thread():
            return not self.alive
        return self._ended.wait(timeout)

    def begin(self) -> None:
        """Run in a thread of its own. What ends it is logged."""
        name = self._planned.connector.name

        def work() -> None:
            CONNECTOR.set(name)
            try:
                self._work()
            except SemelError as error:
                log.error("%s", about(name, error))
            except Exception:
                log.exception("connector %s", name)
            finally:
                self._ended.set()

        self._thread = threading.Thread(target=work, daemon=True, name=f"semel-{name}")
        try:
            self._thread.start()
        except BaseException:  # no more threads
            self._planned.close()
            self._ended.set()
            raise

    def run(self) -> Progress:
        """Run in this thread; returns the totals.

        Raises:
            semel.core.errors.SemelError: what ended it.
            BaseException: what its observer raised, or a signal's handler.
        """
        self._thread = threading.current_thread()
        try:
            return self._work()
        finally:
            self._ended.set()

    def _work(self) -> Progress:
        observe = self.run_control.observe
        fences = records = 0

        def note(progress: Progress) -> None:  # engines go on counting in the same object
            nonlocal fences, records
            self._tally.fences += progress.fences - fences
            if progress.records != records:
                self.moved = time.time()
            fences, records = progress.fences, progress.records
            self.progress = progress
            observe(progress)

        is_next = False
        try:
            if is_next := self._is_next(self._planned.connector.name):
                self._drive(self.run_control.observed_by(note))
            return self.progress or Progress()
        except BaseException as error:
            self.trace = redacted(_trace(error))
            self.error = error
            self._tally.failures += 1
            self._tally.fences += isinstance(error, LedgerConflict)
            raise
        finally:
            if not is_next:
                self._planned.close()

    def _drive(self, run_control: RunControl) -> None:
        """Run the connector to its end. In a cluster, begin again after a fence, which may come
        from an older process; where tasks do so one by one, the engine sees to it.

        Raises:
            SemelError: what ended it.
        """
        planned = self._planned
        direct = planned.engine == "direct"
        begins_again = (
            run_control.assignment.moves and run_control.assignment.is_whole and not direct
        )
        fenced, shown = FencesInARow(), None
        while True:
            began = time.monotonic()
            try:
                self.progress = drive(
                    planned, self._spark.of(planned), self._transform, run_control
                )
                return
            except LedgerConflict as error:
                last = self.progress
                worked = last is not None and last is not shown and last.records
                pause = fenced.one_more(time.monotonic() - began if worked else 0.0)
                if not begins_again or fenced.count > MOST_FENCES:
                    raise
                self._tally.fences += 1
                log.warning(
                    "connector %s was fenced, perhaps by an older process on another worker; "
                    "starting it again (%d of %d): %s",
                    *(planned.connector.name, fenced.count, MOST_FENCES, error),
                )
                shown = self._shown_restarting(run_control, error)
            except TopicMissing:
                if not run_control.keeps_going or isinstance(planned, SourcePlan):
                    raise
                wait_for_topics(planned, run_control)
                pause = 0.0
            woken = threading.Event()
            with (
                run_control.notifier.subscribed(woken.set),
                run_control.notifier.notified_by(run_control.stop),
            ):
                if run_control.restarts.empty():
                    woken.wait(pause)
            if run_control.stop.is_set():
                return
            run_control.drop_restarts()
            planned = plan_any(planned.connector.originals, self._transform)

    def _shown_restarting(self, run_control: RunControl, why: SemelError) -> Progress | None:
        """Show that all tasks begin again, until the next run has something to tell."""
        if (last := self.progress) is not None:
            status = Status(State.RESTARTING, redacted(str(why)))
            run_control.observe(replace(last, states=dict.fromkeys(last.states, status)))
        return self.progress

    def _is_next(self, connector: str) -> bool:
        """Wait until earlier runs have ended; returns whether they have, because this run may be
        stopped meanwhile.

        Raises:
            ServiceError: one does not end.
        """
        began, has_warned = time.monotonic(), False
        while (former := self._former()) is not None and not self.run_control.stop.is_set():
            waited = time.monotonic() - began
            waits = "".join(f" ({wait})" for wait in watchdog.waits()[:1])
            if waited > _FIRST_WORD and not has_warned:
                has_warned = True
                log.warning("connector %s waits until its previous run ends%s", connector, waits)
            if waited > _FORMER_ENDS_IN:
                raise ServiceError(
                    f"connector {connector}: its previous run has not ended within "
                    f"{_FORMER_ENDS_IN:.0f} s{waits}; two would conflict. Restart the connector "
                    "later, or this process"
                )
            former.join(_LOOK)
        return former is None

    def _former(self) -> ConnectorRun | None:
        """The last run before this one that has not ended."""
        while self._before is not None and not self._before.alive:
            self._before = self._before._before
        return self._before


def _trace(error: BaseException) -> str:
    """The trace for users: the message, with a stack trace if the error was unexpected."""
    if isinstance(error, SemelError) and error.__cause__ is None:
        return str(error)
    return "".join(traceback.format_exception(error))


def drive(
    planned: AnyPlan,
    spark: Callable[[], Any],
    transform: Callable[..., Any] | None,
    run_control: RunControl,
) -> Progress:
    """Run a connector to its end. It runs in a thread of its own, so whatever it waits for there,
    such as a silent store, does not hold up a stop.

    Args:
        spark: waits for the Spark that the engine needs: a session for the micro-batch engine, a
            context for the others.

    Raises:
        semel.core.errors.SemelError: what ended the connector; see the error's class.
    """
    news = threading.Event()
    latest = _LatestTotals(news, run_control.observe)
    run = replace(run_control, observe=latest.note)
    what = f"running connector {planned.connector.name}"
    work = BackgroundCall(what, lambda: _run_engine(planned, spark, transform, run), then=news.set)
    with (
        run_control.notifier.subscribed(news.set),
        run_control.notifier.notified_by(run_control.stop),
    ):
        try:
            _wait(work, run_control.stop, latest)
        except BaseException:  # Ctrl-C, or an observer that fails
            run_control.stop.set()
            _wait(work, run_control.stop, _LatestTotals(news))
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


class _LatestTotals:
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


def _wait(work: BackgroundCall[Progress], stop: threading.Event, latest: _LatestTotals) -> None:
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


def _run_engine(
    planned: AnyPlan,
    spark: Callable[[], Any],
    transform: Callable[..., Any] | None,
    run_control: RunControl,
) -> Progress:
    """Reach the services, and run the connector on its engine."""
    connector = planned.connector
    CONNECTOR.set(connector.name)
    watchdog.stops_with(connector.name, run_control.stop)
    try:
        if isinstance(planned, SourcePlan):
            from semel.driver.source import SourceEngine

            return SourceEngine(_prepared_source(planned, run_control), spark).run()
        run = _prepared(planned, run_control)
        if planned.query is not None:
            from semel.driver.microbatch.query import QueryEngine

            return QueryEngine(run, spark, planned.query).run()
        if planned.engine == "micro-batch":
            from semel.driver.microbatch.engine import MicroBatchEngine

            return MicroBatchEngine(run, spark, transform).run()
        if planned.engine == "bounded":
            from semel.driver.bounded import BoundedEngine

            return BoundedEngine(run, spark, transform).run()
        if planned.topology is not None:
            from semel.driver.streams import StreamsEngine

            return StreamsEngine(run, spark, planned.topology).run()
        from semel.driver.direct import DirectEngine

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


def _prepared_source(planned: SourcePlan, run_control: RunControl) -> SourceRun:
    """A run of a source connector, once Kafka and the source have been reached."""
    from semel.driver.source import SourceRun

    cluster = _cluster(planned.connector)
    _reach(planned.source.check, planned.source.address)
    return SourceRun(planned.connector, planned.guarantee, planned.source, cluster, run_control)


def _cluster(connector: CommonConfig) -> Cluster:
    """The cluster, once it has answered."""
    client = client_config(connector, "admin")
    wait_for_brokers(client, say=lambda line: log.warning("connector %s: %s", connector.name, line))
    return Cluster(client)


def _prepared(planned: Plan, run_control: RunControl) -> Run:
    """A run of a sink connector, once Kafka and the store have been reached and the targets of its
    topics are prepared: mistakes about either are reported while Spark starts."""
    from semel.kafka.groups import Groups
    from semel.sinks import protocols

    connector, sink, context = planned.connector, planned.sink, copy_context()
    unwanted = threading.Event()
    store = BackgroundCall(
        f"connecting {connector.name} to its store",
        lambda: context.run(protocols.connect_early, sink),
        then=lambda: sink.close() if unwanted.is_set() else None,
    )
    try:
        cluster, topics = _topics(connector, planned.topology)
        groups = None
        if not sink.capabilities.ledger_in_group:
            groups = Groups(cluster.config)
            groups.find_coordinator(connector.group_id)
    except BaseException:  # a silent store must not hold up the error
        unwanted.set()
        if not store.ended(0):
            store.abandon()
        raise
    _reach(store.wait, sink.address)
    results: Collection[str] | None = None
    if planned.topology is not None:
        from semel.streams.changelog import written

        results = written(connector.name, planned.topology)
    _reach(lambda: sink.prepare(results or topics), sink.address)
    return Run(connector, planned.guarantee, sink, cluster, topics, run_control, groups, results)


def _topics(
    connector: ConnectorConfig, topology: Topology | None
) -> tuple[Cluster, dict[str, int]]:
    """The cluster, and the partitions of each topic. Those of a topology's own are created."""
    if topology is not None:
        from semel.streams.changelog import Topics

        topics = Topics(connector.name, topology)
        there = (*topics.outside(), *topics.globals)
        cluster, _ = _topics(replace(connector, topics=there), None)
        return cluster, topics.create(cluster, connector.tasks_max)
    try:  # most clusters answer at once; then one client and one request are enough
        cluster = Cluster(client_config(connector, "admin"))
        return cluster, cluster.matching(connector, _AT_ONCE)
    except (ServiceError, TransientError):
        cluster = _cluster(connector)
        return cluster, cluster.matching(connector)


def _reach(call: Callable[[], None], key: str) -> None:
    """Contact a store. Raises ServiceError: it cannot be reached; names the key of its address."""
    try:
        call()
    except TransientError as error:
        if not key or key in str(error):
            raise
        text = str(error)
        stop = "" if text.endswith(("?", ".")) else "."  # libpq asks whether the server runs
        raise ServiceError(f"{text}{stop} Check {key}, and that the store runs") from None


def wait_for_topics(planned: Plan, run_control: RunControl) -> None:
    """Wait until the topics exist, or the run is asked to stop or to restart: another connector may
    be about to create them. Only Kafka is asked, because the store has nothing to do with it."""
    connector = planned.connector
    cluster = Cluster(client_config(connector, "admin"))
    held_up: Wait | None = None
    message, woken = "", threading.Event()
    with (
        run_control.notifier.subscribed(woken.set),
        run_control.notifier.notified_by(run_control.stop),
    ):
        while not run_control.stop.is_set() and run_control.restarts.empty():
            # As in Kafka Connect, tasks without a topic are running. Other workers of a cluster
            # would mistake the first task's state for a sign that it has prepared the store.
            states: dict[int, Status] = {}
            if run_control.assignment.is_whole:
                state = State.PAUSED if run_control.paused.is_set() else State.RUNNING
                states = dict.fromkeys(range(connector.tasks_max), Status(state))
            run_control.observe(Progress(states=states, waiting=held_up))
            try:
                cluster.matching(connector, _ANSWERS)
                if not message:  # a broker that has not heard of them yet has answered before
                    woken.wait(_LOOKS)
                return
            except (TopicMissing, TransientError, ServiceError) as error:
                if message != (message := str(error)):
                    log.warning("%s. Waiting for it", error)
                is_missing = isinstance(error, TopicMissing)
                on = WaitKind.TOPIC if is_missing else WaitKind.SERVICE
                held_up = waiting(on, message, held_up)
                run_control.observe(Progress(states=states, waiting=held_up))
            woken.wait(_LOOKS)
            woken.clear()


class SharedSpark:
    """The user's own session, or one that ends with this object.

    Args:
        given: the session to use; otherwise the active one, or a new one that is made from the
            ``spark.*`` keys of the first connector.
    """

    def __init__(self, given: SparkSession | None = None) -> None:
        self._given = given
        self._lock = threading.Lock()
        self._starting: SparkStart[Any] | None = None
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

    def _start(self, planned: AnyPlan) -> SparkStart[Any]:
        from semel.spark import session as spark

        connector, session = planned.connector, self._given
        jvm, self._jvm = self._jvm, None
        if planned.engine == "micro-batch":
            return spark.SparkStart(
                lambda jvm: spark.micro_batch_session(connector, jvm),
                session or spark.active_session(),
                jvm,
            )
        return spark.SparkStart(
            lambda jvm: spark.context(connector, jvm=jvm),
            session.sparkContext if session is not None else spark.active_context(),
            jvm,
        )
