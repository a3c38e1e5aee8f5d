"""Lag, from the positions that a run publishes to its consumer group."""

# ruff: noqa: F401, F811
from __future__ import annotations

import time

import pytest

from semel.core.errors import SemelError, ServiceError
from semel.driver import supervisor
from semel.kafka.groups import lag, published
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Start, configure, start
from tests.engine.harness import caught_up, positions, records, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_positions_published_to_the_group_equal_the_ledger_after_a_run(
    kafka: Kafka, topic: MakeTopic, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SETTLE", PATIENCE)  # what a task publishes last, as it closes
    source = topic(partitions=3, values=records(1000))
    config = configure(source, {"tasks.max": 2, "consumer.override.max.poll.records": 50})
    caught_up(config)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    found = published(client, f"connect-{config['name']}")
    assert found == positions(config)
    assert sum(found.values()) == 1000


@pytest.mark.long
def test_lag_is_what_kafka_holds_beyond_the_published_positions(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    running = start(config)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    wait_until(lambda: published(client, f"connect-{config['name']}"))
    wait_until(lambda: [p.lag for p in lag(client, config["name"])] == [0])
    running.stop()
    produce(source, records(7))
    (found,) = lag(client, config["name"])
    assert (found.topic, found.position, found.end, found.lag) == (source, 10, 17, 7)
    assert config["name"] in {p.connector for p in lag(client)}
    with pytest.raises(SemelError, match="connector nobody has published no positions"):
        lag(client, "nobody")
    with pytest.raises(SemelError, match=f"Did you mean {config['name']}\\?"):
        lag(client, config["name"] + "x")


def test_lag_without_a_broker_is_an_error_at_once() -> None:
    began = time.monotonic()
    for connector in (None, "orders"):
        with pytest.raises(ServiceError, match=r"no Kafka broker answers.*Connection refused"):
            lag({"bootstrap.servers": "127.0.0.1:1"}, connector)
    assert time.monotonic() - began < 10.0
