"""What the proxy reports to Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Receive, Scope, Send

from semel.core.abandoned import abandoned

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Figures:
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


class RequestCounter:
    """Counts requests by the templates of their paths: there are few of those."""

    def __init__(self, app: ASGIApp, figures: Figures) -> None:
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
            method = method if route is not None else "other"
            self._figures.requests.labels(path, method, str(status)).inc()
            self._figures.seconds.labels(path, method).observe(time.perf_counter() - began)
