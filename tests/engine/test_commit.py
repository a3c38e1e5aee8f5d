"""A task's commits: confirmed first, without what the sink refuses, and ended with the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from semel.config import ConnectorConfig, read
from semel.core.abandoned import within
from semel.core.delivery import Delivery, Guarantee
from semel.core.errors import BadRecord, ServiceError, Unavailable
from semel.core.ledger import Advance, LogId, OffsetRange, Outcome, TopicPartition
from semel.core.records import Commit, RejectedRecord, RowsRejected
from semel.kafka.transactions import RecordsRefused
from semel.sinks.base import Capabilities
from semel.tasks.batch import Batch, Batcher
from semel.tasks.commit import CommitCounter, Committer
from semel.tasks.direct.watch import Recreated
from semel.tasks.poll import TopicTable
from semel.tasks.source.commit import EncodedBatch, SourceCommitter
from tests.patience import PATIENCE
from tests.polled import polled

RAW = {
    "name": "c",
    "connector.class": "postgresql",
    "bootstrap.servers": "b:1",
    "topics": "t",
    "retry.backoff.ms": "30000",
}
BATCH = Batch([Advance(OffsetRange("t", 0, 0, 5))], Commit([]))
LOG = LogId("cluster", "topic id")


class Store:
    """Takes everything but the offsets that it refuses, or is away."""

    capabilities = Capabilities(takes_dead_letters=True)

    def __init__(self, *, away: bool = False, refuses: Sequence[int] = ()) -> None:
        self._away = away
        self._refuses = list(refuses)
        self.tried = threading.Event()
        self.commits = 0
        self.guards: list[Any] = []

    def write(self, _commit: Commit, guard: Any = None) -> Outcome:
        self.tried.set()
        self.guards.append(guard)
        if self._away:
            raise Unavailable("the store is away")
        if self._refuses:
            offset = self._refuses.pop(0)
            raise RowsRejected([RejectedRecord("t", 0, offset, "E", "does not fit")])
        self.commits += 1
        return Outcome.APPLIED

    def advance(self, _advances: Any) -> Outcome:
        return Outcome.APPLIED


def committer(store: Store) -> Committer:
    guarantee = Guarantee(Delivery.AT_LEAST_ONCE, None, "")
    connector = read(ConnectorConfig, RAW)
    going = threading.Event()
    return Committer(connector, guarantee, cast(Any, store), 0, print, ends=going.wait)


def confirmed() -> None: ...


def finish(some: Committer, batch: Batch, confirm: Callable[[], None] = confirmed) -> Batch | None:
    some.begin(batch, confirm)
    return some.wait()


def test_a_task_that_has_failed_does_not_wait_for_a_store_that_is_away() -> None:
    store = Store(away=True)
    some = committer(store)
    some.begin(BATCH, confirmed)
    assert store.tried.wait(PATIENCE)
    assert within(20, "closing", some.close) is None  # the pause before the next try is 30 s
    assert store.commits == 0


def test_nothing_is_written_before_the_records_are_confirmed() -> None:
    store = Store()
    some = committer(store)

    def refuse() -> None:
        raise Recreated("topic t was created again")

    with pytest.raises(Recreated):
        finish(some, BATCH, refuse)
    assert not store.tried.is_set()
    assert finish(some, BATCH) is BATCH
    assert store.commits == 1
    some.close()


def test_a_batch_and_what_is_left_of_it_name_the_log_that_was_checked() -> None:
    store = Store(refuses=[3, 1])
    some = committer(store)
    refused: list[list[int]] = []

    class Unchanged(Batcher):
        def _made(self, *facts: Any) -> Batch:
            refused.append([r.offset for r in facts[-1]])
            return BATCH

    batch = Unchanged(cast(Any, None), cast(Any, None)).batch([], {}, {}, logs={"t": LOG})
    assert finish(some, batch) is not None
    assert [a.log for guard in store.guards for a in guard] == [LOG, LOG, LOG]
    assert refused == [[], [3], [3, 1]]
    some.close()


def test_a_batch_that_ends_before_a_bad_record_keeps_the_epoch_of_its_last_one() -> None:
    """The log may be truncated until somebody has dealt with the bad record."""

    class Strict(Batcher):
        def convert(self, poll: Any, _refused: Any) -> Any:
            bad = [i for i, at in enumerate(poll.offsets.tolist()) if at == 12]
            return [], [poll.letter(i, "VALUE_CONVERTER", "E", "no number") for i in bad], {}

    connector = read(ConnectorConfig, RAW)
    table = polled([b"1", b"2", b"x", b"3"], offsets=[10, 11, 12, 13])
    poll = TopicTable("t", table, np.array([4, 5, 5, 6]))
    batch = Strict(connector, cast(Any, None)).batch([poll], {TopicPartition("t", 0): 10}, {})
    (found,) = batch.advances
    assert batch.stop is not None and batch.stop.offset == 12
    assert (found.range.until_offset, found.leader_epoch, found.epoch_offset) == (12, 5, 12)


def test_a_sink_that_refuses_what_was_left_out_does_not_do_so_for_ever() -> None:
    some = committer(Store(refuses=[3, 1, 3]))
    batch = replace(BATCH, remake=lambda _refused: BATCH)
    with pytest.raises(BadRecord, match="refuses the record at t-0 offset 3, even after it was"):
        finish(some, batch)
    some.close()


def test_a_commit_that_ends_before_partitions_are_given_up_tells_how_afterwards() -> None:
    store = Store()
    some = committer(store)
    some.settle()
    assert some.wait() is None
    some.begin(BATCH, confirmed)
    some.settle()
    assert (store.commits, some.under_way, some.has_ended) == (1, True, True)
    assert some.wait() is BATCH

    def refuse() -> None:
        raise Recreated("topic t was created again")

    some.begin(BATCH, refuse)
    some.settle()
    with pytest.raises(Recreated):
        some.wait()
    some.begin(BATCH, confirmed)
    some.settle()
    assert some.close() is BATCH


def test_a_question_waits_for_the_commit_in_progress_and_leaves_its_end_to_be_told() -> None:
    store = Store()
    some = committer(store)
    go = threading.Event()

    def confirm() -> None:
        assert go.wait(PATIENCE)

    some.begin(BATCH, confirm)
    assert (some.under_way, some.has_ended) == (True, False)
    threading.Timer(0.05, go.set).start()  # while the question waits
    assert some.ask(lambda: store.commits) == 1
    assert some.has_ended
    assert some.wait() is BATCH
    assert not some.under_way
    some.close()


def test_a_commit_that_has_succeeded_is_told_when_the_task_ends() -> None:
    some = committer(Store())
    some.begin(BATCH, confirmed)
    assert some.close() is BATCH


def test_a_commit_of_source_offsets_alone_that_brokers_refuse_says_so() -> None:
    """All records of a round may have been left out."""

    def refuses(*_: Any, **__: Any) -> None:
        raise RecordsRefused

    some = SourceCommitter.__new__(SourceCommitter)
    some._name, some._exactly_once, some._counter = "c", True, CommitCounter()
    some._transactions = cast(Any, SimpleNamespace(run=refuses))
    some._offsets = cast(Any, SimpleNamespace(refused=lambda: ServiceError("offsets refused")))
    with pytest.raises(ServiceError, match="offsets refused"):
        some._commit(EncodedBatch(), [])
