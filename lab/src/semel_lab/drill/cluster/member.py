"""A worker of a drill's cluster."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from semel.worker.rest.token import VARIABLE
from semel_lab.drill.process import Process
from semel_lab.embedded.process import LOOPBACK, free_port
from semel_lab.embedded.proxy import Proxy

_ANSWERS_IN = 5.0


class Member:
    """A worker process that can be killed, frozen, cut off and restarted under its name."""

    def __init__(
        self,
        directory: Path,
        number: int,
        keys: Mapping[str, str],
        environment: Mapping[str, str],
        way: Proxy,
    ) -> None:
        self.way = way
        self.number = number
        port = free_port()
        self.id = f"{LOOPBACK}:{port}"
        own = {
            "bootstrap.servers": f"{LOOPBACK}:{way.port}",
            "listeners": f"http://{self.id}",
        }
        self._file = directory / f"worker-{number}.json"
        self._file.write_text(json.dumps({**keys, **own}, indent=2) + "\n")
        self._log = directory / f"worker-{number}.log"
        token = secrets.token_hex()
        self._environment = {**environment, VARIABLE: token}
        self._api = httpx.Client(
            base_url=f"http://{self.id}",
            timeout=_ANSWERS_IN,
            headers={"Authorization": f"Bearer {token}"},
        )
        self.process = self._launch()

    def _launch(self) -> Process:
        return Process(self._file, self._log, self._environment, "worker")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The worker's answer in JSON; None if it does not answer."""
        try:
            answer = self._api.request(method, path, json=body)
            answer.raise_for_status()
            return answer.json() if answer.content else {}
        except httpx.HTTPError:
            return None

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return self.ask("GET", "/connectors") is not None

    def family(self) -> list[psutil.Process]:
        """The worker's processes, itself first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.process.pid), *self.process.family()]
        return []

    def send(self, number: signal.Signals) -> None:
        """Send all of its processes a signal."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def stop(self) -> None:
        """Ask the worker to shut down cleanly."""
        os.kill(self.process.pid, signal.SIGTERM)

    def again(self) -> None:
        """Start the worker again after its end."""
        self.process = self._launch()

    def close(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self._api.close()
