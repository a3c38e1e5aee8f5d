"""What many partitions cost: the same records in few and in many partitions, on as many tasks."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.measure import Sample, median, run
from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, ratio, seconds
from benchmarks.rig import Rig
from benchmarks.systems import PLAIN, Semel

FEW, MANY, TASKS = 4, 256, 4


def partitions(rig: Rig, records: int, repeats: int) -> Figures:
    """Insert plain JSON from both topics, in turn."""
    system = Semel(rig)
    topics = {}
    for number in (FEW, MANY):
        workload = Workload.of(records, number, updates=False, envelope=False, apart=True)
        rig.say(f"partitions: producing {workload.records:,} records into {number} partitions")
        topics[number] = produce(rig, workload), workload
    samples: dict[int, list[Sample]] = {FEW: [], MANY: []}
    for repeat in range(repeats):
        for number in (FEW, MANY) if repeat % 2 == 0 else (MANY, FEW):
            topic, workload = topics[number]
            sample = run(rig, system, topic, workload, upsert=False, converter=PLAIN, tasks=TASKS)
            samples[number].append(sample)
            rig.say(f"partitions: {number}: {repeat + 1}/{repeats}, {sample.rate:,.0f}/s")
    few = median(samples[FEW])
    rows = []
    for number, taken in samples.items():
        middle = median(taken)
        rows.append(
            {
                "partitions": number,
                **middle,
                "ratio": middle["rate"] / few["rate"],
                "samples": [asdict(s) for s in taken],
            }
        )
    return Figures(
        name="partitions",
        title=f"semel, {records:,} plain JSON records, {TASKS} tasks, insert: medians of {repeats}",
        columns=[
            Column("partitions", "partitions"),
            Column("rate", "records/s", count),
            Column("ratio", "ratio", ratio),
            Column("cpu", "CPU s per million", seconds),
            Column("cpu_postgres", "PostgreSQL CPU s", seconds),
            Column("overall_rate", "records/s with start", count),
        ],
        rows=rows,
        facts={"tasks": TASKS, "repeats": repeats},
    )
