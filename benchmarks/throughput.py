"""Kafka to PostgreSQL: records a second, CPU and memory of semel and of Kafka Connect."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measure import WARM, Sample, median, run
from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, megabytes, ratio, seconds, span
from benchmarks.rig import Rig
from benchmarks.systems import ENVELOPE, PLAIN, PLAIN_WITH_SCHEMA, Peer, Semel, System
from semel_lab.embedded.connect import ConnectWorker

PARTITIONS = 4


@dataclass(frozen=True, eq=False)
class Contest:
    """A system with the records it is given."""

    system: str
    records: str
    envelope: bool
    converter: Mapping[str, str]


@dataclass(frozen=True)
class Mode:
    """What is written; with ``updates`` every key comes twice, so half of the records update."""

    name: str
    upsert: bool
    updates: bool


MODES = (
    Mode("insert", upsert=False, updates=False),
    Mode("upsert", upsert=True, updates=False),
    Mode("upsert, half updates", upsert=True, updates=True),
)

CONTESTS = (
    Contest("peer", "with schema envelope", True, ENVELOPE),
    Contest("semel", "with schema envelope", True, ENVELOPE),
    Contest("peer", "plain, schema.content", False, PLAIN_WITH_SCHEMA),
    Contest("semel", "plain", False, PLAIN),
)
"""Kafka Connect before 4.2 needs the envelope; since then its JSON converter can be given one
schema for all records, which costs it less. Both are measured."""


def throughput(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """All modes and contests, ``repeats`` times each, in turn."""
    samples: dict[tuple[str, Contest], list[Sample]] = {}
    workloads: dict[tuple[bool, bool], tuple[str, Workload]] = {}
    with ConnectWorker(rig.directory / "connect", rig.kafka.bootstrap_servers) as worker:
        systems: dict[str, System] = {"peer": Peer(worker), "semel": Semel(rig)}
        for mode in MODES:
            for envelope in (True, False):
                if (mode.updates, envelope) in workloads:
                    continue
                workload = Workload.of(records, PARTITIONS, updates=mode.updates, envelope=envelope)
                rig.say(f"producing {workload.records:,} x {workload.bytes_each()} bytes")
                workloads[mode.updates, envelope] = produce(rig, workload), workload

            def once(contest: Contest, mode: Mode = mode) -> Sample:
                topic, workload = workloads[mode.updates, contest.envelope]
                return run(
                    rig,
                    systems[contest.system],
                    topic,
                    workload,
                    upsert=mode.upsert,
                    converter=contest.converter,
                    tasks=tasks,
                )

            for contest in CONTESTS:  # warm the worker's JVM and PostgreSQL's files: not counted
                rig.say(f"{mode.name}: {_name(contest, systems)}: warm-up, {_shown(once(contest))}")
            for repeat in range(repeats):
                order = random.Random(repeat).sample(CONTESTS, len(CONTESTS))
                for contest in order:
                    sample = once(contest)
                    samples.setdefault((mode.name, contest), []).append(sample)
                    rig.say(
                        f"{mode.name}: {_name(contest, systems)}: {repeat + 1}/{repeats}, "
                        f"{_shown(sample)}"
                    )
        start = worker.start_seconds
    return _figures(samples, systems, tasks, records, repeats, start)


def _name(contest: Contest, systems: Mapping[str, System]) -> str:
    return f"{systems[contest.system].name}, {contest.records}"


def _shown(sample: Sample) -> str:
    return f"{sample.rate:,.0f}/s ({sample.cpu:.1f} CPU s per million)"


def _figures(
    samples: Mapping[tuple[str, Contest], list[Sample]],
    systems: Mapping[str, System],
    tasks: int,
    records: int,
    repeats: int,
    start: float,
) -> Figures:
    rows: list[dict[str, Any]] = []
    for (mode, contest), taken in sorted(
        samples.items(), key=lambda item: (item[0][0], CONTESTS.index(item[0][1]))
    ):
        base = next(
            median(s)
            for (m, c), s in samples.items()
            if m == mode and c.system == "peer" and c.envelope == contest.envelope
        )
        middle = median(taken)
        rows.append(
            {
                "mode": mode,
                "system": systems[contest.system].name,
                **middle,
                "form": contest.records,
                "rates": [s.rate for s in taken],
                "ratio": middle["rate"] / base["rate"],
                "cpu_ratio": base["cpu"] / (middle["cpu"] or float("nan")),
                "samples": [asdict(s) for s in taken],
            }
        )
    enveloped = {
        (r["mode"], r["system"]): r["rate"] for r in rows if r["form"] == CONTESTS[0].records
    }
    plain = {(r["mode"], r["system"]): r["rate"] for r in rows if r["form"] == "plain"}
    semel, peer = systems["semel"].name, systems["peer"].name
    headline = {
        mode: plain[mode, semel] / enveloped[mode, peer]
        for mode in dict.fromkeys(m for m, _ in plain)
    }
    return Figures(
        name="throughput",
        title=f"Kafka to PostgreSQL, {records:,} JSON records, {PARTITIONS} partitions, "
        f"{tasks} tasks, warm: medians of {repeats}",
        columns=[
            Column("mode", "mode"),
            Column("system", "system"),
            Column("form", "records"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio", ratio),
            Column("cpu_ratio", "CPU ratio", ratio),
            Column("cpu", "CPU s per million", seconds),
            Column("cpu_postgres", "PostgreSQL CPU s", seconds),
            Column("cpu_kafka", "Kafka CPU s", seconds),
            Column("peak_pss", "peak memory, MiB", megabytes),
            Column("overall_rate", "records/s with start", count),
            Column("first_seconds", "first rows after, s", seconds),
        ],
        rows=rows,
        notes=[
            "Headline ratio, each system with the records that suit it (semel plain, Kafka Connect "
            "with the envelope): "
            + ", ".join(f"{mode} {value:.2f}x" for mode, value in headline.items())
            + ".",
            "Ratios: to Kafka Connect on the same topic. Warm: between "
            f"{WARM[0]:.0%} and {WARM[1]:.0%} of the records committed, seen by their rows in the "
            "table. CPU: of that window, per million records, with that of PostgreSQL and Kafka "
            "meanwhile apart.",
            "Peak memory is the sum of proportional set sizes of all processes of a system. "
            "Kafka Connect's worker is started once and stays warm from run to run; its start "
            f"({start:.1f} s) is added where the start is included. semel is started for each run.",
        ],
        facts={"headline": headline, "tasks": tasks, "repeats": repeats, "worker_start": start},
    )
