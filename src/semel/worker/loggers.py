"""Levels of loggers, by the names of log4j's levels (KIP-495)."""

from __future__ import annotations

import logging
import time
from typing import Any

from semel.worker.errors import BadRequest, NotFound

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
    found = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
    found[_ROOT] = logging.root
    return {name: _answer(name, logger) for name, logger in sorted(found.items())}


def level(name: str) -> dict[str, Any]:
    """The effective level of a logger.

    Raises:
        NotFound: there is no such logger.
    """
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
    known = logging.root.manager.loggerDict
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


def _logger(name: str) -> logging.Logger:
    return logging.root if name == _ROOT else logging.getLogger(name)


def _answer(name: str, logger: logging.Logger) -> dict[str, Any]:
    number = logger.getEffectiveLevel()
    return {
        "level": _NAMES.get(number, logging.getLevelName(number)),
        "last_modified": _modified.get(name),
    }
