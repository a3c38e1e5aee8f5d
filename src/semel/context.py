"""The context of log lines: which connector a thread works for, and whether lines are JSON."""

from __future__ import annotations

import logging
import os
import re
import threading
from contextvars import ContextVar

CONNECTOR: ContextVar[str] = ContextVar("connector", default="")
LOG_FORMAT = "SEMEL_LOG_FORMAT"
"""The variable that is ``json`` if each line on standard error is to be a JSON object."""
STANDBY = "SEMEL_STANDBY"
"""The variable that names the socket of the standby daemon."""
LOG_STARTED = threading.Event()
_NAMED = re.compile(r"connector (\S+?):? ")


def of_record(record: logging.LogRecord) -> dict[str, str | int]:
    """The connector and the task that a log line is about, as far as they are known."""
    found: dict[str, str | int] = {}
    named = _NAMED.match(record.getMessage())
    told = str(getattr(record, "connector", ""))
    name = told or CONNECTOR.get() or (named[1] if named is not None else "")
    if name:
        found["connector"] = name
    task = getattr(record, "task", None)
    if isinstance(task, int):
        found["task"] = task
    return found


def logs_json() -> bool:
    """Whether each line on standard error is to be a JSON object."""
    return os.environ.get(LOG_FORMAT, "").strip().lower() == "json"
