"""Starts a worker's REST API as configured: where it listens, and what it requires."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from semel.config.rest import RestConfig, header_rules
from semel.config.worker import WorkerConfig
from semel.connect.audits import Audits
from semel.connect.herder import Herder
from semel.kafka.cluster import Cluster
from semel.metrics.collector import registry
from semel.metrics.observed import of_runtime
from semel.rest.app import admin_application, application
from semel.rest.guard import ExtraHeaders, Guard, Limit
from semel.rest.insight import add_metrics, add_semel
from semel.rest.jersey import LikeJersey
from semel.rest.server import RestServer, Site
from semel.rest.tls import ADMIN, LISTENERS, server_context
from semel.rest.users import Users, users
from semel.runtime import Runtime

log = logging.getLogger(__name__)

_METHODS = "GET,POST,HEAD"
_HEADERS = ("X-Requested-With", "Content-Type", "Accept", "Origin", "Authorization")
_LOCAL = ("localhost", "127.0.0.1", "::1")


@contextmanager
def serving(
    herder: Herder, worker: WorkerConfig, cluster: Cluster, runtime: Runtime
) -> Iterator[RestServer]:
    """Serve a worker's API within a ``with`` statement.

    Raises:
        ConfigError: a certificate, or a file of users, is missing or cannot be used.
        ServiceError: a listener's address cannot be used.
    """
    known = users(worker)
    audits = Audits()
    routes = application(herder, worker, cluster)
    add_semel(routes, herder, audits)
    figures = registry(lambda: of_runtime(runtime), audits.figures, lambda: herder.rebalances)
    add_metrics(routes, figures)
    app = _guarded(routes, worker, known)
    sites = _sites(app, worker, worker.listeners, LISTENERS)
    if worker.admin_listeners:
        served = Limit(LikeJersey(admin_application(herder, worker)), worker.max_request_bytes)
        admin: ASGIApp = Guard(served, known, worker.anonymous_paths)
        sites += _sites(admin, worker, worker.admin_listeners, ADMIN)
    _warn(sites, known)
    with RestServer(sites) as server, audits:
        yield server


def check(worker: WorkerConfig) -> None:
    """Read certificates and users as :func:`serving` will.

    Raises:
        ConfigError: one is missing, or cannot be used.
    """
    users(worker)
    _sites(None, worker, worker.listeners, LISTENERS)
    if worker.admin_listeners:
        _sites(None, worker, worker.admin_listeners, ADMIN)


def _sites(app: Any, config: RestConfig, listeners: tuple[str, ...], prefix: str) -> list[Site]:
    encrypted = any(urlsplit(each).scheme.lower() == "https" for each in listeners)
    tls = server_context(config, prefix) if encrypted else None
    return [
        Site(app, each, tls if each.lower().startswith("https:") else None, config.max_connections)
        for each in listeners
    ]


def _guarded(app: ASGIApp, config: RestConfig, known: Users) -> ASGIApp:
    """The application behind its checks; as with Kafka Connect, browsers' preflights are answered
    before them."""
    app = Limit(LikeJersey(app), config.max_request_bytes)
    app = Guard(app, known, config.anonymous_paths)
    if config.allowed_origin:
        app = _with_origins(app, config)
    rules = header_rules(config.response_headers)
    return ExtraHeaders(app, rules) if rules else app


def _with_origins(app: ASGIApp, config: RestConfig) -> ASGIApp:
    origins = [origin.strip() for origin in config.allowed_origin.split(",")]
    patterns = [re.escape(o).replace(r"\*", ".*") for o in origins if "*" in o and o != "*"]
    methods = config.allowed_methods or _METHODS
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_origin_regex="|".join(patterns) or None,
        allow_methods=[method.strip() for method in methods.split(",")],
        allow_headers=_HEADERS,
        allow_credentials=True,
    )


def _warn(sites: list[Site], known: Users) -> None:
    for site in sites:
        host = urlsplit(site.listener).hostname or ""
        if host in _LOCAL:
            continue
        if site.tls is None and known.are_asked:
            log.warning("%s is not encrypted: passwords and tokens can be read", site.listener)
        elif not known.are_asked and (site.tls is None or not site.tls.verify_mode):
            log.warning(
                "%s has no login: anyone who can reach it controls this worker", site.listener
            )
