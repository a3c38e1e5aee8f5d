"""``semel run`` with a worker's file, or with several connectors: one Spark for all of them."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from semel.cli.connector import Watcher, address, served, setting, summary_of, with_servers
from semel.cli.worker import IGNORED, PACKAGES, PASSED_ON, listening, met
from semel.config import check_keys, load, read, resolved, under
from semel.config.extras import require
from semel.config.loading import of_environment
from semel.config.providers import PROVIDERS
from semel.config.worker import MODULES, SECURITY, SERVERS, WorkerConfig
from semel.core.errors import ConfigError, SemelError
from semel.driver.planning import AnyPlan, plan_any

if TYPE_CHECKING:
    from semel.driver.runtime import Connector, Runtime
    from semel.worker.alone import StandaloneHerder

log = logging.getLogger("semel")

_OF_CONNECTORS = ("connector.class", "name", "topics", "topics.regex")
_MODULES = (".function", "-impl", ".impl")
"""The ends of keys that name something of a Python module."""
_LOOK = 0.2


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
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, setting(stop))
    patience = worker.graceful_timeout_ms / 1000 if worker is not None else 60.0
    began = time.monotonic()
    with Runtime(patience=patience) as runtime:
        runtime.begin(connectors[0].planned.connector.originals)
        listener = _listening(worker if listens else None, runtime)
        with listener as herder, served(port, runtime):
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
def _listening(worker: WorkerConfig | None, runtime: Runtime) -> Iterator[StandaloneHerder | None]:
    """A worker's REST API, and its herder."""
    if worker is None:
        yield None
        return
    require("listeners", "worker", PACKAGES)
    from semel.worker.alone import StandaloneHerder

    client = met(worker)
    herder = StandaloneHerder(runtime, worker)
    with listening(herder, worker, client, runtime):
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
