"""The continuous audit: judges what a connector commits while it runs, interval by interval.

Each round reads the store at one instant and compares the offsets that were committed since the
last round with Kafka's records, by the rules of the whole audit. A record without a row is lost if
nothing can account for it: no later record of its key up to the positions at that instant, no dead
letter, and no record that the ledger counts as filtered or failed. The whole audit confirms it
before the record is reported as lost.

With inserts, rounds also compare the number of the table's rows with the ledger's. If the number
has changed by itself, rows of earlier intervals have come or gone, and all intervals are judged
again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.audit.follow.follower import Follower
from semel.audit.follow.progress import default_path, load, save
from semel.audit.follow.settling import SHARE
from semel.audit.named import not_found, splitter
from semel.audit.report import FollowReport, IntervalReport
from semel.audit.values import audited
from semel.audit.workspace import Workspace
from semel.core.errors import ConfigError, SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.driver.planning import Plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.sinks.rereading import Viewable
from semel.tasks.pipeline import Pipeline

__all__ = ["FollowReport", "IntervalReport", "follow"]

_Counts = tuple[int, int, int]
"""Records lost, rows duplicated and rows changed."""
_NOTHING: _Counts = (0, 0, 0)
_CATCHING_UP = 0.5
"""The share of the time that the store may be busy while there is much to judge."""
_SHORTEST, _LONGEST = 0.5, 30.0
_EVERY = 60.0
"""Seconds between two lines about the same outage, or about an unchanged state."""


def follow(
    planned: Plan,
    transform: Callable[..., Any] | None = None,
    *,
    values: bool = False,
    path: Path | None = None,
    interval: float = 10.0,
    stop: threading.Event | None = None,
    tell: Callable[[str], None] = lambda _line: None,
    judged: Callable[[IntervalReport], None] = lambda _judged: None,
) -> FollowReport:
    """Judge what a connector commits while it runs, until ``stop`` is set or the declared guarantee
    turns out to be broken.

    Args:
        planned: the connector, as :func:`semel.driver.planning.plan` returns it.
        transform: the run's transform, as for :func:`semel.audit.audit`.
        values: also compare the values of rows with their records.
        path: the file that keeps the progress; by default one in the user's state directory.
        interval: seconds between two looks.
        stop: set it from another thread to end.
        tell: is called with lines for the user.
        judged: is called with each interval that was compared.

    Raises:
        semel.core.errors.NothingToAudit: the ledger does not know the connector.
        semel.core.errors.ConfigError: values cannot be compared, or the state cannot be read or
            written or belongs to another connector.
        semel.core.errors.OffsetOutOfRange: a topic is not the one that the ledger knows.
        semel.core.errors.SemelError: Kafka or the store refuses.
    """
    planned.check_followed()
    stop = stop or threading.Event()
    connector, sink = planned.connector, planned.sink
    stage = splitter(planned)
    if stage is not None:
        raise not_found(planned, stage)
    target = sink.describe().get("ledger", connector.connector_class)
    path = path or default_path(connector.name, target)
    state = load(path, connector.name, target)
    if values and not (connector.provenance and isinstance(sink, Viewable)):
        raise ConfigError(
            f"connector {connector.name}: --follow --values needs provenance=true and a store that "
            "shows its rows. Leave --values out, or run semel audit --values without --follow"
        )
    maker = planned.merged_by(transform)
    taken = None if maker else transform
    pipeline = Pipeline(audited(connector), sink, target=sink.schema, transform=taken)
    cluster = Cluster(client_config(connector, "admin"))
    save(path, state)  # fails at once if it cannot be written
    workspace = Workspace()
    follower = Follower(
        planned,
        cluster,
        pipeline,
        state,
        tell,
        workspace,
        converts=not maker,
        values=values,
    )
    rounds = _Rounds(follower, tell)
    broken = False
    last_line = time.monotonic()
    totals = Totals()
    try:
        while not stop.is_set() and not broken:
            findings, pause = rounds.next(interval)
            for finding in findings:
                if finding.has_findings or finding.until_offset > finding.from_offset:
                    judged(finding)
                if totals.add(finding):
                    tell(str(finding))
            broken = bool(follower.unplaced) or any(follower.breaks(j) for j in findings)
            for line in follower.unplaced:
                tell(line)
            if findings:
                save(path, follower.state)
            if time.monotonic() - last_line >= _EVERY:
                last_line = time.monotonic()
                records = follower.state.records
                tell(
                    f"{records:,} records judged: {totals.lost:,} lost, {totals.duplicated:,} "
                    "duplicated"
                )
            if not broken:
                stop.wait(pause)
    finally:
        workspace.close()
        sink.close()
    kept = follower.state
    return FollowReport(
        connector.name,
        str(planned.guarantee),
        follower.exact,
        kept.records,
        totals.lost,
        totals.duplicated,
        kept.unknown,
        kept.expired,
        broken,
        tuple(follower.not_judged),
        totals.changed,
    )


class _Rounds:
    """Runs rounds with pauses that spare the store, and waits for outages to end."""

    def __init__(self, follower: Follower, tell: Callable[[str], None]) -> None:
        self._follower = follower
        self._tell = tell
        self._has_answered = False
        self._since: float | None = None
        self._last_line = 0.0
        self._pause = 0.0

    def next(self, interval: float) -> tuple[list[IntervalReport], float]:
        """Run the next round. Returns its findings and the seconds to wait after it."""
        try:
            findings = self._follower.round()
        except TransientError as error:
            if not self._has_answered:
                raise
            return [], self._away(error)
        self._has_answered = True
        if self._since is not None:
            self._tell(f"continuing after {time.monotonic() - self._since:.0f} s")
            self._since = None
        follower = self._follower
        return findings, pause(interval, follower.seconds, behind=follower.behind)

    def _away(self, error: SemelError) -> float:
        now = time.monotonic()
        if self._since is None:
            self._since = self._last_line = now
            self._pause = _SHORTEST
            self._tell(f"{error}; waiting for it to pass")
        else:
            self._pause = min(2 * self._pause, _LONGEST)
            if now - self._last_line >= _EVERY:
                self._last_line = now
                self._tell(f"{error}; waited {now - self._since:.0f} s so far")
        return self._pause


def pause(interval: float, seconds: float, *, behind: bool) -> float:
    """The seconds to wait after a round that kept the store busy for ``seconds``."""
    share = _CATCHING_UP if behind else SHARE
    rest = seconds * (1 - share) / share
    return rest if behind else max(interval, rest)


@dataclass(slots=True)
class _Passes:
    """The findings in one topic-partition: in this pass over its offsets, and the most in any."""

    at: int = 0
    now: _Counts = _NOTHING
    most: _Counts = _NOTHING


@dataclass(slots=True)
class Totals:
    """The findings of all intervals so far."""

    _passes: dict[TopicPartition, _Passes] = field(default_factory=dict)

    def add(self, judged: IntervalReport) -> bool:
        """Add an interval; returns whether it holds more than was found before."""
        passes = self._passes.setdefault(TopicPartition(judged.topic, judged.partition), _Passes())
        if judged.from_offset < passes.at:
            passes.now = _NOTHING
        passes.at = judged.until_offset
        counts = (judged.lost, judged.duplicated, judged.changed)
        passes.now = _each(passes.now, counts, sum)
        before, passes.most = passes.most, _each(passes.most, passes.now, max)
        return passes.most != before

    @property
    def lost(self) -> int:
        return sum(p.most[0] for p in self._passes.values())

    @property
    def duplicated(self) -> int:
        return sum(p.most[1] for p in self._passes.values())

    @property
    def changed(self) -> int:
        return sum(p.most[2] for p in self._passes.values())


def _each(one: _Counts, other: _Counts, combined: Callable[[tuple[int, int]], int]) -> _Counts:
    lost, duplicated, changed = map(combined, zip(one, other, strict=True))
    return lost, duplicated, changed
