"""The context of log lines: which connector and task a thread works for, and whether lines are
JSON."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")

CONNECTOR: ContextVar[str] = ContextVar("connector", default="")
LOG_FORMAT = "SEMEL_LOG_FORMAT"
"""The variable that is ``json`` if each line on standard error is to be a JSON object."""
STANDBY = "SEMEL_STANDBY"
"""The variable that names the socket of the standby daemon."""
LOG_STARTED = threading.Event()
_NAMED = re.compile(r"connector (\S+?)(?:[:,]? |:?$)(?:task (\d+)\b)?")


def kept(call: Callable[[], T]) -> Callable[[], T]:
    """A call that another thread is to make, in the context of this one."""
    return partial(copy_context().run, call)


class _Process:
    """What a process of Spark's works for, in all of its threads: one task at a time."""

    connector: str = ""
    task: int | None = None


def works_for(connector: str, task: int) -> None:
    """Note the task that this process works for from now on."""
    _Process.connector, _Process.task = connector, task


def of_record(record: logging.LogRecord) -> dict[str, str | int]:
    """The connector and the task that a log line is about, as far as they are known."""
    found: dict[str, str | int] = {}
    named = _NAMED.match(record.getMessage())
    told = str(getattr(record, "connector", "")) or (named[1] if named is not None else "")
    name = told or CONNECTOR.get() or _Process.connector
    task = getattr(record, "task", None)
    if task is None and named is not None and named[2] and named[1] == name:
        task = int(named[2])
    if task is None and name == _Process.connector:
        task = _Process.task
    if name:
        found["connector"] = name
    if isinstance(task, int):
        found["task"] = task
    return found


def prefix(record: logging.LogRecord) -> str:
    """What a line begins with, as in Kafka Connect: ``[orders|task-0]``, or ``[orders|worker]`` if
    it is about the connector as a whole."""
    about = of_record(record)
    if "connector" not in about:
        return ""
    part = f"task-{about['task']}" if "task" in about else "worker"
    return f"[{about['connector']}|{part}] "


def logs_json() -> bool:
    """Whether each line on standard error is to be a JSON object."""
    return os.environ.get(LOG_FORMAT, "").strip().lower() == "json"
