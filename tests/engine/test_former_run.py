"""A run of a connector waits for the one before, but not forever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from semel.driver import run as runs
from semel.driver.base import State
from semel.driver.runtime import Connector, Runtime
from tests.engine.harness import LocalSpark, wait_until
from tests.patience import PATIENCE

CONFIG = {
    "name": "orders",
    "connector.class": "postgresql",
    "bootstrap.servers": "127.0.0.1:1",
    "topics": "t",
    "connection.url": "postgresql://localhost:1/db",
    "value.converter.schemas.enable": "false",
}


class Runs:
    """Stands in for runs: the first one ends when it is let go, others when they are stopped."""

    def __init__(self) -> None:
        self.begun = 0
        self.release = threading.Event()

    def drive(self, _planned: Any, _spark: Any, _transform: Any, orders: Any) -> None:
        self.begun += 1
        (self.release if self.begun == 1 else orders.stop).wait()


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    made = Runs()
    monkeypatch.setattr(runs, "drive", made.drive)
    monkeypatch.setattr(runs, "_FIRST_WORD", 0.1)
    monkeypatch.setattr(runs, "_LOOK", 0.02)
    yield made
    made.release.set()


@pytest.fixture
def runtime(driven: Runs) -> Iterator[Runtime]:
    spark: Any = LocalSpark()
    with Runtime(spark) as made:
        yield made
        driven.release.set()


def resumed(runtime: Runtime, driven: Runs) -> Connector:
    """A connector that was stopped and resumed while its first run does not end."""
    connector = runtime.start(CONFIG)
    wait_until(lambda: driven.begun == 1)
    assert not connector.stop(0)
    connector.resume()
    return connector


def state(connector: Connector) -> State:
    return connector.status().connector.state


def test_a_run_that_does_not_end_fails_the_next_one_until_it_has_ended(
    runtime: Runtime,
    driven: Runs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(runs, "_FORMER_ENDS_IN", 0.3)
    connector = resumed(runtime, driven)
    wait_until(lambda: state(connector) is State.FAILED)
    said = connector.status().connector.trace
    assert said.startswith("connector orders: its previous run has not ended within")
    assert "connector orders waits until its previous run ends" in caplog.text
    assert connector.wait(PATIENCE)
    connector.restart()
    wait_until(lambda: state(connector) is State.FAILED)
    assert driven.begun == 1
    driven.release.set()
    assert connector.wait(PATIENCE)
    connector.restart()
    wait_until(lambda: driven.begun == 2)
    assert state(connector) is State.RUNNING


def test_a_run_that_waits_for_the_one_before_can_be_stopped(runtime: Runtime, driven: Runs) -> None:
    connector = resumed(runtime, driven)
    assert state(connector) is State.RUNNING
    assert connector.stop(PATIENCE)
    assert driven.begun == 1
    connector.resume()
    driven.release.set()
    wait_until(lambda: driven.begun == 2)
