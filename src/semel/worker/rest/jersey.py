"""Imitates what Kafka Connect's HTTP server, Jersey, does with every request."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BeforeValidator
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.config import whole

_ROOTS = ("/connectors", "/connector-plugins", "/admin", "/health", "/semel")
_JSON = "application/json"
_SLASH = "\ue000"  # in the private use area: no name contains it
_WITH_BODY = ("POST", "PUT", "PATCH")


class JerseyMiddleware:
    """Handles trailing slashes, ``HEAD``, ``OPTIONS`` and content types as Jersey does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["type"] != "http" or not (path == "/" or path.startswith(_ROOTS)):
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": path_of(scope).rstrip("/") or "/"}
        headers = Headers(scope=scope)
        if scope["method"] in _WITH_BODY and not _is_json(headers):
            await _refused(415, "Unsupported Media Type")(scope, receive, send)
        elif not _accepts_json(headers.get("accept", "*/*")):
            await _refused(406, "Not Acceptable")(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await self._app(scope, receive, _with_options(send))
        elif scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, _without_body(send))
        else:
            await self._app(scope, receive, send)


def path_of(scope: Scope) -> str:
    """The path, with a stand-in for each slash that is part of a segment."""
    raw: bytes = scope.get("raw_path", b"")
    path: str = scope["path"]
    if b"%2f" not in raw.lower():
        return path
    segments = raw.decode("ascii").split("/")
    return "/".join(unquote(segment).replace("/", _SLASH) for segment in segments)


def _with_slashes(segment: str) -> str:
    return segment.replace(_SLASH, "/")


Name = Annotated[str, AfterValidator(_with_slashes)]
"""A segment of a path. Its decoded value may contain slashes."""
Number = Annotated[int, BeforeValidator(partial(whole, least=-(2**31), most=2**31 - 1))]
"""A number in a URL, which Java reads as an int."""


class Fraction(float):
    """A number with a point or an exponent. As a text it is what the body has, as with Jackson."""

    _text: str

    def __new__(cls, text: str) -> Fraction:
        fraction = super().__new__(cls, text)
        fraction._text = text
        return fraction

    def __str__(self) -> str:
        return self._text


class Route(APIRoute):
    """Reads bodies as Jackson does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def read(request: Request) -> Response:
            body = await request.body()
            if self.body_field is not None and body:
                request._json = loaded(body)
            return await answer(request)

        return read


def loaded(body: bytes) -> Any:
    """A body, which must be JSON as the standard has it.

    Raises:
        HTTPException: it is not, or it has a number that no answer could hold.
    """
    try:
        return json.loads(body, parse_float=Fraction, parse_constant=_refused_number)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body is not JSON: {error}") from None


def _refused_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _is_json(headers: Headers) -> bool:
    """Whether the body is JSON or empty."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return kind == _JSON or not (kind or has_body)


def _accepts_json(accept: str) -> bool:
    """Whether a client takes JSON."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return not kinds.isdisjoint(("", "*/*", "application/*", _JSON))


def _refused(status: int, reason: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": f"HTTP {status} {reason}"}, status)


def _with_options(send: Send) -> Send:
    """Answer ``OPTIONS`` with the allowed methods instead of refusing it."""
    refused = False

    async def allowed(message: Any) -> None:
        nonlocal refused
        if message["type"] == "http.response.start" and message["status"] == 405:
            refused = True
            methods = MutableHeaders(scope=message).get("allow", "")
            headers = [(b"allow", f"{methods}, HEAD, OPTIONS".encode()), (b"content-length", b"0")]
            await send({**message, "status": 200, "headers": headers})
        elif refused:
            await send({**message, "body": b""})
        else:
            await send(message)

    return allowed


def _without_body(send: Send) -> Send:
    async def only_headers(message: Any) -> None:
        if message["type"] == "http.response.body":
            empty: Message = {**message, "body": b""}
            await send(empty)
        else:
            await send(message)

    return only_headers
