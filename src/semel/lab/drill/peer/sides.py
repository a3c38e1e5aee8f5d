"""Either side as a process that can be started, killed, frozen, and started a second time."""

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

from semel.errors import SemelError
from semel.lab.drill.peer.books import OFFSET, PARTITION, TABLE
from semel.lab.drill.process import Process
from semel.lab.drill.stores import SESSION
from semel.lab.embedded import Postgres
from semel.lab.embedded.connect import ConnectorFailed, ConnectWorker

NAME, TOPIC = "drill", "drill"

_INSERT_FIELD = "org.apache.kafka.connect.transforms.InsertField$Value"
_SESSION = {
    "consumer.override.session.timeout.ms": str(int(SESSION * 1000)),
    "consumer.override.heartbeat.interval.ms": "500",
}
"""Both sides notice a frozen copy as soon."""


def connector(postgres: Postgres, *, upsert: bool, tasks: int = 2) -> dict[str, str]:
    """What both sides are given: the configuration of Debezium's JDBC sink."""
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


class Copy(ABC):
    """One running copy of a connector."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it runs, or is frozen."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""

    @abstractmethod
    def nurse(self) -> int:
        """What an operator would do: restart what has failed; returns how much that was."""

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)


class Side(ABC):
    """Something that runs the connector."""

    name: str

    def __init__(self, directory: Path, servers: str, config: Mapping[str, str]) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True)
        self.servers = servers
        self.config = config
        self._count = 0

    def start(self) -> Copy:
        """Start one more copy; the others, if there are any, are not told."""
        self._count += 1
        return self._start(self._count)

    @abstractmethod
    def _start(self, number: int) -> Copy:
        """Start copy ``number``."""


class KafkaConnect(Side):
    """Kafka Connect with Debezium's JDBC sink, each copy as a standalone worker.

    At its defaults, but that it reads committed records only; the coordinates come from Connect's
    own transform.
    """

    name = "Kafka Connect"

    def _start(self, number: int) -> Copy:
        transform = {
            "transforms": "place",
            "transforms.place.type": _INSERT_FIELD,
            "transforms.place.topic.field": "__connect_topic",
            "transforms.place.partition.field": PARTITION,
            "transforms.place.offset.field": OFFSET,
            "consumer.override.isolation.level": "read_committed",
        }
        directory = self.directory / f"copy-{number}"
        directory.mkdir()
        file = directory / "connector.json"
        file.write_text(json.dumps({"name": NAME, "config": {**self.config, **transform}}))
        defaults = {"offset.flush.interval.ms": 60_000}
        worker = ConnectWorker(directory, self.servers, "512m", settings=defaults, files=[file])
        worker.start()
        return _Worker(worker)


class _Worker(Copy):
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

    def nurse(self) -> int:
        try:
            self._worker.check(NAME)
        except ConnectorFailed:
            with contextlib.suppress(SemelError, OSError):
                self._worker.restart_failed(NAME)
            return 1
        except (SemelError, OSError):
            pass
        return 0


class Semel(Side):
    """``semel run`` with the same file; the coordinates are its provenance."""

    name = "semel"

    def _start(self, number: int) -> Copy:
        file = self.directory / "connector.json"
        own = {"bootstrap.servers": self.servers, "provenance": "true"}
        file.write_text(json.dumps({**self.config, **own}))
        java = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        java["PYSPARK_PYTHON"] = sys.executable
        return _Run(Process(file, self.directory / f"semel-{number}.log", java))


class _Run(Copy):
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

    def nurse(self) -> int:
        """It needs none."""
        return 0
