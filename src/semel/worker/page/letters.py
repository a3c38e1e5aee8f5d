"""A connector's dead letters: shown, and sent again."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from semel.core.context import CONNECTOR
from semel.core.quoting import on_terminal
from semel.driver.letters import Fate, Letter, Page, Resent, browse
from semel.driver.planning import with_plan
from semel.driver.rehearsal import as_text
from semel.worker.errors import BadRequest
from semel.worker.page.connector import head
from semel.worker.page.site import Form, Known, json_of, required
from semel.worker.rest.app import who

_PAGE = 20
_SHOWN = 2000


def add(router: APIRouter, known: Known) -> None:
    """Add the page of a connector's dead letters."""
    herder, writers = known.herder, [Depends(known.check_writer)]

    def shown(request: Request, name: str, older: str = "", **facts: Any) -> Response:
        older_than = json_of(older) if older else None
        page: Page = herder.apart(name, with_plan, browse, older_than, _PAGE)
        return known.show(
            request,
            "letters.html",
            **head(herder, name),
            **facts,
            kept=page.kept,
            letters=[_shown(letter, fate) for letter, fate in page.letters],
            older=None if page.older is None else json.dumps(page.older),
            paged=bool(older),
        )

    @router.get("/letters")
    def letters(request: Request, name: str, older: str = "") -> Response:
        return shown(request, name, older, outcome=None)

    @router.post("/letters", dependencies=writers)
    def send(request: Request, form: Form) -> Response:
        name, do = required(form, "name"), required(form, "do")
        CONNECTOR.set(name)
        if do == "one":
            only = json_of(required(form, "at"))
        elif do != "all":
            raise BadRequest(f"do={do!r} is not an action")
        elif "sure" not in form:
            raise BadRequest("Tick the box beside Send all of them again first")
        else:
            only = None
        outcome: Resent = herder.resend_letters(name, only, who(request))
        return shown(request, name, outcome=outcome)


def _shown(letter: Letter, fate: Fate) -> dict[str, Any]:
    record = letter.record
    place = f"{record.topic}-{record.partition}@{record.offset}" if record.topic else "unknown"
    return {
        "place": place,
        "at": json.dumps(letter.at),
        "time": None if record.timestamp is None else record.timestamp / 1000,
        "stage": record.stage,
        "exception": record.exception,
        "message": record.message,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [(name, _text(value)) for name, value in record.headers],
        "sent": fate.sent,
        "refusal": fate.refusal,
    }


def _text(value: bytes | None) -> str | None:
    """Bytes for people: cut, and without characters that would change what is around them."""
    if value is None:
        return None
    text = as_text(value[:_SHOWN] if len(value) > _SHOWN else value)
    more = f"… ({len(value):,} bytes)" if len(value) > _SHOWN else ""
    return on_terminal(text) + more
