"""The application: one function per endpoint, in the order of Kafka Connect's documentation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import quote

import httpx
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from semel.config.definition import check_name, check_value, text_of
from semel.config.reading import BLANKS
from semel.config.rest import RestConfig
from semel.config.worker import WorkerConfig
from semel.core.answers import MOST, too_large
from semel.core.context import CONNECTOR
from semel.core.errors import SemelError, ServiceError, TransientError
from semel.core.quoting import harmless
from semel.core.redact import redacted
from semel.driver.base import State
from semel.kafka.cluster import Cluster
from semel.worker import loggers, plugins
from semel.worker.errors import BadRequest, NotFound, OtherWorker, RequestError
from semel.worker.herder import Herder
from semel.worker.rest.guard import USER
from semel.worker.rest.jersey import Name, Number, Route
from semel.worker.rest.tls import client_context
from semel.worker.rest.users import Users
from semel.worker.secrets import kept, shown

VERSION = "4.3.1"
"""The version of Kafka Connect whose API this is: clients read it."""
_TIMEOUT = 90.0
_HOP = "forward"
_REQUEST_HEADERS = ("accept", "authorization", "content-type")
_ANSWER_HEADERS = ("content-type", "location")


def _text(value: Any) -> Any:
    """A configuration value as Jackson reads it: numbers and booleans become strings."""
    return text_of(value) if isinstance(value, bool | int | float) else value


def _is_true(value: Any) -> bool:
    """A flag as Jersey reads it: whatever is not true is false."""
    return str(value).lower() == "true"


def _texts(value: Any) -> Any:
    """A body whose texts have been checked, however deep in it they are."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            check_value(part)
        elif isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list):
            waiting += part
    return value


Value = Annotated[str, BeforeValidator(_text), AfterValidator(check_value)]
Key = Annotated[str, AfterValidator(check_name)]
Config = dict[Key, Value]
Body = Annotated[dict[str, Any], AfterValidator(_texts)]
Flag = Annotated[bool, BeforeValidator(_is_true)]
_ABOUT = re.compile(r"/(?:semel/)?connectors/([^/]+)")
RequestConfig = dict[Key, Value | None]
"""A configuration in a request: a null is a mistake, or removes a key."""
TaskNumber = Annotated[Number, Path()]


class CreateConnector(BaseModel):
    """The body of ``POST /connectors``."""

    name: Value | None = None
    config: RequestConfig
    initial_state: Value | None = None


class Level(BaseModel):
    """The body of ``PUT /admin/loggers/{logger}``."""

    level: Value | None = None


def application(herder: Herder, worker: WorkerConfig, cluster: Cluster, users: Users) -> FastAPI:
    """The API of a worker."""
    app = FastAPI(title="semel", version=plugins.VERSION, docs_url=None, redoc_url=None)
    app.add_middleware(_LogContext)
    app.router.route_class = Route
    _errors(app, worker, users)
    _root(app, herder, cluster)
    _connectors(app, herder)
    _states(app, herder)
    _offsets(app, herder)
    _plugins(app, herder)
    if worker.admin_listeners is None:
        _admin(app, herder)
    return app


class _LogContext:
    """Notes the connector that a request is about, for log lines."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if named := _ABOUT.match(scope.get("path", "")):
            CONNECTOR.set(named[1])
        await self._app(scope, receive, send)


def admin_application(herder: Herder, worker: WorkerConfig, users: Users) -> FastAPI:
    """What ``admin.listeners`` answer."""
    app = FastAPI(title="semel", version=plugins.VERSION, docs_url=None, redoc_url=None)
    app.router.route_class = Route
    _errors(app, worker, users)
    _admin(app, herder)
    return app


def _errors(app: FastAPI, worker: WorkerConfig, users: Users) -> None:
    """Give every error Kafka Connect's body."""

    def answer(status: int, message: str) -> JSONResponse:
        return JSONResponse({"error_code": status, "message": harmless(message)}, status)

    @app.exception_handler(RequestError)
    def requested(_request: Request, error: RequestError) -> JSONResponse:
        return answer(error.status, str(error))

    @app.exception_handler(OtherWorker)
    async def elsewhere(request: Request, error: OtherWorker) -> Response:
        try:
            return await forwarded(request, error, worker, users)
        except RequestError as failed:
            return answer(failed.status, str(failed))

    @app.exception_handler(HTTPException)
    def http(_request: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, f"HTTP {error.status_code} {error.detail}")

    @app.exception_handler(RequestValidationError)
    def unreadable(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["loc"][0] == "path":
            return answer(404, "HTTP 404 Not Found")
        where = ".".join(str(part) for part in first["loc"][1:])
        return answer(400, f"{where}: {first['msg']}" if where else str(first["msg"]))

    @app.exception_handler(SemelError)
    def failed(_request: Request, error: SemelError) -> JSONResponse:
        is_away = isinstance(error, ServiceError | TransientError)
        return answer(503 if is_away else 500, str(error))

    @app.exception_handler(Exception)
    def unforeseen(_request: Request, error: Exception) -> JSONResponse:
        return answer(500, redacted(f"{type(error).__name__}: {error}"))


async def forwarded(
    request: Request, error: OtherWorker, worker: RestConfig, users: Users
) -> Response:
    """The answer of the worker at ``error.url``; ``worker`` configures this one. A request is
    forwarded at most twice, as in Kafka Connect, because leaders change. Workers that need
    the default token may have different ones: they use the cluster's among themselves.

    Raises:
        OtherWorker: it has been forwarded twice.
        RequestError: the worker does not answer.
    """
    hop = request.query_params.get(_HOP)
    if hop == "false":
        raise error
    query = httpx.QueryParams(str(request.url.query)).remove(_HOP)
    query = query.add(_HOP, "true" if hop is None else "false")
    headers = {n: v for n, v in request.headers.items() if n in _REQUEST_HEADERS}
    if users.default_token and (token := users.peer_token()):
        headers["authorization"] = f"Bearer {token}"
    try:
        encrypted = error.url.startswith("https")
        verify = client_context(worker) if encrypted else True
        client = httpx.AsyncClient(timeout=_TIMEOUT, verify=verify, trust_env=False)
        async with asyncio.timeout(_TIMEOUT), client:
            body = await request.body()
            url = error.url + request.scope["raw_path"].decode("ascii")
            asked = client.stream(request.method, url, params=query, headers=headers, content=body)
            content = bytearray()
            async with asked as answer:
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > MOST:
                        raise RequestError(str(too_large(MOST, error.url)))
    except (httpx.HTTPError, TimeoutError) as failed:
        raise RequestError(f"IO Error trying to forward REST request: {failed}") from None
    kept = {n: v for n, v in answer.headers.items() if n in _ANSWER_HEADERS}
    return Response(bytes(content), answer.status_code, kept)


def _root(app: FastAPI, herder: Herder, cluster: Cluster) -> None:
    @app.get("/")
    def server_info() -> dict[str, str]:
        commit = f"semel-{plugins.VERSION}"
        return {"version": VERSION, "commit": commit, "kafka_cluster_id": cluster.cluster_id()}

    # Other calls may fill the pool of threads while they wait for a store.
    @app.get("/health")
    async def health(response: Response) -> dict[str, str]:
        if not herder.is_ready:
            response.status_code = 503
            return {"status": "starting", "message": "Worker is still starting up."}
        message = "Worker has completed startup and is ready to handle requests."
        return {"status": "healthy", "message": message}


def _connectors(app: FastAPI, herder: Herder) -> None:
    @app.get("/connectors")
    def connectors(expand: Annotated[list[str] | None, Query()] = None) -> Any:
        if expand is None:
            return herder.connectors()
        parts: dict[str, Callable[[str], dict[str, Any]]] = {
            "status": herder.status,
            "info": lambda name: _shown(herder.info(name)),
        }
        expanded = {}
        for name in herder.connectors():
            with suppress(NotFound):  # it was deleted meanwhile
                expanded[name] = {part: parts[part](name) for part in expand if part in parts}
        return expanded

    @app.post("/connectors", status_code=201)
    def create(body: CreateConnector, response: Response) -> dict[str, Any]:
        name = (body.name or "").strip(BLANKS)
        config = kept(_without_nulls(herder, _named(name, body.config)), {})
        answer = herder.create(name, config, initial_state(body.initial_state))
        response.headers["Location"] = _place(name)
        return _shown(answer)

    @app.get("/connectors/{name}")
    def info(name: Name) -> dict[str, Any]:
        return _shown(herder.info(name))

    @app.get("/connectors/{name}/config")
    def config(name: Name) -> Config:
        return shown(herder.config(name))

    @app.put("/connectors/{name}/config")
    def put(name: Name, body: RequestConfig, response: Response) -> dict[str, Any]:
        herder.lead()  # another worker may not have read yet what this change is about
        config = _without_nulls(herder, _named(name, body))
        created, answer = herder.put(name, config)
        if created:
            response.status_code = 201
            response.headers["Location"] = _place(name)
        return _shown(answer)

    @app.patch("/connectors/{name}/config")
    def patch(name: Name, body: RequestConfig) -> dict[str, Any]:
        herder.lead()
        if body.get("name", name) != name:
            _named(name, {"name": str(body["name"])})
        return _shown(herder.patch(name, body))

    @app.delete("/connectors/{name}", status_code=204)
    def delete(name: Name) -> None:
        herder.delete(name)

    @app.get("/connectors/{name}/tasks")
    def tasks(name: Name) -> list[dict[str, Any]]:
        return [_shown(task) for task in herder.task_configs(name)]

    @app.get("/connectors/{name}/topics")
    def topics(name: Name) -> dict[str, Any]:
        return herder.topics(name)

    @app.put("/connectors/{name}/topics/reset", status_code=202)
    def reset_topics(name: Name) -> Response:
        herder.reset_topics(name)
        return Response(status_code=202)


def _states(app: FastAPI, herder: Herder) -> None:
    # Monitoring polls these. States are in memory, so no worker thread is needed.
    @app.get("/connectors/{name}/status")
    async def status(name: Name) -> dict[str, Any]:
        return herder.status(name)

    @app.get("/connectors/{name}/tasks/{task}/status")
    async def task_status(name: Name, task: TaskNumber) -> dict[str, Any]:
        return herder.task_status(name, task)

    @app.put("/connectors/{name}/pause", status_code=202)
    def pause(name: Name) -> Response:
        herder.target(name, State.PAUSED)
        return Response(status_code=202)

    @app.put("/connectors/{name}/resume", status_code=202)
    def resume(name: Name) -> Response:
        herder.target(name, State.RUNNING)
        return Response(status_code=202)

    @app.put("/connectors/{name}/stop", status_code=204)
    def stop(name: Name) -> None:
        herder.target(name, State.STOPPED)

    @app.post("/connectors/{name}/restart")
    def restart(
        name: Name,
        include_tasks: Annotated[Flag, Query(alias="includeTasks")] = False,
        only_failed: Annotated[Flag, Query(alias="onlyFailed")] = False,
    ) -> Response:
        if not include_tasks and not only_failed:
            herder.restart(name)
            return Response(status_code=204)
        answer = herder.restart_all(name, tasks=include_tasks, only_failed=only_failed)
        return JSONResponse(answer, 202)

    @app.post("/connectors/{name}/tasks/{task}/restart", status_code=204)
    def restart_task(name: Name, task: TaskNumber) -> None:
        herder.restart_task(name, task)


def _offsets(app: FastAPI, herder: Herder) -> None:
    @app.get("/connectors/{name}/offsets")
    def offsets(name: Name) -> dict[str, Any]:
        return herder.offsets(name)

    @app.patch("/connectors/{name}/offsets")
    def alter(name: Name, body: Body, request: Request) -> dict[str, Any]:
        return herder.alter_offsets(name, body, who(request))

    @app.delete("/connectors/{name}/offsets")
    def reset(name: Name, request: Request) -> dict[str, Any]:
        return herder.reset_offsets(name, who(request))


def who(request: Request) -> str:
    """Who has sent a request: the user, or the address where no login is required."""
    user: str | None = getattr(request.state, USER, None)
    host = request.client.host if request.client is not None else "unknown"
    return f"REST: {user or host}"


def _plugins(app: FastAPI, herder: Herder) -> None:
    @app.get("/connector-plugins")
    def listed(
        connectors_only: Annotated[Flag, Query(alias="connectorsOnly")] = True,
    ) -> list[dict[str, str]]:
        return plugins.listed(connectors_only=connectors_only)

    @app.get("/connector-plugins/{plugin}/config")
    def keys(plugin: Name) -> list[dict[str, Any]]:
        return [asdict(definition) for definition in plugins.definitions_of(plugin)]

    @app.put("/connector-plugins/{plugin}/config/validate")
    def validate(plugin: Name, body: RequestConfig) -> dict[str, Any]:
        return herder.validate(plugin, body)


def _admin(app: FastAPI, herder: Herder) -> None:
    @app.get("/admin/loggers")
    def all_loggers() -> dict[str, Any]:
        return loggers.levels()

    @app.get("/admin/loggers/{logger}")
    def one(logger: Name) -> dict[str, Any]:
        return loggers.level(logger)

    @app.put("/admin/loggers/{logger}")
    def set_level(logger: Name, body: Level, scope: str = "worker") -> Any:
        if scope.lower() == "cluster":
            herder.set_level(logger, loggers.checked(body.level))
            return Response(status_code=204)
        return loggers.set_level(logger, body.level)


def _named(name: str, config: RequestConfig) -> RequestConfig:
    """The configuration with the connector's name in it; the body may lack it, or have a null.

    Raises:
        BadRequest: the body names another connector.
    """
    own_name = config.get("name")
    if own_name is not None and own_name != name:
        raise BadRequest(
            f"Connector name configuration ({own_name}) doesn't match connector name in the URL "
            f"({name})"
        )
    return {**config, "name": name}


def _without_nulls(herder: Herder, config: RequestConfig) -> Config:
    """The configuration of a request that sets all of it.

    Raises:
        BadRequest: a key is null; as in Kafka Connect, with everything else that is wrong.
    """
    values = {name: value for name, value in config.items() if value is not None}
    if len(values) < len(config):
        herder.check(config)
    return values


def _place(name: str) -> str:
    return f"/connectors/{quote(name, safe='')}"


def _shown(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "config": shown(answer["config"])}


def initial_state(state: str | None) -> State:
    """The state in which a connector is to be created.

    Raises:
        BadRequest: there is no such state.
    """
    states = (State.RUNNING, State.PAUSED, State.STOPPED)
    if state is None:
        return State.RUNNING
    if state.upper() not in states:
        raise BadRequest(f"initial_state={state} is not one of {', '.join(states)}")
    return State(state.upper())
