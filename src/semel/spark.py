"""The Spark session a connector runs in, and the Python workers it starts."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import java_gateway
from pyspark.sql import SparkSession

from semel import failpoints
from semel.config import ConnectorConfig, under
from semel.errors import ServiceError
from semel.jars import SPARK_KAFKA, resolve
from semel.sinks import MODULE, sink_class

_LOG4J = """
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p spark %c{{1}}: %m%n%ex{{5}}
"""

_TASK_FAILURES = 1000
"""Spark restarts a failed task at once; the driver's backoff is for a whole job that fails."""


_MICRO_BATCH = {
    # A failed task is tried again at once: its commit may have gone through. What fails twice makes
    # the driver start the query anew, with a backoff.
    "spark.task.maxFailures": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # An idle query asks Kafka for its latest offsets every 10 ms otherwise.
    "spark.sql.streaming.pollingDelay": "50",
}


def session(
    connector: ConnectorConfig,
    raw: Mapping[str, str],
    *,
    jars: list[Path] | None = None,
    settings: Mapping[str, str] | None = None,
    task_failures: int = _TASK_FAILURES,
) -> SparkSession:
    """The active session, or a new one made from the connector's ``spark.*`` keys.

    Without ``spark.master`` a local one is made, with a slot for each task: a slot is a thread.
    ``settings`` go before the defaults, and the connector's keys before both.

    Raises:
        ServiceError: the session cannot be started (no Java, no such master).
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    failures = (settings or {}).get("spark.task.maxFailures", str(task_failures))
    settings = {
        "spark.master": f"local[{connector.tasks_max},{failures}]",
        "spark.app.name": f"semel {connector.name}",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": failures,
        "spark.sql.shuffle.partitions": str(max(2, connector.tasks_max)),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "semel.engine.daemon",
        "spark.python.worker.faulthandler.enabled": "false",
        f"spark.executorEnv.{MODULE}": sink_class(connector.connector_class, raw).__module__,
        "spark.driver.extraJavaOptions": _java_options(works=settings is not None),
        **(settings or {}),
    }
    given = {f"spark.{k}": v for k, v in under(raw, "spark.").items()}
    if given.get("spark.master", "local").startswith("local"):
        # Nothing from outside needs to reach a local driver; a cluster's executors do.
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    settings |= given
    if jars:
        settings["spark.jars"] = ",".join(
            [*filter(None, [settings.get("spark.jars", "")]), *map(str, jars)]
        )
    for name, value in failpoints.environment().items():
        settings[f"spark.executorEnv.{name}"] = value
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _own_process_group():
            return builder.getOrCreate()
    except Exception as error:
        raise ServiceError(
            f"connector {connector.name}: Spark does not start with master "
            f"{settings['spark.master']}: {_first_line(error)}. Is Java 17 installed, and is "
            "spark.master right?"
        ) from error


def micro_batch_session(connector: ConnectorConfig, raw: Mapping[str, str]) -> SparkSession:
    """A session that can read Kafka by itself, for the micro-batch engine.

    Jars are resolved unless the connector's ``spark.jars*`` keys name the Kafka source already.

    Raises:
        ServiceError: the jars are not to be had, or the session cannot be started.
    """
    given = " ".join(v for k, v in raw.items() if k.startswith("spark.jars"))
    if "spark-sql-kafka" in given:
        return session(connector, raw, settings=_MICRO_BATCH)
    try:
        jars = resolve(SPARK_KAFKA)
    except ServiceError as error:
        raise ServiceError(
            f"connector {connector.name}: {error} Or supply Spark's Kafka source in your own way: "
            f"spark.jars.packages={','.join(SPARK_KAFKA.coordinates)}"
        ) from error
    return session(connector, raw, jars=jars, settings=_MICRO_BATCH)


def stop(spark: SparkSession) -> None:
    """Stop a session that :func:`session` made, also when its JVM has gone already."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark.stop()


@contextmanager
def _own_process_group() -> Iterator[None]:
    """Start the JVM in a session of its own: Ctrl-C in a terminal goes to the whole process group,
    and would end Spark before the batch in hand is finished. The JVM ends with its parent anyway,
    because its standard input closes."""
    module: Any = java_gateway
    original = module.Popen
    module.Popen = functools.partial(original, start_new_session=True)
    try:
        yield
    finally:
        module.Popen = original


def _java_options(*, works: bool) -> str:
    """``works``: whether records pass through the JVM. One that only places tasks starts with a
    third less CPU time when it compiles little."""
    directory = tempfile.mkdtemp(prefix="semel-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "log4j2.properties"
    path.write_text(_LOG4J.format(level=os.environ.get("SEMEL_SPARK_LOG", "fatal")))
    compile_little = "" if works else " -XX:TieredStopAtLevel=1"
    return f"-Dlog4j2.configurationFile={path} -XX:+UseSerialGC{compile_little}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
