"""``semel demo --source``: copies a table that changes, through Kafka and through crashes."""

from __future__ import annotations

import time
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if typing.TYPE_CHECKING:
    from semel_lab.demo.orders import Counts, Pipeline, Writer
    from semel_lab.demo.process import Crash
    from semel_lab.embedded import Services


def copy_orders(
    console: Console, services: Services, directory: Path, crashes: int, seed: int
) -> dict[str, Any]:
    """Run the demonstration, and report it on the console; returns its facts."""
    from semel_lab.demo import orders as show

    pipeline = show.Pipeline(services, directory)
    writer = show.Writer(services.postgres, seed)
    try:
        with console.status(f"Filling table {show.TABLE}"):
            pipeline.database.fill()
        console.print(
            f"{show.TABLE} -> JDBC source -> topic {show.TOPIC} -> JDBC sink -> {show.COPY}"
        )
        began = time.monotonic()
        writer.start()
        _copy(console, pipeline, writer, show.crashes(crashes, seed))
        console.print(
            f"{writer.rows:,} rows and {writer.updates:,} updates in "
            f"{time.monotonic() - began:.0f} s, with {crashes} restarts of Spark"
        )
        with console.status("Comparing the tables, and auditing both connectors"):
            differences = pipeline.database.differences()
            console.print(
                f"{show.TABLE} and {show.COPY}: {differences:,} rows differ in any column"
            )
            audits = list(pipeline.audits())
    finally:
        writer.stop()
        pipeline.stop()
    for audit in audits:
        console.print(f"[dim]$ {escape(audit.command)}[/]", soft_wrap=True)
        console.print(escape(audit.output), soft_wrap=True)
    return {
        "rows": writer.rows,
        "updates": writer.updates,
        "crashes": crashes,
        "differences": differences,
        "kept": not differences and all(audit.kept for audit in audits),
    }


def bars(console: Console) -> Progress:
    """A bar for each thing that grows."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _copy(console: Console, pipeline: Pipeline, writer: Writer, crashes: Sequence[Crash]) -> None:
    from semel_lab.demo import orders as show

    with bars(console) as bar:
        copied = bar.add_task(f"rows in {show.COPY}", total=writer.rows)

        def shown(counts: Counts) -> None:
            bar.update(copied, completed=counts.rows, total=writer.rows)

        for number, crash in enumerate(crashes, start=1):
            for counts in pipeline.run(crash):
                shown(counts)
            bar.print(
                f"  [red]SIGKILL {number}[/] {show.FATAL_MOMENTS[crash.place]}: "
                f"{counts.rows:,} rows copied"
            )
        for counts in pipeline.finish(writer):
            shown(counts)
