"""``semel rest``: Kafka over HTTP."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.application import Format, LogFormat, console, start_log
from semel.cli.common import PACKAGES, UNUSED_METRICS, setting, until_signal
from semel.config import check_keys, load, read, resolved, under
from semel.config.extras import require
from semel.config.proxy import ProxyConfig
from semel.config.worker import PROXY, WorkerConfig
from semel.core.context import logs_json
from semel.core.errors import ConfigError, SemelError, prefixed
from semel.kafka.clients import NETWORK

log = logging.getLogger("semel")

_SHORTEST, _LONGEST = 1.0, 60.0
"""Seconds until a proxy that has failed beside a worker is started again."""
PASSED_ON = (
    *("security.", "sasl.", "ssl.", *NETWORK),
    *("client.", "consumer.", "producer.", "admin."),
    *("listeners.https.", "schema.registry.", "config.providers"),
)
"""Prefixes of the keys that are for clients."""
IGNORED = {
    **UNUSED_METRICS,
    **dict.fromkeys(
        ("zookeeper.connect", "zookeeper.session.timeout.ms"), "brokers are found by each other"
    ),
    **dict.fromkeys(
        ("producer.threads", "consumer.iterator.backoff.ms", "consumer.iterator.timeout.ms"),
        "one thread serves all requests",
    ),
}
"""Confluent's keys that have no effect, with the reason."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rest", epilog="Example: semel rest rest.properties")(rest)


def rest(
    file: Annotated[
        Path | None, typer.Argument(help="The proxy's configuration, as Confluent's REST Proxy.")
    ] = None,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Serve Kafka over HTTP until SIGTERM or Ctrl-C: Confluent's REST Proxy v2 and v3.

    Without a file, the brokers are those at localhost:9092.
    """
    require("semel rest", "rest", PACKAGES)
    start_log(console(stderr=True), log_format)
    raw = resolved(load(file)) if file is not None else {}
    config = read(ProxyConfig, raw)
    for warning in check_keys(raw, [ProxyConfig], IGNORED, PASSED_ON):
        log.warning("%s", warning)
    stop = until_signal()
    serve(config, stop)


def serve(config: ProxyConfig, stop: threading.Event) -> None:
    """Serve Kafka over HTTP until it is told to stop."""
    from semel.kafka.clients import proxy_client
    from semel.kafka.cluster import wait_for_brokers
    from semel.proxy.app import serving

    client = proxy_client(config, "admin")
    wait_for_brokers(client, say=lambda line: log.warning("%s", line))
    with serving(config) as server:
        log.info("REST proxy %s listens on port %s", config.url, ", ".join(map(str, server.ports)))
        gc.collect()
        gc.freeze()  # long-lived objects: scanning them makes a full collection take 100 ms
        stop.wait()
        log.info("REST proxy %s stops", config.url)


def check_beside(worker: WorkerConfig) -> None:
    """Judge the configuration of the proxy beside a worker, if it has one.

    Raises:
        ConfigError: it cannot be used.
    """
    raw = worker.proxy
    if raw is None:
        return
    from semel.proxy.app import check

    require(f"{PROXY}listeners", "rest", PACKAGES)
    own = under(worker.originals, PROXY)
    for warning in check_keys(own, [ProxyConfig], IGNORED, PASSED_ON):
        log.warning("%s*: %s", PROXY, warning)
    try:
        check(read(ProxyConfig, raw))
    except ConfigError as error:
        own_problems = [p for p in error.problems if p.key in own]
        others = [p for p in error.problems if p.key not in own]
        raise ConfigError(
            *prefixed(own_problems, PROXY).problems,
            *prefixed(others, "", title=f"{PROXY}listeners: ").problems,
        ) from None


@contextmanager
def beside(worker: WorkerConfig) -> Iterator[None]:
    """Serve Kafka over HTTP beside a worker, if its configuration says so, within a ``with``
    statement.

    The proxy is a process of its own: it may be busy, run out of memory or fail without an effect
    on connectors. Then it is started again.
    """
    raw = worker.proxy
    if raw is None:
        yield
        return
    over, end = multiprocessing.Pipe(duplex=False)
    keeper = threading.Thread(target=_keep, args=(raw, over), daemon=True, name="semel-rest-proxy")
    keeper.start()
    try:
        yield
    finally:
        end.close()
        keeper.join()


def _keep(raw: Mapping[str, str], over: Connection) -> None:
    """Run the proxy, again and again, until the other end of a pipe is closed."""
    pause = _SHORTEST
    while True:
        began = time.monotonic()
        proxy = multiprocessing.get_context("spawn").Process(target=_run, args=(raw,), daemon=True)
        proxy.start()
        wait([proxy.sentinel, over])
        if over.poll():
            proxy.terminate()
            proxy.join()
            return
        proxy.join()
        pause = _SHORTEST if time.monotonic() - began > _LONGEST else min(2 * pause, _LONGEST)
        log.error(
            "the REST proxy of this worker has ended with exit code %s, and starts again in %.0f s",
            *(proxy.exitcode, pause),
        )
        if over.poll(pause):
            return


def _run(raw: Mapping[str, str]) -> None:
    """The process of the proxy. It ends with the worker."""
    start_log(console(stderr=True), LogFormat.JSON if logs_json() else LogFormat.TEXT)
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it, too, but the worker ends it
    signal.signal(signal.SIGTERM, setting(stop))
    threading.Thread(target=_outlive, args=(stop,), daemon=True).start()
    try:
        serve(read(ProxyConfig, raw), stop)
    except SemelError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)


def _outlive(stop: threading.Event) -> None:
    """Stop once the parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    stop.set()
