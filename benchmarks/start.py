"""From the command to the first committed row, and from SIGTERM to the exit of an idle connector.

Each run is a first start: processes, group and table are new. The peer is a standalone worker with
the connector in a file, as ``connect-standalone`` starts it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.records import TABLE, Workload, produce
from benchmarks.report import Column, Figures
from benchmarks.rig import BROKER_HEAP, Rig
from benchmarks.systems import ENVELOPE, Semel, connector
from semel.spark.archives import SWITCH
from semel.spark.warmup import warm_up_spark
from semel_lab.embedded import Kafka
from semel_lab.embedded.connect import ConnectWorker

RECORDS, PARTITIONS, TASKS = 1000, 4, 2
IDLE = 3.0
PATIENCE = 120.0
DELAYS = (0, 3000)
"""``group.initial.rebalance.delay.ms`` of the embedded broker, and Kafka's default."""


@dataclass(frozen=True)
class Start:
    """Seconds."""

    first: float
    exit: float


def start(rig: Rig, repeats: int) -> Figures:
    """All systems in turn, on both brokers."""
    warm_up_spark()
    rows: list[dict[str, Any]] = []
    for delay in DELAYS:
        settings = {"group.initial.rebalance.delay.ms": delay}
        with Kafka(rig.directory / f"delay-{delay}", heap=BROKER_HEAP, settings=settings) as kafka:
            own_rig = Rig(rig.directory, kafka, rig.postgres, rig.console, rig._numbers)
            samples = _in_turn(own_rig, repeats, delay)
        for system, taken in samples.items():
            middle = {n: statistics.median(asdict(s)[n] for s in taken) for n in ("first", "exit")}
            rows.append(
                {"delay": delay, "system": system, **middle, "samples": [*map(asdict, taken)]}
            )
    return Figures(
        name="start",
        title=f"start and stop, {TASKS} tasks: medians of {repeats}",
        columns=[
            Column("delay", "initial rebalance delay, ms"),
            Column("system", "system"),
            Column("first", "to the first row, s", _hundredths),
            Column("exit", "SIGTERM to exit, s", _hundredths),
        ],
        rows=rows,
        notes=["cold: without the class data archive."],
        facts={"tasks": TASKS, "repeats": repeats},
    )


def _in_turn(rig: Rig, repeats: int, delay: int) -> dict[str, list[Start]]:
    workload = Workload.of(RECORDS, PARTITIONS, updates=False, envelope=True)
    topic = produce(rig, workload)
    systems: dict[str, Callable[[Rig, str], Start]] = {
        "semel": lambda r, t: _semel(r, t, {}),
        "semel, cold": lambda r, t: _semel(r, t, {SWITCH: "off"}),
        "connect-standalone": _connect,
    }
    samples: dict[str, list[Start]] = {name: [] for name in systems}
    for repeat in range(repeats):
        for name, run in systems.items():
            sample = run(rig, topic)
            samples[name].append(sample)
            rig.say(
                f"start: delay {delay}, {name}: {repeat + 1}/{repeats}, "
                f"{sample.first:.2f} s, exit {sample.exit:.2f} s"
            )
    return samples


def _semel(rig: Rig, topic: str, environment: Mapping[str, str]) -> Start:
    system = Semel(rig, environment)
    table, config = _target(rig, topic)
    seen = Seen(rig, table)
    system.start(rig.unique("start"), config)
    try:
        first = seen.wait()
        time.sleep(IDLE)
    finally:
        ended = time.monotonic()
        system.stop()
    return Start(first, time.monotonic() - ended)


def _connect(rig: Rig, topic: str) -> Start:
    table, config = _target(rig, topic)
    name = rig.unique("start")
    directory = rig.directory / name
    directory.mkdir()
    file = directory / "connector.properties"
    file.write_text("".join(f"{k}={v}\n" for k, v in {"name": name, **config}.items()))
    worker = ConnectWorker(directory / "worker", rig.kafka.bootstrap_servers, files=[file])
    seen = Seen(rig, table)
    worker.start()
    try:
        first = seen.wait()
        time.sleep(IDLE)
    finally:
        ended = time.monotonic()
        worker.stop()
    return Start(first, time.monotonic() - ended)


def _target(rig: Rig, topic: str) -> tuple[str, dict[str, str]]:
    table = rig.unique("target")
    rig.execute(TABLE.format(name=table))
    config = connector(rig, topic, table, upsert=False, converter=ENVELOPE, tasks=TASKS)
    return table, config


class Seen:
    """Looks for the table's first row from now on, in a thread of its own."""

    def __init__(self, rig: Rig, table: str) -> None:
        self._query = f"SELECT EXISTS (SELECT FROM {table})"
        self._began = time.monotonic()
        self._seconds = float("nan")
        self._thread = threading.Thread(target=self._look, args=(rig,), daemon=True)
        self._thread.start()

    def wait(self) -> float:
        """The seconds until the first row.

        Raises:
            RuntimeError: there is none.
        """
        self._thread.join(PATIENCE)
        if self._seconds != self._seconds:
            raise RuntimeError(f"no row has come: {self._query}")
        return self._seconds

    def _look(self, rig: Rig) -> None:
        with suppress(Exception), rig.connect() as connection, connection.cursor() as cursor:
            while time.monotonic() < self._began + PATIENCE:
                cursor.execute(self._query)
                if cursor.fetchone()[0]:
                    self._seconds = time.monotonic() - self._began
                    return
                time.sleep(0.01)


def _hundredths(value: float) -> str:
    return f"{value:.2f}"
