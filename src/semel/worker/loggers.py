"""What requests see of the log: the levels of loggers, by the names of log4j's levels (KIP-495),
and the last lines about each connector of this process."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from typing import Any

from semel.core.context import line_of
from semel.worker.errors import BadRequest, NotFound

Line = dict[str, Any]

_LINES, _BYTES, _CONNECTORS = 1000, 128 * 1024, 200
"""How many lines and bytes are kept of a connector, and of how many connectors."""
_LONGEST = 8 * 1024
"""How much is kept of a message or a trace."""

_LEVELS = {
    "OFF": logging.CRITICAL + 10,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG - 5,
    "ALL": logging.NOTSET + 1,
}
_NAMES = {number: name for name, number in _LEVELS.items()}
_ROOT = "root"

_modified: dict[str, int] = {}


def levels() -> dict[str, Any]:
    """The loggers whose level is set."""
    loggers = {
        name: logger
        for name, logger in _known().items()
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
    loggers[_ROOT] = logging.root
    return {name: _answer(name, logger) for name, logger in sorted(loggers.items())}


def level(name: str) -> dict[str, Any]:
    """The effective level of a logger.

    Raises:
        NotFound: there is no such logger.
    """
    name = _cased(name)
    if name != _ROOT and name not in logging.root.manager.loggerDict:
        raise NotFound(f"Logger {name} not found.")
    return _answer(name, _logger(name))


def set_level(name: str, wanted: str | None) -> list[str]:
    """Set the level of a logger and of those below it; returns those that had a different one.

    Raises:
        BadRequest: no level is given.
        NotFound: there is no such level.
    """
    number = _LEVELS[checked(wanted)]
    name = _cased(name)
    known = _known()
    below = [n for n in known if n.startswith(f"{name}.")] if name != _ROOT else list(known)
    affected = sorted(n for n in {name, *below} if _logger(n).level != number)
    for each in affected:
        _logger(each).setLevel(number)
        _modified[each] = round(time.time() * 1000)
    return affected


def checked(wanted: str | None) -> str:
    """The name of a level.

    Raises:
        BadRequest: no level is given.
        NotFound: there is no such level.
    """
    if wanted is None:
        raise BadRequest("Desired 'level' parameter was not specified in request.")
    if wanted.upper() not in _LEVELS:
        raise NotFound(f"invalid log level '{wanted}'.")
    return wanted.upper()


def _known() -> dict[str, logging.Logger | logging.PlaceHolder]:
    """The loggers at this moment: other threads make new ones."""
    return dict(logging.root.manager.loggerDict)


def _cased(name: str) -> str:
    """A logger's name; the root's may be in any case."""
    return _ROOT if name.lower() == _ROOT else name


def _logger(name: str) -> logging.Logger:
    return logging.root if name == _ROOT else logging.getLogger(name)


def _answer(name: str, logger: logging.Logger) -> dict[str, Any]:
    number = logger.getEffectiveLevel()
    return {
        "level": _NAMES.get(number, logging.getLevelName(number)),
        "last_modified": _modified.get(name),
    }


class RecentLines(logging.Handler):
    """Keeps the last lines of each connector; the connectors that were logged about last."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: OrderedDict[str, _ConnectorLines] = OrderedDict()
        self._reading = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        try:
            line = line_of(record, 2 * _LONGEST)  # what is cut off later may hold half of a secret
        except Exception:  # arguments that do not fit their message
            self.handleError(record)
            return
        name = line.pop("connector", "")
        if not name:
            return
        with self._reading:
            self._kept.setdefault(name, _ConnectorLines()).add(line)
            self._kept.move_to_end(name)
            if len(self._kept) > _CONNECTORS:
                self._kept.popitem(last=False)

    def of(self, name: str, task: int | None, most: int) -> list[Line]:
        """At most so many lines about a connector, or about one of its tasks, in order."""
        with self._reading:
            kept = self._kept.get(name)
            lines = list(kept.lines) if kept is not None else []
        matching = [line for line in lines if task is None or line.get("task") == task]
        return matching[-most:]


class _ConnectorLines:
    """The lines of a connector."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self._bytes = 0

    def add(self, line: Line) -> None:
        line |= {k: v[:_LONGEST] for k, v in line.items() if k in ("message", "trace")}
        self.lines.append(line)
        self._bytes += _size(line)
        while len(self.lines) > _LINES or self._bytes > _BYTES:
            self._bytes -= _size(self.lines.popleft())


def _size(line: Line) -> int:
    return len(line["message"]) + len(line.get("trace", "")) + len(line["logger"])
