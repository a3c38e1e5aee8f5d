"""A worker that runs alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.config import ConnectorConfig, read
from semel.config.worker import WorkerConfig
from semel.driver import planning, run
from semel.driver import runtime as running
from semel.driver import runtime as runtimes
from semel.driver.base import Progress, State, Status
from semel.driver.planning import sink
from semel.tasks import memory
from semel.worker.alone import StandaloneHerder
from semel.worker.errors import BadRequest, NotFound
from tests.patience import PATIENCE

CONFIG = {
    "name": "orders",
    "connector.class": "FileStreamSink",
    "topics": "orders",
    "file": "orders.txt",
}


class Runtime:
    """Runs nothing; ``meanwhile`` is called while a connector starts, ``ending`` while one ends."""

    def __init__(self) -> None:
        self.connectors: dict[str, Any] = {}
        self.meanwhile: Callable[[], object] = lambda: None
        self.ending: Callable[[], object] = lambda: None

    def start(self, config: Mapping[str, str], initial_state: State) -> None:
        self.meanwhile()
        state = SimpleNamespace(connector=Status(initial_state), tasks={})
        connector = SimpleNamespace(wanted=initial_state, status=lambda: state)
        connector.pause = lambda: setattr(connector, "wanted", State.PAUSED)
        connector.resume = lambda: setattr(connector, "wanted", State.RUNNING)
        self.connectors[config["name"]] = connector

    def remove(self, name: str) -> None:
        self.connectors[name].wanted = State.STOPPED
        self.ending()
        assert self.connectors.pop(name).wanted is State.STOPPED


def test_a_connector_is_unassigned_while_its_configuration_is_replaced(tmp_path: Path) -> None:
    runtime = Runtime()
    worker = read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    herder = StandaloneHerder(cast(Any, runtime), worker)
    config = CONFIG | {"file": str(tmp_path / "orders.txt")}

    def state() -> Any:
        assert herder.info("orders")["config"] == config
        assert herder.task_configs("orders") == []
        with pytest.raises(BadRequest, match="must be in the STOPPED state"):
            herder.reset_offsets("orders", "somebody")
        return herder.status("orders")["connector"]["state"]

    herder.create("orders", config, State.RUNNING)
    with ThreadPoolExecutor(1) as monitor:
        states = [state()]
        runtime.meanwhile = lambda: states.append(monitor.submit(state).result(PATIENCE))
        herder.put("orders", config)
        states.append(state())
    assert states == ["RUNNING", "UNASSIGNED", "RUNNING"]


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("JdbcSinkConnector", "sink"),
        ("FileStreamSource", "source"),
        ("io.debezium.connector.mysql.MySqlConnector", "unknown"),
    ],
)
def test_a_connector_whose_class_is_not_there_has_no_type(class_name: str, kind: str) -> None:
    worker = read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    herder = StandaloneHerder(cast(Any, Runtime()), worker)
    herder._given["orders"] = {"connector.class": class_name}
    assert herder.status("orders")["type"] == kind


def test_a_hidden_secret_is_the_one_that_is_set_when_the_request_takes_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "consumer.override.sasl.password"
    runtime = Runtime()
    herder = StandaloneHerder(
        cast(Any, runtime), read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    )
    config = CONFIG | {"file": str(tmp_path / "orders.txt"), secret: "old"}
    monkeypatch.setattr(herder, "check", lambda _config: {})
    herder.create("orders", config, State.RUNNING)

    def change(_config: object) -> dict[str, Any]:
        monkeypatch.setattr(herder, "check", lambda _config: {})
        herder.put("orders", config | {secret: "new"})
        return {}

    monkeypatch.setattr(herder, "check", change)
    herder.put("orders", config | {secret: "[hidden]", "tasks.max": "2"})
    assert herder.config("orders") == config | {secret: "new", "tasks.max": "2"}


@pytest.mark.parametrize("request_", ["put", "delete"])
def test_a_connector_that_cannot_start_again_is_replaced_or_deleted(
    tmp_path: Path, request_: str
) -> None:
    runtime = Runtime()
    worker = read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    herder = StandaloneHerder(cast(Any, runtime), worker)
    config = CONFIG | {"file": str(tmp_path / "orders.txt")}
    herder.create("orders", config, State.RUNNING)
    runtime.meanwhile = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        herder.put("orders", config)
    runtime.meanwhile = lambda: None
    if request_ == "put":
        assert not herder.put("orders", config)[0]
        assert runtime.connectors["orders"].wanted is State.RUNNING
    else:
        herder.delete("orders")
        assert herder.connectors() == []


@pytest.mark.parametrize("target", [State.RUNNING, State.PAUSED])
@pytest.mark.parametrize("request_", ["put", "delete"])
def test_a_connector_that_is_being_replaced_or_deleted_does_not_start_again(
    tmp_path: Path, request_: str, target: State
) -> None:
    """A request that comes while its tasks end waits for its turn: the old run must not go on
    beside the new one, or without a connector."""
    runtime = Runtime()
    herder = StandaloneHerder(
        cast(Any, runtime), read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    )
    config = CONFIG | {"file": str(tmp_path / "orders.txt")}
    herder.create("orders", config, State.RUNNING)
    with ThreadPoolExecutor(1) as client:
        asked: list[Future[None]] = []

        def ask() -> None:
            asked.append(client.submit(herder.target, "orders", target))
            wait(asked, 0.2)

        runtime.ending = ask
        if request_ == "put":
            herder.put("orders", config)
            asked[0].result(PATIENCE)
            assert runtime.connectors["orders"].wanted is target
        else:
            herder.delete("orders")
            with pytest.raises(NotFound):
                asked[0].result(PATIENCE)


def test_others_do_not_wait_while_a_connector_ends(tmp_path: Path) -> None:
    runtime = Runtime()
    herder = StandaloneHerder(
        cast(Any, runtime), read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    )
    for name in ("orders", "bills"):
        config = CONFIG | {"name": name, "file": str(tmp_path / name)}
        herder.create(name, config, State.RUNNING)
    with ThreadPoolExecutor(1) as client:
        runtime.ending = lambda: client.submit(herder.target, "bills", State.PAUSED).result(
            PATIENCE
        )
        herder.delete("orders")
    assert runtime.connectors["bills"].wanted is State.PAUSED


def test_a_connector_that_was_removed_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "drive", lambda *_of: Progress())
    config = CONFIG | {"bootstrap.servers": "127.0.0.1:1", "file": str(tmp_path / "orders.txt")}
    with running.Runtime() as runtime:
        connector = runtime.start(config, initial_state=State.STOPPED)
        runtime.remove("orders")
        with pytest.raises(RuntimeError, match="connector orders has been removed"):
            connector.resume()


def test_a_configuration_is_read_once_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of its own judges it before, because it may take any amount of memory."""
    loaded, read_ = [], []
    load, resolved = planning.load, sink.resolved
    monkeypatch.setattr(planning, "load", lambda given: loaded.append(1) or load(given))
    monkeypatch.setattr(
        sink, "resolved", lambda given, **more: read_.append(1) or resolved(given, **more)
    )
    monkeypatch.setattr(run, "drive", lambda *_of: Progress())
    worker = read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"})
    config = CONFIG | {"file": str(tmp_path / "orders.txt")}
    with running.Runtime() as runtime:
        StandaloneHerder(runtime, worker).create("orders", config, State.RUNNING)
        assert runtime.connectors["orders"].wait(PATIENCE)
    assert (len(loaded), len(read_)) == (1, 1)


def test_a_posted_configuration_is_read_once_to_judge_it_and_once_by_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by: list[str] = []
    monkeypatch.setattr(ConnectorConfig, "__post_init__", lambda made: read_by.append(made.name))
    monkeypatch.setattr(memory, "is_guarded", lambda: True)  # so that it is judged in this process
    config = CONFIG | {"file": str(tmp_path / "orders.txt")}
    with runtimes.Runtime() as runtime:
        herder = StandaloneHerder(runtime, read(WorkerConfig, {"bootstrap.servers": "127.0.0.1:1"}))
        herder.create("orders", config, State.STOPPED)
        assert read_by == 2 * ["orders"]
