"""The format of log lines: for people, or as JSON. Credentials are hidden."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from semel.core.context import logs_json, of_record, prefix, works_for
from semel.core.quoting import harmless, indented
from semel.core.redact import redacted

LINE = "%(asctime)s %(levelname)s %(about)s%(message)s"


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
