"""Log lines: which connector and task a thread works for, and their format, for people or as JSON,
with credentials hidden. And who has started a run, as a run tells others of the same connector."""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from semel.core.quoting import harmless, indented
from semel.core.redact import redacted

T = TypeVar("T")

CONNECTOR: ContextVar[str] = ContextVar("connector", default="")
LOG_FORMAT = "SEMEL_LOG_FORMAT"
"""The variable that is ``json`` if each line on standard error is to be a JSON object."""
STANDBY = "SEMEL_STANDBY"
"""The variable that names the socket of the standby daemon."""
RUN = "SEMEL_RUN"
"""The variable of tasks that says which run they belong to."""
BY = "by"
"""The fact in an offset's metadata that names the run."""
LOG_STARTED = threading.Event()


@lru_cache(64)
def _naming(name: str) -> re.Pattern[str]:
    """How a line begins that is about a connector with this name, a regular expression."""
    return re.compile(rf"connector ({name})(?:[:,]? |:?$)(?:task (\d+)\b)?")


_ANY = _naming(r"\S+?")
_RUN = re.compile(r".*@(?P<host>\S+), process (?P<pid>\d+), at .*")
LINE = "%(asctime)s %(levelname)s %(about)s%(message)s"


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
    fields: dict[str, str | int] = {}
    own, message = CONNECTOR.get() or _Process.connector, record.getMessage()
    # A name may contain blanks: without knowing it, nobody can tell where it ends.
    named = (_naming(re.escape(own)).match(message) if own else None) or _ANY.match(message)
    subject = str(getattr(record, "connector", "")) or (named[1] if named is not None else "")
    name = subject or own
    task = getattr(record, "task", None)
    if task is None and named is not None and named[2] and named[1] == name:
        task = int(named[2])
    if task is None and name == _Process.connector:
        task = _Process.task
    if name:
        fields["connector"] = name
    if isinstance(task, int):
        fields["task"] = task
    return fields


def prefix(record: logging.LogRecord) -> str:
    """What a line begins with, as in Kafka Connect: ``[orders|task-0]``, or ``[orders|worker]`` if
    it is about the connector as a whole."""
    about = of_record(record)
    if "connector" not in about:
        return ""
    part = f"task-{about['task']}" if "task" in about else "worker"
    return f"[{about['connector']}|{part}] "


def search_path() -> dict[str, str]:
    """Environment variables for a Python process that this one starts. It looks for modules in the
    working directory only if this process does: the folder that a command happens to run in may
    hold an ``enum.py`` of somebody else."""
    searched = {Path(entry).resolve() for entry in sys.path}
    return {} if Path.cwd() in searched else {"PYTHONSAFEPATH": "1"}


def this_user() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def this_run() -> str:
    """Who has started this run, where and when, for people."""
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{this_user()}@{socket.gethostname()}, process {os.getpid()}, at {at}"


def is_over(run: str) -> bool:
    """Whether a run, as :func:`this_run` names it, is known to be over: it was one of this process,
    or of a process of this machine that has ended."""
    match = _RUN.fullmatch(run)
    if match is None or match["host"] != socket.gethostname():
        return False
    if int(match["pid"]) == os.getpid():
        return True
    with suppress(PermissionError):
        try:
            os.kill(int(match["pid"]), 0)
        except ProcessLookupError:
            return True
    return False


def logs_json() -> bool:
    """Whether each line on standard error is to be a JSON object."""
    return os.environ.get(LOG_FORMAT, "").strip().lower() == "json"


class TextFormatter(logging.Formatter):
    """A line that says which connector and task it is about; ``about`` is a field of its own.
    Control characters are escaped, long lines cut, and further lines indented: none can be taken
    for an entry."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        record.about = prefix(record)
        return indented(redacted(harmless(super().format(record))))


class JsonFormatter(logging.Formatter):
    """A JSON object for each record, with its connector and task where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        return json.dumps(line_of(record), ensure_ascii=False)


def line_of(record: logging.LogRecord, most: int | None = None) -> dict[str, Any]:
    """A log record as facts, with its connector and its task where they are known. Only ``most``
    characters of its texts are looked at."""
    when = datetime.fromtimestamp(record.created, UTC)
    facts: dict[str, Any] = {
        "time": when.isoformat(timespec="milliseconds"),
        "level": record.levelname,
        "logger": record.name,
        **of_record(record),
        "message": redacted(harmless(record.getMessage()[:most])),
    }
    if record.exc_info:
        facts["trace"] = redacted(
            harmless(logging.Formatter().formatException(record.exc_info)[:most])
        )
    return facts


def log_of_task(connector: str, task: int) -> None:
    """Let this process, one of Spark's, log for a task: the driver passes its lines on."""
    works_for(connector, task)
    if not logging.root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if logs_json() else TextFormatter(LINE))
        logging.basicConfig(level="WARNING", handlers=[handler])
