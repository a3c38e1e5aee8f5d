"""From a batch to the COMMIT: the order of results and positions, dead letters, and what is tried
again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from semel.config import ConnectorConfig
from semel.core.delivery import Delivery, Guarantee, Mechanism
from semel.core.errors import LedgerConflict, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import Advance, Outcome, TopicPartition
from semel.core.records import Commit, DeadLetter, RejectedRecord, RowsRejected
from semel.kafka.clients import client_config
from semel.kafka.dead_letters import DeadLetterProducer
from semel.sinks.base import Sink
from semel.sinks.protocols import transactional
from semel.sinks.staging import StagedCommit, StagingSink
from semel.tasks.batch import Batch, add_refused
from semel.tasks.control import Deliveries
from semel.tasks.retry import Retries

T = TypeVar("T")

Results = Commit | StagedCommit
"""What is committed: rows, or the files that tasks have staged from them."""

_LOOK = 0.2
"""Seconds between two checks whether the task is ending."""


def deliver(
    sink: Sink, guarantee: Guarantee, advances: Sequence[Advance], results: Results
) -> Outcome:
    """Commit results and positions as the guarantee demands. Safe to call again after any error.

    Raises:
        LedgerConflict, RowsRejected, TransientError, ServiceError: see the sink's contract.
    """
    if guarantee.mechanism is Mechanism.TRANSACTIONAL:
        if isinstance(results, StagedCommit):
            return _staging(sink).commit_staged(advances, results)
        return transactional(sink).commit(advances, results)
    if guarantee.delivery is Delivery.AT_MOST_ONCE:
        outcome = sink.advance(advances)
        hit("deliver.between")
        if outcome is Outcome.APPLIED:  # a replay may have written already: never write twice
            _write(sink, results)
        return outcome
    # The guard keeps a zombie from writing older rows over newer ones.
    if _write(sink, results, advances) is Outcome.REPLAYED:
        return Outcome.REPLAYED
    hit("deliver.between")
    return sink.advance(advances)


def _write(sink: Sink, results: Results, guard: Sequence[Advance] | None = None) -> Outcome:
    if isinstance(results, StagedCommit):
        return _staging(sink).write_staged(results, guard)
    return sink.write(results, guard)


def _staging(sink: Sink) -> StagingSink:
    assert isinstance(sink, StagingSink), "only such a sink stages files"
    return sink


class CommitCounter:
    """Counts commits; ``totals`` may be read from any thread."""

    def __init__(self) -> None:
        self.totals = Deliveries()

    @contextmanager
    def counting(self, records: int) -> Iterator[None]:
        """Count an attempt to commit a number of records."""
        began = time.monotonic()
        try:
            yield
        except LedgerConflict:
            self.totals = replace(self.totals, conflicts=self.totals.conflicts + 1)
            raise
        except TransientError:
            self.totals = replace(self.totals, failures=self.totals.failures + 1)
            raise
        self.totals = self.totals.committed(time.monotonic() - began, records)

    def count_replay(self) -> None:
        """Count that the ledger had the last commit already."""
        self.totals = replace(self.totals, replays=self.totals.replays + 1)


class Committer:
    """Commits batches through one sink, and sends their dead letters to a topic if they go to one:
    first, or last where results follow their positions (at-most-once).

    :meth:`commit` does so at once. :meth:`begin` does so in a thread of its own while the next
    batch is read, one batch at a time and in order, and tries again after failures that may pass.

    Args:
        connector: the connector.
        guarantee: what the commits keep.
        sink: serves one thread at a time; see :meth:`ask`.
        task: the number of the task; 0 where the driver commits.
        tell: writes a line to the log.
        counter: counts the commits.
        waits: that of :class:`~semel.tasks.retry.Retries`.
        ends: waits for so many seconds, and returns whether the task is to end.
        logs_bad_records: write bad records to the log, as far as ``errors.log.enable`` says so.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        guarantee: Guarantee,
        sink: Sink,
        task: int,
        tell: Callable[[str], None],
        *,
        counter: CommitCounter | None = None,
        waits: Callable[[str], None] = lambda _why: None,
        ends: Callable[[float], bool] = lambda _seconds: False,
        logs_bad_records: bool = False,
    ) -> None:
        self._connector = connector
        self._guarantee = guarantee
        self._sink = sink
        self._task = task
        self._tell = tell
        self._waits = waits
        self._ends = ends
        self._logs = logs_bad_records
        self._counter = counter or CommitCounter()
        self._retries = Retries(connector, tell, waits)
        self._producer: DeadLetterProducer | None = None
        self._sent: set[tuple[str, int, int]] = set()
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="semel-commit")
        self._open: tuple[Batch, futures.Future[None]] | None = None
        self._closing = False

    @property
    def totals(self) -> Deliveries:
        """The outcomes of its commits."""
        return self._counter.totals

    # A commit in the caller's thread

    def commit(
        self,
        advances: Sequence[Advance],
        results: Results,
        moved: Collection[TopicPartition] = (),
    ) -> None:
        """Commit a batch; safe to call again after any error.

        Args:
            advances: how far its positions move.
            results: what was made of its records.
            moved: the partitions of an attempt that the sink has refused. With at-most-once that
                attempt has moved their positions and written nothing.

        Raises:
            LedgerConflict, RowsRejected, TransientError, ServiceError: see the sink's contract.
        """
        moves_first = self._guarantee.delivery is Delivery.AT_MOST_ONCE
        if moved and moves_first:
            self._write_rest(advances, results, moved)
        elif advances:
            if not moves_first:
                self._send(results.dead_letters)
            with self._counter.counting(sum(a.read for a in advances)):
                outcome = deliver(self._sink, self._guarantee, advances, results)
            if outcome is Outcome.REPLAYED:
                self._counter.count_replay()
            elif moves_first:
                self._send(results.dead_letters)
        self._sent.clear()

    def _write_rest(
        self,
        advances: Sequence[Advance],
        results: Results,
        moved: Collection[TopicPartition],
    ) -> None:
        """Write the rest of a refused batch. A failure with an unknown outcome is final."""
        rest = [a for a in advances if a.range.topic_partition not in moved]
        if rest and self._sink.advance(rest) is Outcome.REPLAYED:
            return
        try:
            _write(self._sink, results)
            self._send(results.dead_letters)
        except TransientError as error:
            self._tell(f"{error}; not retried, because delivery is at-most-once")

    def _send(self, letters: Sequence[DeadLetter]) -> None:
        """Send dead letters, except those sent before an earlier failure of the same batch."""
        places = [(x.topic, x.partition, x.offset) for x in letters]
        new = [x for x, place in zip(letters, places, strict=True) if place not in self._sent]
        if not new:
            return
        if self._connector.dead_letter_topic and not self._sink.capabilities.takes_dead_letters:
            if self._producer is None:
                config = client_config(self._connector, "producer")
                self._producer = DeadLetterProducer(self._connector, config, self._task)
            try:
                self._producer.send(new)
            except TransientError:
                self._producer = None  # it may never find its brokers again
                raise
        for line in errors_log(self._connector, new) if self._logs else ():
            self._tell(line)
        self._sent.update(places)

    # A commit while the next batch is read

    @property
    def under_way(self) -> bool:
        """Whether there is a commit whose end :meth:`wait` has not told yet."""
        return self._open is not None

    @property
    def has_ended(self) -> bool:
        """Whether :meth:`wait` has something to tell at once."""
        return self._open is not None and self._open[1].done()

    def begin(self, batch: Batch, confirm: Callable[[], None]) -> None:
        """Begin to commit a batch, once ``confirm`` returns. :meth:`wait` must have told the end of
        the commit before."""
        assert self._open is None
        attempt = partial(self._attempt, batch, confirm)
        self._open = batch, self._thread.submit(self.retrying, attempt)

    def _attempt(self, batch: Batch, confirm: Callable[[], None]) -> None:
        confirm()
        self.commit(batch.advances, batch.commit)

    def wait(self) -> Batch | None:
        """Wait for the end of the commit; returns what it has committed, None if there was none.
        Records that the sink refuses become bad records.

        Raises:
            SemelError: the commit has failed.
            Recreated: a topic was created again.
        """
        if self._open is None:
            return None
        (batch, future), self._open = self._open, None
        return self._ended(batch, future)

    def settle(self) -> None:
        """Let the commit in progress end as :meth:`wait` does, which tells how later."""
        if self._open is None:
            return
        outcome: futures.Future[None] = futures.Future()
        batch, future = self._open
        try:
            batch = self._ended(batch, future)
        except Exception as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)
        self._open = batch, outcome

    def _ended(self, batch: Batch, future: futures.Future[None]) -> Batch:
        """The batch that was committed; raises as :meth:`wait` does."""
        try:
            future.result()
        except RowsRejected as rejection:
            return self._commit_without(batch, rejection.rejected)
        finally:
            del future  # its exception refers to this frame, and so to the batch
        return batch

    def _commit_without(self, batch: Batch, rejected: Sequence[RejectedRecord]) -> Batch:
        """Commit again without the records that the sink has refused."""
        assert batch.remake is not None, "the sink was given rows"
        refused: list[RejectedRecord] = []
        while True:
            add_refused(self._connector.name, refused, rejected)
            rest = batch.remake(refused)
            again = partial(self.commit, rest.advances, rest.commit, rest.until)
            try:
                self._thread.submit(self.retrying, again).result()
            except RowsRejected as rejection:
                rejected = rejection.rejected
            else:
                return rest

    def join(self) -> None:
        """Let the commit in progress end; :meth:`wait` tells how."""
        if self._open is not None:
            futures.wait([self._open[1]])

    def ask(self, question: Callable[[], T]) -> T:
        """Call the sink once the commit in progress has ended; see :meth:`retrying`."""
        self.join()
        return self.retrying(question)

    def close(self) -> Batch | None:
        """Wait for the commit in progress, which is not retried; returns what it has committed. Its
        failure is not raised, because the task is ending."""
        self._closing = True
        self._thread.shutdown(wait=True)
        last, self._open = self._open, None
        return last[0] if last is not None and last[1].exception() is None else None

    # Retries

    def retrying(self, action: Callable[[], T]) -> T:
        """Run ``action``, and repeat it after transient failures; the ledger tells whether it took
        place.

        Raises:
            GaveUp: all ``max.retries`` retries have failed.
            TargetChanged: it would fail again.
            TransientError: the task was asked to stop meanwhile, or has ended.
        """
        self._retries = Retries(self._connector, self._tell, self._waits)
        return self._retries.run(action, self._ends_within)

    def doing(self) -> str:
        """What is done with the records in hand, for the log."""
        doing = "their commit is in progress" if self.under_way else "the task is converting them"
        return self._retries.trouble or doing

    def _ends_within(self, seconds: float) -> bool:
        """Wait ``seconds``, or until the driver or an error ends the task; returns whether it is
        ending."""
        until = time.monotonic() + seconds
        while not (self._closing or self._ends(0.0)):
            remaining = until - time.monotonic()
            if remaining <= 0:
                return False
            self._ends(min(remaining, _LOOK))
        return True


def errors_log(connector: ConnectorConfig, letters: Sequence[DeadLetter]) -> Iterator[str]:
    """Bad records, each in one line; none without ``errors.log.enable``."""
    for letter in letters if connector.errors_log else ():
        shown = f": {letter.value!r}" if connector.errors_log_messages else ""
        yield (
            f"bad record at {letter.topic}-{letter.partition} offset {letter.offset} "
            f"({letter.stage}): {letter.message}{shown}"
        )
