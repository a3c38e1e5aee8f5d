"""``semel run``, ``validate`` and ``describe``."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from semel.cli.application import Format, LogFormat, console, start_log
from semel.cli.common import (
    FILE_HELP,
    AsJson,
    Bootstrap,
    Environment,
    File,
    MetricsPort,
    Page,
    Watcher,
    served,
    summary_of,
    until_signal,
    with_servers,
)
from semel.cli.worker import are_several, run_several
from semel.core.errors import ConfigError, SemelError, Unresolvable
from semel.core.redact import plain
from semel.driver import validation
from semel.driver.base import State
from semel.driver.planning import plan_any
from semel.driver.runtime import Runtime

if TYPE_CHECKING:
    pass

log = logging.getLogger("semel")

_KEYS = "Keys that can be set: semel describe --keys CLASS"


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    run_epilog = f"Example: semel run flights.json --until-caught-up\n\n{_KEYS}"
    app.command("run", epilog=run_epilog)(run_)
    app.command(epilog=f"Example: semel validate flights.json\n\n{_KEYS}")(validate)
    app.command(epilog="Example: semel describe flights.json")(describe)


def run_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of connectors; a worker's file may come first."),
    ],
    until_caught_up: Annotated[
        bool, typer.Option(help="Exit once everything that Kafka held at the start is committed.")
    ] = False,
    bootstrap_server: Bootstrap = "",
    as_json: AsJson = False,
    metrics_port: MetricsPort = "",
    ui: Page = "",
    environment: Environment = False,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Run connectors until SIGTERM or Ctrl-C. They finish the current batch first."""
    out = console(stderr=True)
    live = out.is_terminal and not as_json and log_format is LogFormat.TEXT
    start_log(out, log_format)
    started = time.monotonic()
    try:
        if ui or are_several(files, environment):
            run_several(
                files,
                out,
                servers=bootstrap_server,
                environment=environment,
                until_caught_up=until_caught_up,
                as_json=as_json,
                port=metrics_port,
                ui=ui,
            )
            return
        (file,) = files
        raw = with_servers(file, bootstrap_server)
        with Runtime() as runtime:
            runtime.begin(raw, for_any=False)
            planned = plan_any(raw)
            stop = until_signal()
            with (
                Watcher(out, planned.connector.name, live=live) as watcher,
                served(metrics_port, runtime),
            ):
                running = runtime.start(
                    planned,
                    until_caught_up=until_caught_up,
                    observe=watcher.observe,
                    initial_state=State.STOPPED,
                )
                progress = running.run(stop)
    except SemelError as error:
        if as_json:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
            sys.exit(error.exit_code)
        raise
    seconds = time.monotonic() - started
    summary = summary_of(planned.connector.name, progress, seconds)
    if as_json:
        print(json.dumps(summary))
    else:
        logging.getLogger("semel").info(
            "stopped: %s records read, %s rows written, %s failed, %s commits, %.1f s",
            *(summary[k] for k in ("records", "rows", "failed", "commits")),
            seconds,
            extra={"connector": planned.connector.name},
        )


def validate(file: File, bootstrap_server: Bootstrap = "", as_json: AsJson = False) -> None:
    """Check a configuration without contacting any service. Reports all mistakes at once.

    With --json, prints the answer of Kafka Connect's PUT /connector-plugins/{type}/config/validate,
    plus warnings.
    """
    if as_json:
        _validate_as_connect(file, bootstrap_server)
        return
    try:
        planned = plan_any(with_servers(file, bootstrap_server), elsewhere=True)
        warnings = planned.warnings
        verdict = f"valid; {planned.guarantee}, {planned.engine} engine"
    except Unresolvable as error:
        warnings = error.warnings
        verdict = "no mistakes found, but the rest cannot be checked on this machine"
    out = console()
    for warning in warnings:
        out.print(f"[yellow]warning:[/] {escape(warning)}")
    out.print(f"{escape(str(file))}: {verdict}")


def _validate_as_connect(file: Path, bootstrap_server: str) -> None:
    try:
        raw = with_servers(file, bootstrap_server)
    except ConfigError as error:  # there are no keys to list
        print(json.dumps({"error_code": 400, "message": str(error)}))
        sys.exit(error.exit_code)
    infos, warnings = validation.validate(raw, elsewhere=True)
    print(json.dumps(asdict(infos) | {"warnings": validation.located_warnings(warnings, raw)}))
    if infos.error_count:
        sys.exit(ConfigError.exit_code)


def describe(
    file: Annotated[Path | None, typer.Argument(help=FILE_HELP)] = None,
    bootstrap_server: Bootstrap = "",
    as_json: AsJson = False,
    keys: Annotated[
        str,
        typer.Option(
            metavar="CLASS",
            help="List the keys of a connector, converter, transform or predicate instead.",
        ),
    ] = "",
) -> None:
    """Explain what a connector does, which guarantee holds, and why."""
    if (file is None) == (not keys):
        raise typer.BadParameter("name a configuration, or a class with --keys", param_hint="file")
    if file is None:
        list_keys(keys, as_json=as_json)
        return
    planned = plan_any(with_servers(file, bootstrap_server))
    planned.sample()
    planned.close()
    facts = plain(planned.facts())
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        table.add_row(f"[bold]{name}[/]", escape(text))
    console().print(table)


def list_keys(name: str, *, as_json: bool) -> None:
    """Print the keys of the class of a connector, a converter, a transform or a predicate; as JSON,
    in the form of Kafka Connect's ``GET /connector-plugins/{plugin}/config``.

    Raises:
        ConfigError: there is no such class.
    """
    keys = validation.keys_of(name)
    if as_json:
        print(json.dumps([asdict(key) for key in keys]))
        return
    out = console()
    for key in keys:
        default = f"default {key.default_value}" if key.default_value else "no default"
        facts = (key.type, "required" if key.required else default, key.importance)
        out.print(f"[bold]{key.name}[/]  {escape(', '.join(facts))}")
        if key.documentation:
            out.print(Padding(escape(key.documentation), (0, 0, 0, 4), expand=False))
