"""What the engine's tests share: a connector's configuration, and runs that end with the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.driver import bounded
from semel_lab.embedded import Kafka
from tests.engine.harness import Running, name

Config = dict[str, str]
Configure = Callable[..., Config]
Lake = Configure
Start = Callable[..., Running]


BOUNDED = {
    "retry.backoff.ms": "100",
    "processingTime": "0 seconds",
    "maxOffsetsPerTrigger": "120",
    "tasks.max": "2",
}
"""Small and many commits on the driver."""


def connector(kafka: Kafka, own: Mapping[str, Any]) -> Configure:
    """A connector from the run's Kafka with keys of its sink, and at last those of a test; None
    takes one away."""

    def make(topics: str | None, keys: Mapping[str, Any] | None = None) -> Config:
        config = {
            "name": name(),
            "topics": topics,
            "bootstrap.servers": kafka.bootstrap_servers,
            "provenance": "true",
            "value.converter.schemas.enable": "false",
            "retry.backoff.ms": "200",
            **own,
            **(keys or {}),
        }
        return {k: v for k, v in config.items() if v is not None}

    return make


@pytest.fixture
def configure(kafka: Kafka, database: str) -> Configure:
    """A connector to the test's database in PostgreSQL."""
    own = {
        "connector.class": "postgresql",
        "connection.url": database,
        "connection.loginTimeout": "600",
        "auto.create": "true",
    }
    return connector(kafka, own)


@pytest.fixture
def lake(kafka: Kafka, tmp_path: Path) -> Configure:
    """A connector to Delta tables below the test's directory."""
    path = str(tmp_path / "lake")
    own = {"connector.class": "delta", "delta.table.path": path, "auto.create": "true", **BOUNDED}
    return connector(kafka, own)


@pytest.fixture
def warehouse(kafka: Kafka, tmp_path: Path) -> Configure:
    """A connector to Iceberg tables in the test's directory."""
    own = {
        "connector.class": "iceberg",
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{tmp_path}/catalog.db",
        "iceberg.catalog.warehouse": f"file://{tmp_path}/warehouse",
        "iceberg.tables": "db.t",
        "iceberg.tables.auto-create-enabled": "true",
        **BOUNDED,
    }
    return connector(kafka, own)


@pytest.fixture
def files(kafka: Kafka, tmp_path: Path) -> Configure:
    """A connector to files below the test's directory."""
    own = {"connector.class": "files", "path": str(tmp_path / "files"), "flush.size": "20"}
    return connector(kafka, {**own, **BOUNDED})


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers of few records are spread over the tasks too."""
    monkeypatch.setattr(bounded, "_SHARE", 10)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts connectors; those that still run at the test's end are stopped."""
    started: list[Running] = []

    def begin(*arguments: Any, **keys: Any) -> Running:
        started.append(Running(*arguments, **keys))
        return started[-1]

    yield begin
    for each in started:
        each.end()


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """A directory for failpoints."""
    path = tmp_path / "failpoints"
    path.mkdir()
    return path


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Config], Path]:
    """A configuration as a file."""

    def write(config: Config) -> Path:
        path = tmp_path / f"{config.get('name', 'connector')}.json"
        path.write_text(json.dumps(config))
        return path

    return write
