"""What several commands share: options, signals, and the progress and metrics of a run."""

from __future__ import annotations

import _thread
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from semel.config import BROKERS, load, with_brokers
from semel.config.extras import require
from semel.core.errors import ConfigError, ServiceError

if TYPE_CHECKING:
    from semel.driver.base import Progress
    from semel.driver.runtime import Runtime

log = logging.getLogger("semel")

PACKAGES = {
    "fastapi": "fastapi",
    "httpx": "httpx",
    "jinja2": "jinja2",
    "prometheus_client": "prometheus-client",
    "uvicorn": "uvicorn",
}
"""What a worker needs besides semel, by import name."""

UNUSED_METRICS = {
    **dict.fromkeys(
        ("metric.reporters", "metrics.num.samples", "metrics.recording.level"),
        "metrics are at /metrics",
    ),
    "metrics.sample.window.ms": "rates are averages over 30 seconds",
}
"""Keys about the metrics of Kafka Connect and of the REST Proxy that have no effect, with the
reason."""

FILE_HELP = "Connector configuration: Connect's JSON, flat JSON or .properties."
File = Annotated[Path, typer.Argument(help=FILE_HELP)]
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


def with_servers(source: Path, servers: str) -> dict[str, str]:
    """The file's configuration, with the brokers of the command line if it names none.

    Raises:
        ConfigError: the option and the file name different brokers.
    """
    return with_brokers(load(source), servers)


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
