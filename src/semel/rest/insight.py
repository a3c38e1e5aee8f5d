"""The endpoints in addition to Kafka Connect's: ``/semel`` and ``/metrics``."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from semel.config.providers import Resolved
from semel.connect import insight
from semel.connect.audits import Audits
from semel.connect.herder import Herder
from semel.planning import AnyPlan
from semel.redact import plain
from semel.rest.jersey import Name


def add_semel(app: FastAPI, herder: Herder, audits: Audits) -> None:
    """Guarantee, ledger, lag and audit of each connector. In a cluster the leader audits, so that
    all workers know of the same audits."""
    base = "/semel/connectors/{name}"

    @app.get(f"{base}/guarantee")
    def guarantee(name: Name) -> Any:
        return plain(herder.look(name, insight.guarantee))

    @app.get(f"{base}/ledger")
    def ledger(name: Name) -> Any:
        return herder.look(name, insight.ledger)

    @app.get(f"{base}/lag")
    def lag(name: Name) -> Any:
        return herder.look(name, insight.lag)

    @app.post(f"{base}/audit", status_code=202)
    def start_audit(name: Name, values: bool = False) -> dict[str, Any]:
        herder.lead()
        return audits.start(name, herder.look(name, _given), values=values)

    @app.get(f"{base}/audit")
    def audit(name: Name) -> dict[str, Any]:
        herder.lead()
        return audits.answer(name)

    @app.delete(f"{base}/audit", status_code=204)
    def cancel_audit(name: Name) -> None:
        herder.lead()
        audits.cancel(name)


def add_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    """What Prometheus scrapes. Other calls may fill the pool of threads, so it uses another."""

    @app.get("/metrics")
    async def metrics() -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


def _given(planned: AnyPlan) -> dict[str, str]:
    """A connector's configuration, with references unresolved."""
    given = planned.connector.originals
    return given.given if isinstance(given, Resolved) else dict(given)
