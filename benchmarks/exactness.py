"""What exactness costs: the same run with the ledger in the transaction and without a ledger."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import benchmarks
from benchmarks import no_ledger_sink
from benchmarks.measure import Sample, median, run
from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, percent, seconds, span
from benchmarks.rig import Rig
from benchmarks.systems import PLAIN, Semel

PARTITIONS = 4
MORE = 2
"""How many times more repeats, and how many times fewer records: the difference is small compared
with the noise."""


@dataclass(frozen=True, eq=False)
class Variant:
    """A way to run, by the configuration that makes it."""

    name: str
    extra: Mapping[str, str]


VARIANTS = (
    Variant("no positions stored", {"connector.class": no_ledger_sink.NAME}),
    Variant("exactly-once", {"delivery": "exactly-once"}),
)


def exactness(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """Insert and upsert of plain JSON, the variants in turn."""
    records, repeats = records // MORE, repeats * MORE
    system = Semel(rig, {"PYTHONPATH": _python_path(rig.directory / "entry-point")})
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
                    system,
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
        base = samples[VARIANTS[0]]
        for variant, taken in samples.items():
            middle = median(taken)
            rows.append(
                {
                    "mode": mode,
                    "variant": variant.name,
                    **middle,
                    "rates": [s.rate for s in taken],
                    "difference": _difference(taken, base, lambda s: s.rate),
                    "cpu_difference": _difference(taken, base, lambda s: s.cpu + s.cpu_postgres),
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
            Column("difference", "difference", percent),
            Column("cpu", "CPU s per million", seconds),
            Column("cpu_postgres", "PostgreSQL CPU s", seconds),
            Column("cpu_difference", "CPU difference", percent),
        ],
        rows=rows,
        notes=[
            "Without positions, the sink is the same except for the ledger: rows are copied and "
            "committed, and only a small file records the positions. A difference is the median "
            "of those between runs that follow each other; that of CPU seconds counts both systems."
        ],
        facts={"tasks": tasks, "repeats": repeats},
    )


def _difference(
    taken: Sequence[Sample], base: Sequence[Sample], figure: Callable[[Sample], float]
) -> float:
    return statistics.median(figure(a) / figure(b) - 1 for a, b in zip(taken, base, strict=True))


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
