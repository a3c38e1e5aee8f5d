"""Runs the drill of a cluster."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.config import load
from semel.core.errors import ConfigError
from semel_lab.drill.cluster.faults import ClusterInjector
from semel_lab.drill.cluster.stage import ClusterStage
from semel_lab.drill.plan import OF_CLUSTERS, Fault, Kind, plan
from semel_lab.drill.processes import DrillFailed, inject_all, located, workplace
from semel_lab.drill.report import AuditResult, DrillReport, FaultResult, Observer
from semel_lab.drill.run import report_of, traffic_of
from semel_lab.drill.stage import BUILT_IN


@dataclass(frozen=True, slots=True)
class CombinedFindings:
    """The findings of the audits of the sink and of the source."""

    records: int
    lost: int
    duplicated: int
    kept: bool


def drill_cluster(
    source: str | Path | Mapping[str, Any] | None,
    faults: int = 50,
    seed: int = 1,
    *,
    workers: int = 3,
    kinds: Collection[Kind] = OF_CLUSTERS,
    keep: bool = False,
    directory: Path | None = None,
    observe: Observer = lambda _fault, _result: None,
) -> DrillReport:
    """Run a sink and a source on several workers under faults, and audit both after each.

    Args are otherwise those of :func:`semel_lab.drill.run.drill`.

    Raises:
        DrillFailed: the connectors did not recover.
        semel.core.errors.SemelError: the configuration or a service.
    """
    wrong = [kind.value for kind in kinds if kind not in OF_CLUSTERS]
    if wrong:
        names = ", ".join(kind.value for kind in OF_CLUSTERS)
        raise ConfigError(f"--only {wrong[0]} does not hit a cluster. Choose from {names}")
    if workers < 2:
        raise ConfigError(f"--cluster {workers} must be at least 2: others take the work over")
    started = time.monotonic()
    with workplace(seed, directory, keep=keep) as where:
        stage = ClusterStage(load(BUILT_IN if source is None else source), where, workers)
        with closing(stage):
            report = _drilled(stage, faults, seed, kinds, observe)
    report.seconds = time.monotonic() - started
    return report


def _drilled(
    stage: ClusterStage, faults: int, seed: int, kinds: Collection[Kind], observe: Observer
) -> DrillReport:
    report, where = report_of(stage, seed), stage.directory
    with located(where, "while the cluster started"):
        stage.open()
    with traffic_of(stage, seed) as traffic:
        injector = ClusterInjector(stage, traffic, seed)
        with located(where, "before the first fault"):
            injector.wait_for_progress()
        report.results = inject_all(
            plan(faults, seed, stage.planned.guarantee, kinds),
            seed,
            lambda fault: _one(stage, injector, fault),
            allow=traffic.allow,
            directory=where,
            observe=observe,
        )
        if not traffic.stop():
            raise DrillFailed(f"records could not be sent: {traffic.trouble}")
        with located(where, f"after all faults (seed {seed})"), injector.settled():
            report.final = _audited(stage)
    return report


def _one(stage: ClusterStage, injector: ClusterInjector, fault: Fault) -> FaultResult:
    seconds = injector.inject(fault)
    with injector.settled():
        report = _audited(stage)
    return FaultResult(fault, seconds, report.records, report.lost, report.duplicated, report.kept)


def _audited(stage: ClusterStage) -> AuditResult:
    sink, source = stage.audit(), stage.audit_made()
    return CombinedFindings(
        sink.records + source.records,
        sink.lost + source.lost,
        sink.duplicated + source.duplicated,
        sink.kept and not source.broken,
    )
