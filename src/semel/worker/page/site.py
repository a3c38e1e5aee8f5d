"""What all pages share: templates, forms, errors, and what keeps other origins out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from semel.core.context import CONNECTOR
from semel.core.errors import SemelError, ServiceError, TransientError
from semel.core.quoting import harmless, named, on_terminal
from semel.core.redact import redacted
from semel.worker import plugins
from semel.worker.audits import Audits
from semel.worker.errors import BadRequest, Forbidden, OtherWorker, RequestError
from semel.worker.herder import Herder
from semel.worker.loggers import RecentLines
from semel.worker.page.figures import History, Peers
from semel.worker.rest.guard import USER, is_page
from semel.worker.rest.users import Users

log = logging.getLogger(__name__)

_READS = ("GET", "HEAD", "OPTIONS")
_FIELDS = 5000
_NAME_SHOWN = 120
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
_LOADER = PackageLoader("semel.worker.page")


@dataclass(frozen=True, slots=True)
class PageContext:
    """What pages ask: the same as the REST API."""

    herder: Herder
    audits: Audits
    lines: RecentLines
    history: History
    users: Users
    peers: Peers

    def may_write(self, request: Request) -> bool:
        """Whether the user of a request may change something. Whoever reads a path that anyone
        may read is nobody."""
        user = getattr(request.state, USER, None)
        if user is None:
            return not self.users.are_asked
        return user not in self.users.readers

    def check_writer(self, request: Request) -> None:
        """Refuse a page that is only there to change something.

        Raises:
            Forbidden: the user may only read.
        """
        if not self.may_write(request):
            user = getattr(request.state, USER, None)
            raise Forbidden(f"{user or 'Somebody without a login'} may only read")

    def show(self, request: Request, template: str, **facts: Any) -> Response:
        """A page; only what changes on it, if that is asked for."""
        facts |= {
            "layout": "part.html" if is_part(request) else "layout.html",
            "is_part": is_part(request),
            "writes": self.may_write(request),
            "ledgers": self.herder.has_ledgers,
        }
        return _html(template, 200, facts)


def is_part(request: Request) -> bool:
    """Whether the script asks for what changes on a page."""
    return "part" in request.query_params


def _html(template: str, status: int, facts: Mapping[str, Any]) -> Response:
    text = _TEMPLATES.get_template(template).render(facts)
    # What is shown may hold half of a character.
    content = text.encode("utf-8", "backslashreplace")
    return HTMLResponse(content, status)


async def _form(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "Unsupported Media Type: a form is expected")
    try:
        text = (await request.body()).decode()
        pairs = parse_qsl(
            text, keep_blank_values=True, max_num_fields=_FIELDS, errors="strict", separator="&"
        )
    except ValueError as error:
        raise BadRequest(f"The form cannot be read: {error}") from None
    # Forms send the ends of lines as CR LF.
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


Form = Annotated[dict[str, str], Depends(_form)]
"""The fields of a form."""


def required(form: Mapping[str, str], field: str) -> str:
    """A field that every form of a page has.

    Raises:
        BadRequest: it is missing.
    """
    try:
        return form[field]
    except KeyError:
        raise BadRequest(f"The form has no field {named(field)}") from None


def json_of(text: str) -> Any:
    """What a field holds as JSON.

    Raises:
        BadRequest: it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{text[:200]!r} is not JSON: {error}") from None


def url(path: str, **parameters: object) -> str:
    """An address of the page."""
    present = {name: value for name, value in parameters.items() if value not in (None, "")}
    query = urlencode(present, errors="backslashreplace")
    return f"/ui{path}?{query}" if query else f"/ui{path}"


def see(path: str, **parameters: object) -> Response:
    """Where a browser goes on after a change."""
    return RedirectResponse(url(path, **parameters), 303)


class Route(APIRoute):
    """Shows errors as pages, and notes which connector a request is about."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def shown(request: Request) -> Response:
            CONNECTOR.set(request.query_params.get("name", ""))
            try:
                return await answer(request)
            except OtherWorker:  # the application forwards it
                raise
            except RequestError as error:
                status, why = error.status, str(error)
            except HTTPException as error:
                status, why = error.status_code, str(error.detail)
            except RequestValidationError as error:
                first = error.errors()[0]
                status, why = 400, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"
            except SemelError as error:
                is_away = isinstance(error, ServiceError | TransientError)
                status, why = 503 if is_away else 500, str(error)
            except Exception as error:
                log.exception("the page %s cannot be shown", request.url.path)
                status, why = 500, f"{type(error).__name__}: {error}"
            facts = {"layout": "layout.html", "writes": False, "status": status}
            return _html("error.html", status, facts | {"why": redacted(harmless(why))})

        return shown


class OriginGuard:
    """Lets the page's forms be sent by the page alone, and gives its answers their headers.

    Browsers say where a form comes from: in ``Sec-Fetch-Site``, or else in ``Origin``. Whoever says
    neither is no browser, and has to send a login by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_page(scope):
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if scope["method"] not in _READS and not _is_own(Headers(scope=scope)):
            why = "The form was sent by a page of another origin. Open the worker's own page"
            facts = {"layout": "layout.html", "writes": False, "status": 403, "why": why}
            await _html("error.html", 403, facts)(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)


def _is_own(headers: Headers) -> bool:
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host", "")
    except ValueError:
        return False


def add(router: APIRouter, _context: PageContext) -> None:
    """Add the files that all pages use."""

    def served(name: str, kind: str) -> None:
        content = (Path(__file__).parent / "static" / name).read_bytes()
        headers = {"Cache-Control": "private, max-age=3600"}

        async def static() -> Response:
            return Response(content, media_type=kind, headers=headers)

        router.add_api_route(f"/{name}", static)

    for name, kind in _STATIC.items():
        served(name, kind)


# What templates show


def _when(seconds: float | None) -> Markup:
    """A moment, in UTC; the script shows it in the reader's zone."""
    if not seconds:
        return Markup("&ndash;")
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # a record may say any
        return escape(f"{seconds:.0f} s after 1970")
    text = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="seconds"), text)


def _moment(text: str) -> Markup:
    """A moment in ISO 8601, as log lines and ledgers have it."""
    try:
        return _when(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return escape(text or "–")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if isinstance(value, float) and value < 100 else f"{value:.0f}"


def _span(seconds: float | None) -> str:
    """A span of time for people."""
    if seconds is None:
        return "–"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _cut(text: str, most: int = _NAME_SHOWN) -> str:
    """A name that is too long for a table is cut, and changes nothing around it."""
    return on_terminal(text if len(text) <= most else f"{text[:most]}…")


_TEMPLATES = Environment(
    loader=_LOADER,
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(
    when=_when, moment=_moment, number=_number, span=_span, cut=_cut, harmless=harmless
)
_TEMPLATES.globals.update(url=url, version=plugins.VERSION)
