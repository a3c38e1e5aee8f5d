"""The two systems: semel as a process of its own, Kafka Connect as a worker that stays warm.

Both get the same connector configuration, in Debezium's names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from signal import SIGTERM

from benchmarks.records import CONNECT_SCHEMA
from benchmarks.rig import Rig
from semel.core.errors import ServiceError
from semel_lab.embedded.connect import ConnectWorker
from semel_lab.embedded.process import ServerProcess

JSON = "org.apache.kafka.connect.json.JsonConverter"

PEER_TUNING = {
    "batch.size": "5000",
    "consumer.override.max.poll.records": "5000",
    "dialect.postgres.unnest.insert.enabled": "true",
}
"""The fastest settings for the peer; tried were batches of 1,000 to 50,000 with and without UNNEST
(3.5.0 has it, off by default), the reduction buffer (slower: no batch of these records holds a key
twice), larger fetches, 4 tasks and the parallel collector (no difference)."""

URL_TUNING = "?reWriteBatchedInserts=true"


def connector(
    rig: Rig,
    topic: str,
    table: str,
    *,
    upsert: bool,
    converter: Mapping[str, str],
    tasks: int,
) -> dict[str, str]:
    """A sink connector that both systems understand."""
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": topic,
        "tasks.max": str(tasks),
        "connection.url": rig.postgres.jdbc_url,
        "connection.username": rig.postgres.user,
        "connection.password": rig.postgres.password,
        "insert.mode": "upsert" if upsert else "insert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "id",
        "schema.evolution": "none",
        "collection.name.format": table,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": JSON,
        "consumer.override.auto.offset.reset": "earliest",
        **{f"value.converter.{k}": v for k, v in converter.items()},
    }


ENVELOPE = {"schemas.enable": "true"}
"""Each record carries its schema."""

PLAIN = {"schemas.enable": "false"}
"""Plain JSON; semel takes the types from the table."""

PLAIN_WITH_SCHEMA = {"schemas.enable": "true", "schema.content": CONNECT_SCHEMA}
"""Plain JSON, with the schema in the converter's configuration (Kafka 4.2, KIP-1054)."""


class System(ABC):
    """Something that runs a connector."""

    name: str
    start_seconds: float
    """What it took to start the worker, where that is not part of :meth:`start`."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The first process of its tree, while a connector runs."""

    @abstractmethod
    def start(self, name: str, config: Mapping[str, str]) -> None:
        """Start a connector."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the connector has failed."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the connector that was started last."""


class Semel(System):
    """``semel run``: driver, JVM and Python workers begin and end with the connector."""

    name = "semel"
    start_seconds = 0.0

    def __init__(self, rig: Rig, environment: Mapping[str, str] | None = None) -> None:
        self._rig = rig
        self._environment = {**os.environ, **(environment or {})}
        self._directory = rig.directory / "semel"
        self._directory.mkdir(exist_ok=True)
        self.log = self._directory / "semel.log"
        self._process = ServerProcess("semel", self._directory, self.log)

    @property
    def pid(self) -> int:
        pid = self._process.pid
        if pid is None:
            raise ServiceError(f"semel has ended. {self._process.log_end()}")
        return pid

    def start(self, name: str, config: Mapping[str, str]) -> None:
        file = self._directory / f"{name}.json"
        settings = {**config, "bootstrap.servers": self._rig.kafka.bootstrap_servers}
        file.write_text(json.dumps({"name": name, "config": settings}))
        self.log.unlink(missing_ok=True)
        self._process.launch(
            [sys.executable, "-c", "from semel.cli import main; main()", "run", str(file)],
            detached=False,
            environment=self._environment,
            directory=self._directory,
        )

    def check(self) -> None:
        assert self.pid

    def stop(self) -> None:
        self._process.stop(SIGTERM, 30.0)


class Peer(System):
    """A Connect worker that is started once and keeps its warm JVM from run to run."""

    name = "Kafka Connect"

    def __init__(self, worker: ConnectWorker) -> None:
        self._worker = worker
        self._connector = ""
        self.start_seconds = worker.start_seconds

    @property
    def pid(self) -> int:
        return self._worker.require_pid()

    def start(self, name: str, config: Mapping[str, str]) -> None:
        self._connector = name
        url = config["connection.url"] + URL_TUNING
        self._worker.create(name, {**PEER_TUNING, **config, "name": name, "connection.url": url})

    def check(self) -> None:
        self._worker.check(self._connector)

    def stop(self) -> None:
        if self._connector:
            name, self._connector = self._connector, ""
            with suppress(ServiceError, OSError):
                self._worker.delete(name)
            time.sleep(1)  # its tasks close in their own time
