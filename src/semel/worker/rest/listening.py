"""Starts a worker's REST API as configured: where it listens, and what it requires."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastapi import FastAPI

from semel.config.worker import WorkerConfig
from semel.driver.base import Wait
from semel.driver.runtime import Runtime
from semel.kafka.cluster import Cluster
from semel.worker.audits import Audits
from semel.worker.herder import Herder
from semel.worker.loggers import RecentLines
from semel.worker.metrics import registry
from semel.worker.observed import Lags, of_runtime, waits
from semel.worker.page import add_page
from semel.worker.page.figures import History, Peers
from semel.worker.page.site import PageContext
from semel.worker.rest.app import admin_application, application
from semel.worker.rest.guard import checked, guarded
from semel.worker.rest.insight import add_semel
from semel.worker.rest.server import RestServer, add_metrics, sites_of, warn
from semel.worker.rest.tls import ADMIN, LISTENERS
from semel.worker.rest.users import users


@contextmanager
def serving(
    herder: Herder, worker: WorkerConfig, cluster: Cluster, runtime: Runtime
) -> Iterator[RestServer]:
    """Serve a worker's API within a ``with`` statement.

    Raises:
        ConfigError: a certificate, or a file of users, is missing or cannot be used.
        ServiceError: a listener's address cannot be used.
    """
    known = users(worker, herder.peer_token)
    audits = Audits(herder.connectors)
    routes = application(herder, worker, cluster, known)
    lags = Lags()

    def waiting() -> Mapping[str, Wait]:
        observed = of_runtime(runtime)
        lags.of(observed)
        return waits(observed, lags)

    lines = RecentLines()
    add_semel(routes, herder, audits, waiting, lines)
    figures = registry(lambda: of_runtime(runtime), audits.figures, lambda: herder.rebalances, lags)
    add_metrics(routes, figures)
    history = History(lambda: of_runtime(runtime), lags)
    peers = Peers(worker, lambda: known.peer_token() if known.default_token else "")
    add_page(routes, PageContext(herder, audits, lines, history, known, peers))
    app = guarded(routes, worker, known)
    sites = sites_of(app, worker, worker.listeners, LISTENERS)
    if worker.admin_listeners:
        admin = checked(admin_application(herder, worker, known), worker, known)
        sites += sites_of(admin, worker, worker.admin_listeners, ADMIN)
    warn(sites, known)
    with RestServer(sites) as server, audits, history:
        logging.root.addHandler(lines)
        try:
            yield server
        finally:
            logging.root.removeHandler(lines)


@contextmanager
def relaying(herder: Herder, worker: WorkerConfig) -> Iterator[RestServer]:
    """Serve the page alone, for connectors that other workers run. Raises as :func:`serving`."""
    known = users(worker)
    routes = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    audits, history = Audits(herder.connectors), History(list, Lags())
    add_page(routes, PageContext(herder, audits, RecentLines(), history, known, Peers(worker)))
    sites = sites_of(guarded(routes, worker, known), worker, worker.listeners, LISTENERS)
    warn(sites, known)
    with RestServer(sites) as server:
        yield server


def check(worker: WorkerConfig) -> None:
    """Read certificates and users as :func:`serving` will.

    Raises:
        ConfigError: one is missing, or cannot be used.
    """
    users(worker)
    sites_of(None, worker, worker.listeners, LISTENERS)
    if worker.admin_listeners:
        sites_of(None, worker, worker.admin_listeners, ADMIN)
