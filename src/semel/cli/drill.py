"""``semel drill``: break a connector again and again, and audit after each fault."""

from __future__ import annotations

import json
import signal
import sys
import typing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from semel.lab.drill.plan import Fault, Kind

if typing.TYPE_CHECKING:  # every command would wait for all that a drill needs
    from semel.lab.drill.run import DrillReport, FaultResult


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("drill", epilog="Example: semel drill flights.json --faults 50 --seed 1")(drill)


def drill(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Connector configuration; its services are replaced by embedded ones. Without "
            "one: plain inserts into PostgreSQL, with provenance."
        ),
    ] = None,
    faults: Annotated[int, typer.Option(min=1, help="How many faults to inject.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the faults and their moments.")] = 1,
    only: Annotated[
        str, typer.Option(help=f"Kinds of faults, by comma: {', '.join(k.value for k in Kind)}.")
    ] = "",
    two_drivers: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Instead: keep two drivers running for so long; one must yield."
        ),
    ] = 0.0,
    peer: Annotated[
        str,
        typer.Option(
            metavar="connect",
            help="Instead: put Kafka Connect with Debezium's JDBC sink, and semel, under the same "
            "faults (of processes, brokers and PostgreSQL), and compare their tables.",
        ),
    ] = "",
    own_store: Annotated[
        bool,
        typer.Option(
            "--own-store",
            help="Write to the store that the configuration names, which must be empty; only the "
            "connector and an embedded Kafka are broken. The results stay there.",
        ),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave logs and data.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where they go, instead of a temporary directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a connector under SIGKILLs, zombies, restarts and lost replies; audit after each.

    Exits with 1 when the declared guarantee is broken, a fault could not be injected or the
    connector has not recovered.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end what was started, too
    if own_store and file is None:
        raise typer.BadParameter("name a configuration, it says where", param_hint="--own-store")
    where: dict[str, Any] = {"own_store": own_store, "keep": keep, "directory": directory}
    if peer:
        _peer(peer, file, faults, seed, directory, as_json)
        return
    if two_drivers:
        _two_drivers(file, two_drivers, seed, where, as_json)
        return
    from semel.lab.drill import run as drills

    watcher = _Watcher(faults, as_json)
    with watcher:
        report = drills.drill(
            file,
            faults,
            seed,
            kinds=_kinds(only),
            observe=watcher.observe,
            **where,
        )
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
        sys.exit(1)


def _two_drivers(
    file: Path | None, seconds: float, seed: int, where: dict[str, Any], as_json: bool
) -> None:
    from semel.lab.drill import run as drills

    console = Console(stderr=True, highlight=False)
    with console.status("two drivers of one connector"):
        report = drills.two_drivers(
            file,
            seconds,
            seed,
            observe=lambda fenced: console.print(f"fenced: {fenced}; the survivor goes on"),
            **where,
        )
    if as_json:
        print(json.dumps(_facts(report)))
    else:
        final = report.final
        assert final is not None
        print(
            f"two drivers for {seconds:.0f} s: {report.fenced} fenced and said so, {final.records} "
            f"records: {report.lost} lost, {report.duplicated} duplicated"
        )
    if not report.kept:
        sys.exit(1)


def _peer(
    peer: str, file: Path | None, faults: int, seed: int, directory: Path | None, as_json: bool
) -> None:
    from semel.lab.drill.peer import run as peers

    if peer != "connect":
        raise typer.BadParameter(f"{peer}: must be connect", param_hint="--peer")
    if file is not None:
        raise typer.BadParameter(
            "the connector is the drill's own: leave FILE out", param_hint="--peer"
        )
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with console.status("the same faults for both"):
        results = peers.compare(
            faults,
            seed,
            directory=directory,
            observe=lambda side, mode, fault, found: console.print(
                f"{side:<14} {mode:<7} {fault.number:>4} {fault.kind.value:<15} {found.lost:>5} "
                f"lost {found.doubled:>6} doubled {found.fired_again:>6} fired again"
            ),
        )
    if as_json:
        print(json.dumps([asdict(r) for r in results]))
    else:
        print(f"{'':<14} {'':<7} {'records':>8} {'lost':>6} {'doubled':>8} {'fired again':>12}")
        for r in results:
            found = r.findings
            print(
                f"{r.side:<14} {r.mode:<7} {found.records:>8,} {found.lost:>6,} "
                f"{found.doubled:>8,} {found.fired_again:>12,}"
            )
        print(f"{faults} faults each, seed {seed}")
    own = [r.findings for r in results if r.side == "semel"]
    if any(f.lost or f.doubled or f.fired_again for f in own):
        sys.exit(1)


def _kinds(only: str) -> list[Kind]:
    names = [n.strip() for n in only.split(",") if n.strip()]
    known = {k.value: k for k in Kind}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(known)}", param_hint="--only")
    return [known[n] for n in names] or list(Kind)


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
    """A line for each fault; on a terminal also what is going on now."""

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
        """See :data:`semel.lab.drill.run.Observer`."""
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
    mark = "" if result.kept else "  [red]guarantee broken[/]"
    return (
        f"{fault.number:>5}  {fault.kind.value:<21} {fault.place:<21} {result.seconds:>7.1f} s "
        f"{result.records:>9,} {result.lost:>5,} {result.duplicated:>10,}{mark}"
    )
