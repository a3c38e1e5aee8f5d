"""Why: one connector's page, and the buttons that put it right; its configuration, its audits and
its dead letters."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from semel.core.redact import plain, redacted
from semel.driver.base import State
from semel.driver.letters import Page, ResendResult, browse
from semel.driver.planning import with_plan
from semel.worker.errors import BadRequest, NotFound, RequestError, UnknownWorker
from semel.worker.herder import Answer, Herder
from semel.worker.page.figures import ConnectorSamples, graph, stores
from semel.worker.page.site import Form, PageContext, is_part, json_of, required, see
from semel.worker.rest.app import who
from semel.worker.rest.insight import given_of, guarantee_of
from semel.worker.secrets import shown

_WIDTH, _HEIGHT = 320, 72
_LINES, _LETTERS = 300, 20
"""How many lines of the log, and dead letters, a page shows."""
_OUTCOME_IN = 4.0
"""Seconds in which most restarts have succeeded, or failed again."""
_BEGINS_IN = 2.0
"""Seconds in which a change can be seen, if there is any."""
_HOLDS = 1.0
"""Seconds for which a restart must not have failed again."""
_TARGETS = {"pause": State.PAUSED, "resume": State.RUNNING, "stop": State.STOPPED}
_UNSETTLED = (State.RESTARTING, State.UNASSIGNED)
_DONE = {
    "create": "It has been created.",
    "apply": "Its new configuration has been applied.",
    "restart": "It has been told to restart.",
    "restart-all": "It and all of its tasks have been told to restart.",
    "restart-failed": "What had failed has been told to restart.",
    "restart-task": "The task has been told to restart.",
    "pause": "It has been told to pause.",
    "resume": "It has been told to run.",
    "stop": "It has been told to stop.",
    "offsets": "Its offsets have been changed.",
    "reset": "Its offsets have been forgotten.",
}
"""What an address may say that was done."""


def add(router: APIRouter, context: PageContext) -> None:
    """Add a connector's pages."""
    herder, writers = context.herder, [Depends(context.check_writer)]

    @router.get("/connector")
    def connector(
        request: Request, name: str, did: str = "", task: int | None = None, log: str = ""
    ) -> Response:
        with suppress(UnknownWorker):  # then its figures are missing
            herder.own(name, task or 0)
        each, course = context.history.now().get(name, (None, ConnectorSamples()))
        # Planning a connector takes a moment: what the script asks for again is without it.
        facts, refused = (None, "") if is_part(request) else _guarantee(herder, name)
        lines = context.lines.of(name, task, 1000)
        if log != "all":
            lines = [line for line in lines if _is_trouble(line)]
        return context.show(
            request,
            "connector.html",
            **head(herder, name),
            did=_DONE.get(did, ""),
            failed=any(p["state"] == State.FAILED for p in _parts(herder.status(name))),
            guarantee=facts,
            refused=refused,
            waits={n: (w.on, w.since, redacted(w.why)) for n, w in herder.waiting(name).items()},
            each=each,
            lag=graph(course.lags, _WIDTH, _HEIGHT),
            rate=graph(course.rates, _WIDTH, _HEIGHT),
            lines=lines[-_LINES:],
            log=log,
            task=task,
        )

    @router.post("/connector", dependencies=writers)
    def act(name: str, form: Form) -> Response:
        do = required(form, "do")
        if do == "delete":
            if "sure" not in form:
                raise BadRequest("Tick the box beside Delete first")
            herder.delete(name)
            return see("")
        before = herder.status(name)
        _do(herder, name, do, form.get("task", ""))
        _settled(herder, name, before, _TARGETS.get(do))
        return see("/connector", name=name, did=do)

    @router.get("/config")
    def config(request: Request, name: str) -> Response:
        return context.show(
            request, "config.html", **head(herder, name), keys=_origins(herder, name)
        )

    @router.get("/audit")
    def audit(request: Request, name: str) -> Response:
        herder.lead()
        try:
            report = context.audits.answer(name)
        except NotFound:
            report = None
        return context.show(request, "audit.html", **head(herder, name), audit=report)

    @router.post("/audit", dependencies=writers)
    def start_or_cancel(name: str, form: Form) -> Response:
        do = required(form, "do")
        herder.lead()
        if do == "cancel":
            context.audits.cancel(name)
        else:
            given = herder.look(name, given_of)
            context.audits.start(name, given, values="values" in form)
        return see("/audit", name=name)

    _letters(router, context)


def _letters(router: APIRouter, context: PageContext) -> None:
    """Dead letters: shown, and sent again."""
    herder, writers = context.herder, [Depends(context.check_writer)]

    def page(request: Request, name: str, older: str = "", **facts: Any) -> Response:
        older_than = json_of(older) if older else None
        found: Page = herder.apart(name, with_plan, browse, older_than, _LETTERS)
        return context.show(
            request,
            "letters.html",
            **head(herder, name),
            **facts,
            kept=found.kept,
            letters=found.letters,
            older=None if found.older is None else json.dumps(found.older),
            paged=bool(older),
        )

    @router.get("/letters")
    def letters(request: Request, name: str, older: str = "") -> Response:
        return page(request, name, older, outcome=None)

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
        return page(request, name, outcome=outcome)


def _do(herder: Herder, name: str, do: str, task: str) -> None:
    if do == "restart":
        herder.restart(name)
    elif do in ("restart-all", "restart-failed"):
        herder.restart_all(name, tasks=True, only_failed=do == "restart-failed")
    elif do == "restart-task":
        if not task.isdecimal() or len(task) > 9:
            raise BadRequest(f"task={task!r} is not the number of a task")
        herder.restart_task(name, int(task))
    elif do in _TARGETS:
        herder.target(name, _TARGETS[do])
    else:
        raise BadRequest(f"do={do!r} is not an action")


def _settled(herder: Herder, name: str, before: Answer, target: State | None) -> None:
    """Wait a moment for what has been told to happen, so that the next page shows the outcome.
    It may be another worker that does it, and nothing may change."""
    began, has_begun = time.monotonic(), False
    since: float | None = None
    while (now := time.monotonic()) - began < _OUTCOME_IN:
        status = herder.status(name)
        states = {part["state"] for part in _parts(status)}
        has_begun |= status != before or now - began > _BEGINS_IN
        there = states <= {target, State.FAILED} if target else states.isdisjoint(_UNSETTLED)
        since = since or now if has_begun and there else None
        holds = 0.0 if target or State.FAILED in states else _HOLDS
        if since is not None and now - since >= holds:
            return
        time.sleep(0.1)


def _parts(status: Answer) -> list[Answer]:
    return [status["connector"], *status["tasks"]]


def head(herder: Herder, name: str) -> dict[str, Any]:
    """What the top of each of a connector's pages shows."""
    config, status = herder.config(name), herder.status(name)
    class_name = config.get("connector.class", "").strip()
    return {"name": name, "status": status, "class_name": class_name, "states": State}


def _guarantee(herder: Herder, name: str) -> tuple[Mapping[str, Any] | None, str]:
    """The guarantee and why it holds, with the stores of a topology, or why it is not known."""
    try:
        return plain(herder.look(name, lambda p: guarantee_of(p) | {"stores": stores(p)})), ""
    except RequestError as error:
        return None, redacted(str(error))


def _is_trouble(line: Mapping[str, Any]) -> bool:
    return line["level"] not in ("INFO", "DEBUG") or "restart" in line["message"].lower()


def _origins(herder: Herder, name: str) -> list[dict[str, str]]:
    """All keys of a connector, with the value in force and where it comes from."""
    given = herder.config(name)
    try:
        declared = {d.name: d for d in herder.definitions(given.get("connector.class", ""))}
    except NotFound:
        declared = {}
    own, inherited = shown(given), shown(herder.inherited(name))
    names = [*declared, *(key for key in sorted(own) if key not in declared)]
    rows = []
    for key in names:
        definition = declared.get(key)
        if key in own:
            value, origin = own[key], "this connector"
        elif key in inherited:
            value, origin = inherited[key], "the worker"
        else:
            default = definition.default_value if definition is not None else None
            value = "" if default is None else default
            origin = "the default" if default is not None else "not set"
        documentation = definition.documentation if definition is not None else ""
        rows.append({"key": key, "value": value, "origin": origin, "documentation": documentation})
    return rows
