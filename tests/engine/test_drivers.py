"""Drivers whose Spark has gone, without any: what they do, and what they tell."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from semel.engine.base import SparkGone
from semel.engine.bounded import BoundedEngine
from semel.engine.direct import DirectEngine


class Gone:
    """A session that has ended; ``calls`` are the calls to it that fail."""

    def __init__(self, failure: Exception, *calls: str) -> None:
        self._failure = failure
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name in self._calls:
            raise self._failure
        return lambda *_arguments: self

    @property
    def sparkContext(self) -> Gone:
        return self


GONE = [
    Gone(Py4JNetworkError("nobody listens"), "setJobGroup", "cancelJobGroup"),
    Gone(ConnectionRefusedError("nobody listens"), "setJobGroup", "cancelJobGroup"),
    Gone(RuntimeError("Cannot call methods on a stopped SparkContext"), "parallelize"),
]


def _run() -> Any:
    connector = SimpleNamespace(name="c", tasks_max=1, max_retries=3, retry_backoff_ms=0)
    return SimpleNamespace(
        connector=connector,
        stop=threading.Event(),
        over=lambda *_arguments: False,
        observe=lambda _progress: None,
        until_caught_up=False,
    )


def _direct(spark: Any) -> None:
    run = _run()
    server: Any = SimpleNamespace(reports=queue.Queue(), hear_out=lambda: None)
    spec: Any = SimpleNamespace(connector=run.connector)
    DirectEngine(run, spark, None)._supervise(server, spec, {})


def _bounded(spark: Any) -> None:
    engine = BoundedEngine.__new__(BoundedEngine)
    engine._run, engine._spark = _run(), spark
    engine._connector = engine._run.connector
    engine._spec = SimpleNamespace(connector=engine._connector, run="r")  # type: ignore[assignment]
    engine._trigger = lambda: bool(engine._job([]))  # type: ignore[method-assign]
    engine._loop({})


@pytest.mark.parametrize("spark", GONE)
@pytest.mark.parametrize("drive", [_direct, _bounded])
def test_one_whose_spark_has_gone_ends_and_says_so(
    drive: Callable[[Any], None], spark: Gone, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(SparkGone, match="Spark has gone: "):
        drive(spark)
    assert not caplog.messages
