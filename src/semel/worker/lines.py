"""The last log lines about each connector of this process, for requests."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from typing import Any

from semel.core.context import line_of

Line = dict[str, Any]

_LINES, _BYTES, _CONNECTORS = 1000, 128 * 1024, 200
"""How many lines and bytes are kept of a connector, and of how many connectors."""
_LONGEST = 8 * 1024
"""How much is kept of a message or a trace."""


class RecentLines(logging.Handler):
    """Keeps the last lines of each connector; the connectors that were logged about last."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
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
            self._kept.setdefault(name, _Kept()).add(line)
            self._kept.move_to_end(name)
            if len(self._kept) > _CONNECTORS:
                self._kept.popitem(last=False)

    def of(self, name: str, task: int | None, most: int) -> list[Line]:
        """At most so many lines about a connector, or about one of its tasks, in order."""
        with self._reading:
            kept = self._kept.get(name)
            lines = list(kept.lines) if kept is not None else []
        found = [line for line in lines if task is None or line.get("task") == task]
        return found[-most:]


class _Kept:
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
