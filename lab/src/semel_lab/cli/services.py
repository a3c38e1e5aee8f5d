"""``semel services``: runs Kafka, PostgreSQL and a schema registry on this machine, for
development."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from semel.cli.application import console
from semel.cli.ending import clean_up_on_signals
from semel.core.errors import ServiceError
from semel.spark.jars import is_resolved, resolve
from semel_lab.embedded.services import Services, ServicesStatus
from semel_lab.jars import KAFKA, KAFKA_VERSION

app = typer.Typer(
    no_args_is_help=True,
    help="Run Kafka and PostgreSQL for development. Only this machine can connect to them.",
)

Directory = Annotated[
    Path, typer.Option("--dir", help="Directory for data, logs and state.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
KafkaPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Kafka's port. By default, a free one that is kept."),
]
PostgresPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="PostgreSQL's port. By default, a free one that is kept."),
]

WithRegistry = Annotated[
    bool, typer.Option("--registry", help="Start a schema registry, too (Apicurio).")
]
RegistryPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="The registry's port. By default, a free one that is kept."
    ),
]

WithRest = Annotated[bool, typer.Option("--rest", help="Start Kafka over HTTP, too: semel rest.")]
RestPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="The REST proxy's port. By default, a free one."),
]

DEFAULT_DIRECTORY = Path(".semel")


def register(to: typer.Typer) -> None:
    """Add the commands of this module."""
    to.add_typer(app, name="services")


@app.command(epilog="Example: semel services up --kafka-port 9092 --postgres-port 5432")
def up(
    directory: Directory = DEFAULT_DIRECTORY,
    kafka_port: KafkaPort = None,
    postgres_port: PostgresPort = None,
    registry: WithRegistry = False,
    registry_port: RegistryPort = None,
    rest: WithRest = False,
    rest_port: RestPort = None,
    as_json: AsJson = False,
) -> None:
    """Start the services in the background. They keep the data of an earlier `up`.

    They run until `down`. Services that already run are left alone.
    """
    clean_up_on_signals()
    with _reporting_errors():
        services = Services(directory)
        options: dict[str, Any] = {
            "registry": registry or registry_port is not None,
            "registry_port": registry_port,
            "rest": rest or rest_port is not None,
            "rest_port": rest_port,
        }
        if as_json:
            status = services.up(kafka_port, postgres_port, **options)
        else:
            stderr = Console(stderr=True)
            load_kafka(stderr)
            with stderr.status("Starting the services"):
                status = services.up(kafka_port, postgres_port, **options)
    _show(status, as_json)


@app.command(epilog="Example: semel services down --dir .semel")
def down(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Stop the services. Their data stays until you delete the directory."""
    with _reporting_errors():
        status = _known(directory).down()
    _show(status, as_json)


@app.command(epilog="Example: semel services status --json")
def status(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Show whether the services run and how to connect. Exits with 3 if one does not run."""
    with _reporting_errors():
        current = _known(directory).status()
    _show(current, as_json)
    if not current.running:
        raise typer.Exit(ServiceError.exit_code)


def load_kafka(console: Console) -> None:
    """Download Kafka's jars if they are not there, and show how far that is."""
    if is_resolved(KAFKA):
        return
    pins = KAFKA.pins()
    size = sum(pin.size for pin in pins) / 1e6
    console.print(f"Kafka {KAFKA_VERSION}: {len(pins)} jars, {size:.0f} MB, are downloaded once")
    with bars(console) as bar:
        loading = bar.add_task("jars", total=len(pins))
        resolve(KAFKA, lambda _: bar.advance(loading))


def _known(directory: Path) -> Services:
    services = Services(directory)
    if not services.state_file.exists():
        raise ServiceError(
            f"No services were ever started in {services.directory}. Start them with "
            "`semel services up`, or name their directory with --dir."
        )
    return services


def _show(status: ServicesStatus, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(status.facts(), indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("service")
    table.add_column("state")
    table.add_column("pid", justify="right")
    table.add_column("connect to", overflow="fold")
    for service in status.all:
        state = "[green]running[/]" if service.running else "[red]stopped[/]"
        table.add_row(service.name, state, str(service.pid or "-"), service.url)
    out = console()
    out.print(table)
    for service in status.all:
        out.print(f"{service.name}'s log: {service.log}", style="dim", soft_wrap=True)


@contextmanager
def _reporting_errors() -> Iterator[None]:
    """Print a ServiceError's message and exit with its code."""
    try:
        yield
    except ServiceError as failure:
        typer.echo(f"Error: {failure}", err=True)
        raise typer.Exit(failure.exit_code) from failure


def bars(console: Console) -> Progress:
    """A bar for each thing that grows."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
