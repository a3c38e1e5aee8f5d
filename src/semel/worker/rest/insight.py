"""The endpoints in addition to Kafka Connect's: ``/semel``.

They tell of a connector what Kafka Connect has no answer for: its log, guarantee, ledger and lag,
what it waits for, and its audits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Response

from semel.config import ConnectorConfig
from semel.config.providers import ResolvedConfig
from semel.core.redact import plain, redacted
from semel.driver.base import Wait, WaitKind
from semel.driver.planning import AnyPlan
from semel.driver.planning.base import without_references
from semel.worker.audits import Audits
from semel.worker.errors import BadRequest, NotFound, TooManyRequests
from semel.worker.herder import Herder
from semel.worker.loggers import RecentLines
from semel.worker.rest.app import Config
from semel.worker.rest.jersey import Name, Number
from semel.worker.secrets import differences, kept

if TYPE_CHECKING:
    from semel.streams.query import Entry, Stores

Waits = Callable[[], Mapping[str, Wait]]
_ROOM = threading.Semaphore(2)
"""For those who read stores: it may take seconds of CPU time."""
_ROOM_IN = 20.0


def add_semel(
    app: FastAPI, herder: Herder, audits: Audits, waits: Waits, lines: RecentLines
) -> None:
    """State, log, guarantee, ledger, lag, stores and audit of each connector. In a cluster the
    leader audits, so that all workers know of the same audits; the worker of the first task knows
    what a connector waits for, and that of each task has its log; any worker reads stores."""
    base = "/semel/connectors/{name}"

    @app.get(base)
    def state(name: Name) -> dict[str, Any]:
        herder.own(name)
        answer, waiting = herder.status(name), herder.waiting(name)
        held_up = waits().get(name) or next(iter(waiting.values()), None)
        for task in answer["tasks"]:
            task["waits"] = _waits(waiting.get(task["id"]))
        is_shared = len({task["worker_id"] for task in answer["tasks"]}) > 1
        if is_shared and held_up is not None and held_up.on is WaitKind.RECORDS:
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
        full = kept({**body, "name": name}, present)
        return {"exists": bool(present), "changes": differences(present, full)}

    @app.get(f"{base}/guarantee")
    def guarantee(name: Name) -> Any:
        return plain(herder.look(name, guarantee_of))

    @app.get(f"{base}/ledger")
    def ledger(name: Name) -> Any:
        return herder.look(name, lambda planned: planned.offsets.stored())

    @app.get(f"{base}/lag")
    def lag(name: Name) -> Any:
        return herder.look(name, _lag)

    @app.get(f"{base}/stores")
    def stores(name: Name) -> dict[str, Any]:
        listed = herder.look(name, lambda planned: stores_of(planned).listed())
        return {"stores": [asdict(each) for each in listed]}

    @app.get(f"{base}/stores/{{store}}")
    def entries(
        name: Name,
        store: Name,
        key: str | None = None,
        first: Annotated[str | None, Query(alias="from")] = None,
        last: Annotated[str | None, Query(alias="to")] = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Response:
        from semel.streams import query

        def text_of(planned: AnyPlan) -> str:
            selection = query.entry_filter(key, first, last, since, until)
            try:
                page = stores_of(planned).page(
                    store, selection, limit=limit, after=after, show=query.json_texts
                )
            except query.NoStore as error:
                raise NotFound(str(error)) from None
            shown = ", ".join(map(_entry, page.entries))
            return f'{{"entries": [{shown}], "after": {json.dumps(page.after)}}}'

        if not _ROOM.acquire(timeout=_ROOM_IN):
            raise TooManyRequests("Too many stores are being read. Try again later")
        try:
            return Response(herder.look(name, text_of), media_type="application/json")
        finally:
            _ROOM.release()

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


def _waits(waiting: Wait | None) -> dict[str, Any] | None:
    if waiting is None:
        return None
    since = datetime.fromtimestamp(waiting.since, UTC).isoformat(timespec="milliseconds")
    return {"for": waiting.on, "since": since, "reason": redacted(waiting.why)}


def guarantee_of(planned: AnyPlan) -> dict[str, Any]:
    """The guarantee that holds and why, with the facts that ``semel describe`` shows."""
    promise = planned.guarantee
    return {
        "delivery": promise.delivery.value,
        "mechanism": promise.mechanism.value if promise.mechanism is not None else None,
        "because": promise.why,
        "engine": planned.engine,
        "facts": {name: _redacted_fact(planned, fact) for name, fact in planned.facts().items()},
    }


def _redacted_fact(planned: AnyPlan, fact: Any) -> Any:
    """A fact, without what references of the configuration stand for."""
    if isinstance(fact, list):
        return [_redacted_fact(planned, each) for each in fact]
    if isinstance(fact, str):
        return without_references(fact, planned.connector.originals)
    return fact


def _lag(planned: AnyPlan) -> dict[str, Any]:
    """How far the stored offsets are behind, at this moment.

    Raises:
        BadRequest: the source cannot tell.
    """
    lag = planned.offsets.lag()
    if lag is None:
        raise BadRequest(
            f"connector {planned.connector.name}: its source cannot tell how much is left to read "
            "with this configuration"
        )
    unit = {"unit": lag.unit} if lag.unit else {}
    return {"lag": lag.total, **unit, "partitions": lag.partitions}


def stores_of(planned: AnyPlan) -> Stores:
    """The stores of a connector that runs a topology.

    Raises:
        NotFound: it runs none.
    """
    topology = getattr(planned, "topology", None)
    if topology is None:
        raise NotFound(f"Connector {planned.connector.name} has no stores: it is no topology")
    from semel.streams.query import Stores

    assert isinstance(planned.connector, ConnectorConfig)
    return Stores(planned.connector, topology)


def _entry(entry: Entry) -> str:
    """An entry as JSON; its key and its value are that already."""
    window = "null"
    if entry.window is not None:
        window = json.dumps(dict(zip(("start", "end"), entry.window, strict=True)))
    facts = {"timestamp": entry.timestamp, "partition": entry.partition}
    return (
        f'{{"key": {entry.key}, "window": {window}, "value": {entry.value}, {json.dumps(facts)[1:]}'
    )


def given_of(planned: AnyPlan) -> dict[str, str]:
    """A connector's configuration, with references unresolved."""
    originals = planned.connector.originals
    return originals.given if isinstance(originals, ResolvedConfig) else dict(originals)
