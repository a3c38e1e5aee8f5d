"""Runs a drill: the stage, the faults one after the other, and the audits."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.audit import AuditReport
from semel.config import load
from semel.delivery import Mechanism
from semel.errors import ConfigError
from semel.lab.drill.faults import Injector
from semel.lab.drill.plan import Fault, Kind, plan
from semel.lab.drill.stage import BUILT_IN, DrillFailed, Stage
from semel.lab.drill.traffic import Shape, Traffic

RECORDS_PER_FAULT = 2000


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What a fault has done. ``seconds`` until the connector had caught up; the rest is the
    audit's."""

    fault: Fault
    seconds: float
    records: int
    lost: int
    duplicated: int
    kept: bool


@dataclass(slots=True)
class DrillReport:
    """All faults and the final audit, when everything that was produced had been committed."""

    connector: str
    delivery: str
    exact: bool
    seed: int
    results: list[FaultResult] = field(default_factory=list)
    final: AuditReport | None = None
    seconds: float = 0.0
    fenced: int = 0

    @property
    def lost(self) -> int:
        """The most that any audit has missed."""
        return max([r.lost for r in self.results] + ([self.final.lost] if self.final else []))

    @property
    def duplicated(self) -> int:
        """The most that any audit has found twice."""
        found = [r.duplicated for r in self.results]
        return max(found + ([self.final.duplicated] if self.final else []))

    @property
    def kept(self) -> bool:
        """Whether the declared guarantee was kept all the time."""
        return all(r.kept for r in self.results) and self.final is not None and self.final.kept


Observer = Callable[[Fault | None, FaultResult | None], None]
"""Called with a fault when it begins, and with its result; with neither before the final audit."""


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
        source: the connector's configuration; None for one of our own.
        faults: how many.
        seed: of the faults, their places and moments, and the records.
        kinds: to choose from.
        own_store: the results go where the configuration says, which must be empty; nothing befalls
            the store itself.
        keep: leave the directory with all logs.
        directory: where logs and data go; a temporary one if None.
        observe: see :data:`Observer`.

    Raises:
        DrillFailed: a fault could not be injected or the connector has not recovered; names seed,
            fault and logs.
        semel.errors.SemelError: the configuration or a service.
    """
    started = time.monotonic()
    with _stage(source, seed, keep, directory, kinds, own_store=own_store) as stage:
        report = _report(stage, seed)
        with _traffic(stage, seed) as traffic:
            injector = Injector(stage, traffic, seed)
            store, promised = stage.store, stage.planned.guarantee
            for fault in plan(
                faults, seed, promised, stage.kinds, store.places, brokers=store.brokers
            ):
                observe(fault, None)
                traffic.allow(RECORDS_PER_FAULT)
                where = f"{fault.kind.value}, {fault.place}; seed {seed}"
                with _told(stage, f"fault {fault.number} of {faults} ({where})"):
                    report.results.append(_one(stage, injector, fault))
                observe(fault, report.results[-1])
            observe(None, None)
            with _told(stage, f"after all faults (seed {seed})"):
                _finish(stage, injector, traffic, report)
    report.seconds = time.monotonic() - started
    return report


def _one(stage: Stage, injector: Injector, fault: Fault) -> FaultResult:
    if stage.process is None or fault.needs_executors != stage.on_executors:
        before = injector.mark()
        stage.switch(fault.needs_executors)
        injector.gone_on(before)
    seconds = injector.inject(fault)
    apart = stage.planned.guarantee.mechanism is not Mechanism.TRANSACTIONAL
    with injector.settled() if apart else nullcontext():
        found = stage.audit()
    return FaultResult(fault, seconds, found.records, found.lost, found.duplicated, found.kept)


def _finish(stage: Stage, injector: Injector, traffic: Traffic, report: DrillReport) -> None:
    """Let the connector read everything and audit once more."""
    if not traffic.stop():
        raise DrillFailed(f"records could not be sent: {traffic.trouble}")
    with injector.settled():
        report.final = stage.audit()


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
    """Keep two drivers of one connector running: whichever is fenced is started again.

    Raises:
        DrillFailed: none of them was fenced, or the loser does not say so.
    """
    started = time.monotonic()
    with _stage(source, seed, keep, directory, own_store=own_store) as stage:
        report = _report(stage, seed)
        with _traffic(stage, seed) as traffic, _told(stage, f"two drivers (seed {seed})"):
            injector = Injector(stage, traffic, seed)
            before = injector.mark()
            stage.start()
            injector.gone_on(before)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                stage.remember()
                traffic.allow(RECORDS_PER_FAULT)
                injector.one_is_fenced(stage.running, stage.launch())
                report.fenced += 1
                observe(report.fenced)
                injector.gone_on(injector.mark())
            _finish(stage, injector, traffic, report)
    report.seconds = time.monotonic() - started
    return report


@contextmanager
def _told(stage: Stage, when: str) -> Iterator[None]:
    """Say with a failure when it came and where to look."""
    try:
        yield
    except DrillFailed as failure:
        why = str(failure).rstrip(".?")
        raise DrillFailed(f"{when}: {why}. All logs: {stage.directory}") from None


def _report(stage: Stage, seed: int) -> DrillReport:
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
    # short: a Unix socket's path has at most 107 bytes
    where = directory or Path(tempfile.mkdtemp(prefix=f"semel-drill-{seed}-"))
    try:
        stage = Stage(raw, where, kinds, own_store=own_store)
        with closing(stage):
            stage.open()
            yield stage
    except ConfigError:  # nothing has begun
        if directory is None:
            shutil.rmtree(where, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(where, ignore_errors=True)


@contextmanager
def _traffic(stage: Stage, seed: int) -> Iterator[Traffic]:
    planned = stage.planned
    shape = Shape(
        planned.connector,
        planned.sink.capabilities.replaces,
        tombstones=planned.sink.capabilities.takes_tombstones,
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
