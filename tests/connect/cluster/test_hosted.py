"""A connector that cannot reach its target state is FAILED until it can."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.core.errors import ConfigError
from semel.driver.base import State, Status
from semel.driver.runtime import ConnectorStatus
from semel.worker.cluster.follower import DesiredState, HostedConnector
from semel_lab.embedded.process import comes_true
from tests.patience import PATIENCE

CONFIG = {"name": "orders"}


class Stage:
    """A worker whose connectors can be planned, or not: their secrets are gone."""

    def __init__(self) -> None:
        self.is_planned = True
        self.starts = 0
        self.connectors: dict[str, Any] = {}
        runtime: Any = SimpleNamespace(
            connectors=self.connectors, start=self._start, remove=self.connectors.pop
        )
        worker: Any = SimpleNamespace(inherited=dict, permitted=dict)
        self.hosted = HostedConnector("orders", runtime, worker)

    def _plan(self, **_how: object) -> None:
        if not self.is_planned:
            raise ConfigError("connector orders: secrets.properties does not exist")

    def _start(self, config: dict[str, str], *, initial_state: State, **_how: object) -> None:
        self._plan()
        self.starts += 1
        status = ConnectorStatus("orders", Status(initial_state))
        self.connectors["orders"] = SimpleNamespace(
            status=lambda: status,
            assign=lambda _tasks: None,
            resume=self._plan,
            restart=self._plan,
            stop=lambda: None,
        )

    def bring(self, state: State) -> None:
        wanted = DesiredState(CONFIG, state, CONFIG)
        assert comes_true(lambda: self.hosted.want(wanted), PATIENCE)

    @property
    def state(self) -> State:
        status = self.hosted.status
        assert status is not None
        return status.connector.state


@pytest.mark.parametrize(
    "fails",
    [lambda s: s.bring(State.RUNNING), lambda s: s.hosted.restart(include_tasks=True)],
    ids=["resume", "restart"],
)
def test_a_connector_that_failed_to_start_again_runs_once_it_can(
    fails: Callable[[Stage], None], caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.bring(State.STOPPED)
    stage.is_planned = False
    fails(stage)
    assert stage.state is State.FAILED
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert errors == ["connector orders: secrets.properties does not exist"]
    stage.is_planned = True
    stage.hosted.restart()
    stage.bring(State.RUNNING)
    assert (stage.state, stage.starts) == (State.RUNNING, 2)
