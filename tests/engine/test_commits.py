"""What a task commits: batches that name the logs of their records."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, cast

from semel.engine.batch import Batch
from semel.engine.direct.commits import Commits, Work
from semel.ledger import Advance, LogId, OffsetRange
from semel.records import Commit, Rejected, RowsRejected

LOG = LogId("cluster", "topic id")
BATCH = Batch([Advance(OffsetRange("t", 0, 0, 5))], Commit([]))


class Check:
    """Confirms everything."""

    def __init__(self) -> None:
        self.logs = {"t": LOG}

    def confirm(self) -> None: ...


class Committer:
    """Refuses a record of the first batch, and takes the second one."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def submit(self, batch: Batch, _confirm: object = None) -> Future[None]:
        self.batches.append(batch)
        refused: Future[None] = Future()
        refused.set_exception(RowsRejected([Rejected("t", 0, 3, "E", "does not fit")]))
        return refused

    def without_rejected(self, batch: Batch) -> Future[None]:
        self.batches.append(batch)
        taken: Future[None] = Future()
        taken.set_result(None)
        return taken


class Batcher:
    def batch(self, *_facts: Any) -> Batch:
        return BATCH


def test_a_batch_and_what_is_left_of_it_name_the_log_that_was_checked() -> None:
    committer, committed = Committer(), list[Sequence[Advance]]()
    commits = Commits(
        "c", cast(Any, committer), cast(Any, Batcher()), lambda b: committed.append(b.advances)
    )
    commits.begin(Work(BATCH, [], {}, {}, cast(Any, Check())))
    commits.wait()
    assert [a.log for batch in committer.batches for a in batch.advances] == [LOG, LOG]
    assert len(committed) == 1
