"""Kafka to Delta Lake: semel compared with Spark's own Delta writer in ``foreachBatch``."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, megabytes, ratio, seconds, span
from benchmarks.rig import Rig

PARTITIONS = 4
TRIGGERS = 5
SYSTEMS = ("Spark's Delta writer", "semel")
MIB = 1024 * 1024


@dataclass(frozen=True)
class Sample:
    """What a run took, and what it left."""

    records: int
    overall_rate: float
    """records a second from the start of the process to its end"""
    rate: float
    """the same from the first commit to the last one, without the records of the first"""
    files: int
    file_bytes: float
    """the median size of a data file"""


def delta(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """Append and upsert, both systems, ``repeats`` times each, in turn, in the same triggers."""
    samples: dict[tuple[str, str], list[Sample]] = {}
    for mode in ("append", "upsert"):
        workload = Workload.of(records, PARTITIONS, updates=mode == "upsert", envelope=False)
        rig.say(f"{mode}: producing {workload.records:,} x {workload.bytes_each()} bytes")
        topic = produce(rig, workload)
        for system in SYSTEMS:  # files and jars are read from disk once: not counted
            warm_up = _once(rig, system, mode, topic, workload, tasks)
            rig.say(f"{mode}: {system}: warm-up, {_shown(warm_up)}")
        for repeat in range(repeats):
            for system in random.Random(repeat).sample(SYSTEMS, len(SYSTEMS)):
                sample = _once(rig, system, mode, topic, workload, tasks)
                samples.setdefault((mode, system), []).append(sample)
                rig.say(f"{mode}: {system}: {repeat + 1}/{repeats}, {_shown(sample)}")
    return _figures(samples, records, tasks, repeats)


def _shown(sample: Sample) -> str:
    return f"{sample.overall_rate:,.0f}/s with start, {sample.rate:,.0f}/s warm"


def _once(rig: Rig, system: str, mode: str, topic: str, workload: Workload, tasks: int) -> Sample:
    name = rig.unique("delta")
    lake = rig.directory / "lake"
    facts = {
        "servers": rig.kafka.bootstrap_servers,
        "topic": topic,
        "table": str(lake / name),
        "tasks": tasks,
        "most": -(-workload.records // TRIGGERS),
        "upsert": mode == "upsert",
    }
    command = [sys.executable, "-m", "benchmarks.peer_delta", json.dumps(facts)]
    if system == "semel":
        command = [sys.executable, "-m", "semel", "run", "--until-caught-up"]
        command.append(str(_config(rig, name, facts, lake)))
    began = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ}, capture_output=True, text=True, check=False, timeout=1800
    )
    took = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"{system} has failed: {(done.stderr or done.stdout)[-2000:]}")
    return _measured(DeltaTable(str(lake / name)), workload, took, system)


def _config(rig: Rig, name: str, facts: dict[str, Any], lake: Path) -> Path:
    config = {
        "connector.class": "delta",
        "topics": facts["topic"],
        "bootstrap.servers": facts["servers"],
        "delta.table.path": str(lake),
        "table.name.format": name,
        "auto.create": "true",
        "value.converter.schemas.enable": "false",
        "parquet.codec": "snappy",  # Spark's
        "tasks.max": facts["tasks"],
        "maxOffsetsPerTrigger": facts["most"],
    }
    if facts["upsert"]:
        config |= {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
    path = rig.directory / f"{name}.json"
    path.write_text(json.dumps({"name": name, "config": config}))
    return path


def _measured(table: DeltaTable, workload: Workload, took: float, system: str) -> Sample:
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    rows = sum(f["num_records"] for f in files)
    if rows != workload.keys:
        raise RuntimeError(f"{system}: {rows} rows in the table, {workload.keys} expected")
    sizes = [f["size_bytes"] for f in files]
    log = sorted(Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.json"))
    commits = []
    for entry in log:
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        if any(a.get("add", {}).get("dataChange") for a in actions):
            at = next(a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a)
            commits.append(at / 1000)
    if len(commits) != TRIGGERS:
        raise RuntimeError(f"{system}: {len(commits)} commits, {TRIGGERS} expected")
    records = workload.records
    warm = records * (1 - 1 / TRIGGERS) / (commits[-1] - commits[0])
    return Sample(records, records / took, warm, len(files), statistics.median(sizes))


def _figures(
    samples: dict[tuple[str, str], list[Sample]], records: int, tasks: int, repeats: int
) -> Figures:
    rows = []
    middles = {
        contest: {k: statistics.median(asdict(s)[k] for s in taken) for k in asdict(taken[0])}
        for contest, taken in samples.items()
    }
    for (mode, system), taken in samples.items():
        middle, base = middles[mode, system], middles[mode, SYSTEMS[0]]
        rows.append(
            {
                "mode": mode,
                "system": system,
                **middle,
                "rates": [s.rate for s in taken],
                "ratio": middle["rate"] / base["rate"],
                "overall_ratio": middle["overall_rate"] / base["overall_rate"],
                "samples": [asdict(s) for s in taken],
            }
        )
    return Figures(
        name="delta",
        title=f"Kafka to Delta Lake, {records:,} JSON records, {PARTITIONS} partitions, "
        f"{tasks} tasks: medians of {repeats}",
        columns=[
            Column("mode", "mode"),
            Column("system", "system"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio", ratio),
            Column("overall_rate", "records/s with start", count),
            Column("overall_ratio", "ratio with start", ratio),
            Column("files", "files", seconds),
            Column("file_bytes", "median file, MiB", megabytes),
        ],
        rows=rows,
        notes=[
            f"Both systems take {TRIGGERS} triggers of the same size, compress with snappy, and "
            "write into a new local table. Spark runs a structured stream with from_json and, "
            "in foreachBatch, an idempotent Delta write (txnAppId, txnVersion), or MERGE of the "
            "last change of each key. In upsert every key is written twice.",
            "records/s: from the first commit to the last, by the commits' own timestamps.",
        ],
        facts={"tasks": tasks, "repeats": repeats},
    )
