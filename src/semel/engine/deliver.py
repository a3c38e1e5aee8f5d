"""The one place that decides the order of results and positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from semel.config import ConnectorConfig
from semel.delivery import Delivery, Guarantee, Mechanism
from semel.engine.batch import Batch
from semel.engine.deadletters import DeadLetterProducer
from semel.errors import TransientError
from semel.failpoints import hit
from semel.kafka.clients import client_config
from semel.ledger import Advance, Outcome, TopicPartition
from semel.records import Commit, DeadLetter
from semel.sinks.base import Sink
from semel.sinks.protocols import transactional


def deliver(
    sink: Sink, guarantee: Guarantee, advances: Sequence[Advance], commit: Commit
) -> Outcome:
    """Commit results and positions as the guarantee demands. Safe to call again after any error.

    Raises:
        LedgerConflict, RowsRejected, TransientError, ServiceError: see the sink's contract.
    """
    if guarantee.mechanism is Mechanism.TRANSACTIONAL:
        return transactional(sink).commit(advances, commit)
    if guarantee.delivery is Delivery.AT_MOST_ONCE:
        outcome = sink.advance(advances)
        hit("deliver.between")
        if outcome is Outcome.APPLIED:  # a replay may have written already: never again
            sink.write(commit)
        return outcome
    # The guard keeps a zombie from writing older rows over newer ones.
    if sink.write(commit, advances) is Outcome.REPLAYED:
        return Outcome.REPLAYED
    hit("deliver.between")
    return sink.advance(advances)


class Deliverer:
    """Delivers batches through one sink, and their dead letters to a topic if they go to one: those
    are flushed first, or last where results follow their positions (at-most-once).

    ``tell`` brings a line to a log; ``sent`` hears of dead letters, once each.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        raw: Mapping[str, str],
        guarantee: Guarantee,
        sink: Sink,
        task: int,
        tell: Callable[[str], None],
        sent: Callable[[Sequence[DeadLetter]], None] = lambda _letters: None,
    ) -> None:
        self._connector = connector
        self._raw = raw
        self._guarantee = guarantee
        self._sink = sink
        self._task = task
        self._tell = tell
        self._heard = sent
        self._producer: DeadLetterProducer | None = None
        self._sent: set[tuple[str, int, int]] = set()

    @property
    def moves_first(self) -> bool:
        """At-most-once: a batch that the sink refuses has moved its positions already."""
        return self._guarantee.delivery is Delivery.AT_MOST_ONCE

    def deliver(self, batch: Batch, moved: Collection[TopicPartition] = ()) -> None:
        """Commit a batch; safe to call again after any error.

        Args:
            batch: what to commit.
            moved: the partitions of an attempt that the sink has refused. With :attr:`moves_first`
                it has moved their positions already, and has written nothing.

        Raises:
            LedgerConflict, RowsRejected, TransientError, ServiceError: see the sink's contract.
        """
        letters = batch.commit.dead_letters
        if moved and self.moves_first:
            self._write(batch, moved)
        elif batch.advances:
            if not self.moves_first:
                self._send(letters)
            outcome = deliver(self._sink, self._guarantee, batch.advances, batch.commit)
            if self.moves_first and outcome is Outcome.APPLIED:
                self._send(letters)
        self._sent.clear()

    def _write(self, batch: Batch, moved: Collection[TopicPartition]) -> None:
        """What is left of a refused batch. A failure whose outcome is unknown is final."""
        left = [a for a in batch.advances if a.range.topic_partition not in moved]
        if left and self._sink.advance(left) is Outcome.REPLAYED:
            return
        try:
            self._sink.write(batch.commit)
            self._send(batch.commit.dead_letters)
        except TransientError as error:
            self._tell(f"{error}; at-most-once: not tried again")

    def _send(self, letters: Sequence[DeadLetter]) -> None:
        """Send those that were not sent before a failure of the same batch."""
        places = [(x.topic, x.partition, x.offset) for x in letters]
        new = [x for x, place in zip(letters, places, strict=True) if place not in self._sent]
        if not new:
            return
        if self._connector.dead_letter_topic and not self._sink.capabilities.takes_dead_letters:
            if self._producer is None:
                config = client_config(self._connector, self._raw, "producer")
                self._producer = DeadLetterProducer(self._connector, config, self._task)
            try:
                self._producer.send(new)
            except TransientError:
                self._producer = None  # it may never find its brokers again
                raise
        self._heard(new)
        self._sent.update(places)
