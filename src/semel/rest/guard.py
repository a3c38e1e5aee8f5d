"""Middleware for every request: authentication, a size limit, and headers of answers."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.config.rest import HeaderRule
from semel.rest.users import Users

PEER = "peer"
"""Where the server puts the common name of a client's certificate."""

_READS = ("GET", "HEAD", "OPTIONS")
_VALIDATES = re.compile(r"/connector-plugins/[^/]+/config/validate/?")
USER = "user"
"""The state of a request in which its user's name is."""

_DENIED = "User cannot access the resource."
"""Kafka Connect's words."""


class Guard:
    """Admits only authenticated users; read-only users cannot change anything."""

    def __init__(self, app: ASGIApp, users: Users, anonymous: Sequence[str]) -> None:
        self._app = app
        self._users = users
        self._anonymous = {path.rstrip("/") for path in anonymous}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_anonymous(scope):
            await self._app(scope, receive, send)
            return
        user = self._user(scope)
        scope.setdefault("state", {})[USER] = user
        if user is None and self._users.are_asked:
            challenge = {"WWW-Authenticate": "Basic" if self._users.passwords else "Bearer"}
            await PlainTextResponse(_DENIED, 401, challenge)(scope, receive, send)
        elif user in self._users.readers and not _only_reads(scope):
            message = f"{user} may only read"
            refusal = JSONResponse({"error_code": 403, "message": message}, 403)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _user(self, scope: Scope) -> str | None:
        """The authenticated user, or the certificate's name if no login is required."""
        if self._users.are_asked:
            return self._users.of(Headers(scope=scope).get("authorization", ""))
        name: str | None = scope.get("state", {}).get(PEER)
        return name

    def _is_anonymous(self, scope: Scope) -> bool:
        return scope["method"] in _READS and scope["path"].rstrip("/") in self._anonymous


def _only_reads(scope: Scope) -> bool:
    method: str = scope["method"]
    return method in _READS or (method == "PUT" and bool(_VALIDATES.fullmatch(scope["path"])))


class Limit:
    """Refuses bodies that are too large."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise HTTPException(413, f"The body has more than {self._most} bytes")
            return message

        await self._app(scope, counted, send)


class ExtraHeaders:
    """Adds headers to every answer."""

    def __init__(self, app: ASGIApp, rules: Sequence[HeaderRule]) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for rule in self._rules:
                    if rule.adds:
                        headers.append(rule.name, _value(rule))
                    else:
                        headers[rule.name] = _value(rule)
            await send(message)

        await self._app(scope, receive, with_headers)


def _value(rule: HeaderRule) -> str:
    if rule.is_date:
        return formatdate(time.time() + int(rule.value) / 1000, usegmt=True)
    return rule.value
