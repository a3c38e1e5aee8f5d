"""The proxy as a server: its start, all routes, the bodies of errors, and its metrics."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import Context
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from semel.config.proxy import ProxyConfig
from semel.core.abandoned import abandoned
from semel.core.errors import SemelError
from semel.core.quoting import harmless
from semel.core.redact import redacted
from semel.proxy import reads
from semel.proxy.bodies import JSON, media_of, problem, written
from semel.proxy.consumers import OtherProxy, Sessions
from semel.proxy.errors import Refusal
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka
from semel.proxy.keyed import KeyedRequests
from semel.proxy.logins import Clients, clients_of_users
from semel.proxy.reading import Readers
from semel.proxy.v2 import consumers, topics
from semel.proxy.v3 import Shapes, acls, configs, groups, records
from semel.proxy.v3 import topics as topics_v3
from semel.worker.rest.guard import USER, guarded
from semel.worker.rest.jersey import path_of
from semel.worker.rest.server import RestServer, add_metrics, sites_of, warn
from semel.worker.rest.tls import LISTENERS
from semel.worker.rest.users import users

_STREAMS = re.compile(r"/v3/clusters/[^/]+/topics/[^/]+/records/*")
"""Paths whose bodies have no end."""
_GROUPS = re.compile(r"/v3/clusters/[^/]+/consumer-groups/.*", re.DOTALL)
"""Paths with names that may contain slashes; none of them is one of the above."""
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_LOOKS_EVERY = 1.0
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
"""The bounds of the histogram of requests."""


@contextmanager
def serving(config: ProxyConfig) -> Iterator[RestServer]:
    """Serve the API within a ``with`` statement.

    Raises:
        ConfigError: a setting, a certificate or a file of users cannot be used.
        ServiceError: a listener's address cannot be used.
    """
    known = users(config)
    kafka = Kafka(config, clients_of_users(config, known))
    try:
        proxy = Proxy(kafka, Formats(config))
        app = guarded(application(proxy), config, known, _STREAMS)
        sites = sites_of(app, config, config.listeners, LISTENERS)
        warn(sites, known, "reads and writes in Kafka as the proxy")
        with RestServer(sites, proxy.close) as server:
            yield server
        proxy.keyed.close()
        proxy.readers.close()
    finally:
        kafka.close()


def check(config: ProxyConfig) -> None:
    """Read certificates, users and logins as :func:`serving` will.

    Raises:
        ConfigError: one is missing, or cannot be used.
    """
    clients_of_users(config, users(config))
    Clients(config)
    Formats(config)
    sites_of(None, config, config.listeners, LISTENERS)


class Proxy:
    """What serves the routes, from the start until it is closed."""

    def __init__(self, kafka: Kafka, formats: Formats) -> None:
        self.kafka = kafka
        self.formats = formats
        self.sessions = Sessions(kafka)
        self.readers = Readers(kafka)
        self.keyed = KeyedRequests(kafka)

    async def tend(self) -> None:
        """Close what has been idle for too long, from now on."""
        while True:
            await asyncio.sleep(_LOOKS_EVERY)
            oldest = time.monotonic() - self.kafka.config.instance_timeout_ms / 1000
            for clients in (self.sessions, self.readers, self.kafka):
                with suppress(Refusal):  # Kafka is busy
                    await clients.close_idle(oldest)

    async def close(self) -> None:
        """Leave all groups."""
        await self.sessions.close()


def application(proxy: Proxy) -> FastAPI:
    """The API of a proxy."""
    figures = _Figures(lambda: len(proxy.sessions))
    app = FastAPI(
        title="semel REST Proxy",
        version=version("semel"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.max_records = proxy.kafka.config.max_records
    _errors(app)
    for router in (
        topics.routes(proxy.kafka, proxy.formats, proxy.keyed),
        consumers.routes(proxy.kafka, proxy.formats, proxy.sessions),
    ):
        app.include_router(router, tags=["v2"])
    app.include_router(reads.routes(proxy.kafka, proxy.formats, proxy.readers), tags=["semel"])
    shapes = Shapes(proxy.kafka)
    for router in (
        topics_v3.routes(proxy.kafka, shapes),
        configs.routes(proxy.kafka, shapes),
        groups.routes(proxy.kafka, shapes),
        acls.routes(proxy.kafka, shapes),
        records.routes(proxy.kafka, proxy.formats, proxy.keyed, shapes),
    ):
        app.include_router(router, tags=["v3"])

    @app.get("/health", tags=["semel"])
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    add_metrics(app, figures.registry)
    app.add_middleware(_UserMiddleware, proxy=proxy)
    app.add_middleware(_RequestCounter, figures=figures)
    return app


class _UserMiddleware:
    """Serves each request with the login of its user, from the first one on. A slash at the end of
    a path means nothing."""

    def __init__(self, app: ASGIApp, proxy: Proxy) -> None:
        self._app = app
        self._proxy = proxy
        self._tending: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tending is None:
            self._tending = asyncio.create_task(self._proxy.tend(), context=Context())
        path = scope.get("path", "")
        if _GROUPS.fullmatch(path):
            path = path_of(scope)
        scope["path"] = path.rstrip("/") or "/"
        user = scope.get("state", {}).get(USER)
        async with AsyncExitStack() as end:
            try:
                await end.enter_async_context(self._proxy.kafka.acting_as(user))
            except Refusal as refused:
                await _response(Request(scope), refused)(scope, receive, send)
            else:
                await self._app(scope, receive, send)


def _errors(app: FastAPI) -> None:
    """Give every error the body of Confluent's: a code and a message."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return _response(request, error)

    @app.exception_handler(OtherProxy)
    async def elsewhere(request: Request, error: OtherProxy) -> Response:
        path = request.scope["raw_path"].decode("ascii")
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{error.url}{path}{query}", 307)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        why = f"HTTP {error.status_code} {error.detail}"
        headers = {"Allow": _allowed(request)} if error.status_code == 405 else None
        return _response(request, Refusal(error.status_code, why, headers=headers))

    @app.exception_handler(RequestValidationError)
    async def unreadable(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        what, *where = first["loc"]
        why = problem(where, first)
        if what == "path":
            return _response(request, Refusal(404, "HTTP 404 Not Found"))
        if what in ("query", "header") or _is_v3(request):
            return _response(request, Refusal(400, why))
        return _response(request, Refusal(422, f"Payload error. {why}", 42206))

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody reads it

    @app.exception_handler(SemelError)
    async def failed(request: Request, error: SemelError) -> Response:
        return _response(request, Refusal(500, str(error), 50002))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return _response(request, Refusal(500, redacted(f"{type(error).__name__}: {error}"), 50002))


def _response(request: Request, refused: Refusal) -> Response:
    kind = media_of(request).answer
    if _is_v3(request):
        kind, refused = JSON, refused.in_v3
    body = {"error_code": refused.code, "message": harmless(str(refused))}
    return Response(written(body), refused.status, refused.headers, kind)


def _allowed(request: Request) -> str:
    """The methods that the path of a request has."""

    def fits(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] == Match.FULL for route in request.app.routes)

    return ", ".join(filter(fits, _METHODS))


def _is_v3(request: Request) -> bool:
    return f"{request.url.path}/".startswith("/v3/")


class _Figures:
    """The metrics of one proxy."""

    def __init__(self, consumers: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "semel_rest_requests",
            "Requests by path, method and status.",
            ("path", "method", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "semel_rest_request_seconds",
            "From the headers of a request to the end of its answer.",
            ("path", "method"),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.open = Gauge("semel_rest_requests_open", "Requests in hand.", registry=self.registry)
        alive = Gauge("semel_rest_consumers", "Consumer instances.", registry=self.registry)
        alive.set_function(consumers)
        stuck = Gauge(
            "semel_rest_calls_abandoned",
            "Calls to Kafka that have not returned in time; each keeps its memory.",
            registry=self.registry,
        )
        stuck.set_function(lambda: len(abandoned()))


class _RequestCounter:
    """Counts requests by the templates of their paths: there are few of those."""

    def __init__(self, app: ASGIApp, figures: _Figures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._figures.open.inc()
        try:
            await self._app(scope, receive, noted)
        finally:
            self._figures.open.dec()
            route = scope.get("route")
            path, method = getattr(route, "path", "other"), scope["method"]
            if method not in (getattr(route, "methods", None) or ()):  # a client may invent more
                method = "other"
            self._figures.requests.labels(path, method, str(status)).inc()
            self._figures.seconds.labels(path, method).observe(time.perf_counter() - began)
