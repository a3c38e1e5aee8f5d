"""``semel run``, ``validate`` and ``describe``."""

from __future__ import annotations

import _thread
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from semel import validation
from semel.cli.console import RedactingFormatter, console, plain
from semel.config import load
from semel.errors import ConfigError, Problem, SemelError
from semel.plan import Plan, plan
from semel.problems import located
from semel.run import run

File = Annotated[
    Path, typer.Argument(help="Connector configuration: Connect's JSON, flat JSON or .properties.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_VARIABLE = "SEMEL_BOOTSTRAP_SERVERS"
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        envvar=_VARIABLE,
        help="Kafka brokers, for configurations that leave them to the Connect worker.",
    ),
]
_SERVERS = (
    "bootstrap.servers",
    "kafka.bootstrap.servers",
    "consumer.override.bootstrap.servers",
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("run", epilog="Example: semel run flights.json --until-caught-up")(run_)
    app.command(epilog="Example: semel validate flights.json")(validate)
    app.command(epilog="Example: semel describe flights.json")(describe)


def with_servers(source: Path, servers: str) -> dict[str, str]:
    """The file's configuration, with brokers from the command line where it names none.

    Raises:
        ConfigError: the option names others than the file; the variable may.
    """
    raw = load(source)
    named = [k for k in _SERVERS if k in raw]
    if servers and not named:
        raw["bootstrap.servers"] = servers
    elif servers and raw[named[0]] != servers and servers != os.environ.get(_VARIABLE):
        raise ConfigError(
            f"--bootstrap-server {servers}, but {source} has {named[0]}={raw[named[0]]}: remove one"
        )
    return raw


def run_(
    file: File,
    until_caught_up: Annotated[
        bool, typer.Option(help="End when what Kafka held at the start is committed.")
    ] = False,
    bootstrap_server: Bootstrap = "",
    as_json: AsJson = False,
) -> None:
    """Run a connector until SIGTERM or Ctrl-C; the batch in hand is finished first."""
    out = console(stderr=True)
    live = out.is_terminal and not as_json
    _log(out)
    started = time.monotonic()
    try:
        raw = with_servers(file, bootstrap_server)
        planned = plan(raw)
        for warning in planned.warnings:
            logging.getLogger("semel").warning("%s", warning)
        logging.getLogger("semel").info(
            "connector %s: %s, %s engine: %s",
            planned.connector.name,
            planned.guarantee,
            planned.engine,
            planned.guarantee.why,
        )
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, setting(stop))
        watcher = _Watcher(out, planned, live)
        with watcher:
            progress = run(
                planned, until_caught_up=until_caught_up, stop=stop, observe=watcher.observe
            )
    except SemelError as error:
        if as_json:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
            sys.exit(error.exit_code)
        raise
    seconds = time.monotonic() - started
    summary = {
        "name": planned.connector.name,
        "records": progress.records,
        "rows": progress.rows,
        "failed": progress.failed,
        "commits": progress.commits,
        "restarts": progress.restarts,
        "seconds": round(seconds, 3),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        logging.getLogger("semel").info(
            "stopped: %s records read, %s rows written, %s failed, %s commits, %.1f s",
            *(summary[k] for k in ("records", "rows", "failed", "commits")),
            seconds,
        )


def setting(stop: threading.Event) -> Callable[..., None]:
    """A signal's handler that sets an event, in a thread of its own: the one that the signal has
    interrupted may hold the event's lock, and would wait for itself."""

    def handle(*_signal: object) -> None:
        _thread.start_new_thread(stop.set, ())  # threading.Thread has a lock of that kind, too

    return handle


def validate(file: File, bootstrap_server: Bootstrap = "", as_json: AsJson = False) -> None:
    """Check a configuration without touching any service; tell all mistakes at once.

    With --json the answer is that of Kafka Connect's PUT /connector-plugins/{type}/config/validate,
    with warnings.
    """
    if as_json:
        _validate_as_connect(file, bootstrap_server)
        return
    planned = plan(with_servers(file, bootstrap_server))
    out = console()
    for warning in planned.warnings:
        out.print(f"[yellow]warning:[/] {escape(warning)}")
    out.print(f"{escape(str(file))}: valid; {planned.guarantee}, {planned.engine} engine")


def _validate_as_connect(file: Path, bootstrap_server: str) -> None:
    try:
        raw = with_servers(file, bootstrap_server)
    except ConfigError as error:  # there is no configuration whose keys could be listed
        print(json.dumps({"error_code": 400, "message": str(error)}))
        sys.exit(error.exit_code)
    infos, warnings = validation.validate(raw)
    print(json.dumps(asdict(infos) | {"warnings": _located(warnings, raw)}))
    if infos.error_count:
        sys.exit(ConfigError.exit_code)


def _located(warnings: Sequence[str], raw: Mapping[str, str]) -> list[dict[str, str]]:
    return [asdict(located(Problem("", w), raw, raw.keys(), ())) for w in warnings]


def describe(file: File, bootstrap_server: Bootstrap = "", as_json: AsJson = False) -> None:
    """Say in plain words what a connector does and which guarantee holds, and why."""
    planned = plan(with_servers(file, bootstrap_server))
    facts = plain(_facts(planned))
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        table.add_row(f"[bold]{name}[/]", escape(text))
    console().print(table)


def _facts(planned: Plan) -> dict[str, Any]:
    connector, guarantee = planned.connector, planned.guarantee
    if connector.errors_tolerance == "none":
        bad = "a bad record stops the connector; everything before it is committed"
    elif connector.dead_letter_table and planned.sink.capabilities.commits_dead_letters_first:
        bad = (
            f"bad records go to table {connector.dead_letter_table} by a commit of its own before "
            "the results', and each is there once"
        )
    elif connector.dead_letter_table:
        bad = (
            f"bad records go to table {connector.dead_letter_table} in the transaction that moves "
            "the positions past them: exactly once"
            if guarantee.mechanism is not None and guarantee.mechanism.value == "transactional"
            else f"bad records go to table {connector.dead_letter_table} with the results"
        )
    elif connector.dead_letter_topic and planned.sink.capabilities.takes_dead_letters:
        bad = (
            f"bad records go to topic {connector.dead_letter_topic} in the transaction that moves "
            "the positions past them: exactly once"
            if guarantee.mechanism is not None
            else f"bad records go to topic {connector.dead_letter_topic} with the results"
        )
    elif connector.dead_letter_topic:
        bad = (
            f"bad records go to topic {connector.dead_letter_topic} before the commit: at least "
            "once, as Kafka and the target share no transaction"
        )
    else:
        bad = "bad records are counted and dropped (errors.tolerance=all without dead letters)"
    return {
        "name": connector.name,
        "reads": list(connector.topics) or [f"topics matching {connector.topics_regex}"],
        **planned.sink.describe(),
        "group": connector.group_id,
        "delivery": str(guarantee),
        "because": guarantee.why,
        "bad records": bad,
        "audit": "exact to the record, from the provenance of each row"
        if connector.provenance
        else "by counts from the ledger; provenance=true makes it exact to the record",
        "engine": planned.engine,
        "tasks": connector.tasks_max,
        "warnings": planned.warnings or ["none"],
    }


def _log(out: Console) -> None:
    level = os.environ.get("SEMEL_LOG", "INFO").upper()
    if out.is_terminal:
        handler: logging.Handler = RichHandler(
            console=out, show_path=False, log_time_format="%H:%M:%S", omit_repeated_times=False
        )
        handler.setFormatter(RedactingFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level="WARNING", handlers=[handler])
    logging.getLogger("semel").setLevel(level)
    logging.getLogger("py4j").setLevel("CRITICAL")


class _Watcher:
    """Shows progress: a live line on a terminal, a log line now and then elsewhere."""

    _EVERY = 10.0

    def __init__(self, console: Console, planned: Plan, live: bool) -> None:
        self._name = planned.connector.name
        self._live = Live(console=console, refresh_per_second=5, transient=True) if live else None
        self._last = (time.monotonic(), 0)
        self._rate = 0.0

    def __enter__(self) -> _Watcher:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def observe(self, progress: Any) -> None:
        """Called by the engine several times a second."""
        now, (then, before) = time.monotonic(), self._last
        period = 1.0 if self._live else self._EVERY
        if now - then >= period:
            self._rate = (progress.records - before) / (now - then)
            self._last = (now, progress.records)
            if self._live is None and progress.records != before:
                logging.getLogger("semel").info("%s", self._text(progress))
        if self._live is not None:
            self._live.update(self._text(progress))

    def _text(self, progress: Any) -> str:
        bad = f", {progress.failed:,} failed" if progress.failed else ""
        return (
            f"{self._name}: {progress.records:,} records, {self._rate:,.0f} records/s, "
            f"{progress.commits:,} commits, {len(progress.tasks)} tasks{bad}"
        )
