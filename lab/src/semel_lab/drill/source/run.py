"""Runs the drill of a source connector."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from semel.config import load
from semel.core.delivery import Delivery
from semel.core.failpoints import OF_SOURCES
from semel_lab.drill.plan import Fault, Kind, plan
from semel_lab.drill.processes import DrillFailed, inject_all, located, workplace
from semel_lab.drill.report import DrillReport, FaultResult, Observer
from semel_lab.drill.source.faults import SourceInjector
from semel_lab.drill.source.stage import SourceStage

_OF_TRANSACTIONS = ("source.after_records", "sink.after_positions")


def drill_source(
    source: str | Path | Mapping[str, Any],
    faults: int,
    seed: int,
    *,
    kinds: Collection[Kind] = tuple(Kind),
    keep: bool = False,
    directory: Path | None = None,
    observe: Observer = lambda _fault, _result: None,
) -> DrillReport:
    """Inject faults, and check after each what a ``read_committed`` consumer has seen.

    Args and errors are those of :func:`semel_lab.drill.run.drill`.
    """
    started = time.monotonic()
    with workplace(seed, directory, keep=keep) as place:
        stage = SourceStage(load(source), place, kinds, seed)
        with closing(stage):
            stage.open()
            planned = stage.planned
            name = planned.connector.name
            report = DrillReport(name, str(planned.guarantee), True, seed)
            stage.writer.start()
            injector = SourceInjector(stage, seed)
            transactions = planned.guarantee.delivery is Delivery.EXACTLY_ONCE
            chosen = plan(
                *(faults, seed, planned.guarantee, stage.kinds),
                brokers=1 + len(stage.kafka.others) if transactions else 1,
                common=[p for p in OF_SOURCES if transactions or p not in _OF_TRANSACTIONS],
            )
            try:
                report.results = inject_all(
                    chosen,
                    seed,
                    lambda fault: _one(stage, injector, fault),
                    allow=stage.writer.allow,
                    directory=place,
                    observe=observe,
                )
                with located(place, f"after all faults (seed {seed})"), injector.settled():
                    report.final = stage.read_again()
            finally:
                stage.writer.stop(timeout=5)
    report.seconds = time.monotonic() - started
    return report


def _one(stage: SourceStage, injector: SourceInjector, fault: Fault) -> FaultResult:
    seconds = injector.inject(fault)
    with injector.settled():
        findings = stage.findings()
    if stage.writer.trouble:
        raise DrillFailed(f"records could not be written: {stage.writer.trouble}")
    return FaultResult(
        *(fault, seconds, findings.records, findings.lost, findings.duplicated, findings.kept),
        findings.reason,
    )
