"""``semel run`` in a process that dies at planned moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semel.core import failpoints
from semel.core.errors import ServiceError
from semel.core.ledger import LedgerEntry
from semel.sinks.base import Sink

PATIENCE = 120.0
"""Seconds without progress before a demonstration gives up."""


@dataclass(frozen=True, slots=True)
class Crash:
    """One planned SIGKILL, at a failpoint that was passed ``skip`` times."""

    place: str
    skip: int


class Process:
    """Runs some connectors, one process after another."""

    def __init__(self, configs: Sequence[Mapping[str, str]], directory: Path, log: str) -> None:
        self.files = [directory / f"{config['name']}.json" for config in configs]
        for file, config in zip(self.files, configs, strict=True):
            document = {"name": config["name"], "config": config}
            file.write_text(json.dumps(document, indent=2) + "\n")
        self.log = directory / log
        self._points = directory / "failpoints"
        self._points.mkdir(exist_ok=True)
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self, crash: Crash | None, *options: str) -> None:
        """Start the process, which dies at the given moment."""
        if crash is not None:
            failpoints.arm(self._points, crash.place, "kill-driver", crash.skip)
        command = [sys.executable, "-P", "-m", "semel", "run", *map(str, self.files), *options]
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, failpoints.DIRECTORY: str(self._points)},
            )

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        assert self._popen is not None
        return self._popen.poll()

    def follow(self, crash: Crash | None, sink: Sink) -> Iterator[Sequence[LedgerEntry]]:
        """Run one connector until it dies or has caught up. Yields its ledger several times a
        second; the sink is closed at the end.

        Raises:
            ServiceError: the process did not end as planned.
        """
        self.start(crash, "--until-caught-up")
        try:
            moved, at = time.monotonic(), -1
            while self.poll() is None:
                entries = sink.entries()
                yield entries
                now = sum(e.position for e in entries)
                if now != at:
                    at, moved = now, time.monotonic()
                elif time.monotonic() - moved > PATIENCE:
                    raise ServiceError(f"the connector makes no progress; see {self.log}")
                time.sleep(0.1)
            yield sink.entries()
        finally:
            sink.close()
        self.check(crash)

    def check(self, crash: Crash | None) -> None:
        """Check that the process has ended as planned.

        Raises:
            ServiceError: it has not.
        """
        status = self.poll()
        if status == 0 or (crash is not None and status == -signal.SIGKILL):
            return
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
        raise ServiceError(f"the connector ended with status {status}; see {self.log}\n{tail}")

    def finish(self) -> None:
        """Let the process end in an orderly way."""
        assert self._popen is not None
        self._popen.terminate()
        try:
            self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ServiceError(f"the connector does not stop; see {self.log}") from None
        self.check(None)

    def stop(self) -> None:
        """Kill the process if it still runs."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
