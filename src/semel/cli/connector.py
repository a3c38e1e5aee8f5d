"""``semel run``, ``validate`` and ``describe``."""

from __future__ import annotations

import _thread
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from semel.cli.application import Format, LogFormat, console, start_log
from semel.config import BROKERS, load, with_brokers
from semel.config.extras import require
from semel.core.errors import ConfigError, SemelError, ServiceError, Unresolvable
from semel.core.redact import plain
from semel.driver import validation
from semel.driver.base import State
from semel.driver.planning import plan_any
from semel.driver.runtime import Runtime

if TYPE_CHECKING:
    from semel.driver.base import Progress

log = logging.getLogger("semel")

_FILE = "Connector configuration: Connect's JSON, flat JSON or .properties."
File = Annotated[Path, typer.Argument(help=_FILE)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        envvar=BROKERS,
        help="Kafka brokers, if the configuration leaves them to the Connect worker.",
    ),
]
Environment = Annotated[
    bool,
    typer.Option("--env", help="Take the worker's keys from CONNECT_* variables, too; they win."),
]
_KEYS = "Keys that can be set: semel describe --keys CLASS"
MetricsPort = Annotated[
    str,
    typer.Option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve /metrics for Prometheus there; without a host, on this machine only.",
    ),
]


Page = Annotated[
    str,
    typer.Option(
        "--ui",
        metavar="[HOST:]PORT",
        help="Show the run on a page, /ui, there; without a host, to this machine only.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    run_epilog = f"Example: semel run flights.json --until-caught-up\n\n{_KEYS}"
    app.command("run", epilog=run_epilog)(run_)
    app.command(epilog=f"Example: semel validate flights.json\n\n{_KEYS}")(validate)
    app.command(epilog="Example: semel describe flights.json")(describe)


def with_servers(source: Path, servers: str) -> dict[str, str]:
    """The file's configuration, with the brokers of the command line if it names none.

    Raises:
        ConfigError: the option and the file name different brokers.
    """
    return with_brokers(load(source), servers)


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
    from semel.cli.worker import are_several, run_several

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


def summary_of(name: str, progress: Progress | None, seconds: float) -> dict[str, Any]:
    """The summary of a run, as ``--json`` prints it."""
    counts = ("records", "rows", "failed", "commits", "restarts")
    values = {count: getattr(progress, count, 0) for count in counts}
    return {"name": name, **values, "seconds": round(seconds, 3)}


def until_signal() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set, from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, setting(stop))
    return stop


def setting(stop: threading.Event) -> Callable[..., None]:
    """A signal handler that sets an event. It starts a thread to do so, because the interrupted
    thread may hold the event's lock and would wait for itself."""

    def handle(*_signal: object) -> None:
        _thread.start_new_thread(stop.set, ())  # threading.Thread has such a lock, too

    return handle


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
    file: Annotated[Path | None, typer.Argument(help=_FILE)] = None,
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


class Watcher:
    """Shows progress: a live line on a terminal, otherwise a log line from time to time."""

    _EVERY = 10.0

    def __init__(self, console: Console, name: str, *, live: bool) -> None:
        self._name = name
        self._live = (
            Live(get_renderable=self._shown, console=console, refresh_per_second=5, transient=True)
            if live
            else None
        )
        self._progress: Any = None
        self._last = (time.monotonic(), 0)
        self._rate = 0.0

    def __enter__(self) -> Watcher:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def observe(self, progress: Any) -> None:
        """Called by the engine, several times a second while records flow."""
        self._progress = progress
        if self._live is None and self._measured(progress, self._EVERY):
            about = {"connector": self._name}
            logging.getLogger("semel").info("%s", self._text(progress), extra=about)

    def _shown(self) -> str:
        """The live line; its rate falls to 0 even if the engine has nothing new to tell."""
        progress = self._progress
        if progress is None:
            return ""
        self._measured(progress, 1.0)
        return self._text(progress)

    def _measured(self, progress: Any, period: float) -> bool:
        """Measure the rate once per ``period`` seconds; returns whether there were new records."""
        now, (then, before) = time.monotonic(), self._last
        if now - then < period:
            return False
        self._rate = (progress.records - before) / (now - then)
        self._last = (now, progress.records)
        return bool(progress.records != before)

    def _text(self, progress: Any) -> str:
        bad = f", {progress.failed:,} failed" if progress.failed else ""
        return (
            f"{self._name}: {progress.records:,} records, {self._rate:,.0f} records/s, "
            f"{progress.commits:,} commits, {len(progress.tasks)} tasks{bad}"
        )


@contextmanager
def served(port: str, runtime: Runtime) -> Iterator[None]:
    """Serve the metrics of a runtime's connectors within a ``with`` statement; nothing happens
    without a port.

    Raises:
        ConfigError: it is not a port.
        ServiceError: the port is taken.
    """
    if not port:
        yield
        return
    host, number = address("--metrics-port", port)
    require("--metrics-port", "metrics", {"prometheus_client": "prometheus-client"})
    from prometheus_client import start_http_server

    from semel.worker.metrics import registry
    from semel.worker.observed import of_runtime

    try:
        server, thread = start_http_server(number, host, registry(lambda: of_runtime(runtime)))
    except OSError as error:
        raise ServiceError(f"--metrics-port {port}: cannot listen there: {error}") from None
    log.info("metrics are at http://%s:%d/metrics", host, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def address(option: str, given: str) -> tuple[str, int]:
    """The host and the port that an option names.

    Raises:
        ConfigError: it names none.
    """
    host, colon, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{option} {given}: give PORT or HOST:PORT, such as 0.0.0.0:9400")
    return (host.strip("[]") or "0.0.0.0") if colon else "127.0.0.1", int(port)
