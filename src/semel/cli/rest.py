"""``semel rest``: Kafka over HTTP."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.application import Format, LogFormat, start_log
from semel.cli.connector import setting
from semel.cli.console import console
from semel.cli.worker import IGNORED as WORKERS
from semel.cli.worker import PACKAGES
from semel.config import check_keys, load, read, resolved
from semel.config.extras import require
from semel.config.proxy import ProxyConfig
from semel.kafka.clients import NETWORK

log = logging.getLogger("semel")

PASSED_ON = (
    *("security.", "sasl.", "ssl.", *NETWORK),
    *("client.", "consumer.", "producer.", "admin."),
    *("listeners.https.", "schema.registry.", "config.providers"),
)
"""Prefixes of the keys that are for clients."""
IGNORED = {
    **{name: why for name, why in WORKERS.items() if name.startswith("metric")},
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
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, setting(stop))
    from semel.kafka.clients import proxy_client
    from semel.kafka.cluster import wait_for_brokers
    from semel.proxy.serving import serving

    client = proxy_client(config, "admin")
    wait_for_brokers(client, say=lambda line: log.warning("%s", line))
    with serving(config) as server:
        log.info("REST proxy %s listens on port %s", config.url, ", ".join(map(str, server.ports)))
        stop.wait()
        log.info("REST proxy %s stops", config.url)
