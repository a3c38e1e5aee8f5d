"""What exactness costs: the same run with the ledger in the transaction and without a ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import benchmarks
from benchmarks import no_ledger_sink
from benchmarks.measure import Sample, median, run
from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, percent, seconds, span
from benchmarks.rig import Rig
from benchmarks.sides import PLAIN, Semel

PARTITIONS = 4


@dataclass(frozen=True, eq=False)
class Variant:
    """A way to run, by the configuration that makes it."""

    name: str
    extra: Mapping[str, str]


VARIANTS = (
    Variant("no positions stored", {"connector.class": no_ledger_sink.NAME}),
    Variant("exactly-once", {"delivery": "exactly-once"}),
    Variant("at-least-once", {"delivery": "at-least-once"}),
)


def exactness(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """Insert and upsert of plain JSON, the variants in turn."""
    side = Semel(rig, {"PYTHONPATH": _python_path(rig.directory / "entry-point")})
    positions = str(rig.directory / "positions")
    rows = []
    for mode in ("insert", "upsert"):
        workload = Workload.of(records, PARTITIONS, updates=mode == "upsert", envelope=False)
        rig.say(f"exactness: producing {workload.records:,} records")
        topic = produce(rig, workload)
        samples: dict[Variant, list[Sample]] = {v: [] for v in VARIANTS}
        for repeat in range(repeats):
            turn = repeat % len(VARIANTS)
            for variant in VARIANTS[turn:] + VARIANTS[:turn]:
                sample = run(
                    rig,
                    side,
                    topic,
                    workload,
                    upsert=mode == "upsert",
                    converter=PLAIN,
                    tasks=tasks,
                    extra={**variant.extra, no_ledger_sink.POSITIONS: positions},
                )
                samples[variant].append(sample)
                rig.say(
                    f"exactness: {mode}, {variant.name}: {repeat + 1}/{repeats}, "
                    f"{sample.rate:,.0f}/s"
                )
        base = median(samples[VARIANTS[0]])
        for variant, taken in samples.items():
            middle = median(taken)
            rows.append(
                {
                    "mode": mode,
                    "variant": variant.name,
                    **middle,
                    "rates": [s.rate for s in taken],
                    "cost": middle["rate"] / base["rate"] - 1,
                    "samples": [asdict(s) for s in taken],
                }
            )
    return Figures(
        name="exactness",
        title=f"semel, {records:,} plain JSON records, {tasks} tasks, with and without the "
        f"ledger: medians of {repeats}",
        columns=[
            Column("mode", "mode"),
            Column("variant", "delivery"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("cost", "difference", percent),
            Column("cpu", "CPU s per million", seconds),
            Column("cpu_postgres", "PostgreSQL CPU s", seconds),
        ],
        rows=rows,
        notes=[
            "Without positions the sink is the same but for the ledger: rows are copied and "
            "committed, and only the consumer group knows how far it came."
        ],
        facts={"tasks": tasks, "repeats": repeats},
    )


def _python_path(directory: Path) -> str:
    """Make the sink known the way a third party's would be: by an installed entry point."""
    installed = directory / "semel_benchmarks-0.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: semel-benchmarks\nVersion: 0\n"
    )
    (installed / "entry_points.txt").write_text(
        f"[semel.sinks]\n{no_ledger_sink.NAME} = {no_ledger_sink.__name__}:NoLedgerSink\n"
    )
    root = Path(benchmarks.__path__[0]).parent
    return os.pathsep.join(
        filter(None, [str(directory), str(root), os.environ.get("PYTHONPATH", "")])
    )
