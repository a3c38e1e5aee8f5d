"""A connector's dead letters: shown, and sent again."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from semel.driver.letters import Page, ResendResult, browse
from semel.driver.planning import with_plan
from semel.worker.errors import BadRequest
from semel.worker.page.connector import head
from semel.worker.page.site import Form, PageContext, json_of, required
from semel.worker.rest.app import who

_PAGE = 20


def add(router: APIRouter, context: PageContext) -> None:
    """Add the page of a connector's dead letters."""
    herder, writers = context.herder, [Depends(context.check_writer)]

    def shown(request: Request, name: str, older: str = "", **facts: Any) -> Response:
        older_than = json_of(older) if older else None
        page: Page = herder.apart(name, with_plan, browse, older_than, _PAGE)
        return context.show(
            request,
            "letters.html",
            **head(herder, name),
            **facts,
            kept=page.kept,
            letters=page.letters,
            older=None if page.older is None else json.dumps(page.older),
            paged=bool(older),
        )

    @router.get("/letters")
    def letters(request: Request, name: str, older: str = "") -> Response:
        return shown(request, name, older, outcome=None)

    @router.post("/letters", dependencies=writers)
    def send(request: Request, name: str, form: Form) -> Response:
        do = required(form, "do")
        if do == "one":
            only = json_of(required(form, "at"))
        elif do != "all":
            raise BadRequest(f"do={do!r} is not an action")
        elif "sure" not in form:
            raise BadRequest("Tick the box beside Send all of them again first")
        else:
            only = None
        outcome: ResendResult = herder.resend_letters(name, only, who(request))
        return shown(request, name, outcome=outcome)
