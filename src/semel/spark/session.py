"""The Spark that a connector runs in, and the Python workers that it starts."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import typing
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from pyspark import SparkConf, SparkContext

from semel.config import CommonConfig, under
from semel.core import failpoints
from semel.core.context import STANDBY, search_path
from semel.core.errors import ConfigError, Problem, ServiceError
from semel.sinks import MODULE, sink_class
from semel.sources import is_source, source_class
from semel.spark.archives import in_background
from semel.spark.gateway import MEMORY, OPTIONS, Jvm, spark_archive
from semel.spark.jars import SOURCE, SPARK_KAFKA, resolve
from semel.spark.launch import HEAP, heap, java_options

if typing.TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

T = TypeVar("T")

AUTHENTICATE = "spark.authenticate"
_ENDS_IN = 20.0
_WORKER_IN = 20.0
"""Seconds after which the first Python worker is no longer waited for."""
TASK_FAILURES = 4
"""Failures of a task after which Spark fails its job, as in a cluster. From then on, the engine
restarts it, with a backoff."""
_SLOTS = 1024
"""Tasks that a local Spark runs at once. A slot is only a waiting thread; ``tasks.max`` bounds what
a connector uses."""

_DISPATCHERS = "4"
"""Threads of a local Spark that pass its own messages on."""

_MICRO_BATCH = {
    # A failed task is tried again at once: its commit may have gone through. If it fails twice, the
    # driver restarts the query, with a backoff.
    "spark.task.maxFailures": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # An idle query asks Kafka for its latest offsets every 10 ms otherwise.
    "spark.sql.streaming.pollingDelay": "50",
}


def context(
    connector: CommonConfig,
    *,
    jvm: Jvm | None = None,
) -> SparkContext:
    """A new context made from the connector's ``spark.*`` keys: all that an engine needs if its
    records do not pass through Spark.

    Without ``spark.master`` a local one is made, with slots for the tasks of many connectors.

    Raises:
        ServiceError: it cannot be started (no Java, no such master).
    """
    settings = _settings(connector, {}, _SLOTS, works=False)
    return _context(connector, settings, jvm or Jvm())


def session(
    connector: CommonConfig,
    *,
    jars: list[Path] | None = None,
    settings: Mapping[str, str],
    jvm: Jvm | None = None,
) -> SparkSession:
    """The active session, or a new one made as :func:`context` makes a context.

    ``settings`` override the defaults, and the connector's keys override both.

    Raises:
        ServiceError: the session cannot be started (no Java, no such master).
    """
    from pyspark.sql import SparkSession

    if (active := active_session()) is not None:
        return active
    chosen = _settings(connector, settings, connector.tasks_max, works=True)
    if jars:
        chosen["spark.jars"] = ",".join(
            [*filter(None, [chosen.get("spark.jars", "")]), *map(str, jars)]
        )
    if active_context() is None:
        _context(connector, chosen, jvm or Jvm())
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _settings(
    connector: CommonConfig,
    settings: Mapping[str, str],
    slots: int,
    *,
    works: bool,
) -> dict[str, str]:
    failures = settings.get("spark.task.maxFailures", str(TASK_FAILURES))
    conf = {
        "spark.master": f"local[{slots},{failures}]",
        "spark.app.name": f"semel {connector.name}",
        MEMORY: heap(connector.tasks_max) if works else HEAP,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": failures,
        "spark.sql.shuffle.partitions": str(max(2, connector.tasks_max)),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "semel.spark.daemon",
        "spark.python.worker.faulthandler.enabled": "false",
        f"spark.executorEnv.{MODULE}": _module(connector),
        OPTIONS: java_options(works=works),
        **settings,
    }
    overrides = {f"spark.{k}": v for k, v in under(connector.originals, "spark.").items()}
    if overrides.get("spark.master", "local").startswith("local"):
        conf |= {
            # Nothing from outside needs to reach a local driver; a cluster's executors do.
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # Other users of this machine can reach Spark's ports, too. Spark makes a secret of its
            # own for each local context.
            AUTHENTICATE: "true",
            # Spark would start a thread for each slot: 1,024 took most of a second.
            "spark.rpc.netty.dispatcher.numThreads": _DISPATCHERS,
            **{f"spark.executorEnv.{name}": value for name, value in search_path().items()},
        }
        if "local-cluster" in overrides.get("spark.master", ""):  # its executors need to be told
            conf[f"{AUTHENTICATE}.secret"] = secrets.token_hex(32)
    conf |= overrides
    for name, value in failpoints.environment().items():
        conf[f"spark.executorEnv.{name}"] = value
    return conf


def _module(connector: CommonConfig) -> str:
    """The module of the connector's sink or source, which workers import before they fork."""
    name = connector.connector_class.strip()
    if is_source(name):
        return source_class(name).__module__
    return sink_class(name, connector.originals).__module__


def _context(connector: CommonConfig, settings: Mapping[str, str], jvm: Jvm) -> SparkContext:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = settings["spark.master"].startswith("local")
    archive = spark_archive() if local else None
    try:
        jvm.connect(settings, archive)
        if jvm.standby is not None:
            settings = {**settings, f"spark.executorEnv.{STANDBY}": jvm.standby.path}
        spark_context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
    except Exception as error:
        if "spark.driver.memory" in str(error):
            raise ConfigError(
                Problem(
                    MEMORY, f"{MEMORY}={settings[MEMORY]} is too little for Spark. Set it to 512m"
                )
            ) from None
        raise ServiceError(
            f"connector {connector.name}: Spark does not start with master "
            f"{settings['spark.master']}: {_first_line(error)}. Is Java 17 installed, and is "
            "spark.master right?"
        ) from error
    # The server prints a stack trace once the JVM is gone, which is reported elsewhere.
    server: Any = spark_context._accumulatorServer
    server.handle_error = lambda *_: None
    if archive is not None and archive.wanted():
        in_background("semel.spark.warmup", "spark")
    _warn_if_open(spark_context)
    return spark_context


def _warn_if_open(spark_context: SparkContext) -> None:
    """Say that a cluster takes orders from whoever can reach its ports."""
    if (
        not str(spark_context.master).startswith("local")
        and spark_context.getConf().get(AUTHENTICATE) != "true"
    ):
        log.warning(
            "Spark at %s does not authenticate: anyone who can reach the ports of its driver or "
            "its executors can run code in them. Set %s=true and what docs/security.md says",
            *(spark_context.master, AUTHENTICATE),
        )


class SparkStart(Generic[T]):
    """Spark, started in a thread of its own while the caller does what does not need it.

    Calling it waits for what ``make`` returns, and raises what that raises. With ``active``, the
    user's own Spark, nothing is started; ``jvm`` is one that was started earlier.
    """

    def __init__(
        self, make: Callable[[Jvm], T], active: T | None = None, jvm: Jvm | None = None
    ) -> None:
        self._jvm = jvm or Jvm()
        self._made: Future[T] = Future()
        self._own = active is None
        if active is not None:
            if isinstance(of := context_of(active), SparkContext):
                _warn_if_open(of)
            self._made.set_result(active)
            return
        self._thread = threading.Thread(
            target=self._start, args=(make,), daemon=True, name="semel-spark"
        )
        self._thread.start()

    def __call__(self) -> T:
        return self._made.result()

    def with_worker(self) -> T:
        """Like calling it, but waits until the first Python worker is idle, too. A job that starts
        earlier starts a second one, and Spark then hands out idle workers in turn."""
        result = self()
        if self._own:
            self._thread.join(_WORKER_IN)
        return result

    @property
    def gone(self) -> bool:
        """Whether it has ended since it started, or failed to start."""
        if not self._made.done():
            return False
        if self._made.exception() is not None:
            return True
        return has_ended(self._made.result())

    def end(self) -> None:
        """Stop what was started; a JVM that is still starting is ended."""
        if not self._own:
            return
        if not self._made.done():
            self._jvm.end()
            self._thread.join(_ENDS_IN)
        if self._made.done() and self._made.exception() is None:
            stop(self._made.result())

    def _start(self, make: Callable[[Jvm], T]) -> None:
        try:
            result = make(self._jvm)
        except BaseException as error:
            self._made.set_exception(error)
            return
        self._made.set_result(result)
        if isinstance(result, SparkContext) and str(result.master).startswith("local"):
            _ready_workers(result)


def _ready_workers(spark_context: SparkContext) -> None:
    """Start the daemon that Spark's Python workers are forked from, before the first job."""
    with suppress(Exception):  # a job of the connector says what is wrong
        spark_context.parallelize([0], 1).mapPartitions(iter).count()


def context_of(spark: Any) -> SparkContext:
    """The context of a session, or the context itself."""
    return spark if isinstance(spark, SparkContext) else spark.sparkContext


def session_of(spark: Any, connector: CommonConfig) -> SparkSession:
    """The session, or one in a context that other connectors run in, too."""
    session: Any = micro_batch_session(connector) if isinstance(spark, SparkContext) else spark
    _load_source(session)
    return session  # type: ignore[no-any-return]


def _load_source(session: Any) -> None:
    """Let a Spark that was started without its Kafka source load it now, as a worker's may have
    been. What the calling thread starts can load it then."""
    jvm = getattr(session, "_jvm", None)
    if jvm is None or jvm.org.apache.spark.util.Utils.classIsLoadable(SOURCE):
        return
    with suppress(ServiceError):  # the engine says what is missing
        for path in resolve(SPARK_KAFKA):
            session.sql(f"ADD JAR '{path}'")


def has_ended(spark: Any) -> bool:
    """Whether a session's or a context's Spark has ended or was stopped."""
    context = context_of(spark)
    if not isinstance(context, SparkContext):
        return False
    process = getattr(context._gateway, "proc", None)
    return context._jsc is None or (process is not None and process.poll() is not None)


def active_context() -> SparkContext | None:
    """The user's own context, if there is one."""
    spark_context = SparkContext._active_spark_context
    return spark_context if spark_context is not None and spark_context._jsc is not None else None


def active_session() -> SparkSession | None:
    """The user's own session, if there is one. Spark keeps the active one by thread, so another
    thread takes the one that ``getOrCreate`` would."""
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        return active
    instantiated, context = SparkSession._instantiatedSession, active_context()
    return (
        instantiated
        if context is not None and instantiated is not None and instantiated._sc is context
        else None
    )


def micro_batch_session(connector: CommonConfig, jvm: Jvm | None = None) -> SparkSession:
    """A session that can read Kafka by itself, for the micro-batch engine.

    Jars are resolved unless the connector's ``spark.jars*`` keys name the Kafka source already.

    Raises:
        ServiceError: the jars cannot be fetched, or the session cannot be started.
    """
    jar_settings = " ".join(v for k, v in connector.originals.items() if k.startswith("spark.jars"))
    if "spark-sql-kafka" in jar_settings:
        return session(connector, settings=_MICRO_BATCH, jvm=jvm)
    try:
        jars = resolve(SPARK_KAFKA)
    except ServiceError as error:
        raise ServiceError(
            f"connector {connector.name}: {error} Or supply Spark's Kafka source in your own way: "
            f"spark.jars.packages={','.join(SPARK_KAFKA.coordinates)}"
        ) from error
    return session(connector, jars=jars, settings=_MICRO_BATCH, jvm=jvm)


def stop(spark: Any) -> None:
    """Stop a session or a context that was created here, even if its JVM has already ended."""
    spark_context = spark if isinstance(spark, SparkContext) else spark.sparkContext
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _stop_quickly(spark_context)
        spark.stop()


def _stop_quickly(spark_context: Any) -> None:
    """Let the accumulator server's thread end on its own: PySpark waits up to a second for it."""
    jsc, server = spark_context._jsc, spark_context._accumulatorServer
    spark_context._accumulatorServer = None
    if server is not None:
        threading.Thread(target=server.shutdown, daemon=True).start()
    with suppress(Exception):
        jsc.stop()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
