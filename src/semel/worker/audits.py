"""Audits that requests start. Each is a process of its own: it may need much memory, and it can be
cancelled at any time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from semel.core.context import search_path
from semel.core.redact import redacted
from semel.worker.errors import Conflict, NotFound, TooManyRequests

Answer = dict[str, Any]
_MOST = 4
"""The most audits at once: each may need much memory."""
_COMMAND = (sys.executable, "-m", "semel", "audit", "/dev/stdin", "--json")
_DONE = (0, 1, 7)
"""Exit codes of an audit that has come to a verdict; see ``semel audit``."""


class Audits:
    """The last audit of each connector that this worker started. Use it in a ``with`` statement: at
    its end, running audits are cancelled. ``connectors`` lists those that there are: audits of
    others are forgotten."""

    def __init__(self, connectors: Callable[[], Collection[str]]) -> None:
        self._connectors = connectors
        self._audits: dict[str, _Audit] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Audits:
        return self

    def __exit__(self, *_exc: object) -> None:
        for audit in list(self._audits.values()):
            audit.cancel()

    def start(self, name: str, config: Mapping[str, str], *, values: bool) -> Answer:
        """Begin to audit a connector.

        Args:
            config: its configuration, with references unresolved.
            values: also compare the values of every row with its record.

        Raises:
            Conflict: one is already running.
            TooManyRequests: several of other connectors are.
        """
        self._forget_deleted()
        with self._lock:
            present = self._audits.get(name)
            if present is not None and present.is_under_way:
                raise Conflict(f"An audit of connector {name} is already running")
            if sum(audit.is_under_way for audit in self._audits.values()) >= _MOST:
                raise TooManyRequests(f"{_MOST} audits are running already. Try again later")
            self._audits[name] = _Audit(config, values=values)
            return self._audits[name].answer()

    def answer(self, name: str) -> Answer:
        """What is known of the last audit.

        Raises:
            NotFound: none was started on this worker.
        """
        return self._known(name).answer()

    def cancel(self, name: str) -> None:
        """Cancel the running audit; it then has no verdict.

        Raises:
            NotFound: none was started on this worker.
        """
        self._known(name).cancel()

    def figures(self) -> dict[str, dict[str, float]]:
        """The figures of the audits that have reached a verdict."""
        self._forget_deleted()
        with self._lock:
            audits = dict(self._audits)
        return {name: audit.figures for name, audit in audits.items() if audit.figures}

    def _forget_deleted(self) -> None:
        with self._lock:
            deleted = self._audits.keys() - self._connectors() if self._audits else ()
            audits = [self._audits.pop(name) for name in deleted]
        for audit in audits:
            audit.cancel()

    def _known(self, name: str) -> _Audit:
        self._forget_deleted()
        with self._lock:
            audit = self._audits.get(name)
        if audit is None:
            raise NotFound(f"No audit of connector {name} was started on this worker")
        return audit


class _Audit:
    """``semel audit`` in a process."""

    def __init__(self, config: Mapping[str, str], *, values: bool) -> None:
        self._values = values
        self._began, self._ended = time.time(), 0.0
        self._state, self._message = "RUNNING", ""
        self._report: Answer = {}
        self._process = subprocess.Popen(
            [*_COMMAND, "--values"] if values else _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **search_path()},
            text=True,
        )
        text = json.dumps(dict(config))
        self._thread = threading.Thread(
            target=self._wait, args=(text,), daemon=True, name="semel-audit"
        )
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        return self._state == "RUNNING"

    @property
    def figures(self) -> dict[str, float]:
        report = self._report
        if not report:
            return {}
        parts = report.get("partitions") or report.get("topics") or ()
        return {
            "time_seconds": self._ended,
            "broken": report["broken"],
            "records": sum(part["kafka"] for part in parts),
            "lost": report["lost"],
            "duplicated": report["duplicated"],
        }

    def answer(self) -> Answer:
        answer = {"state": self._state, "values": self._values, "started": _ms(self._began)}
        if not self.is_under_way:
            answer["ended"] = _ms(self._ended)
        if self._report:
            answer["report"] = self._report
        return answer | ({"message": self._message} if self._message else {})

    def cancel(self) -> None:
        if self.is_under_way:
            self._state = "CANCELLED"
            self._process.kill()
        self._thread.join()

    def _wait(self, text: str) -> None:
        out, errors = self._process.communicate(text)
        self._ended = time.time()
        if self._state == "CANCELLED":
            return
        try:
            report = json.loads(out)
        except ValueError:
            report = {}
        if self._process.returncode in _DONE and "broken" in report:
            self._report, self._state = report, "DONE"
        else:
            self._message, self._state = redacted(errors.strip()), "FAILED"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
