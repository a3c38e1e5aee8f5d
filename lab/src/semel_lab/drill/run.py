"""Runs a drill: sets up the stage, injects one fault after another, and audits after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from semel.config import load
from semel.core.delivery import Mechanism
from semel.core.failpoints import PLACES
from semel_lab.drill.faults import Injector
from semel_lab.drill.plan import PLACES_OF_QUERIES, PLACES_OF_TOPOLOGIES, Fault, Kind, plan
from semel_lab.drill.processes import RECORDS_PER_FAULT, DrillFailed, inject_all, located, workplace
from semel_lab.drill.report import DrillReport, FaultResult, Observer
from semel_lab.drill.stage import BUILT_IN, Stage
from semel_lab.drill.traffic import Shape, Traffic


def drill(
    source: str | Path | Mapping[str, Any] | None,
    faults: int,
    seed: int,
    *,
    kinds: Collection[Kind] = tuple(Kind),
    own_store: bool = False,
    keep: bool = False,
    directory: Path | None = None,
    observe: Observer = lambda _fault, _result: None,
) -> DrillReport:
    """Inject faults and audit after each.

    Args:
        source: the connector's configuration; None for a built-in one.
        faults: the number of faults.
        seed: seeds the faults, their places and moments, and the records.
        kinds: the kinds of faults to choose from.
        own_store: write to the configured store, which must be empty. No fault hits the store.
        keep: keep the directory with all logs.
        directory: the directory for logs and data; a temporary one if None.
        observe: see :data:`Observer`.

    Raises:
        DrillFailed: a fault could not be injected, or the connector did not recover. The message
            names the seed, the fault and the logs.
        semel.core.errors.SemelError: the configuration or a service.
    """
    started = time.monotonic()
    with _stage(source, seed, keep, directory, kinds, own_store=own_store) as stage:
        report = report_of(stage, seed)
        with traffic_of(stage, seed) as traffic:
            injector = Injector(stage, traffic, seed)
            store, promised = stage.store, stage.planned.guarantee
            common = PLACES_OF_QUERIES if stage.planned.query is not None else PLACES
            common = PLACES_OF_TOPOLOGIES if stage.topology is not None else common
            kinds_, brokers = stage.kinds, store.brokers
            report.results = inject_all(
                plan(faults, seed, promised, kinds_, store.places, brokers=brokers, common=common),
                seed,
                lambda fault: _one(stage, injector, fault),
                allow=traffic.allow,
                directory=stage.directory,
                observe=observe,
            )
            with located(stage.directory, f"after all faults (seed {seed})"):
                _finish(stage, injector, traffic, report)
    report.seconds = time.monotonic() - started
    return report


def _one(stage: Stage, injector: Injector, fault: Fault) -> FaultResult:
    seconds = injector.inject(fault)
    apart = stage.planned.guarantee.mechanism is not Mechanism.TRANSACTIONAL
    apart = apart or stage.topology is not None
    with injector.settled() if apart else nullcontext():
        report = stage.audit()
    return FaultResult(fault, seconds, report.records, report.lost, report.duplicated, report.kept)


def _finish(stage: Stage, injector: Injector, traffic: Traffic, report: DrillReport) -> None:
    """Let the connector read everything and audit once more."""
    if not traffic.stop():
        raise DrillFailed(f"records could not be sent: {traffic.trouble}")
    with injector.settled():
        report.final = stage.audit()
        if stage.planned.query is not None:
            _check_recomputed(stage)


def _check_recomputed(stage: Stage) -> None:
    """Compare the rows of a query with those that one batch makes of all records.

    Raises:
        DrillFailed: they differ.
    """
    from semel.spark.session import micro_batch_session, stop
    from semel_lab.drill.recompute import differences

    spark = micro_batch_session(stage.planned.connector)
    try:
        lacking, surplus = differences(stage.planned, spark)
    finally:
        stop(spark)
    if lacking or surplus:
        raise DrillFailed(
            f"the target lacks {lacking.total()} rows of a recomputation, such as "
            f"{next(iter(lacking), None)}, and has {surplus.total()} others, such as "
            f"{next(iter(surplus), None)}"
        )


def two_drivers(
    source: str | Path | Mapping[str, Any] | None,
    seconds: float,
    seed: int = 1,
    *,
    own_store: bool = False,
    keep: bool = False,
    directory: Path | None = None,
    observe: Callable[[int], None] = lambda _fenced: None,
) -> DrillReport:
    """Keep two drivers of one connector running. Whichever is fenced is started again.

    Raises:
        DrillFailed: neither was fenced, or the fenced one does not say so.
    """
    started = time.monotonic()
    with _stage(source, seed, keep, directory, own_store=own_store) as stage:
        report = report_of(stage, seed)
        with (
            traffic_of(stage, seed) as traffic,
            located(stage.directory, f"two drivers (seed {seed})"),
        ):
            injector = Injector(stage, traffic, seed)
            before = injector.mark()
            stage.start()
            injector.wait_past(before)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                stage.remember()
                traffic.allow(RECORDS_PER_FAULT)
                injector.one_is_fenced(stage.running, stage.launch())
                report.fenced += 1
                observe(report.fenced)
                injector.wait_past(injector.mark())
            _finish(stage, injector, traffic, report)
    report.seconds = time.monotonic() - started
    return report


def report_of(stage: Stage, seed: int) -> DrillReport:
    """The report of a drill that begins."""
    planned = stage.planned
    return DrillReport(
        planned.connector.name, str(planned.guarantee), planned.connector.provenance, seed
    )


@contextmanager
def _stage(
    source: str | Path | Mapping[str, Any] | None,
    seed: int,
    keep: bool,
    directory: Path | None,
    kinds: Collection[Kind] = (),
    *,
    own_store: bool = False,
) -> Iterator[Stage]:
    raw = load(BUILT_IN if source is None else source)
    with workplace(seed, directory, keep=keep) as where:
        stage = Stage(raw, where, kinds, own_store=own_store)
        with closing(stage):
            stage.open()
            yield stage


@contextmanager
def traffic_of(stage: Stage, seed: int) -> Iterator[Traffic]:
    planned = stage.planned
    computes = stage.topology is not None  # then the target says nothing about the records
    shape = Shape(
        planned.connector,
        planned.sink.capabilities.replaces or computes,
        tombstones=planned.sink.capabilities.takes_tombstones and not computes,
    )
    traffic = Traffic(
        stage.kafka.bootstrap_servers,
        stage.topics,
        shape,
        seed,
    )
    traffic.start()
    try:
        yield traffic
    finally:
        traffic.stop(timeout=5)
