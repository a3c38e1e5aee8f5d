"""The config and status topics in Kafka Connect's own format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.config.connector import MOST_TASKS
from semel.driver.base import State
from semel.worker import loggers
from semel.worker.cluster import records
from semel.worker.cluster.records import (
    Assignment,
    Configs,
    Level,
    Restart,
    StateRecord,
    Statuses,
    Tasks,
)
from semel.worker.cluster.store import Store
from tests.connect.cluster.test_membership import given


def applied(*pairs: tuple[str, Any]) -> Configs:
    """What the config topic of Kafka Connect says after these records."""
    configs = Configs()
    for key, value in pairs:
        configs.apply(key.encode(), None if value is None else json.dumps(value).encode())
    return configs


def test_what_kafka_connect_wrote_is_read() -> None:
    config = {"connector.class": "FileStreamSource", "file": "f"}
    configs = applied(
        ("session-key", {"key": "c2VjcmV0", "algorithm": "HmacSHA256", "creation-timestamp": 1}),
        ("connector-orders", {"properties": config}),
        ("target-state-orders", {"state": "PAUSED", "state.v2": "STOPPED"}),
        ("task-orders-0", {"properties": {"task.class": "FileStreamSourceTask"}}),
        ("commit-orders", {"tasks": 1}),
        ("task-count-record-orders", {"task-count": 1}),
        ("something-else", {"never": "seen"}),
    )
    assert configs.connectors == {"orders": config}
    assert configs.target("orders") is State.STOPPED
    assert configs.tasks == {"orders": Tasks(1, {"task.class": "FileStreamSourceTask"})}


def test_a_target_state_of_workers_before_kip_875_is_read() -> None:
    assert applied(("target-state-a", {"state": "PAUSED"})).target("a") is State.PAUSED


def test_a_connector_without_target_state_runs() -> None:
    assert applied(("connector-a", {"properties": {}})).target("a") is State.RUNNING


def test_a_deleted_connector_is_forgotten() -> None:
    written = ("connector-a", {"properties": {}}), ("commit-a", {"tasks": 0})
    configs = applied(*written)
    for key, value in records.forgotten("a"):
        configs.apply(key, value)
    assert (configs.connectors, configs.targets, configs.tasks) == ({}, {}, {})
    configs = applied(*written)
    for key, _ in records.forgotten("a"):
        configs.apply(key, b"null")  # is null to Kafka Connect, too
    assert (configs.connectors, configs.targets, configs.tasks) == ({}, {}, {})


@pytest.mark.parametrize("value", [b"no json", b"[]", b'{"properties": 1}', b'{"else": {}}'])
def test_a_record_that_cannot_be_read_is_passed_over(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    configs = applied(("connector-a", {"properties": {"file": "f"}}))
    configs.apply(b"connector-a", value)
    assert configs.connectors == {"a": {"file": "f"}}
    assert "skipping the record connector-a" in caplog.text


def test_a_stopped_connector_is_paused_for_older_workers() -> None:
    key, value = records.targeted("a", State.STOPPED)
    assert (key, json.loads(value or b"")) == (
        b"target-state-a",
        {"state": "PAUSED", "state.v2": "STOPPED"},
    )


def test_what_is_written_is_read_again() -> None:
    configs = Configs()
    assignment = Assignment(3, {"a": ("http://w:1", "http://w:2")}, {"a": "v"})
    for key, value in [
        records.configured("a", {"file": "ü"}),
        records.assigned(assignment),
    ]:
        assert configs.apply(key, value) is None
    assert configs.connectors == {"a": {"file": "ü"}}
    assert configs.assignment == assignment
    restart = Restart("a", include_tasks=True, only_failed=False)
    assert configs.apply(*records.restarting(restart)) == restart
    unclear = {"include-tasks": True, "only-failed": "inconsistent"}
    assert configs.apply(b"restart-connector-a", json.dumps(unclear).encode()) == restart
    level = Level("root", "INFO")
    assert configs.apply(*records.levelled(level)) == level


def test_states_are_written_as_kafka_connect_writes_them() -> None:
    key, value = records.task_stated(
        "a-b", 3, StateRecord("FAILED", "w:1", "because", generation=7)
    )
    assert key == b"status-task-a-b-3"
    assert json.loads(value or b"") == {
        "state": "FAILED",
        "trace": "because",
        "worker_id": "w:1",
        "generation": 7,
    }


def test_an_assignment_of_a_later_version_gives_no_work_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    configs = Configs()
    key, value = records.assigned(Assignment(3, {"a": ("http://w:1",)}, {"a": "v"}))
    configs.apply(key, json.dumps({**json.loads(value or b""), "format": 2}).encode())
    assert configs.assignment == Assignment(3)
    assert "the assignment was written by a later version of semel (format 2" in caplog.text


def test_states_are_read_and_forgotten() -> None:
    statuses = Statuses()
    running = StateRecord("RUNNING", "w:1", generation=7)
    for record in [
        records.stated("a", running),
        records.task_stated("a", 0, running),
        records.topic_used("a", "orders", 12),
        records.left("http://w:1", 5),
    ]:
        statuses.apply(*record)
    assert statuses.connectors == {"a": running}
    assert statuses.tasks == {"a": {0: running}}
    assert statuses.leaving == {"http://w:1": 5}
    assert statuses.known() == {"a"}
    for record in list(statuses.forgetting("a")):
        statuses.apply(*record)
    assert statuses.known() == set()


@pytest.mark.parametrize(
    "key",
    [
        *("target-state-a", "commit-a", "task-a-0", "semel-assignment", "session-key"),
        *(
            "status-connector-a",
            "status-task-a-0",
            "status-topic-t:connector-a",
            "semel-worker-http://w:1",
        ),
    ],
)
def test_an_empty_record_is_passed_over(key: str, caplog: pytest.LogCaptureFixture) -> None:
    configs = Configs(assignment=Assignment(3, {"a": ("http://w:1",)}), session_key="known")
    statuses = Statuses()
    configs.apply(key.encode(), b"{}")
    statuses.apply(key.encode(), b"{}")
    assert configs == Configs(assignment=configs.assignment, session_key="known")
    assert configs.assignment.epoch == 3
    assert not statuses.leaving
    assert statuses.known() == set()
    assert f"skipping the record {key}" in caplog.text


@pytest.mark.parametrize("number", [MOST_TASKS, 2**31 - 1])
def test_a_task_that_no_connector_can_have_is_passed_over(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    statuses = Statuses()
    statuses.apply(*records.task_stated("a", number, StateRecord("RUNNING", "w:1")))
    assert statuses.known() == set()
    assert "skipping the record status-task-a-" in caplog.text


def test_only_levels_that_are_set_while_a_worker_runs_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, str]] = []

    def set_level(logger: str, level: str) -> None:
        loggers.checked(level)
        seen.append((logger, level))

    monkeypatch.setattr("semel.worker.cluster.store.loggers.set_level", set_level)
    store = Store(given("127.0.0.1:1"), {"bootstrap.servers": "127.0.0.1:1"})
    store._configure(*records.levelled(Level("root", "TRACE")))
    store._is_new = True
    for level in ("DEBUG", "LOUD", "DEBUG"):
        store._configure(*records.levelled(Level("root", level)))
    assert seen == [("root", "DEBUG")] * 2
    assert "config topic: logger root: invalid log level 'LOUD'." in caplog.text


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000, '{"state": 1e999}'])
@pytest.mark.parametrize("key", ["connector-a\n2026 ERROR forged", "commit-a", "status-task-a-0"])
def test_a_record_of_any_size_and_shape_is_passed_over(
    key: str, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"epoch": 1, "tasks": 1e999} if content.startswith("{") else None
    value = json.dumps(values).replace("Infinity", "1e999") if values else content
    Configs().apply(key.encode(), value.encode())
    Statuses().apply(key.encode(), value.encode())
    assert all("\n" not in r.getMessage() for r in caplog.records)
