"""What the Kafka sink's tests share: connectors from topic to topic, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.driver.planning import plan
from semel.sinks.kafka import KafkaSink
from semel_lab.embedded import Kafka
from tests.engine.conftest import (  # noqa: F401
    Config,
    Configure,
    Start,
    connector,
    points,
    start,
)

MakeSink = Callable[[Mapping[str, Any]], KafkaSink]


@pytest.fixture
def configure(kafka: Kafka) -> Configure:
    """A connector in the session's Kafka; the target is made with it unless told otherwise."""
    own = {
        "connector.class": "kafka",
        "topic.rename.format": "${topic}.copy",
        "auto.create": "true",
        "value.converter.schemas.enable": None,
    }
    return connector(kafka, own)


@pytest.fixture(scope="session")
def other_kafka(services_directory: Path) -> Iterator[Kafka]:
    """Another cluster."""
    with Kafka(services_directory / "other-kafka", heap="256m", short_lived=True) as running:
        yield running


@pytest.fixture
def sink() -> Iterator[MakeSink]:
    """The driver's sink of a connector."""
    made: list[KafkaSink] = []

    def make(config: Mapping[str, Any]) -> KafkaSink:
        planned = plan(config)
        assert isinstance(planned.sink, KafkaSink)
        made.append(planned.sink)
        return planned.sink

    yield make
    for each in made:
        each.close()
