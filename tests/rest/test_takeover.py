"""A cluster of Kafka Connect 4.3.1 that is stopped, and whose connectors go on here; and back."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from semel.lab.embedded import Kafka
from semel.lab.embedded.connect import DistributedConnect
from tests.cli.conftest import Ended, semel  # noqa: F401
from tests.conftest import MakeTopic
from tests.engine.harness import wait_until
from tests.rest.members import Inside, state
from tests.sinks.kafka.copying import consume

pytestmark = [pytest.mark.integration, pytest.mark.long]

LINES = 1000
Run = Callable[..., Ended]


@pytest.fixture
def connect(tmp_path: Path, kafka: Kafka) -> Iterator[DistributedConnect]:
    group = f"connect-{uuid4().hex[:8]}"
    worker = DistributedConnect(
        tmp_path / "connect", kafka.bootstrap_servers, group, exactly_once=True
    )
    try:
        yield worker.start()
    finally:
        worker.kill()


@pytest.fixture
def properties(tmp_path: Path, connect: DistributedConnect) -> Path:
    """Kafka Connect's own file."""
    return tmp_path / "connect" / "worker.properties"


def member(properties: Path) -> Inside:
    """A worker of semel with Kafka Connect's configuration, on its own port."""
    lines = (line.partition("=") for line in properties.read_text().splitlines())
    return Inside({name: value for name, _, value in lines})


def test_the_connectors_of_a_cluster_go_on_here_and_back_again(
    connect: DistributedConnect,
    properties: Path,
    kafka: Kafka,
    topic: MakeTopic,
    tmp_path: Path,
    semel: Run,  # noqa: F811
) -> None:
    lines, copied = tmp_path / "lines.txt", topic()

    def write(count: int) -> list[str]:
        first = len(lines.read_text().splitlines()) if lines.exists() else 0
        with lines.open("a") as file:
            file.write("".join(f"line {n}\n" for n in range(first, first + count)))
        return lines.read_text().splitlines()

    def seen() -> list[str]:
        records = consume(kafka.bootstrap_servers, copied)
        return [(record.value or b"").decode() for record in records]

    source = {
        "name": "lines",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(lines),
        "topic": copied,
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    paused = {**source, "name": "paused", "topic": topic()}
    written = write(LINES)
    for config in (source, paused):
        connect.create(config["name"], config)
        wait_until(lambda name=config["name"]: connect.check(name))
    wait_until(lambda: len(seen()) == LINES)
    connect.stop_connector("paused")

    # While Kafka Connect runs, nobody else gets into its group.
    ended = semel("worker", properties, "--check", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["members"]
    assert {each["name"]: each["state"] for each in found["connectors"]} == {
        "lines": "RUNNING",
        "paused": "STOPPED",
    }
    [running] = [each for each in found["connectors"] if each["name"] == "lines"]
    assert running["guarantee"].startswith("exactly-once")
    assert f"position={lines.stat().st_size}" in running["begins"]

    connect.stop()
    written = write(LINES)
    ours = member(properties)
    try:
        wait_until(lambda: state(ours.api, "lines")[0] == "RUNNING")
        wait_until(lambda: len(seen()) == 2 * LINES)
        assert ours.api.get("/connectors/lines/config").json() == source
        assert state(ours.api, "paused")[0] == "STOPPED"
        ours.api.post(
            "/connectors",
            json={"name": "late", "config": {**source, "name": "late", "topic": topic()}},
        )
        wait_until(lambda: state(ours.api, "late")[0] == "RUNNING")
    finally:
        ours.end()
    assert seen() == written

    written = write(LINES)
    connect.start()
    wait_until(lambda: runs(connect, "lines") and runs(connect, "late"))
    wait_until(lambda: len(seen()) == 3 * LINES)
    assert seen() == written


def runs(connect: DistributedConnect, name: str) -> bool:
    try:
        return connect.check(name)
    except urllib.error.URLError:
        return False
