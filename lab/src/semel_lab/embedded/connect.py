"""Kafka Connect, standalone or distributed, with a plugin: the peer of benchmarks and drills.

jgo resolves its jars. A worker is a JVM of its own that dies with this process; connectors are
made, watched and deleted through its REST interface.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from semel.core.errors import ServiceError
from semel.spark import jars
from semel_lab.embedded.java import find_java
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import Server
from semel_lab.jars import CONNECT, DEBEZIUM_JDBC

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


class ConnectWorker(Server):
    """A standalone worker with a plugin, Debezium's JDBC sink by default, on its path.

    It keeps no connectors of its own: those in ``files`` come with each start, others are made by
    :meth:`create` and end with the process.
    """

    name = "Kafka Connect"
    log_name = "connect.log"
    port_names = ("rest",)
    start_timeout = 120.0
    stop_timeout = 90.0
    main = "ConnectStandalone"

    def __init__(
        self,
        directory: Path,
        bootstrap_servers: str,
        heap: str = "1g",
        plugin: jars.JarSet | None = DEBEZIUM_JDBC,
        *,
        settings: Mapping[str, Any] | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        super().__init__(directory)
        self.heap = heap
        self.plugin = plugin
        self.start_seconds = float("nan")
        self._servers = bootstrap_servers
        self._own = dict(settings or {})
        self._files = tuple(files)

    def start(self) -> Self:
        began = time.monotonic()
        super().start()
        self.start_seconds = time.monotonic() - began
        return self

    def _launch(self) -> None:
        classpath = jars.classpath(CONNECT)
        if self.plugin is not None:
            self._link(self.plugin)
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING)
        properties = self.directory / "worker.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()))
        self._process.launch(
            [
                str(find_java()),
                f"-Xmx{self.heap}",
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                classpath,
                f"org.apache.kafka.connect.cli.{self.main}",
                str(properties),
                *map(str, self._files),
            ],
            detached=self.detached,
            directory=self.directory,
        )

    def require_pid(self) -> int:
        """The worker's process id.

        Raises:
            ServiceError: it has ended.
        """
        if self.pid is None:
            raise ServiceError(f"Kafka Connect ended. {self._process.log_end()}")
        return self.pid

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector, and wait until the worker has accepted it."""
        self._call("PUT", f"/connectors/{name}/config", dict(config))

    def delete(self, name: str) -> None:
        """Stop and delete a connector."""
        self._call("DELETE", f"/connectors/{name}")

    def check(self, name: str) -> bool:
        """Whether the connector and all of its tasks run.

        Raises:
            ConnectorFailed: one of them has failed.
        """
        self.require_pid()
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

    def restart_failed(self, name: str) -> None:
        """Restart the failed parts of a connector, as an operator would (KIP-745)."""
        self._call("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true")

    def _link(self, plugin: jars.JarSet) -> None:
        folder = self.directory / "plugins" / plugin.name
        folder.mkdir(parents=True, exist_ok=True)
        for jar in jars.resolve(plugin):
            link = folder / jar.name
            link.unlink(missing_ok=True)
            link.symlink_to(jar)

    def _settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            **self._storage(),
            "offset.flush.interval.ms": 10_000,
            "plugin.path": self.directory / "plugins",
            "plugin.discovery": "service_load",
            "listeners": f"http://{LOOPBACK}:{self.port}",
            "rest.advertised.host.name": LOOPBACK,
            "connector.client.config.override.policy": "All",
            # A sink task that does not stop in time commits no offsets: its records come again.
            "task.shutdown.graceful.timeout.ms": 60_000,
            **self._own,
        }

    def _storage(self) -> dict[str, Any]:
        """Where it keeps offsets, and whatever else it remembers."""
        return {"offset.storage.file.filename": self.directory / "offsets"}

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


class DistributedConnect(ConnectWorker):
    """A distributed worker, alone in its cluster, with FileStream on its class path and no plugins
    unless one is given.

    Its three topics are named after ``group``. With ``exactly_once`` its source connectors commit
    records and offsets in one transaction.
    """

    main = "ConnectDistributed"

    def __init__(
        self,
        directory: Path,
        bootstrap_servers: str,
        group: str,
        heap: str = "1g",
        plugin: jars.JarSet | None = None,
        *,
        exactly_once: bool,
    ) -> None:
        super().__init__(directory, bootstrap_servers, heap, plugin)
        self.group = group
        self._exactly_once = exactly_once

    @property
    def offsets_topic(self) -> str:
        """The topic of its source offsets."""
        return f"{self.group}-offsets"

    def stop_connector(self, name: str) -> None:
        """Stop a connector, which then has no tasks, and keep its offsets."""
        self._call("PUT", f"/connectors/{name}/stop")

    def resume_connector(self, name: str) -> None:
        """Let a connector that was stopped run again."""
        self._call("PUT", f"/connectors/{name}/resume")

    def offsets(self, name: str) -> Any:
        """A connector's offsets, as Kafka Connect reports them."""
        return self._call("GET", f"/connectors/{name}/offsets")["offsets"]

    def has_tasks(self, name: str) -> bool:
        """Whether any task of a connector is left."""
        return bool(self._call("GET", f"/connectors/{name}/status")["tasks"])

    def _storage(self) -> dict[str, Any]:
        topics = {f"{what}.storage.topic": f"{self.group}-{what}s" for what in ("config", "status")}
        factors = {f"{what}.storage.replication.factor": 1 for what in ("config", "status")}
        return {
            **topics,
            **factors,
            "offset.storage.topic": self.offsets_topic,
            "offset.storage.replication.factor": 1,
            "group.id": self.group,
            "exactly.once.source.support": "enabled" if self._exactly_once else "disabled",
        }
