"""Kafka and PostgreSQL together, and what is known about them from one command to the next."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from semel.jars import locked
from semel.lab.embedded.kafka import Kafka
from semel.lab.embedded.postgres import Postgres, program_directory


@dataclass(frozen=True)
class ServiceStatus:
    """One service: whether it runs, and how to connect to it."""

    name: str
    running: bool
    pid: int | None
    port: int
    url: str
    log: str


@dataclass(frozen=True)
class ServicesStatus:
    """Both services of a directory."""

    kafka: ServiceStatus
    postgres: ServiceStatus

    @property
    def running(self) -> bool:
        """Whether both run."""
        return self.kafka.running and self.postgres.running


class Services:
    """Kafka and PostgreSQL in one directory.

    ``up`` leaves them running after this process, until ``down``, here or in another process. As
    a context manager, those that it started end with the block, at the latest with this process.
    The state is written to ``services.json`` for people and scripts. It is never trusted: whether
    a service runs is looked up anew.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory).absolute()
        self.state_file = self.directory / "services.json"
        self._kafka: Kafka | None = None
        self._postgres: Postgres | None = None
        self._started: list[Kafka | Postgres] = []

    @property
    def kafka(self) -> Kafka:
        """The directory's Kafka, running or not."""
        if self._kafka is None:
            self._kafka = Kafka(self.directory / "kafka", detached=True)
        return self._kafka

    @property
    def postgres(self) -> Postgres:
        """The directory's PostgreSQL, running or not."""
        if self._postgres is None:
            self._postgres = Postgres(self.directory / "postgres", detached=True)
        return self._postgres

    def up(
        self,
        kafka_port: int | None = None,
        postgres_port: int | None = None,
        *,
        detached: bool = True,
    ) -> ServicesStatus:
        """Starts what is not running. What runs already is left alone, also on another port."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with locked(self.directory / "lock"):
            if self.kafka.pid is None:
                self._kafka = Kafka(self.kafka.directory, kafka_port, detached=detached)
            if self.postgres.pid is None:
                self._postgres = Postgres(self.postgres.directory, postgres_port, detached=detached)
            wanted: tuple[Kafka | Postgres, ...] = (self.kafka, self.postgres)
            stopped = [each for each in wanted if each.pid is None]
            if self.postgres in stopped:
                program_directory()  # before Kafka's jars are downloaded in vain
            self._started += stopped
            try:
                with ThreadPoolExecutor(max_workers=2) as pool:
                    for starting in [pool.submit(each.start) for each in stopped]:
                        starting.result()
            except BaseException:
                for each in stopped:  # both or neither; the one that failed is down already
                    each.stop()
                raise
            return self._write_state()

    def down(self) -> ServicesStatus:
        """Stops what is running. The data stays for the next ``up``."""
        if not self.directory.exists():
            return self.status()
        with locked(self.directory / "lock"):
            self.kafka.stop()
            self.postgres.stop()
            return self._write_state()

    def status(self) -> ServicesStatus:
        """What runs now."""
        kafka, postgres = self.kafka, self.postgres
        return ServicesStatus(
            ServiceStatus(
                kafka.name,
                kafka.pid is not None,
                kafka.pid,
                kafka.port,
                kafka.bootstrap_servers,
                str(kafka.log),
            ),
            ServiceStatus(
                postgres.name,
                postgres.pid is not None,
                postgres.pid,
                postgres.port,
                postgres.url,
                str(postgres.log),
            ),
        )

    def __enter__(self) -> Self:
        self.up(detached=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with locked(self.directory / "lock"):
            for each in self._started:
                each.stop()
            self._write_state()

    def _write_state(self) -> ServicesStatus:
        status = self.status()
        written = self.state_file.with_suffix(".new")
        written.write_text(json.dumps(asdict(status), indent=2) + "\n")
        written.replace(self.state_file)
        return status
