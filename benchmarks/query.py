"""A query with state, Kafka to PostgreSQL: semel compared with ``foreachBatch`` by hand.

How far a system has come is the sum of what its table has counted, so both are seen when their rows
are visible.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.meter import Meter
from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, ratio, seconds, span
from benchmarks.rig import Rig

PARTITIONS = 4
TRIGGERS = 10
BY_HAND, SEMEL = "foreachBatch by hand", "semel"
SYSTEMS = (BY_HAND, SEMEL)
TABLE = """CREATE TABLE {name} (
    account bigint, minute timestamptz, orders bigint, total double precision,
    PRIMARY KEY (account, minute)
)"""
_QUERY = (
    "SELECT account, window(ts, '1 minute').start AS minute, count(*) AS orders, "
    "sum(amount) AS total FROM {topic} GROUP BY account, window(ts, '1 minute')"
)
_EVERY, _PATIENCE = 0.02, 900.0


@dataclass(frozen=True)
class Sample:
    """What a run took."""

    overall_rate: float
    """records a second from the start of the process to its end"""
    rate: float
    """the same from the first commit to the last one, without the records of the first"""
    cpu: float
    """CPU seconds of the whole run, per million records"""


def query(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """Both systems ``repeats`` times each, in turn, in the same triggers."""
    workload = Workload.of(records, PARTITIONS, updates=False, envelope=False)
    rig.say(f"producing {workload.records:,} x {workload.bytes_each()} bytes")
    topic = produce(rig, workload)
    samples: dict[str, list[Sample]] = {}
    for repeat in range(repeats + 1):
        for system in random.Random(repeat).sample(SYSTEMS, len(SYSTEMS)):
            sample = _once(rig, system, topic, workload, tasks)
            shown = f"{sample.overall_rate:,.0f}/s with start, {sample.rate:,.0f}/s warm"
            rig.say(f"{system}: {repeat or 'warm-up'}, {shown}")
            if repeat:  # in the first run, files and jars are read from disk
                samples.setdefault(system, []).append(sample)
    return _figures(samples, workload.records, tasks, repeats)


def _once(rig: Rig, system: str, topic: str, workload: Workload, tasks: int) -> Sample:
    name = rig.unique("totals")
    rig.execute(TABLE.format(name=name))
    facts = {
        "servers": rig.kafka.bootstrap_servers,
        "topic": topic,
        "url": rig.postgres.url,
        "table": name,
        "checkpoint": str(rig.directory / f"{name}-checkpoint"),
        "tasks": tasks,
        "most": -(-workload.records // TRIGGERS),
    }
    if system == SEMEL:
        config = str(_config(rig, name, facts))
        command = [sys.executable, "-m", "semel", "run", "--until-caught-up", config]
    else:
        command = [sys.executable, "-m", "benchmarks.peer_query", json.dumps(facts)]
    log = rig.directory / f"{name}.log"
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        with Meter({system: process.pid}) as meter:
            commits = _commits(rig, name, lambda: process.poll() is not None)
            process.wait(_PATIENCE)
            ended = time.monotonic()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
    if process.returncode or commits[-1][1] != workload.records or len(commits) < 2:
        log_end = log.read_text(errors="replace")[-2000:]
        seen = f"{commits[-1][1]:,} records in {len(commits)} commits"
        raise RuntimeError(f"{system} has counted {seen}: {log_end}")
    (first, already), (last, whole) = commits[0], commits[-1]
    cpu = meter.usage[system].between(began, ended) / workload.records * 1e6
    return Sample(whole / (ended - began), (whole - already) / (last - first), cpu)


def _commits(rig: Rig, table: str, has_ended: Callable[[], bool]) -> list[tuple[float, int]]:
    """When a table's sum was seen to change, and the sum, until the process has ended."""
    changes = [(0.0, 0)]
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        over = has_ended()
        total = rig.value(f"SELECT coalesce(sum(orders), 0)::bigint FROM {table}")
        if total != changes[-1][1]:
            changes.append((time.monotonic(), total))
        if over:
            break
        time.sleep(_EVERY)
    return changes[1:] or changes


def _config(rig: Rig, name: str, facts: dict[str, Any]) -> Path:
    config = {
        "connector.class": "postgresql",
        "topics": facts["topic"],
        "bootstrap.servers": facts["servers"],
        "connection.url": facts["url"],
        "query": _QUERY.format(topic=facts["topic"]),
        "event.time.field": "ts",
        "checkpoint.location": facts["checkpoint"],
        "insert.mode": "upsert",
        "pk.mode": "record_value",
        "pk.fields": "account,minute",
        "provenance": "false",
        "value.converter.schemas.enable": "false",
        "tasks.max": facts["tasks"],
        "maxOffsetsPerTrigger": facts["most"],
    }
    path = rig.directory / f"{name}.json"
    path.write_text(json.dumps({"name": name, "config": config}))
    return path


def _figures(samples: dict[str, list[Sample]], records: int, tasks: int, repeats: int) -> Figures:
    middles = {
        system: {k: statistics.median(asdict(s)[k] for s in taken) for k in asdict(taken[0])}
        for system, taken in samples.items()
    }
    base = middles[BY_HAND]
    rows = [
        {
            "system": system,
            **middles[system],
            "rates": [s.rate for s in samples[system]],
            "ratio": middles[system]["rate"] / base["rate"],
            "overall_ratio": middles[system]["overall_rate"] / base["overall_rate"],
        }
        for system in SYSTEMS
    ]
    return Figures(
        name="query",
        title=f"Count and sum by account and minute, {records:,} JSON records into PostgreSQL, "
        f"{PARTITIONS} partitions, {tasks} tasks: medians of {repeats}",
        columns=[
            Column("system", "system"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio", ratio),
            Column("overall_rate", "records/s with start", count),
            Column("overall_ratio", "ratio with start", ratio),
            Column("cpu", "CPU s per million", seconds),
        ],
        rows=rows,
        notes=[
            f"Both run the same query on Structured Streaming in {TRIGGERS} triggers of the same "
            "size, with state in RocksDB, and replace rows by key. By hand, foreachBatch collects "
            "a batch's rows as Arrow, copies them into a temporary table and merges them; nothing "
            "guards it against applying a batch twice.",
            "records/s: from the first commit to the last, as another connection sees them.",
        ],
        facts={"tasks": tasks, "repeats": repeats},
    )
