"""The one place that orders results and positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from semel.config import ConnectorConfig
from semel.delivery import Delivery, Guarantee, Mechanism
from semel.engine.deliveries import Counter, Deliveries
from semel.errors import TransientError
from semel.failpoints import hit
from semel.kafka.clients import client_config
from semel.kafka.dead_letters import DeadLetterProducer
from semel.ledger import Advance, Outcome, TopicPartition
from semel.records import Commit, DeadLetter
from semel.sinks.base import Sink
from semel.sinks.protocols import transactional
from semel.sinks.staging import Staged, StagingSink

Results = Commit | Staged
"""What is delivered: rows, or the files that tasks have staged from them."""


def deliver(
    sink: Sink, guarantee: Guarantee, advances: Sequence[Advance], results: Results
) -> Outcome:
    """Commit results and positions as the guarantee demands. Safe to call again after any error.

    Raises:
        LedgerConflict, RowsRejected, TransientError, ServiceError: see the sink's contract.
    """
    if guarantee.mechanism is Mechanism.TRANSACTIONAL:
        return _commit(sink, advances, results)
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


def _commit(sink: Sink, advances: Sequence[Advance], results: Results) -> Outcome:
    match results:
        case Staged():
            return _staging(sink).commit_staged(advances, results)
        case Commit():
            return transactional(sink).commit(advances, results)


def _write(sink: Sink, results: Results, guard: Sequence[Advance] | None = None) -> Outcome:
    match results:
        case Staged():
            return _staging(sink).write_staged(results, guard)
        case Commit():
            return sink.write(results, guard)


def _staging(sink: Sink) -> StagingSink:
    assert isinstance(sink, StagingSink), "only such a sink stages files"
    return sink


class Deliverer:
    """Delivers batches through one sink, and their dead letters to a topic if they go to one: those
    are flushed first, or last where results follow their positions (at-most-once).

    ``tell`` writes a line to the log; ``sent`` is called once with each dead letter.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        guarantee: Guarantee,
        sink: Sink,
        task: int,
        tell: Callable[[str], None],
        sent: Callable[[Sequence[DeadLetter]], None] = lambda _letters: None,
    ) -> None:
        self._connector = connector
        self._guarantee = guarantee
        self._sink = sink
        self._task = task
        self._tell = tell
        self._heard = sent
        self._producer: DeadLetterProducer | None = None
        self._sent: set[tuple[str, int, int]] = set()
        self._counter = Counter()

    @property
    def deliveries(self) -> Deliveries:
        """The outcomes of its commits."""
        return self._counter.found

    @property
    def moves_first(self) -> bool:
        """At-most-once: when the sink refuses a batch, its positions have already moved."""
        return self._guarantee.delivery is Delivery.AT_MOST_ONCE

    def deliver(
        self,
        advances: Sequence[Advance],
        results: Results,
        moved: Collection[TopicPartition] = (),
    ) -> None:
        """Commit a batch; safe to call again after any error.

        Args:
            advances: how far its positions move.
            results: what was made of its records.
            moved: the partitions of an attempt that the sink has refused. With :attr:`moves_first`
                that attempt has moved their positions and written nothing.

        Raises:
            LedgerConflict, RowsRejected, TransientError, ServiceError: see the sink's contract.
        """
        if moved and self.moves_first:
            self._write(advances, results, moved)
        elif advances:
            if not self.moves_first:
                self._send(results.dead_letters)
            with self._counter.counting(sum(a.read for a in advances)) as attempt:
                outcome = deliver(self._sink, self._guarantee, advances, results)
                attempt.was_replay = outcome is Outcome.REPLAYED
            if self.moves_first and outcome is Outcome.APPLIED:
                self._send(results.dead_letters)
        self._sent.clear()

    def _write(
        self,
        advances: Sequence[Advance],
        results: Results,
        moved: Collection[TopicPartition],
    ) -> None:
        """Write the rest of a refused batch. A failure with an unknown outcome is final."""
        left = [a for a in advances if a.range.topic_partition not in moved]
        if left and self._sink.advance(left) is Outcome.REPLAYED:
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
        self._heard(new)
        self._sent.update(places)
