"""Lines of the log for machines."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from typing import Any

from semel.cli.logs import JsonFormatter
from semel.context import CONNECTOR


def line(message: str, *args: object, **more: Any) -> dict[str, Any]:
    record = logging.getLogger("semel.engine").makeRecord(
        "semel.engine", logging.WARNING, "", 0, message, args, more.pop("exc_info", None), **more
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
        "logger": "semel.engine",
        "connector": "orders",
        "task": 3,
        "message": 'task 3: waits for "it"',
    }
    assert line("connector a-b: stopped")["connector"] == "a-b"
    assert "connector" not in line("worker stops")


def test_secrets_are_hidden_in_messages_and_traces() -> None:
    try:
        raise ValueError("postgresql://me:s3cr3t@db/x")
    except ValueError:
        found = line("password=s3cr3t", exc_info=sys.exc_info())
    assert "s3cr3t" not in json.dumps(found)
    assert "ValueError" in found["trace"]
