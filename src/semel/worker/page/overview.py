"""What is red: all connectors in one table, and the workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from semel.driver.base import State
from semel.worker.errors import NotFound
from semel.worker.page.figures import PATH, Figures, Graph, Worker, graph, own, written
from semel.worker.page.site import PageContext, is_part, url

_WIDTH, _HEIGHT = 96, 22
_RECENT, _MOST = 2.0, 32
"""Seconds for which a table is recent, and how many are kept."""
_RED = (State.FAILED,)
_MOVING = (State.RESTARTING, State.UNASSIGNED)


@dataclass(frozen=True, slots=True)
class Row:
    """A connector. There are no figures if the worker that counts it has not told any."""

    name: str
    kind: str
    class_name: str
    state: str
    worker: str
    tasks: Sequence[str]
    task_workers: Sequence[str]
    waits: str
    figures: Figures | None
    course: Graph | None
    audit: str

    @property
    def level(self) -> str:
        """How bad it is: ``bad``, ``warn``, ``good`` or ``off``."""
        states = {self.state, *self.tasks}
        if not states.isdisjoint(_RED) or self.audit == "broken":
            return "bad"
        if not states.isdisjoint(_MOVING):
            return "warn"
        return "good" if self.state == State.RUNNING else "off"

    @property
    def task_counts(self) -> list[tuple[str, int]]:
        """How many tasks are in which state."""
        return [(state, self.tasks.count(state)) for state in sorted(set(self.tasks))]


_UNKNOWN = dict.fromkeys(("rate", "lag", "behind", "errors", "dead", "moved", "delivery"))
_LEVELS = ("bad", "warn", "good", "off")
COLUMNS: Mapping[str, tuple[str, Callable[[Row], Any]]] = {
    "state": ("State", lambda row: (_LEVELS.index(row.level), row.state)),
    "name": ("Connector", lambda row: row.name.casefold()),
    "tasks": ("Tasks", lambda row: len(row.tasks)),
    "rate": ("Records/s", lambda row: row.figures and row.figures.rate),
    "lag": ("Lag", lambda row: row.figures and row.figures.lag),
    "behind": ("Behind", lambda row: row.figures and row.figures.behind),
    "course": ("Lag, 15 min", lambda row: row.course and row.course.last - row.course.low),
    "errors": ("Errors", lambda row: row.figures and row.figures.errors),
    "dead": ("Dead letters", lambda row: row.figures and row.figures.dead),
    "moved": ("Last commit", lambda row: row.figures and row.figures.moved),
    "delivery": ("Guarantee", lambda row: row.figures and row.figures.delivery),
    "audit": ("Audit", lambda row: row.audit),
}
"""The columns, and what they are sorted by."""


def rows(context: PageContext, workers: Iterable[Worker]) -> list[Row]:
    """All connectors, as the memory of this worker has them, with what workers have counted."""
    counted: dict[str, Figures] = {}
    audits: dict[str, str] = {}
    for each in workers:
        counted |= each.connectors
        audits |= each.audits
    all_rows = []
    for name in context.herder.connectors():
        with suppress(NotFound):  # it was deleted meanwhile, or has no status yet
            all_rows.append(_row(context, name, counted.get(name), audits.get(name, "")))
    return all_rows


def _row(context: PageContext, name: str, figures: Figures | None, audit: str) -> Row:
    status, config = context.herder.status(name), context.herder.config(name)
    connector, tasks = status["connector"], status["tasks"]
    waits = context.herder.waiting(name)
    return Row(
        name=name,
        kind=status["type"],
        class_name=config.get("connector.class", "").strip().rpartition(".")[2],
        state=connector["state"],
        worker=connector["worker_id"],
        tasks=[task["state"] for task in tasks],
        task_workers=[task["worker_id"] for task in tasks],
        waits=next((each.on for each in waits.values()), ""),
        figures=figures,
        course=None if figures is None else graph(figures.lags, _WIDTH, _HEIGHT),
        audit=audit,
    )


def _wanted(row: Row, query: Mapping[str, str]) -> bool:
    words = query.get("q", "").casefold().split()
    text = f"{row.name} {row.class_name} {row.worker}".casefold()
    state, kind = query.get("state", ""), query.get("type", "")
    return (
        all(word in text for word in words)
        and state in ("", row.state, *row.tasks)
        and kind in ("", row.kind)
    )


def _sorted(all_rows: list[Row], by: str, *, down: bool) -> list[Row]:
    """Sorted by a column; rows without a value are the last either way."""
    all_rows = sorted(all_rows, key=lambda row: row.name.casefold())
    _, key = COLUMNS[by]
    have = [row for row in all_rows if key(row) is not None]
    return sorted(have, key=key, reverse=down) + [row for row in all_rows if key(row) is None]


def _workers(
    context: PageContext, all_rows: Sequence[Row], by_url: Mapping[str, Worker]
) -> list[dict[str, Any]]:
    facts, me = context.herder.rebalances, context.herder.me
    tasks = Counter(worker for row in all_rows for worker in row.task_workers)
    return [
        {
            "name": name,
            "leads": name == facts.get("leader-name", me),
            "connectors": sum(row.worker == _id(name) for row in all_rows),
            "tasks": tasks[_id(name)],
            "memory": by_url[name].memory if name in by_url else None,
            "version": by_url[name].version if name in by_url else None,
            "link": name if _is_url(name) and name != me else "",
        }
        for name in sorted(context.herder.members | {me})
    ]


def _id(name: str) -> str:
    """What statuses call a worker."""
    return name.rpartition("//")[2]


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def add(router: APIRouter, context: PageContext) -> None:
    """Add the table."""

    recent: dict[tuple[str, bool], tuple[float, bytes]] = {}

    @router.get("")
    def overview(request: Request) -> Response:
        """The table. Pages that are kept up to date share what was made a moment ago."""
        now, key = time.monotonic(), (request.url.query, context.may_write(request))
        made_at, content = recent.get(key, (-_RECENT, b""))
        if is_part(request) and now - made_at < _RECENT:
            return HTMLResponse(content)
        answer = _overview(request)
        if is_part(request):
            if len(recent) >= _MOST:
                recent.clear()
            recent[key] = now, bytes(answer.body)
        return answer

    @router.get(PATH.removeprefix("/ui"))
    def figures() -> Response:
        """What this worker tells another one."""
        return Response(
            written(own(context.history, context.audits)), media_type="application/json"
        )

    def _overview(request: Request) -> Response:
        query = dict(request.query_params)
        me = context.herder.me
        others = sorted(n for n in context.herder.members if n != me and _is_url(n))
        login = request.headers.get("authorization", "")
        by_url = {**context.peers.now(others, login), me: own(context.history, context.audits)}
        every = rows(context, by_url.values())
        by = query.get("sort", "")
        by, down = (by if by in COLUMNS else "state"), query.get("order") == "desc"
        kept = {n: query.get(n, "") for n in ("q", "state", "type")}

        def sort_link(column: str) -> str:
            order = "desc" if column == by and not down else ""
            return url("", **kept, sort=column, order=order)

        shown = _sorted([row for row in every if _wanted(row, query)], by, down=down)
        return context.show(
            request,
            "overview.html",
            rows=shown,
            unknown=_UNKNOWN,
            total=len(every),
            levels={level: sum(row.level == level for row in every) for level in _LEVELS},
            columns={n: (title, sort_link(n)) for n, (title, _) in COLUMNS.items()},
            by=by,
            down=down,
            given=kept,
            states=list(State),
            workers=_workers(context, every, by_url),
        )
