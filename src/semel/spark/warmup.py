"""Makes class data archives, by running once what they are to speed up.

``python -m semel.spark.warmup spark`` is the process that does so in the background.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext

from semel.core.context import search_path
from semel.core.errors import ServiceError
from semel.spark.archives import QUIET, yielding
from semel.spark.gateway import MEMORY, OPTIONS, Jvm, launcher_answer, neutral, spark_archive

_LATER = 5.0
"""Head start, in seconds, for the run that has asked for an archive."""
_LIMIT = 180
_DUMPS_IN = 120.0
_WITHOUT_LOG = (
    "org.slf4j.helpers.NOP_FallbackServiceProvider",
    "org.slf4j.helpers.NOPLogger",
    "io.netty.util.internal.logging.Log4J2LoggerFactory",
    "io.netty.util.internal.logging.Log4J2Logger",
    "org.apache.logging.log4j.simple.internal.SimpleProvider",
    "org.apache.logging.log4j.simple.internal.SimpleProvider$Config",
    "org.apache.logging.log4j.simple.SimpleLoggerContextFactory",
    "org.apache.logging.log4j.simple.SimpleLogger",
    "org.apache.logging.log4j.spi.NoOpThreadContextMap",
)
"""Classes that a JVM without a log loads. The trained JVM has a log, and loads Log4j's."""


def warm_up_spark() -> Path | None:
    """Make the archive of Spark's JVM; its path, or None if another process is making it.

    Raises:
        ServiceError: it cannot be made.
    """
    archive = spark_archive()
    if archive is None:
        raise ServiceError("no archive can be made: Java is missing, or Spark's jars are")
    try:
        if archive.facts() is None and not archive.make(_train):
            return None
    except Exception as error:
        raise ServiceError(f"no archive of Spark's classes can be made: {error}") from error
    return archive.file


def _train(part: Path) -> dict[str, Any]:
    """Start Spark, use what connectors use of it, and let the JVM write down what it has loaded."""
    from semel.spark.launch import LOG_LEVEL, java_options

    os.environ.pop(LOG_LEVEL, None)  # what is trained must not depend on it
    command = launcher_answer() if neutral() else None
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "semel warm-up",
        MEMORY: "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.authenticate": "true",
        "spark.python.daemon.module": "semel.spark.daemon",
        "spark.python.worker.faulthandler.enabled": "false",
        **{f"spark.executorEnv.{name}": value for name, value in search_path().items()},
        OPTIONS: f"{java_options(works=False)} -XX:ArchiveClassesAtExit={part} {QUIET}",
    }
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jvm = Jvm()
    try:
        jvm.connect(settings, None)
        context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
        _use(context)
        context.stop()
        jvm.leave(_DUMPS_IN)
    except Exception as error:  # Py4J asks the JVM for the text of its errors
        raise ServiceError(str(error)) from None
    finally:
        jvm.end()
    if not part.exists():
        raise ServiceError("this Java cannot write an archive")
    return {"command": command}


def _use(context: SparkContext) -> None:
    """What the engines do: jobs of Python functions, and a streaming query."""
    from pyspark.sql import SparkSession

    for name in _WITHOUT_LOG:
        context._jvm.java.lang.Class.forName(name)  # type: ignore[union-attr]
    context.setJobGroup("warm-up", "warm-up", True)
    context.parallelize(range(2), 2).mapPartitionsWithIndex(_nothing).count()
    context.parallelize(range(2), 2).mapPartitionsWithIndex(_nothing).collect()
    session = SparkSession(context)
    session.range(4).mapInArrow(lambda batches: batches, "id long").collect()
    query = session.readStream.format("rate").load().writeStream.foreachBatch(_collect).start()
    query.awaitTermination(3)
    query.stop()


def _collect(batch: Any, _id: int) -> None:
    batch.collect()


def _nothing(_index: int, _rows: Any) -> Any:
    return ()


def main() -> None:
    """Make one archive, yielding to everything else, within a limit."""
    yielding()
    signal.alarm(_LIMIT)
    time.sleep(_LATER)
    if sys.argv[1:] == ["spark"]:
        warm_up_spark()


if __name__ == "__main__":
    main()
