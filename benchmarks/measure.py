"""One run of one system over a topic that is full already, measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.meter import Meter
from benchmarks.progress import INSTANT, Curve, follow
from benchmarks.records import TABLE, Workload
from benchmarks.rig import Rig
from benchmarks.systems import System, connector

WARM = (0.15, 0.85)
"""The warm window lies between these shares of the records committed. Both systems read ahead, so
at both ends of the window some records have been read but not committed."""

SLOWEST = 8_000  # records a second; below it a run is given up


@dataclass(frozen=True)
class Sample:
    """What a run took. CPU seconds are those of the warm window, per million records."""

    records: int
    rate: float
    """records a second in the warm window"""
    overall_rate: float
    """records a second from the start of worker and connector to the last record"""
    first_seconds: float
    """from the start of worker and connector to the first rows"""
    seconds: float
    """from the start of the connector to the last record"""
    cpu: float
    cpu_postgres: float
    cpu_kafka: float
    peak_rss: int
    peak_pss: int


def run(
    rig: Rig,
    system: System,
    topic: str,
    workload: Workload,
    *,
    upsert: bool,
    converter: Mapping[str, str],
    tasks: int,
    extra: Mapping[str, str] | None = None,
) -> Sample:
    """Fill a fresh table from the topic and check that it holds every row once."""
    table = rig.unique("target")
    rig.execute(TABLE.format(name=table), "CHECKPOINT")
    config = connector(rig, topic, table, upsert=upsert, converter=converter, tasks=tasks)
    timeout = 90 + workload.records / SLOWEST
    assert rig.kafka.pid
    assert rig.postgres.pid
    roots = {"kafka": rig.kafka.pid, "postgres": rig.postgres.pid}
    began = time.monotonic()
    try:
        with Meter(roots, weigh=("system",)) as meter:
            system.start(rig.unique("bench"), {**config, **(extra or {})})
            meter.add("system", system.pid)
            curve = follow(rig, table, workload, system.check, timeout)
    finally:
        system.stop()
    rows = rig.value(f"SELECT count(*) FROM {table}")
    if rows != workload.keys:
        raise RuntimeError(f"{system.name}: {rows} rows in the table, {workload.keys} expected")
    rig.execute(f"DROP TABLE {table}", "CHECKPOINT")
    return _sample(system, curve, meter, began)


def _sample(system: System, curve: Curve, meter: Meter, began: float) -> Sample:
    since, until = (curve.reached(share) for share in WARM)
    if until <= since:
        raise RuntimeError(f"{system.name} committed it all at once: take more --records")
    records = curve.workload.records
    warm = curve.committed(until + INSTANT) - curve.committed(since + INSTANT)
    cpu = {n: u.between(since, until) / (warm / 1e6) for n, u in meter.usage.items()}
    seconds = curve.ended - began
    return Sample(
        records=records,
        rate=warm / (until - since),
        overall_rate=records / (system.start_seconds + seconds),
        first_seconds=system.start_seconds + curve.first - began,
        seconds=seconds,
        cpu=cpu["system"],
        cpu_postgres=cpu["postgres"],
        cpu_kafka=cpu["kafka"],
        peak_rss=meter.usage["system"].peak_rss,
        peak_pss=meter.usage["system"].peak_pss,
    )


def median(samples: Sequence[Sample]) -> dict[str, float]:
    """The median of each figure."""
    columns = [asdict(s) for s in samples]
    return {name: statistics.median(c[name] for c in columns) for name in columns[0]}
