"""The servers that all processes of a test run share: one of each kind.

The process that was started first, pytest's own or the controller of pytest-xdist, starts a server
when a test asks for it. A worker that dies takes none with it, and none outlives the run, even one
that is SIGKILLed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import psutil
import pytest

from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.mariadb import MariaDB, installed
from semel_lab.embedded.opensearch import Elasticsearch, OpenSearch
from semel_lab.embedded.registry import SchemaRegistry
from semel_lab.embedded.server import Server
from tests.databases import MYSQL, Given
from tests.patience import PATIENCE

KINDS: Mapping[str, Callable[[Path], Server]] = {
    "kafka": lambda at: Kafka(at, heap="768m"),
    # No test cuts the machine's power, so none needs fsync.
    "postgres": lambda at: Postgres(at, settings={"fsync": "off", "max_connections": "400"}),
    "mariadb": MariaDB,
    "registry": SchemaRegistry,
    "opensearch": OpenSearch,
    "elasticsearch": Elasticsearch,
}


_MEMORY, _ROOMY = Path("/dev/shm"), 8 * 1024**3


def _new_directory() -> Path:
    """A directory for servers: in memory if there is enough, because each test makes databases and
    topics, for which a disk may take seconds. Short: a Unix socket's path has at most 107 bytes."""
    free = shutil.disk_usage(_MEMORY).free if _MEMORY.is_dir() else 0
    in_memory = min(free, psutil.virtual_memory().available) >= _ROOMY
    return Path(tempfile.mkdtemp(prefix="semel-test-", dir=_MEMORY if in_memory else None))


class Servers:
    """Starts each server once, for this process and for those that ask through a socket."""

    def __init__(self) -> None:
        self.directory = _new_directory()
        self._started: dict[str, Server] = {}
        self._locks = {name: Lock() for name in KINDS}
        self._listener: Listener | None = None

    def start(self, name: str) -> Server:
        with self._locks[name]:
            if name not in self._started:
                self._started[name] = KINDS[name](self.directory / name).start()
            return self._started[name]

    def address(self) -> str:
        """Where other processes ask."""
        if self._listener is None:
            self._listener = Listener(str(self.directory / "socket"), "AF_UNIX", backlog=64)
            Thread(target=self._serve, args=(self._listener,), daemon=True).start()
        return str(self._listener.address)

    def _serve(self, listener: Listener) -> None:
        with suppress(OSError):  # closed
            while True:
                Thread(target=self._answer, args=(listener.accept(),), daemon=True).start()

    def _answer(self, asker: Connection[Any, Any]) -> None:
        try:
            self.start(asker.recv())
            asker.send("")
        except Exception as failure:
            asker.send(f"{type(failure).__name__}: {failure}")

    def end(self) -> None:
        """Stop all."""
        if self._listener is not None:
            self._listener.close()
        for server in self._started.values():
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


_SERVERS = pytest.StashKey[Servers]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_SERVERS] = Servers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["servers"] = node.config.stash[_SERVERS].address()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SERVERS in config.stash:
        config.stash[_SERVERS].end()


def _found(config: pytest.Config, name: str) -> Any:
    """The run's server of this name, started if no test has asked for it before."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return config.stash[_SERVERS].start(name)
    with Client(worker["servers"], "AF_UNIX") as asked:
        asked.send(name)
        assert asked.poll(PATIENCE), f"{name} does not start"
        assert not (failure := asked.recv()), failure
    return KINDS[name](Path(worker["servers"]).parent / name)


@pytest.fixture(scope="session")
def services_directory() -> Iterator[Path]:
    """Where the services of this process live."""
    directory = _new_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Kafka:
    """The run's Kafka. A test that stops, kills or fills it takes ``own_kafka`` instead."""
    found: Kafka = _found(pytestconfig, "kafka")
    return found


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Postgres:
    """The run's PostgreSQL, where each test makes and drops a database. A test that stops or kills
    it, or changes its settings, takes ``own_postgres`` instead."""
    found: Postgres = _found(pytestconfig, "postgres")
    return found


@pytest.fixture(scope="session")
def registry(pytestconfig: pytest.Config) -> SchemaRegistry:
    """The run's schema registry. A test that stops it starts one of its own."""
    found: SchemaRegistry = _found(pytestconfig, "registry")
    return found


@pytest.fixture(scope="session")
def mariadb(pytestconfig: pytest.Config) -> MariaDB | Given:
    """The run's MariaDB, or the MySQL that is tested instead. A test that changes its settings
    starts one of its own."""
    if MYSQL:
        return Given(MYSQL)
    if not installed():
        pytest.skip("mariadbd is not installed (Debian: apt-get install mariadb-server)")
    found: MariaDB = _found(pytestconfig, "mariadb")
    return found


@pytest.fixture(scope="session")
def opensearch(pytestconfig: pytest.Config, jdk: None) -> OpenSearch:
    """The run's OpenSearch. A test that stops or kills it starts one of its own."""
    found: OpenSearch = _found(pytestconfig, "opensearch")
    return found


@pytest.fixture(scope="session")
def elasticsearch(pytestconfig: pytest.Config, jdk: None) -> Elasticsearch:
    """The run's Elasticsearch."""
    found: Elasticsearch = _found(pytestconfig, "elasticsearch")
    return found
