"""``semel drill``: injects faults into a connector and audits after each."""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from semel.cli.common import PACKAGES
from semel.cli.ending import clean_up_on_signals
from semel.config.extras import require
from semel.core.errors import BROKEN
from semel_lab.drill.plan import OF_CLUSTERS, Fault, Kind

if typing.TYPE_CHECKING:  # importing these would slow down every command
    from semel_lab.drill.report import DrillReport, FaultResult


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("drill", epilog="Example: semel drill flights.json --faults 50 --seed 1")(drill)


def drill(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Connector configuration, of a sink or a source. Embedded services replace its "
            "own. Without one: plain inserts into PostgreSQL, with provenance."
        ),
    ] = None,
    faults: Annotated[int, typer.Option(min=1, help="How many faults to inject.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed for the faults and their timing.")] = 1,
    only: Annotated[
        str,
        typer.Option(
            help=f"Kinds of faults, separated by commas: {', '.join(k.value for k in Kind)}."
        ),
    ] = "",
    two_drivers: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Instead: run two drivers for this long. One of them must always yield.",
        ),
    ] = 0.0,
    peer: Annotated[
        str,
        typer.Option(
            metavar="connect",
            help="Instead: put semel, and Kafka Connect with Debezium's JDBC sink, under the same "
            "faults (of processes, brokers and PostgreSQL), and compare their tables.",
        ),
    ] = "",
    cluster: Annotated[
        int,
        typer.Option(
            metavar="WORKERS",
            help="Instead: run the sink of FILE and a source on this many workers of a cluster, "
            "which are killed, frozen, cut off, added and restarted.",
        ),
    ] = 0,
    own_store: Annotated[
        bool,
        typer.Option(
            "--own-store",
            help="Write to the configured store, which must be empty and keeps the results. Faults "
            "hit only the connector and an embedded Kafka.",
        ),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep logs and data.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory for them, instead of a temporary one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a connector under SIGKILLs, zombies, restarts and lost replies, and audit after each.

    Exits with 1 if the declared guarantee is broken, and with 9 if a fault could not be injected or
    the connector did not recover.
    """
    clean_up_on_signals()
    if own_store and file is None:
        raise typer.BadParameter("name a configuration that says where", param_hint="--own-store")
    where: dict[str, Any] = {"own_store": own_store, "keep": keep, "directory": directory}
    if peer:
        _peer(peer, file, faults, seed, directory, as_json)
        return
    is_source = file is not None and _is_source(file)
    if is_source:
        for is_set, option in ((own_store, "--own-store"), (two_drivers, "--two-drivers")):
            if is_set:
                raise typer.BadParameter("is for sink connectors", param_hint=option)
        del where["own_store"]
    if two_drivers:
        _two_drivers(file, two_drivers, seed, where, as_json)
        return
    run = _drill_of_source() if is_source else _drill_of_sink()
    chosen = _kinds(only)
    if cluster:
        if is_source or own_store:
            raise typer.BadParameter("takes a sink, and its own store", param_hint="--cluster")
        run = partial(_drill_of_cluster(), workers=cluster)
        chosen = _kinds(only) if only else list(OF_CLUSTERS)
        del where["own_store"]
    watcher = _Watcher(faults, as_json)
    with watcher:
        report = run(file, faults, seed, kinds=chosen, observe=watcher.observe, **where)
    if as_json:
        print(json.dumps(_facts(report)))
    else:
        verdict = "kept" if report.kept else "BROKEN"
        how = "record by record" if report.exact else "by counts"
        final = report.final
        assert final is not None
        print(
            f"{report.connector}: {report.delivery} {verdict}; {final.records:,} records audited "
            f"{how} after each fault and at the end, {report.seconds:.0f} s, seed {seed}"
        )
        print(f"{faults} faults: {report.lost} lost, {report.duplicated} duplicated")
    if not report.kept:
        sys.exit(BROKEN)


def _is_source(file: Path) -> bool:
    from semel.config import load
    from semel.driver.planning import source_of

    return source_of(load(file)) is not None


def _drill_of_source() -> Callable[..., DrillReport]:
    from semel_lab.drill.source.run import drill_source

    return drill_source


def _drill_of_sink() -> Callable[..., DrillReport]:
    from semel_lab.drill.run import drill as drill_sink

    return drill_sink


def _drill_of_cluster() -> Callable[..., DrillReport]:
    require("semel drill --cluster", "worker", PACKAGES)
    from semel_lab.drill.cluster.run import drill_cluster

    return drill_cluster


def _two_drivers(
    file: Path | None, seconds: float, seed: int, where: dict[str, Any], as_json: bool
) -> None:
    from semel_lab.drill import run as drills

    console = Console(stderr=True, highlight=False)
    with console.status("Running two drivers of one connector"):
        report = drills.two_drivers(
            file,
            seconds,
            seed,
            observe=lambda fenced: console.print(f"{fenced} fenced; the other driver continues"),
            **where,
        )
    if as_json:
        print(json.dumps(_facts(report)))
    else:
        final = report.final
        assert final is not None
        print(
            f"two drivers for {seconds:.0f} s: {report.fenced} fenced, as their errors said; "
            f"{final.records} records: {report.lost} lost, {report.duplicated} duplicated"
        )
    if not report.kept:
        sys.exit(BROKEN)


def _peer(
    peer: str, file: Path | None, faults: int, seed: int, directory: Path | None, as_json: bool
) -> None:
    from semel_lab.drill.peer import run as peers

    if peer != "connect":
        raise typer.BadParameter(f"{peer}: must be connect", param_hint="--peer")
    if file is not None:
        raise typer.BadParameter(
            "the drill brings its own connector: leave FILE out", param_hint="--peer"
        )
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with console.status("Putting both under the same faults"):
        results = peers.compare(
            faults,
            seed,
            directory=directory,
            observe=lambda system, mode, fault, findings: console.print(
                f"{system:<14} {mode:<7} {fault.number:>4} {fault.kind.value:<15} "
                f"{findings.lost:>5} lost {findings.duplicated:>6} duplicated "
                f"{findings.fired_again:>6} fired again"
            ),
        )
    if as_json:
        print(json.dumps([asdict(r) for r in results]))
    else:
        print(f"{'':<14} {'':<7} {'records':>8} {'lost':>6} {'duplicated':>10} {'fired again':>12}")
        for r in results:
            findings = r.findings
            print(
                f"{r.system:<14} {r.mode:<7} {findings.records:>8,} {findings.lost:>6,} "
                f"{findings.duplicated:>10,} {findings.fired_again:>12,}"
            )
        print(f"{faults} faults each, seed {seed}")
    own = [r.findings for r in results if r.system == "semel"]
    if any(f.lost or f.duplicated or f.fired_again for f in own):
        sys.exit(BROKEN)


def _kinds(only: str) -> list[Kind]:
    names = [n.strip() for n in only.split(",") if n.strip()]
    by_name = {k.value: k for k in Kind}
    unknown = [n for n in names if n not in by_name]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]} is not one of {', '.join(by_name)}", param_hint="--only"
        )
    return [by_name[n] for n in names] or list(Kind)


def _facts(report: DrillReport) -> dict[str, Any]:
    return {
        "connector": report.connector,
        "delivery": report.delivery,
        "seed": report.seed,
        "seconds": round(report.seconds, 1),
        "faults": [
            {
                **asdict(r.fault),
                "kind": r.fault.kind.value,
                "seconds": round(r.seconds, 2),
                "records": r.records,
                "lost": r.lost,
                "duplicated": r.duplicated,
                "kept": r.kept,
                "reason": r.reason,
            }
            for r in report.results
        ],
        "fenced": report.fenced,
        "records": report.final.records if report.final else 0,
        "lost": report.lost,
        "duplicated": report.duplicated,
        "kept": report.kept,
    }


class _Watcher:
    """Prints a line for each fault, and shows the current step on a terminal."""

    def __init__(self, faults: int, as_json: bool) -> None:
        self._faults = faults
        self._console = Console(stderr=as_json, highlight=False, soft_wrap=True)
        self._status = self._console.status("Starting the services")
        self._silent = as_json and not self._console.is_terminal

    def __enter__(self) -> _Watcher:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._status.stop()

    def observe(self, fault: Fault | None, result: FaultResult | None) -> None:
        """See :data:`semel_lab.drill.report.Observer`."""
        if self._silent:
            return
        if fault is not None and fault.number == 1 and result is None:
            self._console.print(
                f"{'fault':>5}  {'kind':<21} {'place':<21} {'recovered':>9} {'records':>9} "
                f"{'lost':>5} {'duplicated':>10}"
            )
        if result is not None:
            self._console.print(_line(result))
        elif fault is None:
            self._status.update("Letting the connector catch up for the final audit")
        else:
            self._status.update(f"{fault.number}/{self._faults}: {fault.kind.value}, {fault.place}")


def _line(result: FaultResult) -> str:
    fault = result.fault
    reason = f": {result.reason}" if result.reason else ""
    mark = "" if result.kept else f"  [red]guarantee broken{reason}[/]"
    return (
        f"{fault.number:>5}  {fault.kind.value:<21} {fault.place:<21} {result.seconds:>7.1f} s "
        f"{result.records:>9,} {result.lost:>5,} {result.duplicated:>10,}{mark}"
    )
