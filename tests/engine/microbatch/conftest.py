"""What the tests of the micro-batch engine share: one Spark session, connectors and runs in it."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import semel
from semel.config import ConnectorConfig, read
from semel.core import failpoints
from semel.databases.postgresql import driver
from semel.driver.base import Progress
from semel.spark.session import micro_batch_session
from semel.spark.session import stop as stop_session
from semel_lab.embedded import Kafka
from tests.patience import PATIENCE

Config = dict[str, str]
MakeConfig = Callable[..., Config]
Query = Callable[[str], list[tuple[Any, ...]]]
Go = Callable[..., Progress]
Arm = Callable[..., None]

QUICK_JVM = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=FATAL"
}


def connector(**more: str) -> ConnectorConfig:
    base = {
        "name": "tests",
        "connector.class": "postgresql",
        "topics": "t",
        "bootstrap.servers": "none:9092",
        "tasks.max": "2",
    }
    return read(ConnectorConfig, base | more)


@pytest.fixture(scope="session")
def failpoint_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failpoints")


@pytest.fixture(scope="session")
def spark(failpoint_directory: Path) -> Iterator[SparkSession]:
    """One session for all tests, started as semel starts one. Its workers obey failpoints.

    The files of this directory go to one worker of pytest-xdist, so there is one JVM (see
    tests/scheduling.py).
    """
    os.environ[failpoints.DIRECTORY] = str(failpoint_directory)
    session = micro_batch_session(connector(**QUICK_JVM))
    del os.environ[failpoints.DIRECTORY]
    yield session
    stop_session(session)


@pytest.fixture
def arm(failpoint_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Arm:
    """Arm a place for the workers of the shared session, and for the driver inside this process;
    none has fired before."""
    monkeypatch.setattr(failpoints, "_directory", str(failpoint_directory))
    failpoints.forget(failpoint_directory)
    return functools.partial(failpoints.arm, failpoint_directory)


@pytest.fixture
def configure(kafka: Kafka, database: str) -> MakeConfig:
    """A connector's configuration: plain JSON into tables that are made as needed."""

    def make(topics: str, **more: str) -> Config:
        return {
            "name": f"c-{topics.split(',', maxsplit=1)[0]}",
            "connector.class": "postgresql",
            "topics": topics,
            "bootstrap.servers": kafka.bootstrap_servers,
            "value.converter": "JsonConverter",
            "value.converter.schemas.enable": "false",
            "connection.url": database,
            "auto.create": "true",
            "table.name.format": "t_${topic}" if "," in topics else "t",
            "engine": "micro-batch",
            "tasks.max": "2",
            "retry.backoff.ms": "50",
            "connection.loginTimeout": "600",
        } | {k.replace("_", "."): v for k, v in more.items()}

    return make


@pytest.fixture
def query(database: str) -> Query:
    """The rows of a query in the test's database."""

    def ask(sql: str) -> list[tuple[Any, ...]]:
        with driver.connect(database) as connection, connection.cursor() as cursor:
            if not sql.startswith("SELECT"):
                cursor.executemany(sql, None)
                return []
            cursor.execute(sql)
            return [tuple(row.values()) for row in cursor.fetch_arrow_table().to_pylist()]

    return ask


@pytest.fixture
def go(spark: SparkSession) -> Go:
    """Run a connector in the shared session until it has caught up."""

    def start(config: Config, transform: Any = None, **more: Any) -> Progress:
        return semel.run(config, transform, spark=spark, until_caught_up=True, **more)

    return start


class Running:
    """A connector that runs in a thread until it is told to stop."""

    def __init__(self, spark: SparkSession, config: Config, transform: Any) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.progress = Progress()
        self._thread = threading.Thread(target=self._run, args=(spark, config, transform))
        self._thread.start()

    def _run(self, spark: SparkSession, config: Config, transform: Any) -> None:
        try:
            self.progress = semel.run(
                config, transform, spark=spark, stop=self.stop, observe=self._observe
            )
        except BaseException as error:
            self.error = error

    def _observe(self, progress: Progress) -> None:
        self.progress = progress

    def reach(self, condition: Callable[[Progress], bool], timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while not condition(self.progress):
            assert self._thread.is_alive(), self.error
            assert time.monotonic() < deadline, self.progress
            time.sleep(0.02)

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def end(self, timeout: float = PATIENCE) -> BaseException | None:
        self._thread.join(timeout)
        assert not self._thread.is_alive()
        return self.error


Launch = Callable[..., Running]


@pytest.fixture
def launch(spark: SparkSession) -> Iterator[Launch]:
    started: list[Running] = []

    def start(config: Config, transform: Any = None) -> Running:
        started.append(Running(spark, config, transform))
        return started[-1]

    yield start
    for running in started:
        running.stop.set()
        running.end()


def position(query: Query) -> int:
    """How far the ledger has come."""
    return query("SELECT sum(position - start_position)::bigint FROM semel_offsets")[0][0]


def wait_for_no_clients(query: Query) -> None:
    """A killed driver's tasks live for up to 3 s; what they still commit is theirs to commit."""
    deadline = time.monotonic() + PATIENCE
    others = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    while query(others) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
