"""A task's commits end with the task, whatever keeps them from succeeding."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from semel.abandoned import within
from semel.config import ConnectorConfig, read
from semel.delivery import Delivery, Guarantee
from semel.engine.batch import Batch
from semel.engine.committer import Committer
from semel.engine.direct.watch import Recreated
from semel.errors import Unavailable
from semel.ledger import Advance, OffsetRange, Outcome
from semel.records import Commit
from semel.sinks.capabilities import Capabilities
from tests.patience import PATIENCE

RAW = {
    "name": "c",
    "connector.class": "postgresql",
    "bootstrap.servers": "b:1",
    "topics": "t",
    "retry.backoff.ms": "30000",
}
BATCH = Batch([Advance(OffsetRange("t", 0, 0, 1))], Commit([]))


class Line:
    def __init__(self) -> None:
        self.stop = threading.Event()
        self.orphaned = False


class Store:
    """Takes everything, or is away."""

    capabilities = Capabilities(takes_dead_letters=True)

    def __init__(self, *, away: bool = False) -> None:
        self._away = away
        self.tried = threading.Event()
        self.commits = 0

    def write(self, _commit: Commit, _guard: Any = None) -> Outcome:
        self.tried.set()
        if self._away:
            raise Unavailable("the store is away")
        self.commits += 1
        return Outcome.APPLIED

    def advance(self, _advances: Any) -> Outcome:
        return Outcome.APPLIED


def committer(store: Store) -> Committer:
    guarantee = Guarantee(Delivery.AT_LEAST_ONCE, None, "")
    connector = read(ConnectorConfig, RAW)
    return Committer(connector, guarantee, cast(Any, store), cast(Any, Line()), 0, print)


def test_a_task_that_has_failed_does_not_wait_for_a_store_that_is_away() -> None:
    store = Store(away=True)
    some = committer(store)
    pending = some.submit(BATCH)
    assert store.tried.wait(PATIENCE)
    within(20, "closing", some.close)  # the pause before the next try is 30 s
    assert isinstance(pending.exception(), Unavailable)


def test_nothing_is_written_before_the_records_are_confirmed() -> None:
    store = Store()
    some = committer(store)

    def refuse() -> None:
        raise Recreated("topic t was created again")

    with pytest.raises(Recreated):
        some.submit(BATCH, refuse).result()
    assert not store.tried.is_set()
    some.submit(BATCH, lambda: None).result()
    assert store.commits == 1
    some.close()
