"""Topic to topic: semel compared with Spark's own sink, a loop by hand, and a producer alone."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, ratio, span
from benchmarks.rig import Rig
from benchmarks.visible import Warm, records_of, visible
from semel.kafka.cluster import Cluster

PARTITIONS = 4
TRIGGERS = 5
EVERY = 0.02
SPARK = "Spark's Kafka sink"
LOOP = "a loop by hand"
ALONE = "a producer alone"
SEMEL = "semel"
SEMEL_PROVENANCE = "semel, with provenance"
SYSTEMS = (SPARK, LOOP, SEMEL, SEMEL_PROVENANCE, ALONE)
PRODUCER = {"compression.type": "lz4", "acks": "all", "linger.ms": "5"}
"""The same for all systems."""


@dataclass(frozen=True)
class Sample:
    """What a run took."""

    records: int
    rate: float
    """records a second between the warm shares, as a read_committed consumer may see them"""
    overall_rate: float
    """records a second from the start of the process to its end"""


def kafka_sink(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """All systems, ``repeats`` times each, in turn, into a new topic each time."""
    workload = Workload.of(records, PARTITIONS, updates=False, envelope=False)
    rig.say(f"producing {workload.records:,} x {workload.bytes_each()} bytes")
    source = produce(rig, workload)
    samples: dict[str, list[Sample]] = {system: [] for system in SYSTEMS}
    for system in SYSTEMS:  # jars are read from disk once: not counted
        rig.say(f"{system}: warm-up, {_shown(_once(rig, system, source, workload, tasks))}")
    for repeat in range(repeats):
        for system in random.Random(repeat).sample(SYSTEMS, len(SYSTEMS)):
            sample = _once(rig, system, source, workload, tasks)
            samples[system].append(sample)
            rig.say(f"{system}: {repeat + 1}/{repeats}, {_shown(sample)}")
    return _figures(samples, workload.records, tasks, repeats)


def _shown(sample: Sample) -> str:
    return f"{sample.rate:,.0f}/s warm, {sample.overall_rate:,.0f}/s with start"


def _once(rig: Rig, system: str, source: str, workload: Workload, tasks: int) -> Sample:
    target = rig.unique("copy")
    # Copies are as old as their originals: a broker would soon remove them.
    rig.kafka.create_topic(target, PARTITIONS, config={"retention.ms": "-1"})
    facts = {
        "servers": rig.kafka.bootstrap_servers,
        "source": source,
        "target": target,
        "tasks": tasks,
        "records": workload.records,
        "partitions": PARTITIONS,
        "most": -(-workload.records // TRIGGERS),
        "producer": PRODUCER,
    }
    name = {SPARK: "spark", LOOP: "loop", ALONE: "producer"}.get(system)
    command = [sys.executable, "-m", "benchmarks.peer_kafka", str(name), json.dumps(facts)]
    if name is None:
        file = _config(rig, facts, provenance=system == SEMEL_PROVENANCE)
        command = [sys.executable, "-m", "semel", "run", "--until-caught-up", str(file)]
    log = rig.directory / f"{target}.log"
    times, counts = [], []
    cluster = Cluster({"bootstrap.servers": facts["servers"]})
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                times.append(time.monotonic())
                counts.append(visible(cluster, target, PARTITIONS))
                time.sleep(EVERY)
        finally:
            process.kill()
            process.wait()
    took = time.monotonic() - began
    if process.returncode:
        raise RuntimeError(f"{system} has failed: {log.read_text(errors='replace')[-2000:]}")
    times.append(time.monotonic())
    counts.append(visible(cluster, target, PARTITIONS))
    copied = records_of(facts["servers"], target, PARTITIONS)
    if copied != workload.records:
        raise RuntimeError(f"{system}: {copied} records, {workload.records} expected")
    return Sample(copied, Warm.of(times, counts).rate(copied), copied / took)


def _config(rig: Rig, facts: dict[str, Any], *, provenance: bool) -> Path:
    config = {
        "connector.class": "kafka",
        "topics": facts["source"],
        "topic.rename.format": facts["target"],
        "bootstrap.servers": facts["servers"],
        "tasks.max": facts["tasks"],
        "provenance": provenance,
        **{f"producer.override.{k}": v for k, v in facts["producer"].items()},
    }
    path = rig.directory / f"{facts['target']}.json"
    path.write_text(json.dumps({"name": facts["target"], "config": config}))
    return path


def _figures(samples: dict[str, list[Sample]], records: int, tasks: int, repeats: int) -> Figures:
    middles = {
        system: {k: statistics.median(asdict(s)[k] for s in taken) for k in asdict(taken[0])}
        for system, taken in samples.items()
    }
    rows = [
        {
            "system": system,
            **middles[system],
            "rates": [s.rate for s in taken],
            "ratio": middles[system]["rate"] / middles[SPARK]["rate"],
            "loop": middles[system]["rate"] / middles[LOOP]["rate"],
            "alone": middles[system]["rate"] / middles[ALONE]["rate"],
            "overall_ratio": middles[system]["overall_rate"] / middles[SPARK]["overall_rate"],
            "samples": [asdict(s) for s in taken],
        }
        for system, taken in samples.items()
    ]
    return Figures(
        name="kafka",
        title=f"Kafka to Kafka, {records:,} JSON records, {PARTITIONS} partitions, {tasks} tasks: "
        f"medians of {repeats}",
        columns=[
            Column("system", "system"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio to Spark", ratio),
            Column("loop", "ratio to the loop", ratio),
            Column("alone", "ratio to the producer", ratio),
            Column("overall_rate", "records/s with start", count),
            Column("overall_ratio", "ratio with start", ratio),
        ],
        rows=rows,
        notes=[
            "records/s: between 15 % and 85 % of the records visible to a read_committed consumer. "
            "All systems compress with lz4 and wait for acks=all.",
            f"Spark runs a structured stream of {TRIGGERS} triggers, at-least-once. The loop "
            "by hand is exactly-once: confluent-kafka's consumers and transactional producers, one "
            "process per task, which copy values, keys, headers and timestamps as they are. The "
            "producer alone reads nothing and has its records in memory: what one transactional "
            "producer can do here.",
        ],
        facts={"tasks": tasks, "repeats": repeats},
    )
