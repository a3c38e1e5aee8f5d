"""Kafka, PostgreSQL and, if they are wanted, a schema registry and a REST proxy together, with the
state that is kept between commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from semel.core.locks import alone
from semel_lab.embedded.kafka import Kafka
from semel_lab.embedded.postgres import Postgres, program_directory
from semel_lab.embedded.registry import SchemaRegistry
from semel_lab.embedded.rest import RestProxy

_STARTED_IN = 600.0
"""Seconds to wait for another process that starts them."""

Service = Kafka | Postgres | SchemaRegistry | RestProxy


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
    """The services of a directory. ``registry`` and ``rest`` are None where they were never
    wanted."""

    kafka: ServiceStatus
    postgres: ServiceStatus
    registry: ServiceStatus | None = None
    rest: ServiceStatus | None = None

    @property
    def all(self) -> Sequence[ServiceStatus]:
        """The services that exist."""
        return [s for s in (self.kafka, self.postgres, self.registry, self.rest) if s is not None]

    @property
    def running(self) -> bool:
        """Whether all run."""
        return all(service.running for service in self.all)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Each service's facts, by its short name."""
        return {name: facts for name, facts in asdict(self).items() if facts is not None}


_CREATES = {"auto.create.topics.enable": "true"}
"""As Kafka's own default: whoever develops expects a topic to be there once it is written to."""


class Services:
    """Kafka and PostgreSQL in one directory, with a schema registry and a REST proxy if they were
    ever wanted there.

    ``up`` leaves them running after this process, until ``down``, here or in another process. As
    a context manager, those that it started end with the block, at the latest with this process.
    The state is written to ``services.json`` for people and scripts. It is never trusted: whether a
    service runs is checked each time.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory).absolute()
        self.state_file = self.directory / "services.json"
        self._kafka: Kafka | None = None
        self._postgres: Postgres | None = None
        self._registry: SchemaRegistry | None = None
        self._rest: RestProxy | None = None
        self._started: list[Service] = []

    @property
    def kafka(self) -> Kafka:
        """The directory's Kafka, running or not."""
        if self._kafka is None:
            self._kafka = Kafka(self.directory / "kafka", detached=True, settings=_CREATES)
        return self._kafka

    @property
    def postgres(self) -> Postgres:
        """The directory's PostgreSQL, running or not."""
        if self._postgres is None:
            self._postgres = Postgres(self.directory / "postgres", detached=True)
        return self._postgres

    @property
    def registry(self) -> SchemaRegistry | None:
        """The directory's schema registry, running or not; None if it was never wanted."""
        if self._registry is None and (self.directory / "registry").exists():
            self._registry = SchemaRegistry(self.directory / "registry", detached=True)
        return self._registry

    @property
    def rest(self) -> RestProxy | None:
        """The directory's REST proxy, running or not; None if it was never wanted."""
        if self._rest is None and (self.directory / "rest").exists():
            self._rest = self._proxy()
        return self._rest

    def _proxy(self, port: int | None = None, *, detached: bool = True) -> RestProxy:
        registry = "" if self.registry is None else self.registry.url
        servers = self.kafka.bootstrap_servers
        where = self.directory / "rest"
        return RestProxy(where, port, kafka=servers, registry=registry, detached=detached)

    def up(
        self,
        kafka_port: int | None = None,
        postgres_port: int | None = None,
        *,
        detached: bool = True,
        registry: bool = False,
        registry_port: int | None = None,
        rest: bool = False,
        rest_port: int | None = None,
    ) -> ServicesStatus:
        """Start the services that are not running. Running ones keep their ports.

        Args:
            registry: a schema registry is wanted here, from now on.
            rest: so is a REST proxy.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with alone(self.directory / "lock", _STARTED_IN, "the embedded services"):
            if self.kafka.pid is None:
                self._kafka = Kafka(
                    self.kafka.directory, kafka_port, detached=detached, settings=_CREATES
                )
            if self.postgres.pid is None:
                self._postgres = Postgres(self.postgres.directory, postgres_port, detached=detached)
            if registry and (self.registry is None or self.registry.pid is None):
                self._registry = SchemaRegistry(
                    self.directory / "registry", registry_port, detached=detached
                )
            if (rest or self.rest is not None) and (self.rest is None or self.rest.pid is None):
                self._rest = self._proxy(rest_port, detached=detached)
            services: list[Service] = [self.kafka, self.postgres]
            services += [self.registry] if self.registry is not None else []
            stopped = [each for each in services if each.pid is None]
            if self.postgres in stopped:
                program_directory()  # before Kafka's jars are downloaded in vain
            self._started += stopped
            try:
                with ThreadPoolExecutor(max_workers=len(services)) as pool:
                    for starting in [pool.submit(each.start) for each in stopped]:
                        starting.result()
                if self.rest is not None and self.rest.pid is None:  # it looks for Kafka
                    stopped.append(self.rest)
                    self._started.append(self.rest.start())
            except BaseException:
                for each in stopped:  # all or none; the one that failed is down already
                    each.stop()
                raise
            return self._write_state()

    def down(self) -> ServicesStatus:
        """Stop the running services. Their data stays for the next ``up``."""
        if not self.directory.exists():
            return self.status()
        with alone(self.directory / "lock", _STARTED_IN, "the embedded services"):
            if self.rest is not None:
                self.rest.stop()
            self.kafka.stop()
            self.postgres.stop()
            if self.registry is not None:
                self.registry.stop()
            return self._write_state()

    def status(self) -> ServicesStatus:
        """The current state of the services."""
        registry, rest = self.registry, self.rest
        return ServicesStatus(
            _status(self.kafka, self.kafka.bootstrap_servers),
            _status(self.postgres, self.postgres.url),
            None if registry is None else _status(registry, registry.url),
            None if rest is None else _status(rest, rest.url),
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
        with alone(self.directory / "lock", _STARTED_IN, "the embedded services"):
            for each in reversed(self._started):
                each.stop()
            self._write_state()

    def _write_state(self) -> ServicesStatus:
        status = self.status()
        written = self.state_file.with_suffix(".new")
        written.write_text(json.dumps(status.facts(), indent=2) + "\n")
        written.replace(self.state_file)
        return status


def _status(service: Service, url: str) -> ServiceStatus:
    pid = service.pid
    return ServiceStatus(service.name, pid is not None, pid, service.port, url, str(service.log))
