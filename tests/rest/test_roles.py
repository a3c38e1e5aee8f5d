"""What a role may do is the table in docs/worker.md, request by request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from semel.config import read
from semel.config.worker import WorkerConfig
from semel.driver.runtime import Runtime
from semel.worker.alone import StandaloneHerder
from semel.worker.page import router
from semel.worker.page.site import PageContext
from semel.worker.rest.app import application
from semel.worker.rest.insight import add_semel
from semel.worker.rest.listening import serving
from semel.worker.rest.server import add_metrics
from semel_lab.embedded.process import LOOPBACK
from tests.engine.harness import LocalSpark
from tests.patience import PATIENCE
from tests.rest.test_security import HTTP, users  # noqa: F401

PAGE = Path(__file__).parents[2] / "docs" / "worker.md"
NOBODY, READER, WRITER = None, ("grace", "hop:per"), ("ada", "lovelace")
OPEN = "/health"


def table() -> dict[tuple[str, str], tuple[bool, bool]]:
    """Whether a reader and a writer may send a request, by method and path."""
    found = {}
    text = PAGE.read_text().partition("| request | reader | writer |\n")[2].partition("\n\n")[0]
    for row in text.splitlines()[1:]:
        requests, reader, writer = (cell.strip() for cell in row.strip("|").split("|"))
        names = re.findall(r"[A-Z]+|/[^`, ]*", requests)
        for method in (name for name in names if name[0] != "/"):
            for path in (name for name in names if name[0] == "/"):
                found[method, path] = reader == "yes", writer == "yes"
    return found


def routes() -> set[tuple[str, str]]:
    config = read(WorkerConfig, {})
    nothing = cast(Any, None)
    app = application(nothing, config, nothing, nothing)
    add_semel(app, nothing, nothing, nothing, nothing)
    add_metrics(app, CollectorRegistry())
    described = app.openapi()["paths"].items()
    pages = cast(list[APIRoute], router(PageContext(*[nothing] * 6)).routes)
    return {(method.upper(), path) for path, item in described for method in item} | {
        (method, page.path)
        for page in pages
        for method in page.methods
        if page.path != "/ui/{path:path}"  # answers that there is no such page
    }


@pytest.fixture
def api(users: dict[str, str]) -> Iterator[httpx.Client]:  # noqa: F811
    config = read(WorkerConfig, {"listeners": HTTP, **users})
    cluster = cast(Any, SimpleNamespace(cluster_id=lambda: "some"))
    with (
        Runtime(cast(Any, LocalSpark())) as runtime,
        serving(StandaloneHerder(runtime, config), config, cluster, runtime) as server,
        httpx.Client(base_url=f"http://{LOOPBACK}:{server.ports[0]}", timeout=PATIENCE) as client,
    ):
        yield client


def test_the_table_has_every_request() -> None:
    assert set(table()) == routes() | {("GET", "/openapi.json")}


def test_a_role_may_do_what_the_table_says(api: httpx.Client) -> None:
    for (method, path), (reader, writer) in table().items():
        place = re.sub(r"\{\w+\}", "0", path)
        body = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
        for who, may in ((NOBODY, path == OPEN), (READER, reader), (WRITER, writer)):
            code = api.request(method, place, auth=who, **cast(Any, body)).status_code
            assert (code not in (401, 403)) == may, (method, path, who, code)
            assert who is not NOBODY or may or code == 401
