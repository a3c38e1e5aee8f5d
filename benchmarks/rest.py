"""Kafka over HTTP: records and requests a second, latency at a steady rate, and idle consumers.

The peer is a plain server of aiohttp and aiokafka (``peer_rest.py``). It is installed beside the
benchmark, for nothing else needs it. Both servers run one after the other, each as one process.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Any

import fastavro
import psutil
from confluent_kafka import Producer

import benchmarks
from benchmarks.report import Column, Figures, count, megabytes, milliseconds
from benchmarks.rig import Rig
from semel_lab.embedded.process import LOOPBACK, ServerProcess, comes_true, free_port, listening
from semel_lab.embedded.registry import SchemaRegistry

PEER = ("aiohttp==3.14.5", "aiokafka==0.14.0", "fastavro==1.13.1")
PARTITIONS = 4
LEAD = 3.0
"""Seconds of each load before the measured ones."""
CONNECTIONS = {1: 32, 100: 8}
"""How many clients send requests of so many records."""
RATE = 1000
"""Requests a second when latency is measured."""
STORED, PAGE = 200_000, 1000
"""Records to be read, and how many at once."""
CONSUMERS = 1000
PATIENCE = 120.0
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": "string"},
            {"name": "price", "type": "double"},
        ],
    }
)


@dataclass(frozen=True)
class System:
    """A server that is running."""

    name: str
    port: int
    pid: int

    @property
    def rss(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def ask(self, method: str, path: str, body: object = None, kind: str = "") -> Any:
        link = http.client.HTTPConnection(LOOPBACK, self.port, timeout=PATIENCE)
        try:
            content = None if body is None else json.dumps(body)
            link.request(method, path, content, {"Content-Type": kind} if kind else {})
            answer = link.getresponse()
            payload = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{self.name}: {method} {path}: {answer.status} {payload!r}")
            return json.loads(payload) if payload else None
        finally:
            link.close()


def record(number: int) -> dict[str, Any]:
    return {"id": number, "customer": f"customer-{number % 1000}", "price": number / 100}


def request(method: str, path: str, kind: str = "", body: object = None) -> str:
    """A request as it goes over the wire."""
    content = "" if body is None else json.dumps(body, separators=(",", ":"))
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {LOOPBACK}",
        *([f"Content-Type: {kind}"] if kind else []),
    ]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", content])


def load(
    system: System, requests: list[str], connections: int, seconds: float, rate: int = 0
) -> dict[str, Any]:
    """What a load of its own process finds."""
    facts = {
        **{"port": system.port, "requests": requests, "connections": connections},
        **{"seconds": seconds, "rate": rate, "lead": LEAD},
    }
    before = psutil.Process(system.pid).cpu_times()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.http_load"],
        input=json.dumps(facts),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(benchmarks.__file__).parents[1],
    )
    after = psutil.Process(system.pid).cpu_times()
    result: dict[str, Any] = json.loads(done.stdout)
    if set(result["statuses"]) != {"200"} or result["lost"]:
        raise RuntimeError(f"{system.name}: {result}")
    used = after.user + after.system - before.user - before.system
    return {**result, "cpu": used / (seconds + LEAD)}


@contextmanager
def _running(
    name: str, command: list[str], directory: Path, port: int, **environment: str
) -> Iterator[System]:
    directory.mkdir()
    process = ServerProcess(name, directory, directory / "server.log")
    process.launch(
        command, detached=False, directory=directory, environment={**os.environ, **environment}
    )
    try:
        if not comes_true(lambda: listening(port), PATIENCE):
            raise RuntimeError(f"{name} does not listen: see {directory / 'server.log'}")
        assert process.pid is not None
        yield System(name, port, process.pid)
    finally:
        process.stop(SIGTERM, 60.0)


@contextmanager
def semel(rig: Rig, registry: str) -> Iterator[System]:
    directory, port = rig.directory / rig.unique("rest"), free_port()
    file = rig.directory / f"{directory.name}.properties"
    file.write_text(
        f"bootstrap.servers={rig.kafka.bootstrap_servers}\nlisteners=http://{LOOPBACK}:{port}\n"
        f"schema.registry.url={registry}\nsemel.rest.authentication=none\n"
    )
    command = [sys.executable, "-m", "semel", "rest", str(file)]
    with _running("semel", command, directory, port) as system:
        yield system


@contextmanager
def plain(rig: Rig, registry: str) -> Iterator[System]:
    libraries = rig.directory / "peer"
    if not libraries.exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(libraries), *PEER]
        subprocess.run(install, check=True)
    directory, port = rig.directory / rig.unique("plain"), free_port()
    program = Path(__file__).parent / "peer_rest.py"
    command = [sys.executable, str(program), rig.kafka.bootstrap_servers, registry, str(port)]
    with _running(
        "aiohttp and aiokafka", command, directory, port, PYTHONPATH=str(libraries)
    ) as system:
        yield system


def rest(rig: Rig, seconds: float) -> Figures:
    """Both systems, one after the other; idle consumers only of semel's proxy."""
    rows: list[dict[str, Any]] = []
    consumers: dict[str, Any] = {}
    with SchemaRegistry(rig.directory / "registry") as registry:
        with plain(rig, registry.url) as system:  # the broker is slow at first, and semel is first
            _produced(rig, system, registry, "json", seconds)
        for begin in (semel, plain):
            for form in ("json", "avro"):
                with begin(rig, registry.url) as system:
                    rows += _produced(rig, system, registry, form, seconds)
                    rows += _read(rig, system, registry, form, seconds)
        with semel(rig, registry.url) as system:
            consumers = _idle(rig, system)
    return Figures(
        name="rest",
        title="Kafka over HTTP",
        columns=[
            Column("system", "system"),
            Column("what", "requests"),
            Column("records", "records/s", count),
            Column("requests", "requests/s", count),
            Column("p50", "p50, ms", milliseconds),
            Column("p99", "p99, ms", milliseconds),
            Column("cpu", "cores used", "{:.2f}".format),
        ],
        rows=rows,
        notes=[
            f"{CONSUMERS} consumers take {megabytes(consumers['created'])} MB once created, and "
            f"{megabytes(consumers['subscribed'])} MB once they are subscribed."
        ],
        facts={"consumers": consumers, "seconds": seconds},
    )


def _schema_id(registry: SchemaRegistry, topic: str) -> int:
    url = registry.url.removeprefix("http://")
    host, _, path = url.partition("/")
    link = http.client.HTTPConnection(host, timeout=PATIENCE)
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    link.request(
        "POST", f"/{path}/subjects/{topic}-value/versions", json.dumps({"schema": SCHEMA}), headers
    )
    return int(json.loads(link.getresponse().read())["id"])


def _produced(
    rig: Rig, system: System, registry: SchemaRegistry, form: str, seconds: float
) -> list[dict[str, Any]]:
    rows = []
    for size, clients, rate in (
        (1, CONNECTIONS[1], 0),
        (100, CONNECTIONS[100], 0),
        (1, CONNECTIONS[1], RATE),
    ):
        topic = rig.unique("orders")
        rig.kafka.create_topic(topic, PARTITIONS)
        more = {"value_schema_id": _schema_id(registry, topic)} if form == "avro" else {}
        kind = f"application/vnd.kafka.{form}.v2+json"
        bodies = [
            {**more, "records": [{"value": record(size * n + i)} for i in range(size)]}
            for n in range(100)
        ]
        requests = [request("POST", f"/topics/{topic}", kind, body) for body in bodies]
        figures = load(system, requests, clients, seconds, rate)
        paced = f", {rate:,} a second" if rate else ""
        rows.append({"system": system.name, "what": f"write {size} {form}{paced}", **figures})
        rig.say(f"rest: {rows[-1]}")
    return rows


def _read(
    rig: Rig, system: System, registry: SchemaRegistry, form: str, seconds: float
) -> list[dict[str, Any]]:
    """Pages of a partition, one after the other, by some clients."""
    topic = rig.unique("stored")
    rig.kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": rig.kafka.bootstrap_servers})
    if form == "avro":
        schema, number = fastavro.parse_schema(json.loads(SCHEMA)), _schema_id(registry, topic)
    for n in range(STORED):
        if form == "avro":
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, record(n))
            producer.produce(topic, b"\0" + number.to_bytes(4, "big") + out.getvalue())
        else:
            producer.produce(topic, json.dumps(record(n)))
        producer.poll(0) if n % 1000 == 0 else None
    producer.flush(PATIENCE)
    path = f"/topics/{topic}/partitions/0/records?format={form}&max_records={PAGE}&offset="
    requests = [request("GET", f"{path}{offset}") for offset in range(0, STORED, PAGE)]
    figures = load(system, requests, 1, seconds)
    row = {"system": system.name, "what": f"read {PAGE} {form}", **figures}
    rig.say(f"rest: {row}")
    return [row]


def _idle(rig: Rig, system: System) -> dict[str, Any]:
    topic = rig.unique("idle")
    rig.kafka.create_topic(topic, 1)
    kind = "application/vnd.kafka.v2+json"
    before = system.rss
    names = [str(n) for n in range(CONSUMERS)]
    for name in names:
        system.ask("POST", f"/consumers/idle-{name}", {"name": name}, kind)
    time.sleep(5)
    figures: dict[str, Any] = {"created": system.rss - before}
    for name in names:
        path = f"/consumers/idle-{name}/instances/{name}/subscription"
        system.ask("POST", path, {"topics": [topic]}, kind)
        system.ask("GET", path.replace("subscription", "records?timeout=0"))
    time.sleep(30)
    threads = psutil.Process(system.pid).num_threads()
    figures |= {"subscribed": system.rss - before, "threads": threads}
    rig.say(f"rest: {figures}")
    return figures
