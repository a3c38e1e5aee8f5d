"""What a running connector waits for, and since when."""

from __future__ import annotations

from collections.abc import Sequence

from semel.driver.states import Awaited, State, Waiting
from semel.worker.metrics.lags import Lags
from semel.worker.metrics.observed import Observed

_NEW = 10.0
"""Seconds for which an answer from Kafka says that there is nothing to read."""


def waits(found: Sequence[Observed], lags: Lags) -> dict[str, Waiting]:
    """What each connector waits for; those that work, or do not run, are left out. ``lags`` has
    been asked about them."""
    held_up = {each.name: _of(each, lags) for each in found if each.state == State.RUNNING}
    return {name: waiting for name, waiting in held_up.items() if waiting is not None}


def _of(each: Observed, lags: Lags) -> Waiting | None:
    if each.waiting:
        return min(each.waiting, key=lambda waiting: waiting.since)
    reports = each.reports
    if set(each.tasks.values()) != {State.RUNNING} or not reports:
        return None
    if each.is_source:
        idles = len(reports) == len(each.tasks) and all(r.caught_up for r in reports.values())
        why = "the source has nothing new"
    else:
        trouble = lags.trouble(each.name)
        if trouble is not None and trouble.since >= each.moved:
            return trouble
        lag = lags.recent(each.name, _NEW)
        mine = [tp for report in reports.values() for tp in report.positions]
        idles = bool(mine) and all(lag.get(tp) == 0 for tp in mine)
        why = "all that Kafka holds is committed"
    return Waiting(Awaited.RECORDS, why, each.moved) if idles else None
