"""The systems under test, as processes that the drill starts, kills, freezes and starts twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import psutil

from semel.core.errors import SemelError
from semel_lab.drill.peer.checker import OFFSET, PARTITION, TABLE
from semel_lab.drill.process import Process
from semel_lab.drill.stores import SESSION
from semel_lab.embedded import Postgres
from semel_lab.embedded.connect import ConnectorFailed, ConnectWorker

NAME, TOPIC = "drill", "drill"

_INSERT_FIELD = "org.apache.kafka.connect.transforms.InsertField$Value"
_SESSION = {
    "consumer.override.session.timeout.ms": str(int(SESSION * 1000)),
    "consumer.override.heartbeat.interval.ms": "500",
}
"""Lets both systems notice a frozen instance equally soon."""


def connector(postgres: Postgres, *, upsert: bool, tasks: int = 2) -> dict[str, str]:
    """The configuration of Debezium's JDBC sink, which both systems get."""
    return {
        "name": NAME,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": TOPIC,
        "tasks.max": str(tasks),
        "connection.url": postgres.jdbc_url,
        "connection.username": postgres.user,
        "connection.password": postgres.password,
        "insert.mode": "upsert" if upsert else "insert",
        "primary.key.mode": "record_value" if upsert else "none",
        **({"primary.key.fields": "id"} if upsert else {}),
        "schema.evolution": "none",
        "collection.name.format": TABLE,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "consumer.override.auto.offset.reset": "earliest",
        **_SESSION,
    }


class Instance(ABC):
    """One running instance of a connector."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it runs or is frozen."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""

    @abstractmethod
    def restart_failed(self) -> int:
        """Restart what has failed, as an operator would; returns how many restarts that took."""

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)


class System(ABC):
    """A system under test, which runs the connector."""

    name: str

    def __init__(self, directory: Path, servers: str, config: Mapping[str, str]) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True)
        self.servers = servers
        self.config = config
        self._count = 0

    def start(self) -> Instance:
        """Start one more instance. The others are not told."""
        self._count += 1
        return self._start(self._count)

    @abstractmethod
    def _start(self, number: int) -> Instance:
        """Start instance ``number``."""


class KafkaConnect(System):
    """Kafka Connect with Debezium's JDBC sink. Each instance is a standalone worker.

    It runs with its defaults, except that it reads only committed records. Connect's own transform
    adds the coordinates.
    """

    name = "Kafka Connect"

    def _start(self, number: int) -> Instance:
        transform = {
            "transforms": "place",
            "transforms.place.type": _INSERT_FIELD,
            "transforms.place.topic.field": "__connect_topic",
            "transforms.place.partition.field": PARTITION,
            "transforms.place.offset.field": OFFSET,
            "consumer.override.isolation.level": "read_committed",
        }
        directory = self.directory / f"instance-{number}"
        directory.mkdir()
        file = directory / "connector.json"
        file.write_text(json.dumps({"name": NAME, "config": {**self.config, **transform}}))
        defaults = {"offset.flush.interval.ms": 60_000}
        worker = ConnectWorker(directory, self.servers, "512m", settings=defaults, files=[file])
        worker.start()
        return _ConnectInstance(worker)


class _ConnectInstance(Instance):
    def __init__(self, worker: ConnectWorker) -> None:
        self._worker = worker

    @property
    def alive(self) -> bool:
        return self._worker.pid is not None

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self._worker.kill()
        elif self._worker.pid is not None:
            os.kill(self._worker.pid, number)

    def restart_failed(self) -> int:
        try:
            self._worker.check(NAME)
        except ConnectorFailed:
            with contextlib.suppress(SemelError, OSError):
                self._worker.restart_failed(NAME)
            return 1
        except (SemelError, OSError):
            pass
        return 0


class Semel(System):
    """``semel run`` with the same configuration. Its provenance columns hold the coordinates."""

    name = "semel"

    def _start(self, number: int) -> Instance:
        file = self.directory / "connector.json"
        own = {"bootstrap.servers": self.servers, "provenance": "true"}
        file.write_text(json.dumps({**self.config, **own}))
        java = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        java["PYSPARK_PYTHON"] = sys.executable
        return _Run(Process(file, self.directory / f"semel-{number}.log", java))


class _Run(Instance):
    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def alive(self) -> bool:
        return self._process.status is None

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (*self._process.family(), psutil.Process(self._process.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def restart_failed(self) -> int:
        """Nothing to restart: semel restarts its tasks by itself."""
        return 0
