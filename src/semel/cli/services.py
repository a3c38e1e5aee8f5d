"""``semel services``: Kafka and PostgreSQL for development, on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from semel.cli.console import console
from semel.errors import ServiceError
from semel.lab.embedded.services import Services, ServicesStatus

app = typer.Typer(
    no_args_is_help=True,
    help="Run Kafka and PostgreSQL on this machine, for development. Nothing else can connect.",
)

Directory = Annotated[
    Path, typer.Option("--dir", help="Where data, logs and state are kept.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
KafkaPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Kafka's port. Chosen and kept if not given."),
]
PostgresPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="PostgreSQL's port. Chosen and kept if not given."),
]

DEFAULT_DIRECTORY = Path(".semel")


@app.command(epilog="Example: semel services up --kafka-port 9092 --postgres-port 5432")
def up(
    directory: Directory = DEFAULT_DIRECTORY,
    kafka_port: KafkaPort = None,
    postgres_port: PostgresPort = None,
    as_json: AsJson = False,
) -> None:
    """Start them in the background; they run until `down`. Data of an earlier `up` is there again.

    What runs already is left alone.
    """
    with _errors_told():
        services = Services(directory)
        if as_json:
            status = services.up(kafka_port, postgres_port)
        else:
            with Console(stderr=True).status("Starting Kafka and PostgreSQL"):
                status = services.up(kafka_port, postgres_port)
    _show(status, as_json)


@app.command(epilog="Example: semel services down --dir .semel")
def down(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Stop them. The data stays; to be rid of it, delete the directory."""
    with _errors_told():
        status = _known(directory).down()
    _show(status, as_json)


@app.command(epilog="Example: semel services status --json")
def status(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Show whether they run and how to connect. Exit code 3 if one of them does not run."""
    with _errors_told():
        found = _known(directory).status()
    _show(found, as_json)
    if not found.running:
        raise typer.Exit(ServiceError.exit_code)


def _known(directory: Path) -> Services:
    services = Services(directory)
    if not services.state_file.exists():
        raise ServiceError(
            f"No services were ever started in {services.directory}. Start some with "
            "`semel services up`, or say where they are with --dir."
        )
    return services


def _show(status: ServicesStatus, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(status), indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("service")
    table.add_column("state")
    table.add_column("pid", justify="right")
    table.add_column("connect to", overflow="fold")
    for service in (status.kafka, status.postgres):
        state = "[green]running[/]" if service.running else "[red]stopped[/]"
        table.add_row(service.name, state, str(service.pid or "-"), service.url)
    out = console()
    out.print(table)
    for service in (status.kafka, status.postgres):
        out.print(f"{service.name}'s log: {service.log}", style="dim", soft_wrap=True)


@contextmanager
def _errors_told() -> Iterator[None]:
    """A ServiceError is told in its own words and becomes the exit code."""
    try:
        yield
    except ServiceError as failure:
        typer.echo(f"Error: {failure}", err=True)
        raise typer.Exit(failure.exit_code) from failure
