"""Imitates what Kafka Connect's HTTP server, Jersey, does with every request."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from fastapi.responses import JSONResponse
from pydantic import AfterValidator
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ROOTS = ("/connectors", "/connector-plugins", "/admin", "/health", "/semel")
_JSON = "application/json"
_SLASH = "\ue000"  # in the private use area: no name contains it
_WITH_BODY = ("POST", "PUT", "PATCH")


class LikeJersey:
    """Handles trailing slashes, ``HEAD``, ``OPTIONS`` and content types as Jersey does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["type"] != "http" or not (path == "/" or path.startswith(_ROOTS)):
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": _path(scope).rstrip("/") or "/"}
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


def _path(scope: Scope) -> str:
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
    """Answers ``OPTIONS`` with the allowed methods instead of refusing it."""
    refused = False

    async def allowed(message: Any) -> None:
        nonlocal refused
        if message["type"] == "http.response.start" and message["status"] == 405:
            refused = True
            found = MutableHeaders(scope=message).get("allow", "")
            headers = [(b"allow", f"{found}, HEAD, OPTIONS".encode()), (b"content-length", b"0")]
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
