"""The commit that is in progress while a task reads and converts the next batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from semel.engine.batch import Batch, Batcher, bad_record
from semel.engine.committer import Committer
from semel.engine.direct.watch import Check
from semel.engine.poll import RawRecords
from semel.ledger import TopicPartition
from semel.records import Rejected, RowsRejected


@dataclass(frozen=True, slots=True)
class Work:
    """A batch, the polls that it was made from, and the check of their logs."""

    batch: Batch
    polls: Sequence[RawRecords]
    positions: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    check: Check


class Commits:
    """At most one commit at a time. ``committed`` is called, in the task's thread, for each one
    that has succeeded."""

    def __init__(
        self,
        connector: str,
        committer: Committer,
        batcher: Batcher,
        committed: Callable[[Batch], None],
    ) -> None:
        self._connector = connector
        self._committer = committer
        self._batcher = batcher
        self._committed = committed
        self._open: tuple[Future[None], Work] | None = None

    @property
    def under_way(self) -> bool:
        return self._open is not None

    def begin(self, work: Work) -> None:
        """Commit in the committer's thread, once the logs are confirmed; the previous commit must
        have ended."""
        assert self._open is None
        batch = work.batch.of(work.check.logs)
        self._open = (self._committer.submit(batch, work.check.confirm), work)

    def look(self) -> None:
        """Handle the commit if it has ended; see :meth:`wait`."""
        if self._open is not None and self._open[0].done():
            self.wait()

    def wait(self) -> None:
        """Wait for the end of the commit. Records that the sink refuses become bad records.

        Raises:
            SemelError: the commit has failed.
            BadRecord: the sink refuses a record, and ``errors.tolerance`` is ``none``.
            Recreated: a topic was created again.
        """
        if self._open is None:
            return
        (future, work), self._open = self._open, None
        try:
            future.result()
        except RowsRejected as rejection:
            self._without(work, rejection.rejected)
        else:
            self._committed(work.batch)
        finally:
            del future  # its exception refers to this frame, and so to the batch

    def finish(self) -> None:
        """Handle the last commit. Its failure is not raised, because the task is ending."""
        last, self._open = self._open, None
        if last is not None and last[0].exception() is None:
            self._committed(last[1].batch)

    def _without(self, work: Work, rejected: Sequence[Rejected]) -> None:
        """Commit again without the records that the sink refused."""
        refused: list[Rejected] = []
        while True:
            refused.extend(rejected)
            batch = self._batcher.batch(work.polls, work.positions, work.ends, refused)
            batch = batch.of(work.check.logs)
            try:
                self._committer.without_rejected(batch).result()
            except RowsRejected as rejection:
                rejected = rejection.rejected
                continue
            break
        self._committed(batch)
        if batch.stop is not None:
            raise bad_record(self._connector, batch.stop)
