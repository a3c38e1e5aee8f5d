"""``python -m benchmarks``: measure, print tables, keep the figures."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from benchmarks.delta import delta
from benchmarks.exactness import exactness
from benchmarks.formats import formats
from benchmarks.iceberg import iceberg
from benchmarks.kafka_sink import kafka_sink
from benchmarks.latency import latency
from benchmarks.memory import memory
from benchmarks.partitions import partitions
from benchmarks.peers import peers
from benchmarks.query import query
from benchmarks.report import Figures, machine
from benchmarks.rest import rest
from benchmarks.rig import Rig, rig
from benchmarks.sources import sources
from benchmarks.start import start
from benchmarks.streams import streams
from benchmarks.tables import tables
from benchmarks.throughput import throughput
from benchmarks.transforms import transforms
from benchmarks.worker import worker

_QUIET, _PATIENCE = 0.1, 180.0
"""The share of the CPUs that other programs may use when a suite starts, and the seconds that it
waits for that: a suite's servers need a while to end."""
RESULTS = Path(__file__).parent / "results"


class Suite(StrEnum):
    """What can be measured."""

    throughput = "throughput"
    latency = "latency"
    partitions = "partitions"
    exactness = "exactness"
    kafka = "kafka"
    delta = "delta"
    iceberg = "iceberg"
    formats = "formats"
    transforms = "transforms"
    memory = "memory"
    sources = "sources"
    tables = "tables"
    peers = "peers"
    query = "query"
    start = "start"
    streams = "streams"
    worker = "worker"
    rest = "rest"
    all = "all"


def _busy() -> float:
    """The share of the CPUs in use, once it is low or patience has ended."""
    until = time.monotonic() + _PATIENCE
    while (busy := psutil.cpu_percent(5.0) / 100) > _QUIET and time.monotonic() < until:
        pass
    return busy


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main(
    suite: Annotated[Suite, typer.Argument(help="Which benchmark to run.")] = Suite.all,
    records: Annotated[int, typer.Option(min=1000, help="Records of one run.")] = 2_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each contest.")] = 3,
    tasks: Annotated[int, typer.Option(min=1, help="tasks.max of both systems.")] = 2,
    rate: Annotated[
        list[int] | None, typer.Option(help="Latency: records a second; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Latency and REST: seconds of each load.")] = 10.0,
    connectors: Annotated[int, typer.Option(min=1, help="Worker: connectors at once.")] = 50,
    requests: Annotated[int, typer.Option(min=100, help="Worker: requests timed.")] = 10_000,
    faults: Annotated[int, typer.Option(min=1, help="Peers: faults of each system.")] = 21,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory for the services' data during the run.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Where to write the figures as JSON.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Where to write the tables as Markdown.")
    ] = None,
) -> None:
    """Measure semel and its peers on this machine."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)  # ends the services and removes their data
    console = Console() if sys.stdout.isatty() else Console(width=150)
    suites: dict[str, Callable[[Rig], Figures]] = {
        "throughput": lambda r: throughput(r, records, repeats, tasks),
        "latency": lambda r: latency(r, rate or [20, 1_000, 5_000], seconds, repeats),
        "partitions": lambda r: partitions(r, records, repeats),
        "exactness": lambda r: exactness(r, records, repeats, tasks),
        # Fewer records take seconds only, and the figures vary by half.
        "kafka": lambda r: kafka_sink(r, 3 * records, repeats, tasks),
        "delta": lambda r: delta(r, records, repeats, tasks),
        # The peer commits every 2 s: with fewer records, its rate would come from one commit.
        "iceberg": lambda r: iceberg(r, 3 * records, repeats, tasks),
        "formats": lambda r: formats(r, records, repeats, tasks),
        "transforms": lambda r: transforms(r, records, repeats, tasks),
        "memory": memory,
        "sources": lambda r: sources(r, records, repeats),
        "tables": lambda r: tables(r, records, repeats),
        "peers": lambda r: peers(r, faults),
        "query": lambda r: query(r, records, repeats, tasks),
        "streams": lambda r: streams(r, records, repeats),
        "start": lambda r: start(r, max(repeats, 5)),
        "worker": lambda r: worker(r, max(repeats, 5), connectors, requests),
        "rest": lambda r: rest(r, seconds),
    }
    chosen = list(suites) if suite is Suite.all else [suite.value]
    stamp = time.strftime("%Y-%m-%d")
    path = json_file or RESULTS / f"{stamp}{'' if suite is Suite.all else f'-{suite.value}'}.json"
    document: dict[str, object] = {"date": stamp}
    written = []
    failed = []
    for name in chosen:
        busy = _busy()
        if busy > _QUIET:
            console.print(f"[yellow]the machine is busy ({busy:.0%}): figures will be low[/]")
        began = time.monotonic()
        try:
            with rig(console, directory) as running:  # new services: nothing is left over
                document.setdefault("machine", machine(running))
                figures = suites[name](running)
        except Exception as error:  # the other suites are still worth running
            console.print_exception()
            document[name] = {"error": f"{type(error).__name__}: {error}"}
            failed.append(name)
        else:
            console.print()
            figures.print(console)
            document[name] = {"busy_before": busy, **figures.document()}
            written.append(figures.markdown())
        minutes = (time.monotonic() - began) / 60
        console.print(f"[dim]{name} took {minutes:.1f} minutes[/]\n", highlight=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, default=float) + "\n")
        if markdown:
            markdown.write_text("\n".join(written))
    console.print(f"figures: {path}", highlight=False)
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
