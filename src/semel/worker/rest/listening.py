"""Starts a worker's REST API as configured: where it listens, and what it requires."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from semel.config.rest import AUTHENTICATION, RestConfig, header_rules
from semel.config.worker import WorkerConfig
from semel.driver.runtime import Runtime
from semel.driver.states import Waiting
from semel.kafka.cluster import Cluster
from semel.worker.audits import Audits
from semel.worker.herder import Herder
from semel.worker.loggers import RecentLines
from semel.worker.metrics.collector import registry
from semel.worker.metrics.lags import Lags, waits
from semel.worker.metrics.observed import of_runtime
from semel.worker.page import add_page
from semel.worker.page.history import History
from semel.worker.page.site import Known
from semel.worker.rest.app import admin_application, application
from semel.worker.rest.guard import ExtraHeaders, Guard, Hosts, Limit
from semel.worker.rest.insight import add_metrics, add_semel
from semel.worker.rest.jersey import LikeJersey
from semel.worker.rest.server import RestServer, Site
from semel.worker.rest.tls import ADMIN, LISTENERS, server_context
from semel.worker.rest.token import is_local, where
from semel.worker.rest.users import Users, users

log = logging.getLogger(__name__)

_METHODS = "GET,POST,HEAD"
_HEADERS = ("X-Requested-With", "Content-Type", "Accept", "Origin", "Authorization")


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
    audits = Audits()
    routes = application(herder, worker, cluster, known)
    lags = Lags()

    def waiting() -> Mapping[str, Waiting]:
        found = of_runtime(runtime)
        lags.of(found)
        return waits(found, lags)

    lines = RecentLines()
    add_semel(routes, herder, audits, waiting, lines)
    figures = registry(lambda: of_runtime(runtime), audits.figures, lambda: herder.rebalances, lags)
    add_metrics(routes, figures)
    history = History(lambda: of_runtime(runtime), lags)
    add_page(routes, Known(herder, audits, lines, history, known))
    app = _guarded(routes, worker, known)
    sites = _sites(app, worker, worker.listeners, LISTENERS)
    if worker.admin_listeners:
        admin = _checked(admin_application(herder, worker, known), worker, known)
        sites += _sites(admin, worker, worker.admin_listeners, ADMIN)
    _warn(sites, known)
    with RestServer(sites) as server, audits, history:
        logging.root.addHandler(lines)
        try:
            yield server
        finally:
            logging.root.removeHandler(lines)


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
    app = _checked(app, config, known)
    if config.allowed_origin:
        app = _with_origins(app, config)
    rules = header_rules(config.response_headers)
    return ExtraHeaders(app, rules) if rules else app


def _checked(app: ASGIApp, config: RestConfig, known: Users) -> ASGIApp:
    anonymous = config.anonymous_paths or (() if known.are_configured else ("/health",))
    app = Guard(Limit(LikeJersey(app), config.max_request_bytes), known, anonymous)
    # A browser sends no login to another name.
    hosts = ("*",) if known.are_configured else config.hosts
    return Hosts(app, hosts, _origins(config), needed=known.are_asked)


def _origins(config: RestConfig) -> re.Pattern[str]:
    """The origins whose pages may ask, with ``*`` for any characters."""
    given = filter(None, map(str.strip, config.allowed_origin.split(",")))
    return re.compile("|".join(re.escape(each).replace(r"\*", ".*") for each in given) or "(?!)")


def _with_origins(app: ASGIApp, config: RestConfig) -> ASGIApp:
    methods = config.allowed_methods or _METHODS
    return CORSMiddleware(
        app,
        allow_origin_regex=_origins(config).pattern,
        allow_methods=[method.strip() for method in methods.split(",")],
        allow_headers=_HEADERS,
        allow_credentials=True,
    )


def _warn(sites: list[Site], known: Users) -> None:
    for site in sites:
        if not known.are_asked and (site.tls is None or not site.tls.verify_mode):
            who = "any user of this machine" if _is_own(site) else "anyone who can reach it"
            log.warning("%s has no login: %s controls this worker", site.listener, who)
        elif site.tls is None and known.are_asked and not _is_own(site):
            log.warning("%s is not encrypted: passwords and tokens can be read", site.listener)
    if known.default_token:
        log.info("requests need the token in %s (%s=none turns it off)", where(), AUTHENTICATION)


def _is_own(site: Site) -> bool:
    """Whether only this machine can reach it."""
    return is_local(urlsplit(site.listener).hostname or "")
