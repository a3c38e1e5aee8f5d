"""Topologies beside those of Kafka Streams and Quix Streams: the same records, topic to topic, each
exactly once with a commit every 100 ms.

How far a system has come is what its consumer group has committed, in the transaction that its
results are in. At the end, the results must add up to the records that were read.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

import benchmarks
from benchmarks import topologies
from benchmarks.meter import Meter
from benchmarks.records import FIRST_TS
from benchmarks.report import Column, Figures, count, milliseconds, ratio, seconds, span
from benchmarks.rig import Rig
from benchmarks.visible import Warm
from semel.spark.jars import cache_directory, classpath
from semel_lab.embedded.java import find_jdk
from semel_lab.jars import CONNECT, KAFKA_STREAMS

PARTITIONS, TASKS = 4, 2
QUIX_VERSION = "3.28.1"
SEMEL, KAFKA, QUIX = "semel", "Kafka Streams", "Quix Streams"
CASES = (
    ("counting", 1_000),
    ("counting", 1_000_000),
    ("joining", 1_000),
    ("windowing", 1_000),
)
"""The topologies, and the number of their keys."""
SHARE = {SEMEL: 1.0, KAFKA: 1.0, QUIX: 0.1}
"""Of the records: a run of Quix takes that much longer."""
_EVERY, _PATIENCE = 0.05, 900.0
_RATE, _LEAD, _MEASURED = 1_000, 5.0, 15.0
_LARGE, _NOTE = 1_000_000, 1_000
_HEAP = "-Xmx1g"


@dataclass(frozen=True)
class Sample:
    """What a run took; CPU seconds are those between the warm shares, per million records."""

    rate: float
    cpu: float
    first: float
    """seconds from the start of the process to its first commit"""


@dataclass(frozen=True)
class Topics:
    """What a run reads."""

    source: str
    table: str
    records: int


class Runs:
    """Starts each system with a case."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._root = Path(benchmarks.__path__[0]).parent
        java = find_jdk("kafka-streams")
        self._java = str(java)
        self._classes = rig.directory / "classes"
        jars = f"{classpath(KAFKA_STREAMS)}{os.pathsep}{classpath(CONNECT)}"
        subprocess.run(
            [
                java.with_name("javac"),
                "-d",
                self._classes,
                "-cp",
                jars,
                Path(__file__).with_name("StreamsPeer.java"),
            ],
            check=True,
        )
        self._classpath = f"{self._classes}{os.pathsep}{jars}"
        self._quix = _quix()

    @contextmanager
    def running(
        self, system: str, case: str, topics: Topics, target: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process that is killed at the end."""
        group = f"connect-{target}" if system == SEMEL else target
        state = self._rig.directory / f"{target}-state"
        facts = {
            "servers": self._rig.kafka.bootstrap_servers,
            "group": group,
            "case": case,
            "source": topics.source,
            "table": topics.table,
            "target": target,
            "state": str(state),
        }
        environment = {**os.environ, "PYTHONPATH": str(self._root)}
        environment |= {
            topologies.SOURCE: topics.source,
            topologies.TABLE: topics.table,
            topologies.TARGET: target,
        }
        with (self._rig.directory / f"{target}.log").open("wb") as output:
            process = subprocess.Popen(
                self._command(system, facts),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self._rig.directory,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _command(self, system: str, facts: Mapping[str, str]) -> list[str]:
        if system == QUIX:
            return [
                str(self._quix),
                str(Path(__file__).with_name("peer_quix.py")),
                json.dumps(facts),
            ]
        if system == KAFKA:
            names = ("servers", "group", "case", "source", "table", "target", "state")
            return [
                self._java,
                _HEAP,
                "-cp",
                self._classpath,
                "StreamsPeer",
                *(facts[n] for n in names),
            ]
        file = self._rig.directory / f"{facts['target']}.json"
        config = {
            "topology": f"benchmarks.topologies:{facts['case']}",
            "bootstrap.servers": facts["servers"],
            "tasks.max": TASKS,
            "state.dir": facts["state"],
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "producer.override.compression.type": "lz4",
        }
        file.write_text(json.dumps({"name": facts["target"], "config": config}))
        return [sys.executable, "-m", "semel", "run", str(file)]

    def log(self, target: str) -> str:
        """The end of what a process has said."""
        return (self._rig.directory / f"{target}.log").read_text(errors="replace")[-3000:]


def _quix() -> Path:
    """The Python of an environment that has Quix Streams."""
    home = cache_directory() / f"quix-{QUIX_VERSION}"
    python = home / "bin" / "python"
    if not (home / ".ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        package = f"quixstreams=={QUIX_VERSION}"
        subprocess.run([python, "-m", "pip", "install", "-q", package], check=True)
        (home / ".ready").touch()
    return python


def streams(rig: Rig, records: int, repeats: int) -> Figures:
    """All systems and cases in turn, then the latency of counting, and what follows a kill."""
    runs = Runs(rig)
    topics: dict[tuple[int, int], Topics] = {}
    samples: dict[tuple[str, int, str], list[Sample]] = {}
    for case, keys in CASES:
        for repeat in range(repeats + 1):
            for system in random.Random(repeat).sample(list(SHARE), len(SHARE)):
                most = int(records * SHARE[system])
                if (keys, most) not in topics:
                    rig.say(f"producing {most:,} records of {keys:,} keys")
                    topics[keys, most] = _produce(rig, most, keys)
                sample = _once(rig, runs, system, case, topics[keys, most])
                shown = f"{sample.rate:,.0f}/s, first after {sample.first:.1f} s"
                rig.say(f"{case}, {keys:,} keys: {system}: {repeat or 'warm-up'}, {shown}")
                if repeat:
                    samples.setdefault((case, keys, system), []).append(sample)
    latencies = {system: _latency(rig, runs, system) for system in SHARE}
    return _figures(samples, latencies, _recoveries(rig, runs), records, repeats)


def _once(rig: Rig, runs: Runs, system: str, case: str, topics: Topics) -> Sample:
    target = rig.unique("streams")
    rig.kafka.create_topic(target, PARTITIONS, config={"retention.ms": "-1"})
    group = f"connect-{target}" if system == SEMEL else target
    began = time.monotonic()
    times, counts = [began], [0]
    with (
        runs.running(system, case, topics, target) as process,
        Meter({system: process.pid}) as meter,
        _consumer(rig, group) as consumer,
    ):
        while counts[-1] < topics.records:
            if process.poll() is not None:
                raise RuntimeError(f"{system} has ended: {runs.log(target)}")
            if time.monotonic() - began > _PATIENCE:
                raise RuntimeError(f"{system} does not end: {counts[-1]:,}, {runs.log(target)}")
            time.sleep(_EVERY)
            done = _committed(consumer, topics.source)
            if done > counts[-1]:
                times.append(time.monotonic())
                counts.append(done)
    _check(rig, target, case, topics)
    warm = Warm.of(times, counts)
    cpu = meter.usage[system].between(warm.since, warm.until)
    return Sample(
        warm.rate(topics.records),
        cpu / warm.records(topics.records) * 1e6,
        times[1] - began,
    )


@contextmanager
def _consumer(rig: Rig, group: str) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": rig.kafka.bootstrap_servers, "group.id": group}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    try:
        yield consumer
    finally:
        consumer.close()


def _committed(consumer: Consumer, topic: str) -> int:
    positions = consumer.committed(_places(topic), timeout=30)
    return sum(max(0, place.offset) for place in positions)


def _places(topic: str) -> list[KafkaPartition]:
    return [KafkaPartition(topic, p) for p in range(PARTITIONS)]


def _values(rig: Rig, topic: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The records that a read_committed consumer gets, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": rig.kafka.bootstrap_servers,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([KafkaPartition(topic, p, 0) for p in range(PARTITIONS)])
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(50_000, 1):
            if message.error() is None:
                yield message.key() or b"", json.loads(message.value() or b"{}")
            else:
                ended.add(message.partition())
    consumer.close()


def _check(rig: Rig, target: str, case: str, topics: Topics) -> None:
    """Check that each record has been counted once."""
    if case == "joining":
        counted = sum(1 for _ in _values(rig, target))
    else:
        last = {(key, value.get("start")): value["count"] for key, value in _values(rig, target)}
        counted = sum(last.values())
    if counted != topics.records:
        raise RuntimeError(f"{target}: {counted:,} records counted, {topics.records:,} expected")


def _produce(rig: Rig, records: int, keys: int) -> Topics:
    source, table = rig.unique("stream"), rig.unique("table")
    for topic in (source, table):
        rig.kafka.create_topic(topic, PARTITIONS, config={"retention.ms": "-1"})
    producer = _producer(rig)
    for key in range(min(keys, 10_000)):
        value = f'{{"name":"user {key}"}}'
        producer.produce(table, value, f"k{key}", timestamp=FIRST_TS - 1)
    for i in range(records):
        value = f'{{"id":{i},"amount":{i % 100},"note":"abcdefghijkl","ts":{FIRST_TS + i}}}'
        _queue(producer, source, value, f"k{i % keys}", FIRST_TS + i)
    if undelivered := producer.flush(120):
        raise RuntimeError(f"{undelivered} records of {source} were not delivered")
    return Topics(source, table, records)


def _queue(producer: Producer, topic: str, value: str, key: str, at: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, timestamp=at)
            break
        except BufferError:
            producer.poll(0.05)
    producer.poll(0)


def _producer(rig: Rig, **more: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": rig.kafka.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "linger.ms": 50,
            "log_level": 0,
            "queue.buffering.max.messages": 500_000,
            **more,
        }
    )


def _latency(rig: Rig, runs: Runs, system: str) -> np.ndarray:
    """Milliseconds from producing a record until a read_committed consumer has a count with it."""
    source, target = rig.unique("paced"), rig.unique("streams")
    for topic in (source, target):
        rig.kafka.create_topic(topic, PARTITIONS, config={"retention.ms": "-1"})
    topics = Topics(source, rig.unique("none"), 0)
    producer = _producer(rig, **{"linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": rig.kafka.bootstrap_servers,
            "group.id": f"look-{target}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([KafkaPartition(target, p, 0) for p in range(PARTITIONS)])
    latencies: list[float] = []
    with runs.running(system, "counting", topics, target) as process:
        began = time.monotonic()
        ready, sent = None, 0
        while ready is None or time.monotonic() - ready < _LEAD + _MEASURED:
            if process.poll() is not None:
                raise RuntimeError(f"{system} has ended: {runs.log(target)}")
            if time.monotonic() - began > _PATIENCE:
                raise RuntimeError(f"{system} counts nothing: {runs.log(target)}")
            due = int((time.monotonic() - began) * _RATE)
            for i in range(sent, due):
                value = f'{{"id":{i},"amount":1,"ts":{time.time_ns() // 1000}}}'
                producer.produce(source, value, f"k{i % 1_000}")
            sent = due
            producer.poll(0)
            messages = consumer.consume(10_000, 0.001)
            now = time.time_ns() // 1000
            if messages and ready is None:
                ready = time.monotonic()
            if ready is not None and time.monotonic() - ready > _LEAD:
                latencies += [
                    (now - json.loads(m.value() or b"{}")["last"]) / 1000
                    for m in messages
                    if not m.error()
                ]
        producer.flush(30)
    consumer.close()
    return np.array(latencies)


def _recoveries(rig: Rig, runs: Runs) -> dict[str, float]:
    """Seconds from SIGKILL, and a new start at once, to a result of a record that came since; the
    local state is still there. Quix Streams would take too long to fill its state."""
    topic = rig.unique("large")
    rig.kafka.create_topic(topic, PARTITIONS, config={"retention.ms": "-1"})
    producer = _producer(rig)
    rig.say(f"producing {_LARGE:,} records of {_NOTE:,} bytes")
    for i in range(_LARGE):
        note = random.randbytes(_NOTE // 2).hex()
        _queue(producer, topic, f'{{"note":"{note}","ts":{FIRST_TS + i}}}', f"k{i}", FIRST_TS + i)
    if undelivered := producer.flush(120):
        raise RuntimeError(f"{undelivered} records of {topic} were not delivered")
    topics = Topics(topic, rig.unique("none"), _LARGE)
    recoveries = {}
    for system in (SEMEL, KAFKA):
        target = rig.unique("streams")
        rig.kafka.create_topic(target, PARTITIONS, config={"retention.ms": "-1"})
        group = f"connect-{target}" if system == SEMEL else target
        with runs.running(system, "keeping", topics, target), _consumer(rig, group) as consumer:
            _wait(partial(_has_read, consumer, topic, _LARGE), f"{system} keeps up")
        with _consumer(rig, f"look-{target}") as consumer:
            ends = [consumer.get_watermark_offsets(place)[1] for place in _places(target)]
            consumer.assign([KafkaPartition(target, n, end) for n, end in enumerate(ends)])
            mark = time.time_ns()
            for partition in range(PARTITIONS):
                producer.produce(topic, f'{{"note":"","ts":{mark}}}', f"m{mark}", partition)
            producer.flush(30)
            began = time.monotonic()
            with runs.running(system, "keeping", topics, target):
                _wait(partial(_shows, consumer, mark), f"{system} goes on")
                recoveries[system] = time.monotonic() - began
        rig.say(f"{system}: {recoveries[system]:.1f} s from SIGKILL to the next result")
    return recoveries


def _has_read(consumer: Consumer, topic: str, records: int) -> bool:
    return _committed(consumer, topic) >= records


def _shows(consumer: Consumer, mark: int) -> bool:
    values = [m.value() for m in consumer.consume(10_000, _EVERY) if not m.error()]
    return any(json.loads(value)["last"] == mark for value in values if value)


def _wait(over: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _PATIENCE
    while not over():
        if time.monotonic() > until:
            raise RuntimeError(f"waited in vain: {what}")
        time.sleep(_EVERY)


def _figures(
    samples: Mapping[tuple[str, int, str], Sequence[Sample]],
    latencies: Mapping[str, np.ndarray],
    recoveries: Mapping[str, float],
    records: int,
    repeats: int,
) -> Figures:
    rows: list[dict[str, Any]] = []
    for (case, keys, system), taken in samples.items():
        middle = {k: statistics.median(asdict(s)[k] for s in taken) for k in asdict(taken[0])}
        peer = statistics.median(s.rate for s in samples[case, keys, KAFKA])
        late = latencies[system] if (case, keys) == CASES[0] else None
        rows.append(
            {
                "case": f"{case}, {keys:,} keys",
                "system": system,
                **middle,
                "rates": [s.rate for s in taken],
                "ratio": middle["rate"] / peer,
                "recovery": recoveries.get(system) if (case, keys) == CASES[0] else None,
                "p50": None if late is None else float(np.percentile(late, 50)),
                "p99": None if late is None else float(np.percentile(late, 99)),
            }
        )
    order = {f"{case}, {keys:,} keys": n for n, (case, keys) in enumerate(CASES)}
    rows.sort(key=lambda row: (order[row["case"]], list(SHARE).index(row["system"])))

    def late_of(value: float | None) -> str:
        return "" if value is None else milliseconds(value)

    return Figures(
        name="streams",
        title=f"Topologies, {records:,} JSON records, {PARTITIONS} partitions: "
        f"medians of {repeats}",
        columns=[
            Column("case", "topology"),
            Column("system", "system"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio to Kafka Streams", ratio),
            Column("cpu", "CPU s per million", seconds),
            Column("first", "s to the first commit", seconds),
            Column("p50", f"p50 at {_RATE:,}/s, ms", late_of),
            Column("p99", "p99", late_of),
            Column(
                "recovery", "s to go on after SIGKILL", lambda s: "" if s is None else seconds(s)
            ),
        ],
        rows=rows,
        notes=[
            "records/s: between 15 % and 85 % of the records committed by the consumer group. All "
            "are exactly once, topic to topic, and commit every 100 ms (semel: after each poll), "
            f"with {TASKS} threads or tasks (Quix: one process, {SHARE[QUIX]:.0%} of the records).",
            "The latency is that from handing a record to the producer until a read_committed "
            "consumer has a count with it.",
            f"SIGKILL comes with {_LARGE:,} keys and their last records of {_NOTE:,} bytes as "
            "state, on a disk that stays; the system goes on when a record that has come since has "
            "a result.",
        ],
        facts={"repeats": repeats, "quix": QUIX_VERSION},
    )
