"""What the failure of a Spark job, or of a call to Spark, means."""

from __future__ import annotations

import re

from py4j.protocol import Py4JNetworkError

from semel.config import CommonConfig
from semel.core.errors import ConfigError, SemelError, ServiceError, Unresolvable
from semel.core.quoting import harmless


class SparkGone(ServiceError):
    """Spark has stopped and takes no more jobs."""


def spark_gone(connector: CommonConfig, error: Exception) -> SparkGone | None:
    """The error of a call to Spark that failed because its process or its context has ended; None
    for other failures."""
    text = str(error)
    refused = isinstance(error, (Py4JNetworkError, ConnectionError))
    if not refused and not any(sign in text for sign in _STOPPED):
        return None
    from semel.spark import gateway  # it needs PySpark, and tasks do not need it

    if gateway.out_of_memory():
        memory = connector.originals.get(gateway.MEMORY, "")
        now = f"{gateway.MEMORY}={memory}" if memory else f"{gateway.MEMORY}, its heap"
        return SparkGone(
            f"connector {connector.name}: Spark's JVM has run out of memory. Increase {now}. With "
            "the micro-batch engine, each of tasks.max tasks needs about 16 times the size of its "
            "largest record"
        )
    return SparkGone(f"connector {connector.name}: Spark has stopped: {first_error(text)}")


def first_error(failure: str) -> str:
    """The line of a failed Spark job's report that says what happened."""
    if CRASHED in failure:
        return _DIED
    lines = [line for line in failure.splitlines() if "Error" in line or "Exception" in line]
    return harmless((lines or [failure])[0].strip()[:300])


CRASHED = "Python worker exited unexpectedly"
_DIED = (
    "its process died without reporting an error. A task can allocate at most eight times "
    "task.max.memory.bytes. If it reads batches that are larger once they are decompressed, "
    "increase it"
)
_STOPPED = ("stopped SparkContext", "'NoneType' object has no attribute 'setJobGroup'")
_NOT_THERE = re.compile(r"No module named '([\w.]+)'")
_NO_VALUE = re.compile(re.escape(f"{Unresolvable.__module__}.Unresolvable") + ": (.+)")


def not_shipped(connector: CommonConfig, failure: str) -> ConfigError | None:
    """The error of a Spark job whose Python workers lack a module, or what a reference of the
    configuration refers to; None for other failures."""
    unresolved = _NO_VALUE.search(failure)
    if unresolved is not None:
        return ConfigError(
            f"connector {connector.name}: a task cannot resolve a reference of the configuration. "
            f"Provide it on every node: {unresolved[1]}"
        )
    missing = _NOT_THERE.search(failure)
    if missing is None:
        return None
    return ConfigError(
        f"connector {connector.name}: Spark's Python workers cannot import {missing[1]}. If they "
        "run another Python than the driver, set PYSPARK_PYTHON. Otherwise install semel, and what "
        "the transform imports, on every node with pip; or ship a packed environment in "
        "spark.archives; or, where semel's dependencies are installed, the packages alone with "
        "--py-files"
    )


def unexpected(connector: CommonConfig, task: int, error: Exception) -> SemelError:
    """The error that ends the connector after a task failed unexpectedly: it would most likely fail
    again."""
    return not_shipped(connector, str(error)) or SemelError(
        f"connector {connector.name}: task {task} failed unexpectedly: {type(error).__name__}: "
        f"{error}"
    )
