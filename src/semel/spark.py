"""The Spark session a connector runs in, and the Python workers it starts."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from semel import failpoints
from semel.config import ConnectorConfig, under
from semel.errors import ConfigError, ServiceError

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


def session(
    connector: ConnectorConfig, raw: Mapping[str, str], *, jars: list[Path] | None = None
) -> SparkSession:
    """The active session, or a new one made from the connector's ``spark.*`` keys.

    Without ``spark.master`` a local one is made, with a slot for each task: a slot is a thread.

    Raises:
        ServiceError: the session cannot be started (no Java, no such master).
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    settings = {
        "spark.master": f"local[{connector.tasks_max},{_TASK_FAILURES}]",
        "spark.app.name": f"semel {connector.name}",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(_TASK_FAILURES),
        "spark.sql.shuffle.partitions": str(max(2, connector.tasks_max)),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "semel.engine.daemon",
        "spark.python.worker.faulthandler.enabled": "false",
        "spark.driver.extraJavaOptions": _java_options(),
    }
    if "SEMEL_LOCAL" not in os.environ:
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.host"] = "127.0.0.1"
    given = {f"spark.{k}": v for k, v in under(raw, "spark.").items()}
    if not given.get("spark.master", "local").startswith("local"):
        # A cluster's executors must reach the driver by its own name.
        settings.pop("spark.driver.bindAddress", None)
        settings.pop("spark.driver.host", None)
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
        return builder.getOrCreate()
    except ConfigError:
        raise
    except Exception as error:
        raise ServiceError(
            f"connector {connector.name}: Spark does not start with master "
            f"{settings['spark.master']}: {_first_line(error)}. Is Java 17 installed, and is "
            "spark.master right?"
        ) from error


def _java_options() -> str:
    path = Path(tempfile.mkdtemp(prefix="semel-")) / "log4j2.properties"
    path.write_text(_LOG4J.format(level=os.environ.get("SEMEL_SPARK_LOG", "fatal")))
    return f"-Dlog4j2.configurationFile={path} -XX:+UseSerialGC"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
