"""Runs of source connectors: semel and Kafka Connect in turn, each into a new topic."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.meter import Meter
from benchmarks.report import Column, count, ratio, seconds, span
from benchmarks.rig import Rig
from benchmarks.visible import Warm, records_of, visible
from semel.kafka.cluster import Cluster
from semel_lab.embedded.connect import DistributedConnect

EVERY = 0.02
ENDED = 2.0
"""Seconds without anything new: transaction markers count too, so the number does not show when all
is there."""
SLOWEST = 20_000  # records a second; below it a run is given up
TUNED: Mapping[str, str] = {
    "producer.override.compression.type": "lz4",
    "producer.override.batch.size": "1048576",
    "producer.override.linger.ms": "5",
    "producer.override.buffer.memory": "134217728",
}
"""The settings of a producer that were the fastest for Kafka Connect when they were tried."""


@dataclass(frozen=True)
class Sample:
    """What a run took. CPU seconds are those of the warm window, per million records."""

    rate: float
    """records a second in the warm window"""
    overall_rate: float
    """records a second from the start of the connector, and of semel's process, to the last one"""
    cpu: float
    cpu_kafka: float


class System(ABC):
    """Runs one connector at a time."""

    @abstractmethod
    def start(self, name: str, config: Mapping[str, str]) -> None: ...

    @abstractmethod
    def pid(self) -> int:
        """The root of the processes that do the work. Raises RuntimeError: it has failed."""

    @abstractmethod
    def stop(self) -> None: ...


class Peer(System):
    """A worker of Kafka Connect that is warm already."""

    def __init__(self, worker: DistributedConnect) -> None:
        self._worker = worker
        self._name = ""

    def start(self, name: str, config: Mapping[str, str]) -> None:
        self._name = name
        self._worker.create(name, config)

    def pid(self) -> int:
        self._worker.check(self._name)
        return self._worker.require_pid()

    def stop(self) -> None:
        self._worker.delete(self._name)


class Semel(System):
    """``semel run``, a new process each time."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._log = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, name: str, config: Mapping[str, str]) -> None:
        file = self._rig.directory / f"{name}.json"
        servers = {"bootstrap.servers": self._rig.kafka.bootstrap_servers}
        file.write_text(json.dumps({**config, **servers, "name": name}))
        self._log = self._rig.directory / f"{name}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "semel", "run", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def pid(self) -> int:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"semel has ended: {self._log.read_text(errors='replace')[-2000:]}")
        return self._process.pid

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Contestant:
    """A system with one configuration: ``connector`` returns the connector for a run with this
    unique name, and the topic that it writes."""

    name: str
    system: System
    connector: Callable[[str], tuple[Mapping[str, str], str]]


Samples = Mapping[str, Sequence[Sample]]


def take_turns(rig: Rig, contestants: Sequence[Contestant], records: int, repeats: int) -> Samples:
    """Each contestant ``repeats`` times, in turn, after a run that warms the worker's JVM and what
    is read."""
    samples: dict[str, list[Sample]] = {c.name: [] for c in contestants}
    for contestant in contestants:
        rig.say(f"{contestant.name}: warm-up, {_shown(_once(rig, contestant, records))}")
    for repeat in range(repeats):
        for contestant in random.Random(repeat).sample(contestants, len(contestants)):
            sample = _once(rig, contestant, records)
            samples[contestant.name].append(sample)
            rig.say(f"{contestant.name}: {repeat + 1}/{repeats}, {_shown(sample)}")
    return samples


def _shown(sample: Sample) -> str:
    return f"{sample.rate:,.0f}/s ({sample.cpu:.1f} CPU s per million)"


def _once(rig: Rig, contestant: Contestant, records: int) -> Sample:
    name, system = rig.unique("copy"), contestant.system
    config, topic = contestant.connector(name)
    rig.kafka.create_topic(topic, 1)
    cluster = Cluster({"bootstrap.servers": rig.kafka.bootstrap_servers})
    assert rig.kafka.pid
    began = time.monotonic()
    times, counts = [began], [0]
    try:
        with Meter({"kafka": rig.kafka.pid}) as meter:
            system.start(name, config)
            meter.add("system", system.pid())
            while counts[-1] < records or time.monotonic() - times[-1] < ENDED:
                time.sleep(EVERY)
                if (seen := visible(cluster, topic, 1)) != counts[-1]:
                    counts.append(seen)
                    times.append(time.monotonic())
                if time.monotonic() - began > 90 + records / SLOWEST:
                    system.pid()  # tells why, if it knows
                    raise RuntimeError(f"{contestant.name}: {counts[-1]} of {records} in time")
    finally:
        system.stop()
    copied = records_of(rig.kafka.bootstrap_servers, topic, 1)
    if copied != records:
        raise RuntimeError(f"{contestant.name}: {copied} records, {records} expected")
    warm = Warm.of(times, counts)
    millions = warm.records(records) / 1e6
    return Sample(
        rate=warm.rate(records),
        overall_rate=records / (times[-1] - began),
        cpu=meter.usage["system"].between(warm.since, warm.until) / millions,
        cpu_kafka=meter.usage["kafka"].between(warm.since, warm.until) / millions,
    )


def compared(samples: Samples, peers: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each contestant: its medians, and its rate over those of ``peers``, by the key
    of that ratio."""
    middles = {
        name: {k: statistics.median(asdict(s)[k] for s in taken) for k in asdict(taken[0])}
        for name, taken in samples.items()
    }
    return [
        {
            "system": name,
            **middles[name],
            "rates": [s.rate for s in taken],
            **{k: middles[name]["rate"] / middles[peer]["rate"] for k, peer in peers.items()},
            "samples": [asdict(s) for s in taken],
        }
        for name, taken in samples.items()
    ]


def columns(what: str, ratios: Mapping[str, str]) -> list[Column]:
    """Those of :func:`compared`; ``what`` is counted, ``ratios`` are titles by key."""
    return [
        Column("system", "system"),
        Column("rate", f"{what}/s", count),
        Column("rates", "range", span),
        *(Column(key, title, ratio) for key, title in ratios.items()),
        Column("cpu", "CPU s per million", seconds),
        Column("cpu_kafka", "Kafka CPU s per million", seconds),
        Column("overall_rate", f"{what}/s with start", count),
    ]
