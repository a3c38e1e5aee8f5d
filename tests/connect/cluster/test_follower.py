"""A worker starts, stops and reports what it is assigned."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from semel.core.errors import ConfigError, TransientError
from semel.driver.base import State, Status, WaitKind, waiting
from semel.driver.runtime import ConnectorStatus
from semel.worker.cluster.follower import Follower
from semel.worker.cluster.membership import Group
from semel.worker.cluster.records import (
    Assignment,
    Configs,
    Record,
    StateRecord,
    Statuses,
    stated,
    task_stated,
)
from semel.worker.cluster.store import known_tasks
from semel_lab.embedded.process import comes_true
from tests.patience import PATIENCE

URL = "http://a:8083"


class Stage:
    """A worker that is assigned the connector ``orders``, and Kafka, which can be cut off."""

    def __init__(self) -> None:
        self.reachable = threading.Event()
        self.reachable.set()
        self.waits = threading.Event()
        self.written: dict[bytes, bytes | None] = {}
        self.state = State.RUNNING
        self.statuses = Statuses()
        self.configs = Configs(
            connectors={"orders": {"name": "orders"}}, assignment=Assignment(1, {"orders": (URL,)})
        )
        store: Any = SimpleNamespace(
            changed=threading.Condition(),
            configs=self.configs,
            statuses=self.statuses,
            report=self._report,
            wake=lambda: None,
        )
        self.membership: Any = SimpleNamespace(group=Group(frozenset({URL})), absences=0)
        self.connectors: dict[str, Any] = {}
        self.runtime: Any = SimpleNamespace(
            connectors=self.connectors, start=self._start, remove=self.connectors.pop
        )
        config: Any = SimpleNamespace(
            url=URL,
            id="a:8083",
            group_id="workers",
            rebalance_timeout_ms=60_000,
            topic_tracking=True,
            inherited=lambda given: given,
            permitted=lambda given: given,
        )
        self.following = Follower(config, store, self.membership, self.runtime)

    def _start(self, config: dict[str, str], **_how: object) -> None:
        name = config["name"]
        self.connectors[name] = SimpleNamespace(
            status=lambda: ConnectorStatus(name, Status(self.state), {}),
            progress=None,
            holds=lambda _task: True,
        )

    def _report(self, records: Sequence[Record]) -> None:
        if not self.reachable.is_set():
            self.waits.set()
            assert self.reachable.wait(PATIENCE)
            raise TransientError("no record was confirmed")
        self.written |= dict(records)

    def written_in_vain(self) -> threading.Thread:
        """Report that the connector runs, and cut Kafka off; the thread waits for it."""
        assert comes_true(lambda: self.looked({"orders"}), PATIENCE)
        self.following.look()
        self.reachable.clear()
        writing = threading.Thread(target=self.following.write)
        writing.start()
        assert self.waits.wait(PATIENCE)
        return writing

    def looked(self, wanted: set[str]) -> bool:
        self.following.look()
        return self.connectors.keys() == wanted


def test_a_worker_that_is_cut_off_stops_its_connectors_while_its_reports_wait() -> None:
    stage = Stage()
    writing = stage.written_in_vain()
    stage.state = State.PAUSED
    stage.following.look()
    stage.membership.group = Group()
    assert comes_true(lambda: stage.looked(set()), PATIENCE)
    assert writing.is_alive()
    stage.reachable.set()
    writing.join(PATIENCE)
    stage.following.write()
    assert not stage.written, "others may have taken over"


def test_the_last_report_is_written_once_kafka_can_be_reached() -> None:
    stage = Stage()
    writing = stage.written_in_vain()
    for state in (State.PAUSED, State.FAILED):
        stage.state = state
        stage.following.look()
    assert not stage.written
    stage.reachable.set()
    writing.join(PATIENCE)
    stage.following.write()
    value = stage.written[b"status-connector-orders"]
    assert value is not None
    assert json.loads(value)["state"] == "FAILED"


def test_a_trace_and_what_is_waited_for_may_be_any_text() -> None:
    stage = Stage()
    assert comes_true(lambda: stage.looked({"orders"}), PATIENCE)
    text = "half a pair: \ud800 " + "long" * 1_000_000
    failed = Status(State.FAILED, text, waiting=waiting(WaitKind.SERVICE, text, None))
    stage.connectors["orders"].status = lambda: ConnectorStatus("orders", failed, {0: failed})
    stage.following.look()
    stage.following.write()
    for record in stage.written.items():
        stage.statuses.apply(*record)
        assert len(record[1] or b"") < 100_000
    found = stage.statuses.connectors["orders"]
    assert found.waiting is not None
    assert r"half a pair: \ud800 long" in found.trace == found.waiting.why
    stage.written.clear()
    stage.following.look()
    stage.following.write()
    assert not stage.written


def test_a_worker_that_is_back_releases_what_it_does_not_run_any_more() -> None:
    stage = Stage()
    own = StateRecord("RUNNING", "a:8083", generation=1)
    for record in (task_stated("orders", 0, own), stated("orders", own)):
        stage.statuses.apply(*record)
    stage.membership.group = Group()
    assert stage.looked(set())
    stage.following.write()
    assert not stage.written
    stage.configs.assignment = Assignment(2, {"orders": ("http://b:8083",)})
    stage.membership.group = Group(frozenset({URL, "http://b:8083"}))
    assert stage.looked(set())
    stage.following.write()
    states = {key: json.loads(value or b"{}").get("state") for key, value in stage.written.items()}
    assert states == {
        b"status-connector-orders": "UNASSIGNED",
        b"status-task-orders-0": "UNASSIGNED",
    }


def test_a_task_without_a_state_is_unassigned_and_stays_listed() -> None:
    stage = Stage()
    own = StateRecord("RUNNING", "a:8083", generation=1)
    stage.statuses.apply(*task_stated("orders", 0, own))
    assert comes_true(lambda: stage.looked({"orders"}), PATIENCE)
    stage.following.look()
    stage.following.write()
    value = stage.written[b"status-task-orders-0"]
    assert value is not None
    assert json.loads(value)["state"] == "UNASSIGNED"


def test_a_connector_that_stops_leaves_no_task_behind_at_workers_that_are_gone() -> None:
    stage = Stage()
    stage.configs.assignment = Assignment(1, {"orders": (URL, "http://b:8083")})
    stage.configs.targets["orders"] = State.STOPPED
    stage.state = State.STOPPED
    free = StateRecord("UNASSIGNED", "b:8083", generation=1)
    stage.statuses.apply(*task_stated("orders", 1, free))
    assert comes_true(lambda: stage.looked({"orders"}), PATIENCE)
    stage.following.look()
    stage.following.write()
    assert stage.written[b"status-task-orders-1"] is None


def test_tasks_that_no_worker_has_reported_are_listed_as_unassigned() -> None:
    stage = Stage()
    owners = (URL, "http://b:8083", URL)
    stage.configs.assignment = Assignment(1, {"orders": owners})
    store: Any = SimpleNamespace(configs=stage.configs, statuses=stage.statuses)
    own = StateRecord("RUNNING", "a:8083", generation=1)
    stage.statuses.apply(*task_stated("orders", 0, own))
    unassigned = StateRecord("UNASSIGNED", "b:8083")
    assert known_tasks(store, "orders") == {
        0: own,
        1: unassigned,
        2: StateRecord("UNASSIGNED", "a:8083"),
    }
    stage.configs.connectors["orders"] = {"connector.class": "Datagen"}
    assert known_tasks(store, "orders") == {0: own}, "a source may have fewer"
    stage.statuses.apply(*task_stated("orders", 2, own))
    assert known_tasks(store, "orders") == {0: own, 1: unassigned, 2: own}
    stage.configs.targets["orders"] = State.STOPPED
    assert known_tasks(store, "orders").keys() == {0, 2}


def test_tasks_of_a_connector_that_a_worker_cannot_start_are_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.configs.assignment = Assignment(1, {"orders": ("http://b:8083", URL)})
    first = StateRecord("RUNNING", "b:8083", version=stage.configs.version("orders"))
    stage.statuses.apply(*task_stated("orders", 0, first))
    stage.membership.group = Group(frozenset({URL, "http://b:8083"}))

    def refuse(*_of: object, **_how: object) -> None:
        raise ConfigError("connector orders: schema.json cannot be read")

    stage.runtime.start = refuse
    written = stage.written

    def failed() -> bool:
        stage.following.look()
        stage.following.write()
        return b"FAILED" in (written.get(b"status-task-orders-1") or b"")

    assert comes_true(failed, PATIENCE)
    assert written.keys() == {b"status-task-orders-1"}, "the connector runs elsewhere"

    def errors() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]

    assert comes_true(lambda: bool(errors()), PATIENCE)
    assert errors() == ["connector orders: schema.json cannot be read"]
