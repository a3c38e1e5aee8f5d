"""Real services for the tests. They end with the test run, even if that is SIGKILLed."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, settings

from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.hdfs import Hdfs
from semel_lab.embedded.java import find_java, has_compiler
from semel_lab.embedded.mariadb import MariaDB
from semel_lab.embedded.process import comes_true
from tests import s3
from tests.databases import SYSTEMS, Given, new_sqlserver_database
from tests.faults import Faults, apart, before
from tests.hivemetastore import HiveMetastore
from tests.patience import PATIENCE
from tests.restcatalog import RestCatalogServer

pytest_plugins = [
    "tests.servers",
    "tests.matrix",
    "tests.reporting",
    "tests.sampling",
    "tests.scheduling",
    "tests.disks",
]

# How long an example takes says how busy the machine is.
for profile, examples in (("semel", 8), ("thorough", 200)):
    settings.register_profile(
        profile,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile("semel")

Value = bytes | str | None
Headers = Sequence[tuple[str, bytes | None]]


class MakeTopic(Protocol):
    """Creates a topic of a unique name, writes records into it, and returns the name."""

    def __call__(
        self,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        prefix: str = "topic",
        values: Sequence[Value] = (),
        keys: Sequence[Value] | None = None,
    ) -> str: ...


class Produce(Protocol):
    """Writes records and returns when Kafka has all of them.

    ``keys``, ``headers`` and ``timestamps`` (milliseconds) go with the values one by one; without
    ``partition`` and keys the records go to the partitions in turn.
    """

    def __call__(
        self,
        topic: str,
        values: Sequence[Value],
        keys: Sequence[Value] | None = None,
        partition: int | None = None,
        *,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[int] | None = None,
        bootstrap_servers: str | None = None,
    ) -> None: ...


def wait_gone(pid: int, timeout: float = PATIENCE) -> bool:
    """Whether a process, with all its threads, ends in time. It may still have to be reaped."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1:
                return True
        except psutil.NoSuchProcess:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def wait_ended(thread: threading.Thread) -> None:
    """Wait until the kernel has ended a thread, and not only Python."""
    thread.join(PATIENCE)
    assert comes_true(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), PATIENCE)


@pytest.fixture(scope="session")
def jdk() -> None:
    """Some servers are started from a line of Java, which a runtime alone cannot compile."""
    if not has_compiler(java := find_java()):
        pytest.skip(f"this server needs a JDK, and {java} is only a runtime")


@pytest.fixture(scope="session")
def hdfs(services_directory: Path, jdk: None) -> Iterator[Hdfs]:
    """The session's HDFS. A test that restarts it leaves it running."""
    with Hdfs(services_directory / "hdfs") as running:
        yield running


@pytest.fixture(scope="session")
def rest_catalog(services_directory: Path, jdk: None) -> Iterator[RestCatalogServer]:
    """The session's Iceberg REST catalog."""
    with RestCatalogServer(services_directory / "catalog") as running:
        yield running


@pytest.fixture(scope="session")
def hive_metastore(services_directory: Path, jdk: None) -> Iterator[HiveMetastore]:
    """The session's Hive metastore."""
    with HiveMetastore(services_directory / "hive") as running:
        yield running


@pytest.fixture(scope="session")
def faulty_rest(rest_catalog: RestCatalogServer) -> Iterator[Faults]:
    """The faults of a server in front of the session's REST catalog."""
    with before(rest_catalog.url) as faults:
        yield faults


@pytest.fixture(scope="session")
def faulty_aws() -> Iterator[Faults]:
    """The faults of a server in front of one of S3 and Glue."""
    with apart(s3.server) as faults:
        yield faults


@pytest.fixture
def own_kafka(services_directory: Path) -> Iterator[Callable[[], Kafka]]:
    """Starts a Kafka of the test's own at each call."""
    yield from started_apart(services_directory, _short_lived)


@pytest.fixture(scope="module")
def module_kafka(services_directory: Path) -> Iterator[Kafka]:
    """A Kafka of the file's own, whose tests may restart it and spoil the logs of their topics."""
    for start in started_apart(services_directory, _short_lived):
        yield start()


def _short_lived(at: Path) -> Kafka:
    return Kafka(at, heap="256m", session=2, short_lived=True)


@pytest.fixture
def own_postgres(services_directory: Path) -> Iterator[Callable[[], Postgres]]:
    """Starts a PostgreSQL of the test's own at each call."""
    yield from started_apart(services_directory, Postgres)


def started_apart(directory: Path, make: Callable[[Path], Any]) -> Iterator[Callable[[], Any]]:
    """What starts a server in a directory of its own at each call, and ends them all."""
    started: list[Any] = []

    def start() -> Any:
        started.append(make(directory / f"own-{uuid.uuid4().hex[:8]}"))
        return started[-1].start()

    yield start
    for mine in started:
        mine.kill()
        shutil.rmtree(mine.directory, ignore_errors=True)


@pytest.fixture
def topic(kafka: Kafka, produce: Produce) -> MakeTopic:
    """Creates topics in the run's Kafka. Their records last, however old they say they are:
    the broker looks for expired ones every few seconds."""

    def make(
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        prefix: str = "topic",
        values: Sequence[Value] = (),
        keys: Sequence[Value] | None = None,
    ) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(name, partitions, config={"retention.ms": "-1", **(config or {})})
        if values:
            produce(name, values, keys)
        return name

    return make


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The URL of a new, empty database. It is dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(
    params=[pytest.param(s, marks=pytest.mark.long) if s == "duckdb" else s for s in SYSTEMS]
)
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new, empty database of each system besides PostgreSQL. `make test` tries DuckDB,
    which is slow to begin, where a test asks for it with ``SYSTEMS``."""
    with new_database(request.param, request, tmp_path) as url:
        yield url


@pytest.fixture(params=("postgresql", *SYSTEMS))
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The same, of PostgreSQL too."""
    with new_database(request.param, request, tmp_path) as url:
        yield url


@contextmanager
def new_database(system: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """The URL of a new, empty database of a system."""
    if system == "postgresql":
        yield request.getfixturevalue("database")
    elif system == "sqlserver":
        yield from new_sqlserver_database()
    elif system == "mariadb":
        server: MariaDB | Given = request.getfixturevalue("mariadb")
        name = f"test_{uuid.uuid4().hex[:8]}"
        yield server.create_database(name)
        server.drop_database(name)
    else:
        yield f"jdbc:{system}:{directory / 'database'}"


@pytest.fixture(scope="session")
def produce(request: pytest.FixtureRequest) -> Produce:
    """Writes records, to the run's Kafka unless told another's ``bootstrap_servers``."""

    def write(
        topic: str,
        values: Sequence[Value],
        keys: Sequence[Value] | None = None,
        partition: int | None = None,
        *,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[int] | None = None,
        bootstrap_servers: str | None = None,
    ) -> None:
        where = bootstrap_servers or request.getfixturevalue("kafka").bootstrap_servers
        producer = Producer(
            {
                "bootstrap.servers": where,
                # No duplicates, and in order, without the half second that an idempotent producer
                # waits for its id.
                "max.in.flight.requests.per.connection": 1,
                "request.timeout.ms": int(PATIENCE * 1000),
                "message.timeout.ms": int(PATIENCE * 1000),
                "linger.ms": 1000,  # one batch, also on a slow machine; flush() does not wait
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        partitions = 1
        if partition is None and keys is None:
            partitions = len(producer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions)
        refused: list[str] = []
        delivered = 0

        def on_delivery(error: object, _message: object) -> None:
            nonlocal delivered
            if error is None:
                delivered += 1
            else:
                refused.append(str(error))

        for index, value in enumerate(values):
            record: dict[str, Any] = {"value": value, "on_delivery": on_delivery}
            if partition is not None:
                record["partition"] = partition
            elif keys is None:
                record["partition"] = index % partitions
            if keys is not None:
                record["key"] = keys[index]
            if headers is not None and headers[index] is not None:
                record["headers"] = list(headers[index] or ())
            if timestamps is not None:
                record["timestamp"] = timestamps[index]
            while True:
                try:
                    producer.produce(topic, **record)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(PATIENCE) == 0, f"{topic}: records not delivered"
        assert not refused, f"{topic}: {len(refused)} records refused, first: {refused[0]}"
        assert delivered == len(values)

    return write
