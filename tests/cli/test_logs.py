"""Lines of the log for machines."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from py4j import java_gateway

from semel.cli.application import not_of_py4j
from semel.core import context
from semel.core.abandoned import BackgroundCall
from semel.core.context import (
    CONNECTOR,
    LOG_FORMAT,
    LOG_STARTED,
    JsonFormatter,
    TextFormatter,
    kept,
    log_of_task,
)
from semel.spark import gateway
from tests.cli.conftest import Semel
from tests.engine.harness import wait_until
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def of_no_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests may have run a task or a connector in this process."""
    monkeypatch.setattr(context._Process, "connector", "")
    monkeypatch.setattr(context._Process, "task", None)
    before = CONNECTOR.set("")
    yield
    CONNECTOR.reset(before)


def line(message: str, *args: object, **more: Any) -> dict[str, Any]:
    record = logging.getLogger("semel.tasks").makeRecord(
        "semel.tasks", logging.WARNING, "", 0, message, args, more.pop("exc_info", None), **more
    )
    found: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return found


def test_a_line_names_connector_and_task() -> None:
    def written() -> dict[str, Any]:
        CONNECTOR.set("orders")
        return line("task %d: %s", 3, 'waits for "it"', extra={"task": 3})

    found = contextvars.copy_context().run(written)
    assert found["time"].endswith("+00:00")
    del found["time"]
    assert found == {
        "level": "WARNING",
        "logger": "semel.tasks",
        "connector": "orders",
        "task": 3,
        "message": 'task 3: waits for "it"',
    }
    assert line("connector a-b: stopped")["connector"] == "a-b"
    assert line("stopped", extra={"connector": "a-b"})["connector"] == "a-b"
    assert "connector" not in line("worker stops")
    assert line("connector a-b: task 2 was fenced")["task"] == 2


def test_a_line_about_a_connector_whose_name_has_blanks_is_its_own() -> None:
    def written(name: str, message: str) -> tuple[Any, ...]:
        CONNECTOR.set(name)
        found = line(message)
        return found["connector"], found.get("task")

    for name, message, about in (
        ("a b", "connector a b: task 2 was fenced", ("a b", 2)),
        ("a b", "connector a b is stopped", ("a b", None)),
        ("a b", "connector other: stopped", ("other", None)),
        ("a", "connector ab: stopped", ("ab", None)),
    ):
        assert contextvars.copy_context().run(written, name, message) == about


def text(message: str, **extra: object) -> str:
    record = logging.getLogger("semel").makeRecord(
        "semel", logging.INFO, "", 0, message, (), None, extra=extra
    )
    return TextFormatter("%(about)s%(message)s").format(record)


def test_a_line_for_people_begins_as_in_kafka_connect() -> None:
    assert text("worker stops") == "worker stops"
    assert text("connector orders: RUNNING").startswith("[orders|worker] ")
    assert text("waits", connector="orders", task=1) == "[orders|task-1] waits"


def test_threads_and_abandoned_calls_log_for_the_connector_that_started_them() -> None:
    found: list[str] = []

    def written() -> None:
        CONNECTOR.set("orders")
        BackgroundCall("a call", lambda: found.append(text("waits"))).wait()
        thread = threading.Thread(target=kept(lambda: found.append(text("waits"))))
        thread.start()
        thread.join(PATIENCE)

    contextvars.copy_context().run(written)
    assert found == ["[orders|worker] waits"] * 2


def test_each_thread_of_a_sparks_process_logs_for_its_task() -> None:
    log_of_task("orders", 2)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(text("waits")))  # as librdkafka's
    thread.start()
    thread.join(PATIENCE)
    assert found == ["[orders|task-2] waits"]


@pytest.mark.parametrize(("module", "printed"), [(java_gateway, False), (logging, True)])
def test_what_py4j_logs_to_the_root_logger_is_left_out(module: ModuleType, printed: bool) -> None:
    handler = logging.NullHandler()
    handler.addFilter(not_of_py4j)
    record = logging.getLogger().makeRecord(
        "root", logging.ERROR, str(module.__file__), 1, "Exception while sending command.", (), None
    )
    assert bool(handler.filter(record)) is printed


def test_secrets_are_hidden_in_messages_and_traces() -> None:
    try:
        raise ValueError("postgresql://me:s3cr3t@db/x")
    except ValueError:
        found = line("password=s3cr3t", exc_info=sys.exc_info())
    assert "s3cr3t" not in json.dumps(found)
    assert "ValueError" in found["trace"]


def test_mistakes_in_the_command_are_json_too(
    semel: Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    for arguments in (("run", "nothing.json"), ("run", "--nope")):
        found = json.loads(semel(*arguments).err)
        assert (found["level"], found["logger"]) == ("ERROR", "semel")


SPARKS = b"""WARNING: Using incubator modules: jdk.incubator.vector
Setting default log level to WARN

OutOfMemoryError
{"time": "now", "message": "a task's own"}
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_spark_writes_is_passed_on_without_its_chatter(
    form: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    LOG_STARTED.set()
    monkeypatch.setenv(LOG_FORMAT, form)
    gateway._relay(io.BytesIO(SPARKS))
    logged = [(r.name, r.getMessage()) for r in caplog.records]
    printed = capfd.readouterr().err.splitlines()
    own = '{"time": "now", "message": "a task\'s own"}'
    if form == "json":
        assert (logged, printed) == ([("spark", "OutOfMemoryError")], [own])
    else:
        assert (logged, printed) == ([], ["OutOfMemoryError", own])


def test_spark_writes_to_a_pipe_where_lines_are_json(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    LOG_STARTED.set()
    monkeypatch.setenv(LOG_FORMAT, "json")
    gateway._popen(["/bin/sh", "-c", "echo trouble >&2"], tmp_path / "told").wait(PATIENCE)
    wait_until(lambda: "trouble" in caplog.text)
