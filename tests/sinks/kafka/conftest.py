"""What the Kafka sink's tests share: connectors from topic to topic, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel_lab.embedded import Kafka
from tests.engine.harness import Running, name

Config = dict[str, str]
Configure = Callable[..., Config]
Start = Callable[..., Running]


@pytest.fixture
def configure(kafka: Kafka) -> Configure:
    """A connector in the session's Kafka; the target is made with it unless told otherwise."""

    def make(topics: str, keys: dict[str, Any] | None = None) -> Config:
        config = {
            "name": name(),
            "connector.class": "kafka",
            "topics": topics,
            "topic.rename.format": "${topic}.copy",
            "bootstrap.servers": kafka.bootstrap_servers,
            "auto.create": "true",
            "provenance": "true",
            "retry.backoff.ms": "200",
            **(keys or {}),
        }
        return {k: v for k, v in config.items() if v is not None}

    return make


@pytest.fixture(scope="session")
def other_kafka(services_directory: Path) -> Iterator[Kafka]:
    """Another cluster."""
    with Kafka(services_directory / "other-kafka", heap="256m", short_lived=True) as running:
        yield running


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
