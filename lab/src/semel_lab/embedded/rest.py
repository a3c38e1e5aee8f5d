"""The REST proxy, ``semel rest``, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

from semel_lab.embedded.process import LOOPBACK, answers
from semel_lab.embedded.server import Server


class RestProxy(Server):
    """One proxy, before a Kafka and perhaps a schema registry. Nobody has to log in."""

    name = "the REST proxy"
    log_name = "rest.log"
    port_names: ClassVar[tuple[str, ...]] = ("http",)
    start_timeout = 60.0
    stop_timeout = 20.0

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        kafka: str = "",
        registry: str = "",
        detached: bool = False,
    ) -> None:
        super().__init__(directory, port, detached=detached)
        self._kafka = kafka
        self._registry = registry

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{LOOPBACK}:{self.port}"

    def _launch(self) -> None:
        self._check_ports()
        lines = [
            f"bootstrap.servers={self._kafka}",
            f"listeners={self.url}",
            "semel.rest.authentication=none",
            *([f"schema.registry.url={self._registry}"] if self._registry else []),
        ]
        file = self.directory / "rest.properties"
        file.write_text("\n".join(lines) + "\n")
        self._process.launch(
            [sys.executable, "-m", "semel", "rest", str(file)],
            detached=self.detached,
            environment=dict(os.environ),
            directory=self.directory,
        )

    def _answers(self) -> bool:
        return answers(self.port, "/health")
