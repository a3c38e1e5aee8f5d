"""``semel run --metrics-port``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from semel.config.extras import require
from semel.core.errors import ConfigError, ServiceError

if TYPE_CHECKING:
    from semel.driver.runtime import Runtime

log = logging.getLogger("semel")

MetricsPort = Annotated[
    str,
    typer.Option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve /metrics for Prometheus there; without a host, on this machine only.",
    ),
]


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
    host, number = _address(port)
    require("--metrics-port", "metrics", {"prometheus_client": "prometheus-client"})
    from prometheus_client import start_http_server

    from semel.worker.metrics.collector import registry
    from semel.worker.metrics.observed import of_runtime

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


def _address(given: str) -> tuple[str, int]:
    host, colon, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--metrics-port {given}: give PORT or HOST:PORT, such as 0.0.0.0:9400")
    return (host.strip("[]") or "0.0.0.0") if colon else "127.0.0.1", int(port)
