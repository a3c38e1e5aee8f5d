"""Peak memory by the size of records, in all three engines."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from benchmarks.report import Column, Figures, count, megabytes, seconds
from benchmarks.rig import Rig

PARTITIONS = TASKS = 2
LARGEST = 32 * 1024 * 1024
"""The topics' ``max.message.bytes``."""
SIZES = {"100 bytes": 100, "50 KB": 50_000, "4 MB": 4_000_000, "15 MB": 15_000_000}
TOTAL = 240_000_000
"""Bytes of records in a topic, except for the topic of small records."""
MOST = 600_000
ENGINES = ("direct", "bounded", "micro-batch")
ROOF = 9 * 2**29
"""Bytes at which a run is ended: the machine has other uses for its memory."""
LONGEST = 600.0
_WORDS = ("order", "customer", "amount", "shipped", "street", "number", "delivered", "returned")


@dataclass(frozen=True)
class Sample:
    """One run, from its start until it has caught up."""

    engine: str
    size: str
    records: int
    task: int
    """the largest resident set of a task's process"""
    driver: int
    java: int
    total: int
    """the most that all had at one time"""
    seconds: float


def memory(rig: Rig) -> Figures:
    """Each engine over topics of text that compresses about three times."""
    samples = []
    for label, size in SIZES.items():
        records = min(MOST, max(8, TOTAL // size))
        topic = _filled(rig, size, records)
        for engine in ENGINES:
            sample = _once(rig, engine, label, topic, records)
            rig.say(f"{engine}, {label}: a task {megabytes(sample.task)} MiB")
            samples.append(sample)
    return Figures(
        name="memory",
        title=f"Peak memory by the size of records, {TASKS} tasks, default settings",
        columns=[
            Column("engine", "engine"),
            Column("size", "record"),
            Column("records", "records", count),
            Column("task", "a task, MiB", megabytes),
            Column("driver", "driver, MiB", megabytes),
            Column("java", "JVM, MiB", megabytes),
            Column("total", "all, MiB", megabytes),
            Column("seconds", "s with start", seconds),
        ],
        rows=[asdict(s) for s in samples],
        notes=[
            "Resident sets, looked at every 20 ms; pages that processes share count for each. "
            "direct and micro-batch write to PostgreSQL, bounded to Delta Lake."
        ],
        facts={"total": TOTAL, "partitions": PARTITIONS},
    )


def _filled(rig: Rig, size: int, records: int) -> str:
    topic = rig.unique("memory")
    rig.kafka.create_topic(topic, PARTITIONS, config={"max.message.bytes": str(LARGEST)})
    producer = Producer(
        {
            "bootstrap.servers": rig.kafka.bootstrap_servers,
            "message.max.bytes": LARGEST,
            "queue.buffering.max.kbytes": 128 * 1024,
            "compression.type": "lz4",
            "linger.ms": 20,
        }
    )
    words = random.Random(size)
    block = " ".join(f"{words.choice(_WORDS)} {words.getrandbits(40):x}" for _ in range(400_000))
    room = max(1, size - len('{"id": 123456, "text": ""}'))
    for i in range(records):
        at = words.randrange(max(1, len(block) - room))
        text = block[at : at + room]
        while len(text) < room:
            text += block[: room - len(text)]
        value = json.dumps({"id": i, "text": text})
        while True:
            try:
                producer.produce(topic, value, partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def _config(rig: Rig, engine: str, topic: str) -> dict[str, str]:
    name = rig.unique("memory")
    common = {
        "topics": topic,
        "tasks.max": str(TASKS),
        "bootstrap.servers": rig.kafka.bootstrap_servers,
        "auto.create": "true",
        "value.converter.schemas.enable": "false",
    }
    if engine == "bounded":
        return common | {
            "connector.class": "delta",
            "delta.table.path": str(rig.directory / "lake" / name),
            "processingTime": "0 seconds",
        }
    return common | {
        "connector.class": "postgresql",
        "connection.url": rig.postgres.url,
        "table.name.format": name,
        "engine": engine,
    }


def _once(rig: Rig, engine: str, label: str, topic: str, records: int) -> Sample:
    name = rig.unique("memory")
    file = rig.directory / f"{name}.json"
    file.write_text(json.dumps({"name": name, "config": _config(rig, engine, topic)}))
    command = [sys.executable, "-c", "from semel.cli import main; main()", "run", str(file)]
    log = rig.directory / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--until-caught-up"], stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        watch = Watch(process.pid)
        try:
            code = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            watch.end_all()
            raise
        finally:
            watch.stop()
    if code:
        raise RuntimeError(f"{engine}, {label}: exit code {code}: {log.read_text()[-2000:]}")
    return Sample(engine, label, records, **watch.peaks, seconds=time.monotonic() - began)


class Watch:
    """Peak resident sets of a driver, its JVM and its tasks."""

    def __init__(self, driver: int) -> None:
        self.peaks = {"task": 0, "driver": 0, "java": 0, "total": 0}
        self._driver = psutil.Process(driver)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def end_all(self) -> None:
        """End the driver and all that it has started."""
        for process in [*self._driver.children(recursive=True), self._driver]:
            process.kill()

    def _look_on(self) -> None:
        while not self._stop.wait(0.02):
            try:
                sizes: list[tuple[str, int]] = [("driver", self._driver.memory_info().rss)]
                sizes += [self._of(p) for p in self._driver.children(recursive=True)]
            except psutil.Error:
                continue
            for kind, size in sizes:
                self.peaks[kind] = max(self.peaks[kind], size)
            total = sum(size for _, size in sizes)
            self.peaks["total"] = max(self.peaks["total"], total)
            if total > ROOF:
                self.end_all()

    def _of(self, process: Any) -> tuple[str, int]:
        # Not its name: the JVM's forks carry that of the thread which made them.
        kind = "java" if Path(process.exe()).name == "java" else "task"
        return kind, process.memory_info().rss
