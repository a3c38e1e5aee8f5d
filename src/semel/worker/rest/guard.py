"""Middleware before every application: authentication, origins, a size limit, and headers of
answers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Sequence
from email.utils import formatdate
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.config.rest import AUTHENTICATION, HOSTS, HeaderRule, RestConfig, header_rules
from semel.worker.rest.jersey import JerseyMiddleware
from semel.worker.rest.token import VARIABLE, is_local, where
from semel.worker.rest.users import Users

log = logging.getLogger(__name__)

PEER = "peer"
"""Where the server puts the common name of a client's certificate."""
USER = "user"
"""The state of a request in which its user's name is."""

_READS = ("GET", "HEAD", "OPTIONS")
_VALIDATES = re.compile(r"/connector-plugins/[^/]+/config/validate/?")
_DENIED = "User cannot access the resource."
"""Kafka Connect's words."""
_PATH_SHOWN = 200
_METHODS = "GET,POST,HEAD"
_HEADERS = ("X-Requested-With", "Content-Type", "Accept", "Origin", "Authorization")
"""What browsers' preflights are told."""
_NO_STREAMS = re.compile("(?!)")


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


class Guard:
    """Admits only authenticated users; read-only users cannot change anything. Changes are logged
    at this ``level``."""

    def __init__(
        self, app: ASGIApp, users: Users, anonymous: Sequence[str], level: int = logging.INFO
    ) -> None:
        self._level = level
        self._app = app
        self._users = users
        self._anonymous = {path.rstrip("/") for path in anonymous}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_anonymous(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        user = self._user(scope, headers)
        scope.setdefault("state", {})[USER] = user
        if user is None and self._users.are_asked:
            tried = self._users.claimed_name(headers.get("authorization", ""))
            log.warning("login refused: %s, by %s", _request(scope), tried)
            await self._challenge(scope)(scope, receive, send)
        elif user in self._users.readers and not _only_reads(scope):
            log.warning("refused: %s, by %r, who may only read", _request(scope), user)
            message = f"{user} may only read"
            refusal = JSONResponse({"error_code": 403, "message": message}, 403)
            await refusal(scope, receive, send)
        elif _only_reads(scope) or not log.isEnabledFor(self._level):
            await self._app(scope, receive, send)
        else:
            who = repr(user) if user else "somebody without a login"
            await self._app(scope, receive, self._logging(send, f"{_request(scope)}, by {who}"))

    def _logging(self, send: Send, request: str) -> Send:
        """Log what became of a request that changes something."""

        async def logged(message: Any) -> None:
            if message["type"] == "http.response.start":
                log.log(self._level, "%s: %d", request, message["status"])
            await send(message)

        return logged

    def _user(self, scope: Scope, headers: Headers) -> str | None:
        """The authenticated user. The name in a certificate counts if no users are configured."""
        if self._users.are_asked:
            user = self._users.of(headers.get("authorization", ""))
            if user is not None or self._users.are_configured:
                return user
        name: str | None = scope.get("state", {}).get(PEER)
        return name

    def _challenge(self, scope: Scope) -> Response:
        asks = "Basic" if self._users.passwords else "Bearer"
        if is_page(scope):  # browsers ask their users for names and passwords
            asks = 'Basic realm="semel", charset="UTF-8"'
        challenge = {"WWW-Authenticate": asks}
        if self._users.are_configured:
            return PlainTextResponse(_DENIED, 401, challenge)
        message = (
            f"This worker needs a token: send it as 'Authorization: Bearer <token>', or as the "
            f"password of Basic authentication. It is in {where()} on the worker's machine. Set "
            f"{VARIABLE} for a token of your own, or {AUTHENTICATION}=none in the worker's "
            "configuration to let everybody in"
        )
        answer = {"error_code": 401, "message": message}
        return JSONResponse(answer, 401, challenge)

    def _is_anonymous(self, scope: Scope) -> bool:
        return scope["method"] in _READS and scope["path"].rstrip("/") in self._anonymous


def is_page(scope: Scope) -> bool:
    """Whether a request is for the worker's page."""
    path: str = scope["path"]
    return f"{path}/".startswith("/ui/")


def _only_reads(scope: Scope) -> bool:
    method: str = scope["method"]
    return method in _READS or (method == "PUT" and bool(_VALIDATES.fullmatch(scope["path"])))


def _request(scope: Scope) -> str:
    """A request as the log names it: a path holds whatever a client writes."""
    path = scope.get("raw_path", b"").decode("ascii", "replace")
    host, *_ = scope.get("client") or ("?",)
    return f"{scope['method']} {path[:_PATH_SHOWN]} from {host}"


class Hosts:
    """Refuses what a web page could let its reader's browser send: requests under another name than
    the worker's (DNS rebinding), and changes from another origin. If a token is ``needed``, which
    no page has, names are only checked on loopback addresses, where they cost nobody anything."""

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], origins: re.Pattern[str], *, needed: bool
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._needed = needed
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        host, origin = headers.get("host", ""), headers.get("origin", "")
        wrong = ""
        server, *_ = scope.get("server") or ("",)
        if not self._is_known(host) and not (self._needed and not is_local(server)):
            wrong = f"{HOSTS} does not name the host {host[:_PATH_SHOWN]!r}"
        elif origin and not (_only_reads(scope) or self._knows(origin, host)):
            wrong = "access.control.allow.origin does not name the origin of this request"
        if not wrong:
            await self._app(scope, receive, send)
            return
        log.warning("refused: %s: %s", _request(scope), wrong)
        await JSONResponse({"error_code": 403, "message": wrong}, 403)(scope, receive, send)

    def _knows(self, origin: str, host: str) -> bool:
        """Whether pages of an origin may change something: the worker's own may."""
        return _host_of(origin) == host or self._origins.fullmatch(origin) is not None

    def _is_known(self, host: str) -> bool:
        """Whether a name is the worker's. No foreign page has a name that is an address."""
        name = re.sub(r":\d*$", "", host).lower().removesuffix(".")
        if not name or name in self._hosts or "*" in self._hosts:
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


class Limit:
    """Refuses bodies that are too large, except for those of ``streams``."""

    def __init__(self, app: ASGIApp, most: int, streams: re.Pattern[str]) -> None:
        self._app = app
        self._most = most
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams.fullmatch(scope.get("path", "")):
            await self._app(scope, receive, send)
            return
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
