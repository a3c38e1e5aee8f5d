"""Follows a connector until it is stopped or something is wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semel.audit.follow.follower import Follower
from semel.audit.follow.report import Followed, Judged
from semel.audit.follow.settling import SHARE
from semel.audit.follow.state import default_path, load, save
from semel.audit.workspace import Workspace
from semel.engine.pipeline import Pipeline
from semel.errors import ConfigError, SemelError, TransientError
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.plan import Plan
from semel.sinks.rereading import ShowsRows

_CATCHING_UP = 0.5
"""The part of the time for which the store may be busy while there is much to judge."""
_SHORTEST, _LONGEST = 0.5, 30.0
_EVERY = 60.0
"""Seconds between two lines about the same outage, or about nothing new."""


def follow(
    planned: Plan,
    transform: Callable[..., Any] | None = None,
    *,
    values: bool = False,
    path: Path | None = None,
    interval: float = 10.0,
    stop: threading.Event | None = None,
    tell: Callable[[str], None] = lambda _line: None,
    judged: Callable[[Judged], None] = lambda _judged: None,
) -> Followed:
    """Judge what a connector commits, while it runs, until ``stop`` is set or the declared
    guarantee is found broken.

    Args:
        planned: the connector, as :func:`semel.plan.plan` has read it.
        transform: the run's transform, as for :func:`semel.audit.audit`.
        values: compare the values of rows, too, with what their records make.
        path: the file that keeps what was judged; by default one in the user's state directory.
        interval: seconds between two looks.
        stop: set it, from another thread, to end.
        tell: given lines for the user.
        judged: given each interval that was compared.

    Raises:
        semel.errors.NothingToAudit: the ledger knows nothing of the connector.
        semel.errors.ConfigError: values cannot be compared; or the state cannot be read or
            written, or is not this connector's.
        semel.errors.OffsetOutOfRange: a topic is not the one that the ledger knows.
        semel.errors.SemelError: Kafka or the store refuses.
    """
    stop = stop or threading.Event()
    connector, sink = planned.connector, planned.sink
    target = sink.describe().get("ledger", connector.connector_class)
    path = path or default_path(connector.name, target)
    state = load(path, connector.name, target)
    if values and not (connector.provenance and isinstance(sink, ShowsRows)):
        raise ConfigError(
            f"connector {connector.name}: --follow --values needs provenance=true and a store that "
            "shows its rows. Leave --values out, or run semel audit --values without --follow"
        )
    takes_frames = transform is not None and planned.engine == "micro-batch"
    taken = None if takes_frames else transform
    pipeline = Pipeline(connector, sink, target=sink.schema, transform=taken)
    cluster = Cluster(client_config(connector, "admin"))
    save(path, state)  # a place that cannot be written to is told at once
    workspace = Workspace()
    follower = Follower(
        planned,
        cluster,
        pipeline,
        state,
        tell,
        workspace,
        converts=not takes_frames,
        values=values,
    )
    rounds = _Rounds(follower, tell)
    broken: list[Judged] = []
    told = time.monotonic()
    lost = duplicated = changed = 0
    try:
        while not stop.is_set() and not broken:
            found, pause = rounds.next(interval)
            for each in found:
                if each.found or each.until_offset > each.from_offset:
                    judged(each)
                lost, duplicated = lost + each.lost, duplicated + each.duplicated
                changed += each.changed
                if each.found:
                    tell(str(each))
            broken = [j for j in found if follower.breaks(j)]
            if found:
                save(path, follower.state)
            if time.monotonic() - told >= _EVERY:
                told = time.monotonic()
                records = follower.state.records
                tell(f"{records:,} records judged: {lost:,} lost, {duplicated:,} duplicated")
            if not broken:
                stop.wait(pause)
    finally:
        workspace.close()
        sink.close()
    kept = follower.state
    return Followed(
        connector.name,
        str(planned.guarantee),
        follower.exact,
        kept.records,
        lost,
        duplicated,
        kept.unknown,
        kept.expired,
        bool(broken),
        tuple(follower.not_judged),
        changed,
    )


class _Rounds:
    """Rounds, with pauses that leave the store its time; an outage is waited for."""

    def __init__(self, follower: Follower, tell: Callable[[str], None]) -> None:
        self._follower = follower
        self._tell = tell
        self._met = False
        self._since: float | None = None
        self._told = 0.0
        self._pause = 0.0

    def next(self, interval: float) -> tuple[list[Judged], float]:
        """What the next round has found, and how many seconds to wait after it."""
        try:
            found = self._follower.round()
        except TransientError as error:
            if not self._met:
                raise
            return [], self._away(error)
        self._met = True
        if self._since is not None:
            self._tell(f"going on after {time.monotonic() - self._since:.0f} s")
            self._since = None
        follower = self._follower
        return found, pause(interval, follower.seconds, behind=follower.behind)

    def _away(self, error: SemelError) -> float:
        now = time.monotonic()
        if self._since is None:
            self._since = self._told = now
            self._pause = _SHORTEST
            self._tell(f"{error}; waiting until it passes")
        else:
            self._pause = min(2 * self._pause, _LONGEST)
            if now - self._told >= _EVERY:
                self._told = now
                self._tell(f"{error}; waiting for {now - self._since:.0f} s so far")
        return self._pause


def pause(interval: float, seconds: float, *, behind: bool) -> float:
    """How long to wait after a round for which the store needed ``seconds``."""
    share = _CATCHING_UP if behind else SHARE
    rest = seconds * (1 - share) / share
    return rest if behind else max(interval, rest)
