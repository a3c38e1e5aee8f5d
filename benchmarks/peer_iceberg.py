"""The peer: Apache's Iceberg sink in a Kafka Connect worker that stays warm."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from benchmarks.rig import Rig
from benchmarks.systems import System
from semel.core.errors import ServiceError
from semel_lab.embedded.connect import ConnectWorker

TUNING = {"consumer.override.max.poll.records": "5000"}


class IcebergConnect(System):
    """Takes the same connector as semel, with a catalog and a control topic of its own."""

    name = "Kafka Connect"

    def __init__(self, rig: Rig, worker: ConnectWorker) -> None:
        self._rig = rig
        self._worker = worker
        self._connector = ""
        self.start_seconds = worker.start_seconds

    @property
    def pid(self) -> int:
        return self._worker.require_pid()

    def start(self, name: str, config: Mapping[str, str]) -> None:
        control = f"control-{name}"  # what others have left in it would be read first
        self._rig.kafka.create_topic(control, 1)
        database = config["iceberg.catalog.uri"].removeprefix("sqlite:///")
        self._connector = name
        self._worker.create(
            name,
            {
                **TUNING,
                **config,
                "name": name,
                "iceberg.catalog.type": "jdbc",
                "iceberg.catalog.uri": f"jdbc:sqlite:{database}?busy_timeout=60000",
                "iceberg.control.topic": control,
            },
        )

    def check(self) -> None:
        self._worker.check(self._connector)

    def stop(self) -> None:
        if self._connector:
            name, self._connector = self._connector, ""
            with suppress(ServiceError, OSError):
                self._worker.delete(name)
            time.sleep(2)  # tasks and coordinator close in their own time
