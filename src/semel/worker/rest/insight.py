"""The endpoints in addition to Kafka Connect's: ``/semel``.

They tell of a connector what Kafka Connect has no answer for: its log, guarantee, ledger and lag,
what it waits for, and its audits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import FastAPI, Query

from semel.config.providers import Resolved
from semel.core.redact import plain, redacted
from semel.driver.planning import AnyPlan
from semel.driver.planning.base import without_references
from semel.driver.states import Awaited, Waiting
from semel.worker.audits import Audits
from semel.worker.errors import BadRequest
from semel.worker.herder import Herder
from semel.worker.loggers import RecentLines
from semel.worker.rest.app import Config
from semel.worker.rest.jersey import Name, Number
from semel.worker.secrets import differences, kept

Waits = Callable[[], Mapping[str, Waiting]]


def add_semel(
    app: FastAPI, herder: Herder, audits: Audits, waits: Waits, lines: RecentLines
) -> None:
    """State, log, guarantee, ledger, lag and audit of each connector. In a cluster the leader
    audits, so that all workers know of the same audits; the worker of the first task knows what a
    connector waits for, and that of each task has its log."""
    base = "/semel/connectors/{name}"

    @app.get(base)
    def state(name: Name) -> dict[str, Any]:
        herder.own(name)
        answer, found = herder.status(name), herder.waiting(name)
        held_up = waits().get(name) or next(iter(found.values()), None)
        for task in answer["tasks"]:
            task["waits"] = _waits(found.get(task["id"]))
        is_shared = len({task["worker_id"] for task in answer["tasks"]}) > 1
        if is_shared and held_up is not None and held_up.on is Awaited.RECORDS:
            held_up = None  # other workers' tasks may have something to read
        return answer | {"waits": _waits(held_up)}

    @app.get(f"{base}/logs")
    def logs(
        name: Name,
        task: Number | None = None,
        most: Annotated[int, Query(alias="lines", ge=1, le=1000)] = 100,
    ) -> dict[str, Any]:
        herder.own(name, task or 0)
        status = herder.status(name)
        traces = [
            {"task": part.get("id"), "trace": part["trace"]}
            for part in (status["connector"], *status["tasks"])
            if part.get("trace") and (task is None or part.get("id") == task)
        ]
        return {"lines": lines.of(name, task, most), "traces": traces}

    @app.post(f"{base}/compare")
    def compare(name: Name, body: Config) -> dict[str, Any]:
        herder.lead()
        present = herder.config(name) if name in herder.connectors() else {}
        given = kept({**body, "name": name}, present)
        return {"exists": bool(present), "changes": differences(present, given)}

    @app.get(f"{base}/guarantee")
    def guarantee(name: Name) -> Any:
        return plain(herder.look(name, guarantee_of))

    @app.get(f"{base}/ledger")
    def ledger(name: Name) -> Any:
        return herder.look(name, lambda planned: planned.offsets.stored())

    @app.get(f"{base}/lag")
    def lag(name: Name) -> Any:
        return herder.look(name, _lag)

    @app.post(f"{base}/audit", status_code=202)
    def start_audit(name: Name, values: bool = False) -> dict[str, Any]:
        herder.lead()
        return audits.start(name, herder.look(name, given_of), values=values)

    @app.get(f"{base}/audit")
    def audit(name: Name) -> dict[str, Any]:
        herder.lead()
        return audits.answer(name)

    @app.delete(f"{base}/audit", status_code=204)
    def cancel_audit(name: Name) -> None:
        herder.lead()
        audits.cancel(name)


def _waits(waiting: Waiting | None) -> dict[str, Any] | None:
    if waiting is None:
        return None
    since = datetime.fromtimestamp(waiting.since, UTC).isoformat(timespec="milliseconds")
    return {"for": waiting.on, "since": since, "reason": redacted(waiting.why)}


def guarantee_of(planned: AnyPlan) -> dict[str, Any]:
    """The guarantee that holds and why, with the facts that ``semel describe`` shows."""
    held = planned.guarantee
    return {
        "delivery": held.delivery.value,
        "mechanism": held.mechanism.value if held.mechanism is not None else None,
        "because": held.why,
        "engine": planned.engine,
        "facts": {name: _told(planned, fact) for name, fact in planned.facts().items()},
    }


def _told(planned: AnyPlan, fact: Any) -> Any:
    """A fact, without what references of the configuration stand for."""
    if isinstance(fact, list):
        return [_told(planned, each) for each in fact]
    if isinstance(fact, str):
        return without_references(fact, planned.connector.originals)
    return fact


def _lag(planned: AnyPlan) -> dict[str, Any]:
    """How far the stored offsets are behind, at this moment.

    Raises:
        BadRequest: the source cannot tell.
    """
    found = planned.offsets.lag()
    if found is None:
        raise BadRequest(
            f"connector {planned.connector.name}: its source cannot tell how much is left to read "
            "with this configuration"
        )
    unit = {"unit": found.unit} if found.unit else {}
    return {"lag": found.total, **unit, "partitions": found.partitions}


def given_of(planned: AnyPlan) -> dict[str, str]:
    """A connector's configuration, with references unresolved."""
    given = planned.connector.originals
    return given.given if isinstance(given, Resolved) else dict(given)
