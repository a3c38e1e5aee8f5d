"""``semel worker``: connectors with Kafka Connect's REST API."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from semel.cli.application import Format, LogFormat, start_log
from semel.cli.connector import AsJson, Environment, setting
from semel.cli.console import console
from semel.config import check_keys, load, read, resolved, under
from semel.config.extras import require
from semel.config.loading import of_environment
from semel.config.worker import ClusterConfig, WorkerConfig
from semel.core.errors import ConfigError
from semel.kafka.clients import NETWORK
from semel.kafka.security import WITHOUT_EFFECT

if TYPE_CHECKING:
    from semel.driver.runtime import Runtime
    from semel.worker.herder import Herder

log = logging.getLogger("semel")

_GROUP = "group.id"
PACKAGES = {
    "fastapi": "fastapi",
    "httpx": "httpx",
    "jinja2": "jinja2",
    "prometheus_client": "prometheus-client",
    "uvicorn": "uvicorn",
}
PASSED_ON = (
    *("security.", "sasl.", "ssl.", *NETWORK),
    *("consumer.", "producer.", "admin.", "key.converter.", "value.converter.", "spark."),
    *("listeners.https.", "admin.listeners.https.", "rest.proxy."),
    "config.providers",
)
"""Prefixes of the keys that are for connectors, clients or Spark."""
_NO_JAVA = "the client is librdkafka, which has no such setting"
IGNORED = {
    **dict.fromkeys(
        ("plugin.path", "plugin.discovery"), "plugins are Python packages, found by entry point"
    ),
    "offset.storage.file.filename": "source offsets are in offsets.storage.topic, so that they are "
    "committed with the records. To continue from this file, see docs/sources.md#offsets-in-a-file",
    **dict.fromkeys(
        ("offset.flush.interval.ms", "offset.flush.timeout.ms"),
        "positions are in the ledgers, and move with the results",
    ),
    "header.converter": "headers are carried as they are, and transforms write text, as "
    "SimpleHeaderConverter does",
    "exactly.once.source.support": "sources are exactly-once unless their delivery says otherwise",
    **dict.fromkeys(
        (
            *(f"inter.worker.key.{name}" for name in ("generation.algorithm", "size", "ttl.ms")),
            *("inter.worker.signature.algorithm", "inter.worker.verification.algorithms"),
        ),
        "workers pass requests on as they come, with the credentials of whoever has sent them",
    ),
    **dict.fromkeys(
        ("metric.reporters", "metrics.num.samples", "metrics.recording.level"),
        "metrics are at /metrics",
    ),
    "metrics.sample.window.ms": "rates are averages over 30 seconds",
    **dict.fromkeys(
        ("metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms"),
        "the client keeps all brokers that it has heard of",
    ),
    **dict.fromkeys(
        ("request.timeout.ms", "socket.connection.setup.timeout.max.ms"),
        "each request of a worker has a limit of its own",
    ),
    **dict.fromkeys(
        (f"{kind}.converter.plugin.version" for kind in ("key", "value", "header")),
        "there is one version of each converter",
    ),
    "client.id": "brokers know a worker by its URL",
    **dict.fromkeys(WITHOUT_EFFECT - {"ssl.enabled.protocols", "ssl.client.auth"}, _NO_JAVA),
    **dict.fromkeys(
        ("connect.protocol", "worker.sync.timeout.ms", "worker.unsync.backoff.ms"),
        "workers agree with the protocol of consumer groups",
    ),
}
"""Kafka Connect's keys that have no effect, with the reason."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker", epilog="Example: semel worker connect-standalone.properties orders.json")(
        worker
    )


def worker(
    file: Annotated[
        Path | None, typer.Argument(help="The worker's configuration, as Kafka Connect's.")
    ] = None,
    connectors: Annotated[
        list[Path] | None, typer.Argument(help="Connectors to start with, a file each.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only report what semel would do with the connectors of this cluster, or of the "
            "files.",
        ),
    ] = False,
    as_json: AsJson = False,
    environment: Environment = False,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Run many connectors on one Spark, with Kafka Connect's REST API, until SIGTERM or Ctrl-C.

    With group.id, workers share their connectors and keep them in Kafka, as connect-distributed
    does. Without it, connectors are kept until the worker ends, as with connect-standalone.
    Positions are in the connectors' ledgers.
    """
    require("semel worker", "worker", PACKAGES)
    start_log(console(stderr=True), log_format)
    if file is None and not environment:
        raise ConfigError("give the worker's file, or --env for CONNECT_* variables")
    settings = load(file) if file is not None else {}
    if "connector.class" in settings:
        raise ConfigError(
            f"{file} is a connector's configuration, with "
            f"connector.class={settings['connector.class']}. Give the worker's file first, or use "
            "semel run"
        )
    raw = resolved(settings | (of_environment(os.environ) if environment else {}))
    section = ClusterConfig if raw.get(_GROUP, "").strip() else WorkerConfig
    config = read(section, raw)
    for warning in check_keys(raw, [section], IGNORED, PASSED_ON):
        log.warning("%s", warning)
    given_connectors = {path: load(path) for path in connectors or ()}
    if given_connectors and isinstance(config, ClusterConfig):
        raise ConfigError(
            f"{next(iter(given_connectors))}: a worker with {_GROUP}={config.group_id} takes no "
            "files of connectors. Create them with requests, or remove group.id to let this worker "
            "run alone"
        )
    if check:
        check_worker(config, list(given_connectors.values()), as_json=as_json)
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, setting(stop))
    if not isinstance(config, ClusterConfig):
        _run_alone(config, given_connectors, stop)
    else:
        _take_part(config, stop)


def _run_alone(
    config: WorkerConfig, connectors: Mapping[Path, Mapping[str, str]], stop: threading.Event
) -> None:
    from semel.driver.runtime import Runtime
    from semel.worker.alone import StandaloneHerder
    from semel.worker.errors import RequestError

    client = met(config)
    with Runtime(patience=config.graceful_timeout_ms / 1000) as runtime:
        runtime.begin(config.inherited({}))
        herder = StandaloneHerder(runtime, config)
        with listening(herder, config, client, runtime):
            for path, raw in connectors.items():
                try:
                    herder.put(raw.get("name", ""), raw)
                except RequestError as error:
                    raise ConfigError(f"{path}: {error}") from None
            stop.wait()
            log.info("worker %s stops", config.id)


def _take_part(config: ClusterConfig, stop: threading.Event) -> None:
    from semel.driver.runtime import Runtime
    from semel.worker.cluster.worker import ClusterWorker

    client = met(config)
    with Runtime(patience=config.graceful_timeout_ms / 1000) as runtime:
        runtime.begin(config.inherited({}))
        with (
            ClusterWorker(runtime, config, client) as worker,
            listening(worker.herder, config, client, runtime),
        ):
            worker.wait(stop)
            log.info("worker %s stops", config.id)


def met(config: WorkerConfig) -> dict[str, Any]:
    """The worker's own client, once Kafka has answered. Mistakes in the REST API's files, or in the
    converters for connectors that name none, are reported first."""
    from semel.cli.rest import check_beside
    from semel.converters import create
    from semel.kafka.clients import worker_client
    from semel.kafka.cluster import wait_for_brokers
    from semel.worker.rest.listening import check

    check(config)
    check_beside(config)
    for side in ("key.converter", "value.converter"):
        if side in config.originals:
            settings = under(config.originals, f"{side}.")
            create(config.originals[side], settings, is_key=side.startswith("key"), where=side)
    client = worker_client(config)
    wait_for_brokers(client, say=lambda line: log.warning("%s", line))
    return client


@contextmanager
def listening(
    herder: Herder, config: WorkerConfig, client: Mapping[str, Any], runtime: Runtime
) -> Iterator[None]:
    """Serve the REST API of this worker within a ``with`` statement."""
    from semel.cli.rest import beside
    from semel.kafka.cluster import Cluster
    from semel.worker.rest.listening import serving

    with serving(herder, config, Cluster(client), runtime) as server, beside(config):
        log.info("worker %s listens on port %s", config.id, ", ".join(map(str, server.ports)))
        yield


def check_worker(
    config: WorkerConfig, connectors: Sequence[Mapping[str, str]], *, as_json: bool
) -> None:
    """Print a verdict on each connector; the exit code is 2 if one cannot run."""
    from semel.kafka.clients import worker_client
    from semel.worker.cluster.check import check, check_alone

    if isinstance(config, ClusterConfig):
        report = check(config, worker_client(config))
    else:
        report = check_alone(config, connectors)
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        out = console()
        for verdict in report.connectors:
            table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
            table.add_row("[bold]connector[/]", f"[bold]{escape(verdict.name)}[/]")
            facts = {
                "class": verdict.connector_class,
                "state": verdict.state,
                "delivery": verdict.guarantee,
                "continues at": verdict.begins,
                "fails": verdict.problem,
            }
            for name, fact in facts.items():
                if fact:
                    table.add_row(name, escape(fact))
            for warning in verdict.warnings:
                table.add_row("[yellow]warning[/]", escape(warning))
            out.print(table)
            out.print()
        bad = sum(1 for verdict in report.connectors if verdict.problem)
        out.print(f"{len(report.connectors)} connectors, {bad} of which cannot run here")
        if report.members:
            out.print(
                f"[yellow]group {escape(config.originals['group.id'])} has members now[/]: "
                f"{escape(', '.join(report.members))}. Stop those of Kafka Connect first"
            )
    if any(verdict.problem for verdict in report.connectors):
        sys.exit(ConfigError.exit_code)
