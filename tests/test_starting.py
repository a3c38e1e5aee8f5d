"""Spark, started in a thread of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from pyspark import SparkContext

from semel.spark import session as spark
from tests.patience import PATIENCE


class Context(SparkContext):
    """A context without a JVM."""

    master = "local[2]"

    def __init__(self) -> None:
        pass


def test_not_all_callers_wait_for_the_first_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, idle = threading.Event(), threading.Event()

    def ready_workers(_context: SparkContext) -> None:
        asked.set()
        assert idle.wait(PATIENCE)

    monkeypatch.setattr(spark, "_ready_workers", ready_workers)
    starting = spark.SparkStart(lambda _jvm: Context())
    assert asked.wait(PATIENCE)
    context = starting()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(starting.with_worker)
        assert wait([waiting], timeout=0.3).not_done
        idle.set()
        assert waiting.result(PATIENCE) is context


@pytest.mark.long
def test_a_users_own_spark_is_not_waited_for() -> None:
    context = Context()
    assert spark.SparkStart(lambda _jvm: Context(), context).with_worker() is context
