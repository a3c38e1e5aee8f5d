"""``semel demo``: runs connectors on embedded services, crashes them, and audits the result."""

from __future__ import annotations

import json
import shutil
import sys
import time
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from semel.cli.ending import clean_up_on_signals
from semel.cli.proof import audit_table
from semel.core.errors import BROKEN, ConfigError
from semel_lab.cli.services import bars, load_kafka

if typing.TYPE_CHECKING:
    from semel_lab.demo.orders import Counts, Pipeline, Writer
    from semel_lab.demo.process import Crash
    from semel_lab.embedded import Services

_DIRECTORY = Path(".semel/demo")
_MARK = ".semel-demo"
"""Marks a demo's directory, which the next demo may remove."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("demo", epilog="Example: semel demo --crashes 6 --seed 7")(demo)


def demo(
    source: Annotated[
        bool,
        typer.Option("--source", help="Copy a table that changes: PostgreSQL, Kafka, PostgreSQL."),
    ] = False,
    streams: Annotated[
        bool,
        typer.Option("--streams", help="Join and add up two topics: a topology, to PostgreSQL."),
    ] = False,
    crashes: Annotated[
        int, typer.Option(min=0, max=20, help="How often to SIGKILL the connectors.")
    ] = 4,
    seed: Annotated[int, typer.Option(help="Seed for the times of the crashes.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the services running.")] = False,
    directory: Annotated[
        Path,
        typer.Option("--dir", help="Directory for data and logs. An earlier demo's are removed."),
    ] = _DIRECTORY,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Move 336,776 real flights from Kafka to PostgreSQL, kill the connector on the way, audit.

    With --source: copy 1,000,000 orders through Kafka to another table, while they change. With
    --streams: join 150,000 orders with customers, and add up the revenue of countries and minutes.
    """
    from semel_lab.demo import flights
    from semel_lab.embedded import Services

    clean_up_on_signals()
    console = Console(highlight=False, stderr=as_json)
    if source and streams:
        raise ConfigError("--source and --streams are two demonstrations: name one")
    if not (source or streams):
        flights.data()  # fails before any service starts
    _empty(directory)
    services = Services(directory)
    load_kafka(console)
    console.print("Starting Kafka and PostgreSQL")
    services.up(detached=keep)
    try:
        console.print(
            f"Kafka at {services.kafka.bootstrap_servers}, PostgreSQL at {services.postgres.url}",
            soft_wrap=True,
        )
        run = _add_up if streams else _copy_orders if source else _run
        facts = run(console, services, directory, crashes, seed)
    finally:
        if not keep:
            services.down()
    if keep:
        console.print(
            f"The services are still running: psql {services.postgres.url}, Kafka at "
            f"{services.kafka.bootstrap_servers}. Stop them: semel services down --dir {directory}"
        )
    if as_json:
        print(json.dumps(facts))
    if not facts["kept"]:
        sys.exit(BROKEN)


def _empty(directory: Path) -> None:
    """Remove an earlier demo's files, but nothing else."""
    from semel_lab.embedded import Services

    mark = directory / _MARK
    try:
        strange = directory != _DIRECTORY and not mark.exists() and any(directory.iterdir())
    except FileNotFoundError:
        strange = False
    except NotADirectoryError:
        strange = True
    if strange:
        raise ConfigError(
            f"--dir {directory} holds files that do not belong to an earlier demo. The demo would "
            "remove them. Name a new directory"
        )
    Services(directory).down()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _run(
    console: Console, services: Services, directory: Path, crashes: int, seed: int
) -> dict[str, Any]:
    from semel_lab.demo import flights as show

    with bars(console) as bar:
        producing = bar.add_task("flights into Kafka  ", total=show.RECORDS)
        for count in show.produce(services.kafka):
            bar.update(producing, completed=count)
        connector = show.Connector(show.configuration(services), directory)
        moving = bar.add_task("rows in PostgreSQL  ", total=show.RECORDS)
        began = time.monotonic()
        moving_for = 0.0
        done = 0
        try:
            plan: list[Crash | None] = [*show.crashes(crashes, seed), None]
            for number, crash in enumerate(plan, start=1):
                last = time.monotonic()
                for rows in connector.run(crash):
                    now = time.monotonic()
                    moving_for += (now - last) * (rows > done)
                    last, done = now, rows
                    bar.update(moving, completed=rows)
                if crash is not None:
                    moment = show.FATAL_MOMENTS[crash.place]
                    bar.print(f"  [red]SIGKILL {number}[/] {moment}: {done:,} rows are committed")
        finally:
            connector.stop()
        seconds = time.monotonic() - began
    with console.status("Auditing: every record in Kafka against every row in PostgreSQL"):
        report = connector.audit()
    console.print(audit_table(report))
    rate = report.records / moving_for if moving_for else 0.0
    console.print(
        f"{rate:,.0f} rows/s while rows moved, {report.records / seconds:,.0f} rows/s with "
        f"{crashes} restarts of Spark ({seconds:.0f} s in all)",
        soft_wrap=True,
    )
    verdict = f"{report.lost} lost, {report.duplicated} duplicated"
    console.print(f"{report.records} records, {crashes} crashes: {verdict}")
    return {
        "records": report.records,
        "crashes": crashes,
        "lost": report.lost,
        "duplicated": report.duplicated,
        "rows_per_second": round(rate),
        "kept": report.kept and report.records == show.RECORDS,
    }


def _add_up(
    console: Console, services: Services, directory: Path, crashes: int, seed: int
) -> dict[str, Any]:
    """Run the demonstration, and report it on the console; returns its facts."""
    from semel_lab.demo import revenue as show

    for line in show.streams().describe().splitlines():
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
    application = show.Application(services, directory)
    with bars(console) as bar:
        producing = bar.add_task("orders into Kafka  ", total=show.RECORDS)
        for count in show.produce(services):
            bar.update(producing, completed=count)
        counting = bar.add_task("orders in PostgreSQL", total=show.RECORDS)
        began = time.monotonic()
        try:
            plan: list[Crash | None] = [*show.crashes(crashes, seed), None]
            for number, crash in enumerate(plan, start=1):
                for done in application.run(crash):
                    bar.update(counting, completed=done)
                if crash is not None:
                    moment = show.FATAL_MOMENTS[crash.place]
                    bar.print(f"  [red]SIGKILL {number}[/] {moment}: {done:,} orders are counted")
        finally:
            application.stop()
        seconds = time.monotonic() - began
    differences, rows = application.differences()
    console.print(
        f"{show.RECORDS:,} orders in {seconds:.0f} s, with {crashes} restarts of Spark. "
        f"{show.COMPARISON}: {differences} of {rows:,} rows differ",
        soft_wrap=True,
    )
    return {
        "records": show.RECORDS,
        "crashes": crashes,
        "rows": rows,
        "differences": differences,
        "kept": rows > 0 and not differences,
    }


def _copy_orders(
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
