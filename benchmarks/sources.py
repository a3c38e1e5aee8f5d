"""A file to Kafka: semel beside Kafka Connect's FileStreamSource, both with exactly-once."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.meter import Meter
from benchmarks.records import FIRST_TS, template
from benchmarks.report import Column, Figures, count, percent, ratio, seconds, span
from benchmarks.rig import Rig
from benchmarks.visible import Warm, records_of, visible
from semel.kafka.cluster import Cluster
from semel.lab.embedded.connect import DistributedConnect

EVERY = 0.02
ENDED = 2.0  # seconds without anything new: markers count, so the number does not tell
SLOWEST = 20_000  # lines a second; below it a run is given up
BLOCK = 100_000
PEER = "Kafka Connect"
TUNED = "Kafka Connect, tuned"
SEMEL = "semel"
AT_LEAST_ONCE = "semel, at-least-once"
SIDES = (PEER, TUNED, SEMEL, AT_LEAST_ONCE)
KEYS: Mapping[str, Mapping[str, str]] = {
    PEER: {},
    TUNED: {
        "batch.size": "10000",
        "producer.override.compression.type": "lz4",
        "producer.override.batch.size": "1048576",
        "producer.override.linger.ms": "5",
        "producer.override.buffer.memory": "134217728",
    },
    SEMEL: {"producer.override.compression.type": "lz4"},
    AT_LEAST_ONCE: {"producer.override.compression.type": "lz4", "delivery": "at-least-once"},
}
"""What each side has besides the file and the topic. The tuned settings were the fastest for Kafka
Connect when they were tried."""


@dataclass(frozen=True)
class Sample:
    """What a run took. CPU seconds are those of the warm window, per million lines."""

    rate: float
    """lines a second in the warm window"""
    overall_rate: float
    """lines a second from the start of the connector, and of semel's process, to the last line"""
    cpu: float
    cpu_kafka: float


class Side(ABC):
    """Runs one connector at a time."""

    @abstractmethod
    def start(self, name: str, config: Mapping[str, str]) -> None: ...

    @abstractmethod
    def pid(self) -> int:
        """The process whose family does the work. Raises RuntimeError: it has failed."""

    @abstractmethod
    def stop(self) -> None: ...


class Peer(Side):
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


class Semel(Side):
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


def sources(rig: Rig, records: int, repeats: int) -> Figures:
    """All sides, ``repeats`` times each, in turn, into a new topic each time."""
    file = rig.directory / "lines.txt"
    size = _write(file, records)
    rig.say(f"{records:,} lines of {size / records:.0f} bytes")
    samples: dict[str, list[Sample]] = {side: [] for side in SIDES}
    worker = DistributedConnect(
        rig.directory / "connect", rig.kafka.bootstrap_servers, "bench", exactly_once=True
    )
    with worker:
        peer, semel = Peer(worker), Semel(rig)
        by_name = {side: peer if side.startswith(PEER) else semel for side in SIDES}
        for side in SIDES:  # warm the worker's JVM and the file: not counted
            rig.say(f"{side}: warm-up, {_shown(_once(rig, by_name[side], side, file, records))}")
        for repeat in range(repeats):
            for side in random.Random(repeat).sample(SIDES, len(SIDES)):
                sample = _once(rig, by_name[side], side, file, records)
                samples[side].append(sample)
                rig.say(f"{side}: {repeat + 1}/{repeats}, {_shown(sample)}")
    return _figures(samples, records, round(size / records), repeats)


def _write(file: Path, lines: int) -> int:
    """Write the lines. Returns the size of the file."""
    form = template(envelope=False) + "\n"
    with file.open("w") as output:
        for first in range(0, lines, BLOCK):
            numbers = range(first, min(first + BLOCK, lines))
            output.write("".join(form % (i, i % 1000, i, i % 100, FIRST_TS + i) for i in numbers))
    return file.stat().st_size


def _shown(sample: Sample) -> str:
    return f"{sample.rate:,.0f}/s ({sample.cpu:.1f} CPU s per million)"


def _once(rig: Rig, side: Side, name: str, file: Path, lines: int) -> Sample:
    topic = rig.unique("lines")
    rig.kafka.create_topic(topic, 1)
    config = {
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": str(file),
        "topic": topic,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **KEYS[name],
    }
    cluster = Cluster({"bootstrap.servers": rig.kafka.bootstrap_servers})
    assert rig.kafka.pid
    began = time.monotonic()
    times, counts = [began], [0]
    try:
        with Meter({"kafka": rig.kafka.pid}) as meter:
            side.start(topic, config)
            meter.add("side", side.pid())
            while counts[-1] < lines or time.monotonic() - times[-1] < ENDED:
                time.sleep(EVERY)
                if (seen := visible(cluster, topic, 1)) != counts[-1]:
                    counts.append(seen)
                    times.append(time.monotonic())
                if time.monotonic() - began > 90 + lines / SLOWEST:
                    side.pid()  # tells why, if it knows
                    raise RuntimeError(f"{name}: {counts[-1]} of {lines} lines in time")
    finally:
        side.stop()
    found = records_of(rig.kafka.bootstrap_servers, topic, 1)
    if found != lines:
        raise RuntimeError(f"{name}: {found} records, {lines} expected")
    warm = Warm.of(times, counts)
    millions = warm.records(lines) / 1e6
    return Sample(
        rate=warm.rate(lines),
        overall_rate=lines / (times[-1] - began),
        cpu=meter.usage["side"].between(warm.since, warm.until) / millions,
        cpu_kafka=meter.usage["kafka"].between(warm.since, warm.until) / millions,
    )


def _figures(samples: Mapping[str, list[Sample]], lines: int, size: int, repeats: int) -> Figures:
    middles = {
        side: {k: statistics.median(asdict(s)[k] for s in taken) for k in asdict(taken[0])}
        for side, taken in samples.items()
    }
    rows = [
        {
            "side": side,
            **middles[side],
            "rates": [s.rate for s in taken],
            "ratio": middles[side]["rate"] / middles[PEER]["rate"],
            "tuned": middles[side]["rate"] / middles[TUNED]["rate"],
            "samples": [asdict(s) for s in taken],
        }
        for side, taken in samples.items()
    ]
    cost = middles[AT_LEAST_ONCE]["rate"] / middles[SEMEL]["rate"] - 1
    return Figures(
        name="sources",
        title=f"A file to Kafka, {lines:,} lines of {size} bytes, one partition, one task, "
        f"exactly-once: medians of {repeats}",
        columns=[
            Column("side", "side"),
            Column("rate", "lines/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio to Connect", ratio),
            Column("tuned", "ratio to it tuned", ratio),
            Column("cpu", "CPU s per million", seconds),
            Column("cpu_kafka", "Kafka CPU s per million", seconds),
            Column("overall_rate", "lines/s with start", count),
        ],
        rows=rows,
        notes=[
            "lines/s and CPU: between 15 % and 85 % of the lines visible to a read_committed "
            "consumer. Kafka Connect's worker has exactly.once.source.support=enabled and stays "
            "warm from run to run; semel starts anew each time, which counts where the start "
            "does.",
            f"Tuned: {', '.join(f'{k}={v}' for k, v in KEYS[TUNED].items())}. semel compresses "
            "with lz4, too, and has its defaults otherwise.",
            f"At-least-once is {percent(cost)} faster than exactly-once: what the guarantee costs.",
        ],
        facts={"repeats": repeats, "cost_of_exactly_once": cost},
    )
