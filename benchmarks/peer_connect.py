"""The peer: Kafka Connect with one plugin, as one standalone worker.

Its jars are resolved by jgo. A worker is a JVM of its own that dies with this process; connectors
are made, watched and deleted through its REST interface.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM
from types import TracebackType
from typing import Any, Self

from semel import jars
from semel.embedded.java import find_java
from semel.embedded.process import LOOPBACK, ServerProcess, free_port, listening
from semel.errors import ServiceError

START_TIMEOUT = 120.0
REST_TIMEOUT = 90.0

_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %-5level %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class ConnectorFailed(RuntimeError):
    """A connector or one of its tasks is in state FAILED; the text holds the task's trace."""


class ConnectWorker:
    """A running Connect worker with a plugin, Debezium's JDBC sink by default, on its path."""

    def __init__(
        self,
        directory: Path,
        bootstrap_servers: str,
        heap: str = "1g",
        plugin: jars.JarSet = jars.DEBEZIUM_JDBC,
    ) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.heap = heap
        self.plugin = plugin
        self.port = free_port()
        self.start_seconds = float("nan")
        self._servers = bootstrap_servers
        self._process = ServerProcess(
            "Kafka Connect", self.directory, self.directory / "connect.log"
        )

    @property
    def pid(self) -> int:
        """The worker's process id."""
        pid = self._process.pid
        if pid is None:
            raise ServiceError(f"Kafka Connect has ended. {self._process.log_end()}")
        return pid

    def __enter__(self) -> Self:
        classpath = jars.classpath(jars.CONNECT)
        self._link_plugin()
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING)
        properties = self.directory / "worker.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()))
        began = time.monotonic()
        self._process.launch(
            [
                str(find_java()),
                f"-Xmx{self.heap}",
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                classpath,
                "org.apache.kafka.connect.cli.ConnectStandalone",
                str(properties),
            ],
            detached=False,
            directory=self.directory,
        )
        try:
            self._process.await_ready(self._answers, START_TIMEOUT)
        except BaseException:
            self._process.kill()
            raise
        self.start_seconds = time.monotonic() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.stop(SIGTERM, 15.0)

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector; returns when the worker has taken it."""
        self._call("PUT", f"/connectors/{name}/config", dict(config))

    def delete(self, name: str) -> None:
        """Stop a connector and forget it."""
        self._call("DELETE", f"/connectors/{name}")

    def check(self, name: str) -> bool:
        """Whether the connector and all of its tasks run.

        Raises:
            ConnectorFailed: one of them has failed.
        """
        assert self.pid
        try:
            status = self._call("GET", f"/connectors/{name}/status")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False  # not yet known
            raise
        parts = [status["connector"], *status["tasks"]]
        for part in parts:
            if part["state"] == "FAILED":
                raise ConnectorFailed(f"connector {name}: {part.get('trace', 'no trace')}")
        return len(parts) > 1 and all(part["state"] == "RUNNING" for part in parts)

    def _link_plugin(self) -> None:
        folder = self.directory / "plugins" / self.plugin.name
        folder.mkdir(parents=True, exist_ok=True)
        for jar in jars.resolve(self.plugin):
            link = folder / jar.name
            link.unlink(missing_ok=True)
            link.symlink_to(jar)

    def _settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": self.directory / "offsets",
            "offset.flush.interval.ms": 10_000,
            "plugin.path": self.directory / "plugins",
            "plugin.discovery": "service_load",
            "listeners": f"http://{LOOPBACK}:{self.port}",
            "rest.advertised.host.name": LOOPBACK,
            "connector.client.config.override.policy": "All",
        }

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        try:
            self._call("GET", "/connectors")
        except (OSError, ValueError):
            return False
        return True

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=REST_TIMEOUT) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise
            raise ServiceError(
                f"Kafka Connect refuses {method} {path}: {error.read().decode(errors='replace')}"
            ) from None
        return json.loads(text) if text else None
