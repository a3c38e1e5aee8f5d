"""Kafka to Iceberg: semel compared with Apache's Iceberg sink in Kafka Connect."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType

from benchmarks.meter import Meter
from benchmarks.peer_iceberg import IcebergConnect
from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, megabytes, ratio, seconds, span
from benchmarks.rig import Rig
from benchmarks.systems import JSON, PLAIN, Semel, System
from semel_lab.embedded.connect import ConnectWorker
from semel_lab.jars import ICEBERG_CONNECT

PARTITIONS = 4
TRIGGERS = 5
INTERVAL_MS = 2_000
"""The peer's commit interval. Its coordinator waits up to a second at a time, so it could not keep
a much shorter one. At full speed, a trigger of semel takes half as long: semel commits more often,
which costs it more."""
EVERY = 0.25
SLOWEST = 8_000  # records a second; below it a run is given up

PROPERTIES = {
    "format-version": "2",
    # What Java takes by default; PyArrow's own default is a lower level.
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "3",
}
SCHEMA = Schema(
    *(
        NestedField(n, name, kind, required=True)
        for n, (name, kind) in enumerate(
            {
                "id": LongType(),
                "account": LongType(),
                "name": StringType(),
                "amount": DoubleType(),
                "active": BooleanType(),
                "note": StringType(),
                "ts": LongType(),
            }.items(),
            start=1,
        )
    )
)


@dataclass(frozen=True)
class Sample:
    """What a run took, and what it left. CPU seconds are per million records, of the window that
    ``rate`` was taken in."""

    records: int
    rate: float
    """records a second from the first commit to the last but one"""
    overall_rate: float
    """the same from the start of worker and connector to the last commit"""
    commits: int
    files: int
    file_bytes: float
    """the median size of a data file"""
    cpu: float
    cpu_kafka: float
    peak_pss: int


@dataclass(frozen=True)
class Lake:
    """Where the tables of both systems are."""

    uri: str
    warehouse: str

    def catalog(self) -> SqlCatalog:
        return SqlCatalog("iceberg", uri=self.uri, warehouse=self.warehouse)


def iceberg(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """Append on both systems, in turn, ``repeats`` times each; upsert, which only semel has."""
    directory = rig.directory / "lake"
    directory.mkdir()
    lake = Lake(f"sqlite:///{directory}/catalog.db", f"file://{directory}/warehouse")
    lake.catalog().create_namespace("db")
    samples: dict[tuple[str, str], list[Sample]] = {}
    worker = ConnectWorker(
        rig.directory / "connect-iceberg",
        rig.kafka.bootstrap_servers,
        heap="2g",
        plugin=ICEBERG_CONNECT,
    )
    with worker:
        contests: dict[str, list[System]] = {
            "append": [IcebergConnect(rig, worker), Semel(rig)],
            "upsert": [Semel(rig)],
        }
        for mode, systems in contests.items():
            workload = Workload.of(records, PARTITIONS, updates=mode == "upsert", envelope=False)
            rig.say(f"{mode}: producing {workload.records:,} x {workload.bytes_each()} bytes")
            topic = produce(rig, workload)
            for system in systems:  # not counted
                warm_up = _once(rig, lake, system, mode, topic, workload, tasks)
                rig.say(f"{mode}: {system.name}: warm-up, {_shown(warm_up)}")
            for repeat in range(repeats):
                for system in random.Random(repeat).sample(systems, len(systems)):
                    sample = _once(rig, lake, system, mode, topic, workload, tasks)
                    samples.setdefault((mode, system.name), []).append(sample)
                    rig.say(f"{mode}: {system.name}: {repeat + 1}/{repeats}, {_shown(sample)}")
    return _figures(samples, records, tasks, repeats)


def _shown(sample: Sample) -> str:
    return f"{sample.rate:,.0f}/s, {sample.commits} commits, {sample.cpu:.1f} CPU s per million"


def connector(lake: Lake, topic: str, table: str, *, most: int, tasks: int) -> dict[str, str]:
    """A sink connector that both systems understand."""
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "topics": topic,
        "tasks.max": str(tasks),
        "iceberg.tables": table,
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": lake.uri,
        "iceberg.catalog.warehouse": lake.warehouse,
        "iceberg.control.commit.interval-ms": str(INTERVAL_MS),
        "maxOffsetsPerTrigger": str(most),  # semel's
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": JSON,
        "consumer.override.auto.offset.reset": "earliest",
        **{f"value.converter.{k}": v for k, v in PLAIN.items()},
    }


def _once(
    rig: Rig, lake: Lake, system: System, mode: str, topic: str, workload: Workload, tasks: int
) -> Sample:
    """Fill a fresh table from the topic and check that it holds every row once."""
    name = rig.unique("iceberg")
    table = lake.catalog().create_table(f"db.{name}", SCHEMA, properties=PROPERTIES)
    most = -(-workload.records // TRIGGERS)
    config = connector(lake, topic, f"db.{name}", most=most, tasks=tasks)
    if mode == "upsert":
        config["iceberg.tables.upsert-mode-enabled"] = "true"
        config["iceberg.tables.default-id-columns"] = "id"
    assert rig.kafka.pid
    began = time.time()
    try:
        with Meter({"kafka": rig.kafka.pid}, weigh=("system",)) as meter:
            system.start(rig.unique("bench"), config)
            meter.add("system", system.pid)
            _follow(table, system, workload)
    finally:
        system.stop()
    _check(table, system, workload)
    return _sample(table, system, meter, workload, began)


def _follow(table: Table, system: System, workload: Workload) -> None:
    """Wait until the table holds as many rows as there are keys, and all records were read."""
    deadline = time.monotonic() + 90 + workload.records / SLOWEST
    last = workload.record(PARTITIONS - 1, workload.records // PARTITIONS - 1)[1]
    while True:
        time.sleep(EVERY)
        system.check()
        table.refresh()
        if _rows(table) >= workload.keys and _newest(table) >= last:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{system.name}: {_rows(table):,} of {workload.keys:,} rows in time")


def _rows(table: Table) -> int:
    commits = _commits(table)
    return commits[-1][1] if commits else 0


def _newest(table: Table) -> int:
    """The newest record in the table, by the bounds of its files."""
    bounds = table.inspect.files().column("readable_metrics").to_pylist()
    return max((b["ts"]["upper_bound"] for b in bounds), default=0)


def _commits(table: Table) -> list[tuple[float, int]]:
    """When each commit was made, in seconds, and how many rows there were then."""
    return [
        (s.timestamp_ms / 1000, int(s.summary["total-records"] or 0))
        for s in table.metadata.snapshots
        if s.summary is not None and int(s.summary["added-records"] or 0)
    ]


def _check(table: Table, system: System, workload: Workload) -> None:
    table.refresh()
    ids = table.scan(selected_fields=("id",)).to_arrow().column("id")
    distinct = pc.count_distinct(ids).as_py()
    if (len(ids), distinct) != (workload.keys, workload.keys):
        raise RuntimeError(
            f"{system.name}: {len(ids):,} rows of {distinct:,} ids in the table, "
            f"{workload.keys:,} expected"
        )


def _sample(table: Table, system: System, meter: Meter, workload: Workload, began: float) -> Sample:
    commits = _commits(table)
    since, until, records = window([(began, 0), *commits], workload)
    clock = time.time() - time.monotonic()
    sizes = table.inspect.files().column("file_size_in_bytes").to_pylist()
    cpu = {n: u.between(since - clock, until - clock) for n, u in meter.usage.items()}
    return Sample(
        records=workload.records,
        rate=records / (until - since),
        overall_rate=workload.records / (system.start_seconds + commits[-1][0] - began),
        commits=len(commits),
        files=len(sizes),
        file_bytes=statistics.median(sizes),
        cpu=cpu["system"] / (records / 1e6),
        cpu_kafka=cpu["kafka"] / (records / 1e6),
        peak_pss=meter.usage["system"].peak_pss,
    )


def window(commits: Sequence[tuple[float, int]], workload: Workload) -> tuple[float, float, float]:
    """From the first commit to the last but one, and the records in between. ``commits`` begin
    with the start of the connector; if there are too few commits, so does the window.

    The last one may have waited for its interval with nothing left to read. In upsert, commits take
    the same number of records, whatever that does to the number of rows.
    """
    first, last = (1, -2) if len(commits) > 3 else (0, -1)
    (since, before), (until, after) = commits[first], commits[last]
    if workload.keys < workload.records:
        share = (len(commits) + last - first) / (len(commits) - 1)
        return since, until, workload.records * share
    return since, until, after - before


def _figures(
    samples: dict[tuple[str, str], list[Sample]], records: int, tasks: int, repeats: int
) -> Figures:
    peer = samples["append", IcebergConnect.name]
    rows: list[dict[str, Any]] = []
    for (mode, system), taken in samples.items():
        middle = _median(taken)
        base = _median(peer) if mode == "append" else {}
        rows.append(
            {
                "mode": mode,
                "system": system,
                **middle,
                "rates": [s.rate for s in taken],
                "ratio": middle["rate"] / base["rate"] if base else None,
                "overall_ratio": middle["overall_rate"] / base["overall_rate"] if base else None,
                "cpu_ratio": base["cpu"] / (middle["cpu"] or float("nan")) if base else None,
                "samples": [asdict(s) for s in taken],
            }
        )
    enough = min(s.commits for taken in samples.values() for s in taken) > 2
    return Figures(
        name="iceberg",
        title=f"Kafka to Iceberg, {records:,} JSON records, {PARTITIONS} partitions, "
        f"{tasks} tasks: medians of {repeats}",
        columns=[
            Column("mode", "mode"),
            Column("system", "system"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio", _ratio),
            Column("overall_rate", "records/s with start", count),
            Column("overall_ratio", "ratio with start", _ratio),
            Column("cpu", "CPU s per million", seconds),
            Column("cpu_ratio", "CPU ratio", _ratio),
            Column("cpu_kafka", "Kafka CPU s", seconds),
            Column("peak_pss", "peak memory, MiB", megabytes),
            Column("commits", "commits", count),
            Column("files", "files", count),
            Column("file_bytes", "median file, MiB", megabytes),
        ],
        rows=rows,
        notes=[
            "Both systems write into a new local table of one SQL catalog (SQLite), with zstd at "
            f"level 3. The peer commits every {INTERVAL_MS / 1000:.0f} s, semel {TRIGGERS} times "
            "in all. Rows and distinct ids are counted after every run.",
            "records/s: from the first commit to the last but one, by the snapshots' timestamps. "
            "CPU: of that window. The peer's worker is started once and stays warm; its start is "
            "added where the start is included.",
            "Upsert: every key is written twice; semel replaces rows by rewriting their files. "
            "The peer's sink appends only.",
            *([] if enough else ["Too few commits for a window: take more --records."]),
        ],
        facts={"tasks": tasks, "repeats": repeats, "interval_ms": INTERVAL_MS},
    )


def _ratio(value: float | None) -> str:
    return "" if value is None else ratio(value)


def _median(samples: Sequence[Sample]) -> dict[str, float]:
    columns = [asdict(s) for s in samples]
    return {name: statistics.median(c[name] for c in columns) for name in columns[0]}
