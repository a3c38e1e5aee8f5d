"""Three workers, ten connectors and 1,000,000 records, or ``RECORDS``: what becomes of them while
workers die, freeze and join."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import httpx
import pytest

from semel.audit.source import audit_source
from semel.config import read
from semel.config.worker import ClusterConfig
from semel.driver.planning import plan_source
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import assert_nothing_lost_nothing_twice, records, wait_until
from tests.rest.members import Outside, leader_of, offset

pytestmark = [pytest.mark.integration, pytest.mark.long]

RECORDS = int(os.environ.get("RECORDS", "1000000"))
SINKS, SOURCES, STEPS = 8, 2, 5
SESSION = 6.0


@pytest.fixture
def keys(kafka: Kafka) -> dict[str, str]:
    """Those of a group of the test's own."""
    group = f"group-{uuid4().hex[:8]}"
    topics = {
        f"{kind}.storage.topic": f"{group}-{kind}s" for kind in ("config", "status", "offset")
    }
    factors = dict.fromkeys((name.replace("topic", "replication.factor") for name in topics), "1")
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "session.timeout.ms": str(int(SESSION * 1000)),
        **topics,
        **factors,
    }


@pytest.fixture
def spawn(keys: dict[str, str], database: str) -> Iterator[Callable[[], Outside]]:
    with ExitStack() as ends:

        def start() -> Outside:
            member = Outside(keys)
            ends.callback(member.end)
            member.wait()
            return member

        yield start


def test_ten_connectors_outlive_the_workers_that_run_them(
    spawn: Callable[[], Outside],
    keys: dict[str, str],
    kafka: Kafka,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    record_property: Callable[[str, object], None],
) -> None:
    members = [spawn() for _ in range(3)]
    each = RECORDS // (SINKS + SOURCES)
    sinks = [configure(topic(partitions=2), {"tasks.max": "2"}) for _ in range(SINKS)]
    sources = [_source(topic(partitions=2), each) for _ in range(SOURCES)]
    for config in (*sinks, *sources):
        made = members[0].api.post("/connectors", json={"name": config["name"], "config": config})
        assert made.status_code == 201, made.text
    names = [config["name"] for config in (*sinks, *sources)]
    fed = 0

    def feed() -> None:
        nonlocal fed
        step = each // STEPS
        for config in sinks:
            produce(config["topics"], records(step, start=fed))
        fed += step

    def without(gone: Outside, left: Outside, how: str) -> None:
        """Until others run all that a worker had."""
        began = time.monotonic()
        wait_until(lambda: gone.id not in (found := _owners(left.api, names)) and _all(found))
        record_property(f"seconds to take over, {how}", round(time.monotonic() - began, 1))

    def _all(found: Counter[str]) -> bool:
        return found.total() >= 2 * SINKS + SOURCES

    wait_until(lambda: _all(_owners(members[0].api, names)))
    feed()
    members.sort(key=lambda member: member.id != leader_of(keys))
    leader, frozen, killed = members
    killed.kill()
    feed()
    without(killed, leader, "one killed")
    frozen.send(signal.SIGSTOP)
    feed()
    without(frozen, leader, "one frozen")
    frozen.send(signal.SIGCONT)
    feed()
    wait_until(lambda: _owners(leader.api, names)[frozen.id] > 0)
    leader.kill()
    feed()
    without(leader, frozen, "leader killed")
    added = spawn()
    wait_until(lambda: _owners(added.api, names)[added.id] > 0)
    for config in sinks:
        wait_until(lambda name=config["name"]: offset(added.api, name) == fed)
        assert_nothing_lost_nothing_twice(config, range(fed))
    worker = read(ClusterConfig, {**keys, "listeners": "http://127.0.0.1:1"})
    for config in sources:
        wait_until(lambda name=config["name"]: _iteration(added.api, name) == each)
        found = audit_source(plan_source(worker.inherited(config)))
        assert (found.records, found.lost, found.duplicated) == (each, 0, 0)


def _source(topic: str, count: int) -> dict[str, str]:
    return {
        "name": f"made-{uuid4().hex[:8]}",
        "connector.class": "Datagen",
        "kafka.topic": topic,
        "quickstart": "orders",
        "max.interval": "1",
        "iterations": str(count),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }


def _owners(api: httpx.Client, names: list[str]) -> Counter[str]:
    """How many tasks run on each worker."""
    found: Any = api.get("/connectors", params={"expand": "status"}).json()
    tasks = [task for name in names if name in found for task in found[name]["status"]["tasks"]]
    return Counter(task["worker_id"] for task in tasks if task["state"] == "RUNNING")


def _iteration(api: httpx.Client, name: str) -> int:
    found = api.get(f"/connectors/{name}/offsets").json()["offsets"]
    return sum(each["offset"]["current.iteration"] for each in found)
