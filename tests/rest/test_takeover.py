"""A cluster of Kafka Connect 4.3.1 stops, and its connectors continue here; and back."""

from __future__ import annotations

import json
import threading
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.connect import ConnectorFailed, DistributedConnect
from semel_lab.embedded.process import LOOPBACK
from semel_lab.jars import DEBEZIUM_JDBC
from tests.cli.conftest import Ended, semel  # noqa: F401
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import caught_up, records, sql, wait_until
from tests.patience import PATIENCE
from tests.rest.members import Inside, state
from tests.sinks.kafka.copying import consume

pytestmark = [pytest.mark.integration, pytest.mark.long]

LINES = 1000
SCHEMA = {
    "type": "struct",
    "optional": False,
    "fields": [{"field": "id", "type": "int64"}, {"field": "note", "type": "string"}],
}
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


def test_a_clusters_connectors_continue_here_and_then_in_kafka_connect_again(
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


def test_kafka_connects_consumers_get_into_the_group_as_soon_as_tasks_have_ended(
    topic: MakeTopic, configure: Configure, kafka: Kafka
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    follower = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"connect-{config['name']}",
            "partition.assignment.strategy": "range",
        }
    )
    held: list[Any] = []
    follower.subscribe([source], on_assign=lambda _consumer, found: held.extend(found))

    def joined() -> bool:
        event = follower.poll(0.1)
        assert event is None or event.error() is None, event.error()
        return bool(held)

    try:
        wait_until(joined)
    finally:
        follower.close()
    assert [partition.offset for partition in committed(kafka, config, source)] == [10]


def committed(kafka: Kafka, config: Mapping[str, str], topic: str) -> list[TopicPartition]:
    """What a connector's group has committed."""
    group = {"group.id": f"connect-{config['name']}"}
    asking = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **group})
    try:
        return list(asking.committed([TopicPartition(topic, 0)], timeout=PATIENCE))
    finally:
        asking.close()


class Load:
    """Lines of a file and records of a topic, a few at a time until it is closed."""

    def __init__(self, kafka: Kafka, lines: Path, topic: str) -> None:
        self.count = 0
        self._lines, self._topic = lines, topic
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with self._lines.open("a") as file:
            while not self._stop.wait(0.02):
                for n in range(self.count, self.count + 10):
                    file.write(f"line {n}\n")
                    value = json.dumps({"schema": SCHEMA, "payload": {"id": n, "note": f"row {n}"}})
                    self._producer.produce(self._topic, value, partition=n % 2)
                file.flush()
                self._producer.flush(PATIENCE)
                self.count += 10

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)


def test_sources_and_sinks_under_load_continue_here_and_then_there_again(
    tmp_path: Path, kafka: Kafka, postgres: Postgres, database: str, topic: MakeTopic
) -> None:
    lines, rows, where = topic(), topic(partitions=2), urlsplit(database)
    read, written = tmp_path / "read.txt", tmp_path / "written.txt"
    read.touch()
    sql(database, "CREATE TABLE kept (id bigint, note text)")
    text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    file = "org.apache.kafka.connect.file.FileStream"
    begin = {"consumer.override.auto.offset.reset": "earliest"}
    configs: dict[str, dict[str, str]] = {
        "reads": {
            "connector.class": f"{file}SourceConnector",
            "file": str(read),
            "topic": lines,
            **text,
        },
        "writes": {
            "connector.class": f"{file}SinkConnector",
            "file": str(written),
            "topics": lines,
            **text,
            **begin,
        },
        "keeps": {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "topics": rows,
            "tasks.max": "2",
            "connection.url": f"jdbc:postgresql://{where.hostname}:{where.port}{where.path}",
            "connection.username": postgres.user,
            "connection.password": postgres.password,
            "insert.mode": "insert",
            "primary.key.mode": "none",
            "schema.evolution": "none",
            "collection.name.format": "kept",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            **begin,
        },
    }

    def seen() -> tuple[int, int]:
        found = written.read_text().splitlines() if written.exists() else []
        return len(found), int(sql(database, "SELECT count(*) FROM kept")[0])

    def moves(with_connect: bool = False) -> None:
        """Wait for records that have been written from now on."""
        now = load.count

        def moved() -> bool:
            if with_connect:
                for name in configs:
                    try:
                        connect.check(name)
                    except ConnectorFailed:  # its transactions fail at times
                        connect.restart_failed(name)
            return min(seen()) > now

        wait_until(moved)

    group = f"connect-{uuid4().hex[:8]}"
    connect = DistributedConnect(
        *(tmp_path / "connect", kafka.bootstrap_servers, group),
        plugin=DEBEZIUM_JDBC,
        exactly_once=True,
    )
    load = Load(kafka, read, rows)
    try:
        connect.start()
        for name, config in configs.items():
            connect.create(name, {"name": name, **config})
        moves(with_connect=True)
        url = f"http://{LOOPBACK}:{connect.port}"
        with httpx.Client(base_url=url, timeout=PATIENCE) as theirs:
            wait_until(lambda: states(answers(theirs)) == {"RUNNING"})
            told = answers(theirs)
        connect.stop()
        ours = member(tmp_path / "connect" / "worker.properties")
        try:
            wait_until(lambda: answers(ours.api) == told)
            moves()
        finally:
            ours.end()
        connect.start()
        moves(with_connect=True)
        load.close()
        wait_until(lambda: min(seen()) >= load.count)
        connect.stop()
        ours = member(tmp_path / "connect" / "worker.properties")
        try:
            wait_until(lambda: answers(ours.api) == told)
            for name in ("writes", "keeps"):
                found = audited(ours.api, name)["report"]
                assert (found["broken"], found["lost"], found["duplicated"]) == (False, 0, 0)
        finally:
            ours.end()
    finally:
        load.close()
        connect.kill()
    assert written.read_text() == read.read_text()
    assert sql(database, "SELECT id FROM kept ORDER BY id") == list(range(load.count))


def answers(api: httpx.Client) -> dict[str, Any]:
    """What tools ask a cluster, without what is each worker's own."""
    found = api.get("/connectors", params={"expand": ["info", "status"]}).json()
    for each in found.values():
        each["info"]["config"].pop("connection.password", None)
        for part in (each["status"]["connector"], *each["status"]["tasks"]):
            part.pop("worker_id")
            part.pop("version", None)
    return dict(found)


def states(answered: Mapping[str, Any]) -> set[str]:
    """Of all connectors and tasks."""
    statuses = [each["status"] for each in answered.values()]
    return {part["state"] for s in statuses for part in (s["connector"], *s["tasks"])}


def audited(api: httpx.Client, name: str) -> dict[str, Any]:
    """A connector's audit, once it has ended."""
    path = f"/semel/connectors/{name}/audit"
    api.post(path).raise_for_status()
    wait_until(lambda: api.get(path).json()["state"] != "RUNNING")
    found: dict[str, Any] = api.get(path).json()
    assert found["state"] == "DONE", found
    return found


def runs(connect: DistributedConnect, name: str) -> bool:
    try:
        return connect.check(name)
    except urllib.error.URLError:
        return False
