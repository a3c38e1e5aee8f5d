"""What every REST API has: its listeners, its checks, and its metrics."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from semel.config.rest import AUTHENTICATION, RestConfig, header_rules
from semel.worker.rest.guard import ExtraHeaders, Guard, Hosts, Limit
from semel.worker.rest.jersey import JerseyMiddleware
from semel.worker.rest.server import Site
from semel.worker.rest.tls import server_context
from semel.worker.rest.token import is_local, where
from semel.worker.rest.users import Users

log = logging.getLogger(__name__)

_METHODS = "GET,POST,HEAD"
_HEADERS = ("X-Requested-With", "Content-Type", "Accept", "Origin", "Authorization")
_NO_STREAMS = re.compile("(?!)")


def sites_of(app: Any, config: RestConfig, listeners: tuple[str, ...], prefix: str) -> list[Site]:
    """Where an application listens. Raises ConfigError: a certificate cannot be used."""
    encrypted = any(urlsplit(each).scheme.lower() == "https" for each in listeners)
    tls = server_context(config, prefix) if encrypted else None
    return [
        Site(app, each, tls if each.lower().startswith("https:") else None, config.max_connections)
        for each in listeners
    ]


def guarded(
    app: ASGIApp, config: RestConfig, known: Users, streams: re.Pattern[str] = _NO_STREAMS
) -> ASGIApp:
    """The application behind its checks; as with Kafka Connect, browsers' preflights are answered
    before them. ``streams`` matches the paths whose bodies have no end."""
    app = checked(app, config, known, streams)
    if config.allowed_origin:
        app = _with_origins(app, config)
    rules = header_rules(config.response_headers)
    return ExtraHeaders(app, rules) if rules else app


def checked(
    app: ASGIApp, config: RestConfig, known: Users, streams: re.Pattern[str] = _NO_STREAMS
) -> ASGIApp:
    """The application behind what keeps others out."""
    anonymous = config.anonymous_paths or (() if known.are_configured else ("/health",))
    app = Limit(JerseyMiddleware(app), config.max_request_bytes, streams)
    app = Guard(app, known, anonymous, config.changes_logged_at)
    # A browser sends no login to another name.
    hosts = ("*",) if known.are_configured else config.hosts
    return Hosts(app, hosts, _origins(config), needed=known.are_asked)


def _origins(config: RestConfig) -> re.Pattern[str]:
    """The origins whose pages may ask, with ``*`` for any characters."""
    origins = filter(None, map(str.strip, config.allowed_origin.split(",")))
    return re.compile("|".join(re.escape(each).replace(r"\*", ".*") for each in origins) or "(?!)")


def _with_origins(app: ASGIApp, config: RestConfig) -> ASGIApp:
    methods = config.allowed_methods or _METHODS
    return CORSMiddleware(
        app,
        allow_origin_regex=_origins(config).pattern,
        allow_methods=[method.strip() for method in methods.split(",")],
        allow_headers=_HEADERS,
        allow_credentials=True,
    )


def warn(sites: list[Site], known: Users, may: str = "controls this worker") -> None:
    """Say who can use these listeners, and what they may, if that is more than the configuration's
    users."""
    for site in sites:
        if not known.are_asked and (site.tls is None or not site.tls.verify_mode):
            who = "any user of this machine" if _is_own(site) else "anyone who can reach it"
            log.warning("%s has no login: %s %s", site.listener, who, may)
        elif site.tls is None and known.are_asked and not _is_own(site):
            log.warning("%s is not encrypted: passwords and tokens can be read", site.listener)
    if known.default_token:
        log.info("requests need the token in %s (%s=none turns it off)", where(), AUTHENTICATION)


def _is_own(site: Site) -> bool:
    """Whether only this machine can reach it."""
    return is_local(urlsplit(site.listener).hostname or "")


def add_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    """What Prometheus scrapes. Other calls may fill the pool of threads, so it uses another."""

    @app.get("/metrics")
    async def metrics() -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)
