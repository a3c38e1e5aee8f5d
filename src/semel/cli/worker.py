"""Many connectors on one Spark: ``semel worker``, with Kafka Connect's REST API, and ``semel run``
with a worker's file or with several connectors."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semel.cli.application import Format, LogFormat, console, start_log
from semel.cli.common import (
    PACKAGES,
    UNUSED_METRICS,
    AsJson,
    Environment,
    Watcher,
    address,
    served,
    summary_of,
    until_signal,
    with_servers,
)
from semel.cli.rest import beside, check_beside
from semel.config import check_keys, load, read, resolved, under
from semel.config.extras import require
from semel.config.loading import of_environment
from semel.config.providers import PROVIDERS
from semel.config.source_connector import OFFSETS
from semel.config.worker import (
    CONFIGS,
    MODULES,
    SECURITY,
    SERVERS,
    STATUSES,
    ClusterConfig,
    WorkerConfig,
)
from semel.core.errors import ConfigError, SemelError
from semel.driver.planning import AnyPlan, plan_any
from semel.kafka.clients import NETWORK
from semel.kafka.security import WITHOUT_EFFECT

if TYPE_CHECKING:
    from semel.driver.runtime import Connector, Runtime
    from semel.worker.alone import StandaloneHerder
    from semel.worker.herder import Herder

log = logging.getLogger("semel")

_GROUP = "group.id"
PASSED_ON = (
    *("security.", "sasl.", "ssl.", *NETWORK),
    *("consumer.", "producer.", "admin.", "key.converter.", "value.converter.", "spark."),
    *("listeners.https.", "admin.listeners.https.", "rest.proxy."),
    *("config.providers", CONFIGS, STATUSES, OFFSETS),
)
"""Prefixes of the keys that are for connectors, clients, topics or Spark."""
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
    **UNUSED_METRICS,
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
    **dict.fromkeys(
        (f"{prefix}cleanup.policy" for prefix in (CONFIGS, STATUSES, OFFSETS)),
        "the topic is compacted in any case",
    ),
    f"{CONFIGS}partitions": "the topic has one partition",
    "client.id": "brokers know a worker by its URL",
    **dict.fromkeys(WITHOUT_EFFECT - {"ssl.enabled.protocols", "ssl.client.auth"}, _NO_JAVA),
    **dict.fromkeys(
        ("connect.protocol", "worker.sync.timeout.ms", "worker.unsync.backoff.ms"),
        "workers agree with the protocol of consumer groups",
    ),
}
"""Kafka Connect's keys that have no effect, with the reason."""

_OF_CONNECTORS = ("connector.class", "name", "topics", "topics.regex")
_MODULES = (".function", "-impl", ".impl")
"""The ends of keys that name something of a Python module."""
_LOOK = 0.2


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
        _check(config, list(given_connectors.values()), as_json=as_json)
        return
    stop = until_signal()
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
        with _listening(herder, config, client, runtime):
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
            _listening(worker.herder, config, client, runtime),
        ):
            worker.wait(stop)
            log.info("worker %s stops", config.id)


def met(config: WorkerConfig) -> dict[str, Any]:
    """The worker's own client, once Kafka has answered. Mistakes in the REST API's files, or in the
    converters for connectors that name none, are reported first."""
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
def _listening(
    herder: Herder, config: WorkerConfig, client: Mapping[str, Any], runtime: Runtime
) -> Iterator[None]:
    """Serve the REST API of this worker within a ``with`` statement."""
    from semel.kafka.cluster import Cluster
    from semel.worker.rest.listening import serving

    with serving(herder, config, Cluster(client), runtime) as server, beside(config):
        log.info("worker %s listens on port %s", config.id, ", ".join(map(str, server.ports)))
        yield


def _check(config: WorkerConfig, connectors: Sequence[Mapping[str, str]], *, as_json: bool) -> None:
    """Print a verdict on each connector; the exit code is 2 if one cannot run."""
    from semel.kafka.clients import worker_client
    from semel.worker.cluster.worker import check, check_alone

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


# semel run


def are_several(files: Sequence[Path], environment: bool) -> bool:
    """Whether there is more to run than one connector's file."""
    return environment or len(files) > 1 or _is_worker(files[0])


def run_several(
    files: Sequence[Path],
    out: Console,
    *,
    servers: str,
    environment: bool,
    until_caught_up: bool,
    as_json: bool,
    port: str,
    ui: str = "",
) -> None:
    """Run connectors until SIGTERM or Ctrl-C, or until all have caught up. The others continue when
    one fails.

    Raises:
        ConfigError: a file is wrong; nothing was started.
        SemelError: what ended the first connector that failed.
    """
    from semel.driver.runtime import Runtime

    worker, files = _worker(files, servers, environment, ui)
    connectors = _connectors(files, worker, servers)
    listens = worker is not None and "listeners" in worker.originals
    if listens and until_caught_up:
        log.warning("%s has no effect with --until-caught-up", "--ui" if ui else "listeners")
        listens = False
    stop = until_signal()
    patience = worker.graceful_timeout_ms / 1000 if worker is not None else 60.0
    began = time.monotonic()
    with Runtime(patience=patience) as runtime:
        runtime.begin(connectors[0].planned.connector.originals)
        answering = _answering(worker if listens else None, runtime)
        with answering as herder, served(port, runtime):
            for connector in connectors:
                planned = connector.planned
                if herder is not None:
                    planned.close()  # requests may change it: the herder plans it
                    herder.put(planned.connector.name, connector.config)
                    continue
                watcher = Watcher(out, planned.connector.name, live=False)
                runtime.start(planned, until_caught_up=until_caught_up, observe=watcher.observe)
            while not stop.is_set() and not (until_caught_up and _ended(runtime)):
                stop.wait(_LOOK)
        runtime.close()
        _tell(list(runtime.connectors.values()), time.monotonic() - began, as_json=as_json)


def _is_worker(file: Path) -> bool:
    try:
        return load(file).keys().isdisjoint(_OF_CONNECTORS)
    except ConfigError:  # reading it as a connector's reports what is wrong
        return False


def _worker(
    files: Sequence[Path], servers: str, environment: bool, ui: str
) -> tuple[WorkerConfig | None, Sequence[Path]]:
    """The worker's configuration, if there is one, and the files of connectors."""
    settings: dict[str, str] = {}
    if files and _is_worker(files[0]):
        settings, files = load(files[0]), files[1:]
    if environment:
        settings |= of_environment(os.environ)
    if not files:
        raise ConfigError(
            "no connector is given. Add its file, or run semel worker, which takes connectors by "
            "requests"
        )
    if ui:
        settings = _with_page(ui, settings, files)
    if not settings:
        return None, files
    if servers:
        settings.setdefault("bootstrap.servers", servers)
    raw = resolved({k: v for k, v in settings.items() if k != "group.id"})
    for warning in check_keys(raw, [WorkerConfig], IGNORED, PASSED_ON):
        log.warning("%s", warning)
    return read(WorkerConfig, raw), files


def _with_page(ui: str, settings: Mapping[str, str], files: Sequence[Path]) -> dict[str, str]:
    """The worker that shows connectors on a page. Without a file of its own it has what they have,
    and its page may name no more Python modules than they do.

    Raises:
        ConfigError: the worker's file says already where it listens.
    """
    if "listeners" in settings:
        raise ConfigError(
            f"--ui {ui}: the worker's file has listeners={settings['listeners']}, and the page is "
            "there, at /ui. Remove one of the two"
        )
    host, port = address("--ui", ui)
    host = f"[{host}]" if ":" in host else host
    config = {**settings, "listeners": f"http://{host}:{port}"}
    if settings:
        return config
    modules: set[str] = set()
    for own in map(load, files):
        config |= {k: v for k, v in own.items() if k.startswith((PROVIDERS, "spark."))}
        client = under(own, "consumer.override.")
        config |= {k: v for k, v in client.items() if k.startswith(SECURITY)}
        if SERVERS in own:
            config.setdefault(SERVERS, own[SERVERS])
        named = (v for k, v in own.items() if k == "topology" or k.endswith(_MODULES))
        modules |= {value.partition(":")[0].strip() for value in named}
    return config | {MODULES: ",".join(sorted(modules))}


@dataclass(frozen=True, slots=True)
class _PlannedConnector:
    """A connector to run: its file's configuration, and a plan of it with the worker's settings."""

    config: Mapping[str, str]
    planned: AnyPlan


def _connectors(
    files: Sequence[Path], worker: WorkerConfig | None, servers: str
) -> list[_PlannedConnector]:
    """The connectors, once all are known to be right."""
    by_name: dict[str, _PlannedConnector] = {}
    with ExitStack() as plans:
        for file in files:
            config = load(file) if worker is not None else with_servers(file, servers)
            run = worker.inherited(worker.permitted(config)) if worker is not None else config
            planned = plan_any(run)
            plans.callback(planned.close)
            name = planned.connector.name
            if name in by_name:
                raise ConfigError(f"{file}: name={name} is that of another connector: rename one")
            by_name[name] = _PlannedConnector(config, planned)
        plans.pop_all()
    return list(by_name.values())


@contextmanager
def _answering(worker: WorkerConfig | None, runtime: Runtime) -> Iterator[StandaloneHerder | None]:
    """A worker's REST API, and its herder."""
    if worker is None:
        yield None
        return
    require("listeners", "worker", PACKAGES)
    from semel.worker.alone import StandaloneHerder

    client = met(worker)
    herder = StandaloneHerder(runtime, worker)
    with _listening(herder, worker, client, runtime):
        yield herder


def _ended(runtime: Runtime) -> bool:
    return all(connector.wait(0) for connector in runtime.connectors.values())


def _error(connector: Connector) -> BaseException | None:
    """What ended the connector, or the first of its tasks that have failed."""
    progress = connector.progress
    of_tasks = progress.errors.values() if progress is not None else ()
    return connector.error or next(iter(of_tasks), None)


def _tell(connectors: Sequence[Connector], seconds: float, *, as_json: bool) -> None:
    """Report what each connector has done; raises the error of the first one that failed."""
    summaries = []
    for connector in connectors:
        error = _error(connector)
        summary: Mapping[str, object] = summary_of(connector.name, connector.progress, seconds)
        summaries.append({**summary, "error": str(error)} if error is not None else summary)
    failed = [error for error in map(_error, connectors) if error is not None]
    if as_json:
        print(json.dumps(summaries))
        sys.exit(getattr(failed[0], "exit_code", SemelError.exit_code) if failed else 0)
    for summary in summaries:
        log.info(
            "connector %s stopped: %s records read, %s rows written, %s failed, %s commits",
            *(summary[key] for key in ("name", "records", "rows", "failed", "commits")),
        )
    if failed:
        raise failed[0]
