"""What a chain of transforms costs: the same run without one and with five."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measure import Sample, median, run
from benchmarks.records import Workload, produce
from benchmarks.report import Column, Figures, count, ratio, seconds, span
from benchmarks.rig import Rig
from benchmarks.systems import ENVELOPE, PLAIN, Semel

PARTITIONS = 4
KAFKA = "org.apache.kafka.connect.transforms."
STAGES: Mapping[str, Mapping[str, str]] = {
    "from": {
        "type": f"{KAFKA}InsertField$Value",
        "static.field": "origin",
        "static.value": "benchmark",
    },
    "cast": {"type": f"{KAFKA}Cast$Value", "spec": "account:string,amount:float64"},
    "back": {"type": f"{KAFKA}Cast$Value", "spec": "account:int64"},
    "mask": {
        "type": f"{KAFKA}MaskField$Value",
        "fields": "note",
        "replacement": "abcdefghijkl",
    },
    "drop": {"type": f"{KAFKA}ReplaceField$Value", "exclude": "origin"},
}
"""Five that touch most fields and leave rows as they were."""


@dataclass(frozen=True)
class Variant:
    """Records of a form, with the chain or without."""

    form: str
    stages: int

    @property
    def config(self) -> dict[str, str]:
        if not self.stages:
            return {}
        options = {
            f"transforms.{alias}.{k}": v
            for alias, stage in STAGES.items()
            for k, v in stage.items()
        }
        return {"transforms": ",".join(STAGES), **options}


FORMS: Mapping[str, tuple[bool, Mapping[str, str]]] = {
    "plain JSON": (False, PLAIN),
    "JSON with schemas": (True, ENVELOPE),
}


def transforms(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """Both forms, with and without the chain, in turn."""
    system = Semel(rig)
    rows: list[dict[str, Any]] = []
    for form, (envelope, converter) in FORMS.items():
        workload = Workload.of(records, PARTITIONS, updates=False, envelope=envelope)
        rig.say(f"transforms: producing {workload.records:,} records, {form}")
        topic = produce(rig, workload)
        variants = (Variant(form, 0), Variant(form, len(STAGES)))
        samples: dict[Variant, list[Sample]] = {v: [] for v in variants}
        for repeat in range(repeats):
            turn = repeat % len(variants)
            for variant in variants[turn:] + variants[:turn]:
                sample = run(
                    rig,
                    system,
                    topic,
                    workload,
                    upsert=False,
                    converter=converter,
                    tasks=tasks,
                    extra=variant.config,
                )
                samples[variant].append(sample)
                rig.say(
                    f"transforms: {form}, {variant.stages} transforms: {repeat + 1}/{repeats}, "
                    f"{sample.rate:,.0f}/s"
                )
        base = samples[variants[0]]
        for variant, taken in samples.items():
            pairs = zip(taken, base, strict=True)
            rows.append(
                {
                    "form": form,
                    "stages": variant.stages,
                    **median(taken),
                    "rates": [s.rate for s in taken],
                    "ratio": statistics.median(a.rate / b.rate for a, b in pairs),
                    "samples": [asdict(s) for s in taken],
                }
            )
    return Figures(
        name="transforms",
        title=f"semel, {records:,} records to PostgreSQL, {tasks} tasks, insert, without "
        f"transforms and with {len(STAGES)}: medians of {repeats}",
        columns=[
            Column("form", "records"),
            Column("stages", "transforms", count),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio", ratio),
            Column("cpu", "CPU s per million", seconds),
        ],
        rows=rows,
        notes=[
            "The chain: " + ", ".join(s["type"].removeprefix(KAFKA) for s in STAGES.values()) + ". "
            "Ratios are medians of those between runs that follow each other."
        ],
        facts={"tasks": tasks, "repeats": repeats},
    )
