"""A worker and its REST API: from ``POST`` to the first committed row, many idle connectors, and
requests while data flows. The peer is a standalone worker of Kafka Connect."""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from signal import SIGTERM
from typing import Any

import numpy as np
from confluent_kafka import Producer

from benchmarks.meter import Meter
from benchmarks.records import FIRST_TS, TABLE, Workload, produce, template
from benchmarks.report import Column, Figures, count, megabytes, milliseconds, text
from benchmarks.rig import BROKER_HEAP, Rig
from benchmarks.start import DELAYS, Seen
from benchmarks.systems import ENVELOPE, connector
from semel.spark.warmup import warm_up_spark
from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.connect import ConnectWorker
from semel_lab.embedded.process import LOOPBACK, ServerProcess, free_port, listening

RECORDS, PARTITIONS = 1000, 4
PATIENCE = 300.0
CALM = 60.0
"""Seconds until connectors that have caught up count as idle."""
IDLE = 20.0
"""Seconds for which they are watched."""
SELDOM = 5.0
"""Seconds between samples of their CPU and memory while requests are timed, which sampling may
delay."""
SESSIONS = {"max_connections": "500"}
"""A Debezium connector holds five sessions, a semel connector two."""
RATE = 1000
"""Records a second, for each of the connectors that are busy while requests are timed."""
BUSY = 5
"""How many connectors are busy. With all of them busy, two cores could not keep up."""


class Missing(RuntimeError):
    """The answer was a 404."""


class System(ABC):
    """A worker that is running."""

    name: str
    port: int

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to its REST API, and return the answer.

        Raises:
            Missing: it has no status yet, or is not there.
            RuntimeError: any other answer than success.
        """
        link = http.client.HTTPConnection(LOOPBACK, self.port, timeout=PATIENCE)
        try:
            content = None if body is None else json.dumps(body)
            link.request(method, path, content, {"Content-Type": "application/json"})
            answer = link.getresponse()
            payload = answer.read()
            if answer.status == 404:
                raise Missing(path)
            if answer.status >= 300:
                raise RuntimeError(f"{self.name}: {method} {path}: {answer.status} {payload!r}")
            return json.loads(payload) if payload else None
        finally:
            link.close()

    @property
    @abstractmethod
    def pid(self) -> int:
        """The first process of its tree."""


class Semel(System):
    """``semel worker`` alone."""

    name = "semel"

    def __init__(self, process: ServerProcess, port: int) -> None:
        self._process, self.port = process, port

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


class Peer(System):
    """``connect-standalone``."""

    name = "Kafka Connect"

    def __init__(self, worker: ConnectWorker) -> None:
        self._worker, self.port = worker, worker.port

    @property
    def pid(self) -> int:
        return self._worker.require_pid()


@contextmanager
def _semel(rig: Rig) -> Iterator[System]:
    directory, port = rig.directory / rig.unique("worker"), free_port()
    directory.mkdir()
    file = directory / "worker.properties"
    file.write_text(
        f"bootstrap.servers={rig.kafka.bootstrap_servers}\nlisteners=http://{LOOPBACK}:{port}\n"
        "semel.rest.authentication=none\n"  # as Kafka Connect's worker
    )
    process = ServerProcess("semel worker", directory, directory / "worker.log")
    command = [sys.executable, "-c", "from semel.cli import main; main()", "worker", str(file)]
    process.launch(command, detached=False, directory=directory)
    try:
        _wait(lambda: listening(port), "the worker does not listen")
        yield Semel(process, port)
    finally:
        process.stop(SIGTERM, 60.0)


@contextmanager
def _connect(rig: Rig) -> Iterator[System]:
    directory = rig.directory / rig.unique("connect")
    with ConnectWorker(directory, rig.kafka.bootstrap_servers) as worker:
        yield Peer(worker)


def worker(rig: Rig, repeats: int, connectors: int, requests: int) -> Figures:
    """Both systems, one after the other, on brokers with and without an initial delay of groups."""
    warm_up_spark()
    rows: list[dict[str, Any]] = []
    for begin in (_semel, _connect):
        row: dict[str, Any] = {}
        for delay in DELAYS:
            settings = {"group.initial.rebalance.delay.ms": delay}
            place = rig.directory / rig.unique(f"delay-{delay}")
            with (
                Kafka(place / "kafka", heap=BROKER_HEAP, settings=settings) as kafka,
                Postgres(place / "postgres", settings=SESSIONS) as postgres,
            ):
                own_rig = Rig(rig.directory, kafka, postgres, rig.console, rig._numbers)
                topic = produce(
                    own_rig, Workload.of(RECORDS, PARTITIONS, updates=False, envelope=True)
                )
                with begin(own_rig) as system:
                    row |= {
                        "system": system.name,
                        f"first_{delay}": _firsts(own_rig, system, topic, repeats),
                    }
                    if not delay:
                        row |= _many_or_why_not(own_rig, system, topic, connectors, requests)
            rig.say(f"worker: {system.name}, delay {delay}: {row}")
        rows.append(row)
    return Figures(
        name="worker",
        title=f"a worker with {connectors} connectors, and {requests:,} requests",
        columns=[
            Column("system", "system"),
            *(Column(f"first_{d}", f"POST to row, delay {d} ms: s", _median) for d in DELAYS),
            Column("pss", "memory, MB", _unless_failed(megabytes)),
            Column("idle", "idle CPU, % of a core", _unless_failed(_tenths)),
            Column("p50", "GET status p50, ms", _unless_failed(milliseconds)),
            Column("p99", "p99, ms", _unless_failed(milliseconds)),
            Column("rate", "GETs/s", _unless_failed(count)),
        ],
        rows=rows,
        notes=[
            f"medians of {repeats}; memory is the tree's proportional set; requests come one after "
            f"the other while {RATE:,} records/s arrive for each of {BUSY} of the connectors."
        ],
        facts={"repeats": repeats, "connectors": connectors, "requests": requests},
    )


def _firsts(rig: Rig, system: System, topic: str, repeats: int) -> list[float]:
    """Seconds from a request to the first row, each time of a new connector; the first of a worker
    does not count."""
    waits = []
    for _ in range(repeats + 1):
        name, config = _sink(rig, topic)
        seen = Seen(rig, name)
        system.ask("POST", "/connectors", {"name": name, "config": config})
        waits.append(seen.wait())
        system.ask("DELETE", f"/connectors/{name}")
        rig.execute(f"DROP TABLE {name}")
    return waits[1:]


def _many_or_why_not(
    rig: Rig, system: System, topic: str, connectors: int, requests: int
) -> dict[str, Any]:
    """The figures of :func:`_many`, or why there are none: the other system is still measured."""
    try:
        return _many(rig, system, topic, connectors, requests)
    except (OSError, RuntimeError) as error:
        rig.say(f"worker: {system.name}: {error}")
        return dict.fromkeys(("idle", "pss", "p50", "p99", "rate")) | {"error": str(error)}


def _many(rig: Rig, system: System, topic: str, connectors: int, requests: int) -> dict[str, Any]:
    """Memory and CPU of many connectors that have caught up, then requests while data flows."""
    live = produce(rig, Workload.of(RECORDS, PARTITIONS, updates=False, envelope=True))
    names = []
    with Meter({"system": system.pid}, weigh=("system",)) as begun:
        for number in range(connectors):
            name, config = _sink(rig, live if number < BUSY else topic)
            system.ask("POST", "/connectors", {"name": name, "config": config})
            names.append(name)
        for name in names:
            _wait(
                lambda name=name: _caught_up(rig, system, name), f"{system.name}: {name} is behind"
            )
    idle = _idle(system)
    rig.say(f"worker: {system.name}: {connectors} connectors take {idle:.1f} % of a core")
    with Meter({"system": system.pid}, weigh=("system",), every=SELDOM, weigh_every=SELDOM) as busy:
        times = _timed(rig, system, live, names, requests)
    for name in names:
        system.ask("DELETE", f"/connectors/{name}")
    return {
        "idle": idle,
        "pss": max(meter.usage["system"].peak_pss for meter in (begun, busy)),
        "p50": 1000 * float(np.percentile(times, 50)),
        "p99": 1000 * float(np.percentile(times, 99)),
        "rate": requests / sum(times),
    }


def _idle(system: System) -> float:
    """Percent of a core, once all connectors are idle. Nothing is sampled in between: weighing
    dozens of processes evicts the caches of those that are measured."""
    time.sleep(CALM)
    with Meter({"system": system.pid}, every=2 * IDLE) as meter:
        time.sleep(IDLE)
    usage = meter.usage["system"]
    began, ended = usage.times[0], usage.times[-1]
    return 100 * usage.between(began, ended) / (ended - began)


def _timed(rig: Rig, system: System, topic: str, names: list[str], requests: int) -> list[float]:
    """The seconds that each of the requests takes, on one connection."""
    stop = threading.Event()
    flow = threading.Thread(target=_flow, args=(rig, topic, stop), daemon=True)
    flow.start()
    link = http.client.HTTPConnection(LOOPBACK, system.port, timeout=PATIENCE)
    times = []
    try:
        for number in range(requests):
            began = time.monotonic()
            link.request("GET", f"/connectors/{names[number % len(names)]}/status")
            answer = link.getresponse()
            answer.read()
            times.append(time.monotonic() - began)
            if answer.status != 200:
                raise RuntimeError(f"{system.name}: status {answer.status}")
    finally:
        stop.set()
        flow.join(PATIENCE)
        link.close()
    return times


def _flow(rig: Rig, topic: str, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": rig.kafka.bootstrap_servers, "log_level": 0})
    form, number = template(envelope=True), RECORDS
    while not stop.wait(0.1):
        for _ in range(RATE // 10):
            value = form % (number, number % 1000, number, number % 100, FIRST_TS + number)
            producer.produce(topic, value, partition=number % PARTITIONS)
            number += 1
        producer.poll(0)
    producer.flush(PATIENCE)


def _sink(rig: Rig, topic: str) -> tuple[str, Mapping[str, str]]:
    """A connector with one task, named after its new table."""
    table = rig.unique("many")
    rig.execute(TABLE.format(name=table))
    return table, connector(rig, topic, table, upsert=False, converter=ENVELOPE, tasks=1)


def _caught_up(rig: Rig, system: System, name: str) -> bool:
    """Whether all records are in the table. Raises RuntimeError: the connector has failed."""
    if _rows(rig, name) == RECORDS:
        return True
    try:
        status = system.ask("GET", f"/connectors/{name}/status")
    except Missing:  # its worker has yet to write one
        return False
    for part in (status["connector"], *status["tasks"]):
        if part["state"] == "FAILED":
            raise RuntimeError(f"{system.name}: {name} has failed: {part['trace'][:500]}")
    return False


def _rows(rig: Rig, table: str) -> int:
    return int(rig.value(f"SELECT count(*) FROM {table}"))


def _wait(true: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.1)


def _median(values: list[float]) -> str:
    return text(f"{statistics.median(values):.2f}")


def _unless_failed(show: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "failed" if value is None else show(value)


def _tenths(value: float) -> str:
    return f"{value:.1f}"
