"""The application: all routes, and the bodies of errors."""

from __future__ import annotations

import re

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from semel.core.errors import SemelError
from semel.core.quoting import harmless
from semel.core.redact import redacted
from semel.proxy import reads
from semel.proxy.bodies import written
from semel.proxy.consumers import Elsewhere, Sessions
from semel.proxy.errors import Refusal
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka
from semel.proxy.keyed import Keyed
from semel.proxy.media import JSON, answer, media_of, negotiated
from semel.proxy.metrics import Counted, Figures
from semel.proxy.reading import Readers
from semel.proxy.v2 import consumers, produce, topics
from semel.proxy.v3 import acls, clusters, configs, groups, records
from semel.proxy.v3 import topics as topics_v3
from semel.proxy.v3.shapes import Shapes
from semel.worker.rest.sites import add_metrics

STREAMS = re.compile(r"/v3/clusters/[^/]+/topics/[^/]+/records/?")
"""Paths whose bodies have no end."""
_ADMIN = re.compile(r"/v3/.*(?<!/records)(?<!/records:batch)")
"""Paths of v3 where Confluent answers a malformed body with 400."""
_V3 = {40401: 40403, 40402: 40403}
"""Codes that are others in v3."""


class Proxy:
    """What serves the routes, from the start until it is closed."""

    def __init__(self, kafka: Kafka, formats: Formats) -> None:
        self.kafka = kafka
        self.formats = formats
        self.sessions = Sessions(kafka)
        self.readers = Readers(kafka)
        self.keyed = Keyed(kafka)

    async def close(self) -> None:
        """Leave all groups."""
        await self.sessions.close()


def application(proxy: Proxy, version: str) -> FastAPI:
    """The API of a proxy."""
    figures = Figures(lambda: len(proxy.sessions))
    app = FastAPI(title="semel REST Proxy", version=version, docs_url=None, redoc_url=None)
    _errors(app)
    v2 = [Depends(negotiated)]
    app.include_router(topics.routes(proxy.kafka), dependencies=v2, tags=["v2"])
    app.include_router(
        produce.routes(proxy.kafka, proxy.formats, proxy.keyed), dependencies=v2, tags=["v2"]
    )
    app.include_router(
        consumers.routes(proxy.kafka, proxy.formats, proxy.sessions), dependencies=v2, tags=["v2"]
    )

    app.include_router(reads.routes(proxy.kafka, proxy.formats, proxy.readers), tags=["semel"])
    shapes = Shapes(proxy.kafka)
    for router in (
        clusters.routes(proxy.kafka, shapes),
        configs.routes(proxy.kafka, shapes),
        topics_v3.routes(proxy.kafka, shapes),
        groups.routes(proxy.kafka, shapes),
        acls.routes(proxy.kafka, shapes),
        records.routes(proxy.kafka, proxy.formats, proxy.keyed, shapes),
    ):
        app.include_router(router, tags=["v3"])

    @app.get("/", dependencies=v2, tags=["v2"])
    async def root(request: Request) -> Response:
        return answer(request, {})

    @app.get("/health", tags=["semel"])
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    add_metrics(app, figures.registry)
    app.add_middleware(Counted, figures=figures)
    return app


def _errors(app: FastAPI) -> None:
    """Give every error the body of Confluent's: a code and a message."""

    def told(request: Request, refused: Refusal) -> Response:
        is_v3 = request.url.path.startswith("/v3/")
        kind = JSON if is_v3 else media_of(request).answer
        code = _V3.get(refused.code, refused.code) if is_v3 else refused.code
        body = {"error_code": code, "message": harmless(str(refused))}
        return Response(written(body), refused.status, refused.headers, kind)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return told(request, error)

    @app.exception_handler(Elsewhere)
    async def elsewhere(request: Request, error: Elsewhere) -> Response:
        path = request.scope["raw_path"].decode("ascii")
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{error.url}{path}{query}", 307)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return told(request, Refusal(error.status_code, f"HTTP {error.status_code} {error.detail}"))

    @app.exception_handler(RequestValidationError)
    async def unreadable(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        why = f"{where}: {first['msg']}" if where else str(first["msg"])
        if first["loc"][0] == "path":
            return told(request, Refusal(404, "HTTP 404 Not Found"))
        if first["loc"][0] == "query" or _ADMIN.fullmatch(request.url.path):
            return told(request, Refusal(400, why))
        return told(request, Refusal(422, f"Payload error. {why}", 42206))

    @app.exception_handler(SemelError)
    async def failed(request: Request, error: SemelError) -> Response:
        return told(request, Refusal(500, str(error), 50002))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return told(request, Refusal(500, redacted(f"{type(error).__name__}: {error}"), 50002))
