"""The same requests to Kafka Connect 4.3.1 and to semel: the same codes, and the same bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.connect import ConnectWorker
from semel_lab.embedded.process import LOOPBACK
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import wait_until
from tests.patience import PATIENCE
from tests.rest.asks import ASKED, FILE, JDBC, SINK, Ask
from tests.rest.conftest import Worker

pytestmark = [pytest.mark.integration, pytest.mark.long]

_VOLATILE = ("worker_id", "version", "commit", "trace", "last_modified", "connection.password")
"""Passwords are hidden here, and shown there."""
_FIELDS = [{"field": "id", "type": "int32"}, {"field": "text", "type": "string"}]
ENVELOPES = [
    json.dumps({"schema": {"type": "struct", "fields": _FIELDS}, "payload": row}).encode()
    for row in ({"id": i, "text": f"text {i}"} for i in range(20))
]
"""Debezium's tasks fail at records without schemas when they are given the next ones."""


@dataclass
class System:
    """A worker, and the name and the configuration of the connector there."""

    client: Any
    name: str
    config: dict[str, str]
    file: Path
    traces: set[str] = field(default_factory=set)
    """The causes of failures that it has reported."""

    def ask(self, ask: Ask) -> tuple[int, Any]:
        """The code and the body, with what differs from worker to worker replaced."""
        if ask.until:
            with suppress(AssertionError):  # the other answers show what it says instead
                wait_until(lambda: ask.until in self._send(ask).text, PATIENCE)
        answer = self._send(ask)
        try:
            body = answer.json() if answer.content else None
        except ValueError:
            body = answer.text
        return answer.status_code, self._normal(body)

    def _send(self, ask: Ask) -> Any:
        path = ask.path.replace("NAME", self.name)
        text = json.dumps(ask.body).replace('"CONFIG"', json.dumps(self.config))
        nameless = {k: v for k, v in self.config.items() if k != "name"}
        text = text.replace('"NAMELESS"', json.dumps(nameless))
        sink = {**nameless, "connector.class": SINK, "file": "/nowhere/lines.txt"}
        text = text.replace('"SINK"', json.dumps(sink))
        text = text.replace('"SOURCE"', json.dumps(self.source)).replace("FILE", str(self.file))
        kwargs: dict[str, Any] = {"headers": ask.headers, "content": ask.content}
        if ask.body is not None:
            kwargs = {"headers": ask.headers, "json": json.loads(text.replace("NAME", self.name))}
        return self.client.request(ask.method, path, **kwargs)

    @property
    def source(self) -> dict[str, str]:
        """The configuration of a source connector."""
        return {
            "name": f"{self.name}-lines",
            "connector.class": FILE,
            "file": str(self.file),
            "topic": f"{self.name}-lines",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offsets.storage.topic": f"{self.name}-offsets",
            "offset.storage.partitions": "1",
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        }

    def _normal(self, body: Any) -> Any:
        if isinstance(body, dict):
            lines = str(body.get("trace", "")).splitlines()
            self.traces |= {line for line in lines if line and not line.startswith("\t")}
            if isinstance(body.get("tasks"), list):  # in the order of a hash table there
                body = {**body, "tasks": sorted(body["tasks"], key=str)}
            return {
                self._normal(k): "..." if k in _VOLATILE else self._normal(v)
                for k, v in sorted(body.items())
                if k != "warnings"  # which Kafka Connect does not have
            }
        if isinstance(body, list):
            return [self._normal(each) for each in body]
        if not isinstance(body, str):
            return body
        return body.replace(str(self.file), "FILE").replace(self.name, "NAME")


@pytest.fixture
def systems(
    worker: Worker,
    kafka: Kafka,
    postgres: Postgres,
    database: str,
    topic: MakeTopic,
    produce: Produce,
    tmp_path: Path,
) -> Iterator[list[System]]:
    """Kafka Connect, and semel."""
    source = topic(partitions=2)
    produce(source, ENVELOPES, partition=0)  # Debezium's tasks would both create the table
    where = urlsplit(database)

    def config(name: str) -> dict[str, str]:
        return {
            "name": name,
            "connector.class": JDBC,
            "topics": source,
            "tasks.max": "2",
            "connection.url": f"jdbc:postgresql://{where.hostname}:{where.port}{where.path}",
            "connection.username": postgres.user,
            "connection.password": postgres.password,
            "collection.name.format": name,
            "schema.evolution": "basic",
            "errors.tolerance": "all",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "consumer.override.auto.offset.reset": "earliest",
        }

    with ConnectWorker(tmp_path / "connect", kafka.bootstrap_servers) as theirs:
        # A connection that was kept alive was once closed during a request.
        limits = httpx.Limits(max_keepalive_connections=0)
        url = f"http://{LOOPBACK}:{theirs.port}"
        client = httpx.Client(base_url=url, timeout=90, limits=limits)
        names = [f"{source}-{system}" for system in ("connect", "semel")]
        files = [tmp_path / name for name in names]
        for file in files:
            file.write_text("one\ntwo\nthree\n")
        yield [
            System(client, names[0], config(names[0]), files[0]),
            System(worker(), names[1], config(names[1]), files[1]),
        ]
        client.close()


def test_answers_are_those_of_kafka_connect(systems: list[System]) -> None:
    theirs, ours = systems
    different = []
    asks = [ask for asked in ASKED for ask in asked()]
    assert len(asks) >= 150
    for ask in asks:
        expected, found = theirs.ask(ask), ours.ask(ask)
        if not ask.words:
            expected, found = (expected[0], None), (found[0], None)
        if expected != found:
            different.append(f"{ask}\n  Kafka Connect: {expected}\n  semel:         {found}")
    assert not different, "\n".join([*different, *sorted(theirs.traces | ours.traces)])
