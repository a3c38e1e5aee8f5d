"""A worker that runs alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.config import read
from semel.config.worker import WorkerConfig
from semel.connect.alone import StandaloneHerder
from semel.connect.errors import NotFound
from semel.engine.states import State, Status

CONFIG = {
    "name": "orders",
    "connector.class": "FileStreamSink",
    "topics": "orders",
    "file": "orders.txt",
}


class Runtime:
    """Runs nothing; ``meanwhile`` is called while a connector starts."""

    def __init__(self) -> None:
        self.connectors: dict[str, Any] = {}
        self.meanwhile = lambda: None

    def start(self, config: Mapping[str, str], initial_state: State) -> None:
        self.meanwhile()
        state = SimpleNamespace(connector=Status(initial_state), tasks={})
        self.connectors[config["name"]] = SimpleNamespace(
            wanted=initial_state, status=lambda: state
        )

    def remove(self, name: str) -> None:
        del self.connectors[name]


def test_a_connector_has_no_status_while_its_configuration_is_replaced(tmp_path: Path) -> None:
    runtime = Runtime()
    worker = read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    herder = StandaloneHerder(cast(Any, runtime), worker)
    config = CONFIG | {"file": str(tmp_path / "orders.txt")}
    herder.create("orders", config, State.RUNNING)
    assert herder.status("orders")["connector"]["state"] == "RUNNING"

    def ask() -> None:
        with pytest.raises(NotFound, match="orders"):
            herder.status("orders")

    runtime.meanwhile = ask
    herder.put("orders", config)
    assert herder.status("orders")["connector"]["state"] == "RUNNING"
