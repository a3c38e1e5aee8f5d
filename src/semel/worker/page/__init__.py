"""The worker's page, ``/ui``: what runs, what is wrong, and the way to put it right.

It is rendered here, and its links and forms work without a script. It asks the same herder as the
REST API, so roles, refusals and hidden secrets are the same.
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from semel.core.quoting import named
from semel.worker.errors import NotFound
from semel.worker.page import connector, editing, overview, positions, site
from semel.worker.page.site import PageContext


def add_page(app: FastAPI, context: PageContext) -> None:
    """Add the page to a worker's API."""
    app.include_router(router(context))
    app.add_middleware(site.OriginGuard)


def router(context: PageContext) -> APIRouter:
    """Its routes, which are none of the API's."""
    routes = APIRouter(prefix="/ui", route_class=site.Route, include_in_schema=False)
    for part in (overview, connector, positions, editing, site):
        part.add(routes, context)

    @routes.get("/{path:path}")
    def unknown(path: str) -> Response:
        if not path:
            return site.see("")
        raise NotFound(f"There is no page {named(path)}")

    return routes
