"""The member that joins the group while Spark starts: it saves time, and takes nobody's place."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from semel.driver import direct as placeholders
from semel.driver.direct import Placeholder, placeholder_config
from semel.kafka.consumer import consumer_config
from semel.kafka.groups import Groups
from semel_lab.embedded import Kafka
from tests.engine.harness import plan, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration
DELAY = 3.0
"""Kafka's default."""


@pytest.fixture(scope="module")
def slow_kafka(services_directory: Path) -> Iterator[Kafka]:
    directory = services_directory / f"kafka-{uuid.uuid4().hex[:8]}"
    delay = {"group.initial.rebalance.delay.ms": int(DELAY * 1000)}
    with Kafka(directory, heap="256m", settings=delay, short_lived=True) as running:
        running.create_topic("orders", 4)
        yield running
    shutil.rmtree(directory, ignore_errors=True)


class Nowhere:
    bootstrap_servers = "localhost:1"


class Runs:
    """What a placeholder needs to know of a run."""

    def __init__(self, kafka: Kafka | Nowhere, tasks: int = 1, **keys: str) -> None:
        config = {
            "name": f"c{uuid.uuid4().hex[:8]}",
            "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
            "connection.url": "jdbc:postgresql://localhost/nothing",
            "topics": "orders",
            "tasks.max": str(tasks),
            "bootstrap.servers": kafka.bootstrap_servers,
            **keys,
        }
        planned = plan(config)
        self.connector, self.sink = planned.connector, planned.sink
        self.topics = {"orders": 4}
        self.groups = Groups({"bootstrap.servers": kafka.bootstrap_servers})

    def task(self, index: int = 0) -> tuple[Consumer, float]:
        """A task that has got its partitions, and the seconds that took."""
        began, given = time.monotonic(), list[Any]()
        consumer = Consumer(consumer_config(self.connector, index))
        consumer.subscribe(["orders"], on_assign=lambda _c, parts: given.extend(parts))
        while not given and time.monotonic() < began + PATIENCE:
            consumer.poll(0.05)
        assert given
        return consumer, time.monotonic() - began

    def members(self) -> list[str | None]:
        found = self.groups.describe(self.connector.group_id)
        return [m.group_instance_id for m in found.members] if found else []


@pytest.mark.long
def test_tasks_do_not_wait_for_what_the_placeholder_has_waited_for(
    slow_kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may be busy once; without a placeholder, no group is formed in less."""
    monkeypatch.setattr(placeholders, "_PATIENCE", PATIENCE)

    def seconds() -> float:
        run: Any = Runs(slow_kafka, tasks=2)
        placeholder = Placeholder(run, "me")
        try:
            placeholder.wait(threading.Event())
            assert run.members() == [None]
            with ThreadPoolExecutor(2) as pool:
                joined = list(pool.map(run.task, range(2)))
            names = {f"{run.connector.group_id}-{index}" for index in range(2)}
            wait_until(lambda: set(run.members()) == names)
            for consumer, _ in joined:
                consumer.close()
            return max(taken for _, taken in joined)
        finally:
            placeholder.close()

    assert any(seconds() < DELAY for _ in range(5))


def test_it_does_not_join_a_group_that_has_members(slow_kafka: Kafka) -> None:
    run: Any = Runs(slow_kafka)
    consumer, _ = run.task()
    placeholder = Placeholder(run, "me")
    placeholder._thread.join(PATIENCE)
    assert not placeholder._thread.is_alive()
    assert run.members() == [f"{run.connector.group_id}-0"]
    consumer.close()


@pytest.mark.long
def test_it_leaves_when_the_run_ends_before_it_began(slow_kafka: Kafka) -> None:
    run: Any = Runs(slow_kafka, tasks=2)
    placeholder = Placeholder(run, "me")
    wait_until(lambda: run.members() == [None])
    placeholder.close()
    wait_until(lambda: run.members() == [])


def test_sinks_that_fence_by_the_group_have_none(slow_kafka: Kafka) -> None:
    """To them, a member of the group is a task of another run."""
    copies = {"connector.class": "kafka", "topic.rename.format": "copies"}
    run: Any = Runs(slow_kafka, **copies)
    placeholder = Placeholder(run, "me")
    placeholder._thread.join(PATIENCE)
    assert not placeholder._thread.is_alive()
    assert run.members() == []


def test_it_has_no_name_that_fences() -> None:
    run: Any = Runs(Nowhere())
    config = placeholder_config(run)
    assert "group.instance.id" not in config
    assert config["group.id"] == run.connector.group_id
