"""The log on standard error: for people, or as JSON."""

from __future__ import annotations

import logging
import os
import sys
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from semel.core.context import LINE, LOG_FORMAT, LOG_STARTED, JsonFormatter, TextFormatter


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


Format = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar=LOG_FORMAT,
        help="The log as text, or as a JSON object in each line.",
    ),
]


def json_line(level: int, message: str) -> str:
    """A log line about the command itself, which may fail before there is a log."""
    record = logging.getLogger("semel").makeRecord("semel", level, "", 0, message, (), None)
    return JsonFormatter().format(record)


def start_log(out: Console, form: LogFormat = LogFormat.TEXT) -> None:
    """Log to standard error; a terminal gets colours."""
    level = os.environ.get("SEMEL_LOG", "INFO").upper()
    handler: logging.Handler
    os.environ[LOG_FORMAT] = form.value  # for what this process starts, too
    if form is LogFormat.JSON:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
    elif out.is_terminal:
        handler = RichHandler(
            console=out, show_path=False, log_time_format="%H:%M:%S", omit_repeated_times=False
        )
        handler.setFormatter(TextFormatter("%(about)s%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TextFormatter(LINE))
    handler.addFilter(not_of_py4j)
    logging.basicConfig(level="WARNING", handlers=[handler])
    logging.getLogger("semel").setLevel(level)
    logging.getLogger("py4j").setLevel("CRITICAL")
    LOG_STARTED.set()


def not_of_py4j(record: logging.LogRecord) -> bool:
    """Py4J also logs to the root logger, with stack traces, what the engines report themselves."""
    return record.name != "root" or f"{os.sep}py4j{os.sep}" not in record.pathname
