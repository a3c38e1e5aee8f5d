"""Which connector a thread works for, so that the lines of its log can say so."""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar

CONNECTOR: ContextVar[str] = ContextVar("connector", default="")
_NAMED = re.compile(r"connector (\S+?):? ")


def of_record(record: logging.LogRecord) -> dict[str, str | int]:
    """The connector and the task that a line of the log is about, as far as they are known."""
    found: dict[str, str | int] = {}
    named = _NAMED.match(record.getMessage())
    name = CONNECTOR.get() or (named[1] if named is not None else "")
    if name:
        found["connector"] = name
    task = getattr(record, "task", None)
    if isinstance(task, int):
        found["task"] = task
    return found
