"""Commits of records and source offsets, in a thread of their own: one at a time, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from semel.config import SourceConnectorConfig
from semel.core.delivery import Delivery, Guarantee
from semel.core.errors import BadRecord, SemelError
from semel.core.failpoints import hit
from semel.core.quoting import named
from semel.kafka.clients import client_config
from semel.kafka.messages import Messages
from semel.kafka.transactions import PlainProducer, RecordsRefused, Report, Transactions
from semel.sources.offsets import SourceOffsets
from semel.sources.offsets.outside import Record
from semel.tasks.commit import CommitCounter
from semel.tasks.source.encoder import SkippedRecord

PartitionOffset = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A source partition, and an offset that was reached in it."""


@dataclass(slots=True)
class EncodedBatch:
    """What one commit writes: messages, and the offsets after them by partition. ``begun`` are the
    partitions whose transaction has not ended yet, if the source says where transactions end.
    ``skipped`` are the records that it leaves out."""

    messages: list[Messages] = field(default_factory=list)
    reached: dict[object, PartitionOffset] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    records: int = 0
    nbytes: int = 0
    skipped: list[SkippedRecord] = field(default_factory=list)

    @property
    def by_topic(self) -> dict[str, int]:
        """How many records go to each topic."""
        counts: dict[str, int] = {}
        for messages in self.messages:
            counts[messages.topic] = counts.get(messages.topic, 0) + len(messages)
        return counts

    @property
    def is_whole(self) -> bool:
        """Whether there is anything to commit, and committing it would not split a transaction."""
        return bool(self.reached) and not self.begun


class SourceCommitter:
    """Writes with one producer as the guarantee demands."""

    def __init__(
        self,
        connector: SourceConnectorConfig,
        guarantee: Guarantee,
        offsets: SourceOffsets,
        task: int,
        counter: CommitCounter,
    ) -> None:
        self._name = connector.name
        self._id = connector.transactional_id(task)
        self._offsets = offsets
        client = client_config(connector, "producer")
        self._exactly_once = guarantee.delivery is Delivery.EXACTLY_ONCE
        self._transactions = Transactions(f"connector {connector.name}", client)
        self._plain = PlainProducer(f"connector {connector.name}", client)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semel-commit")
        self._open: tuple[EncodedBatch, Future[None]] | None = None
        self._counter = counter

    @property
    def seconds(self) -> float:
        """How long a transaction may last."""
        return self._transactions.seconds

    def open(self) -> None:
        """Fence the producer that had this task's place, and end its transaction.

        Raises:
            TransientError, ServiceError: no producer could be made.
        """
        if self._exactly_once:
            self._transactions.open(self._id)

    def limit(self, batch: int | None) -> bool:
        """Limit the bytes of a batch; returns whether the producer is gone because its batches were
        larger. Call this only while no commit is in progress."""
        was_open = self._transactions.is_open
        if batch is not None and self._exactly_once:
            self._transactions.limit(batch)
        return was_open and not self._transactions.is_open

    def begin(self, encoded: EncodedBatch, records: Sequence[Record]) -> None:
        """Begin to commit; ``records`` store the offsets. The last commit must have ended."""
        assert self._open is None
        self._open = encoded, self._thread.submit(self._commit, encoded, records)

    def wait(self) -> EncodedBatch | None:
        """Wait for the commit under way; returns what it has written.

        Raises:
            LedgerConflict: another producer has taken this one's place; nothing was written.
            TransientError: the outcome is unknown; the stored offsets tell.
            BadRecord: a broker does not take a record; nothing was written.
        """
        if self._open is None:
            return None
        (encoded, future), self._open = self._open, None
        future.result()
        return encoded

    def drop(self) -> None:
        """Forget the producer; its open transaction is aborted."""
        self._transactions.drop()
        self._plain.drop()

    def close(self) -> None:
        """Wait for the commit under way, whatever becomes of it."""
        self._thread.shutdown(wait=True)
        self.drop()

    def _commit(self, encoded: EncodedBatch, records: Sequence[Record]) -> None:
        try:
            with self._counter.counting(encoded.records):
                if self._exactly_once:
                    self._transact(encoded, records)
                else:
                    self._send(encoded, records)
        except RecordsRefused:
            raise self._refusal(encoded) from None
        hit("sink.after_commit")

    def _transact(self, encoded: EncodedBatch, records: Sequence[Record]) -> None:
        def send(producer: Producer, failed: Report) -> None:
            for messages in encoded.messages:
                messages.send_in_transaction(producer, failed)
            hit("source.after_records")
            self._offsets.send(producer, records, failed)
            hit("sink.after_positions")

        self._transactions.run(
            send, [], None, lambda: hit("sink.before_commit"), topics=encoded.by_topic
        )

    def _send(self, encoded: EncodedBatch, records: Sequence[Record]) -> None:
        """Records first, offsets once the brokers have them."""
        self._plain.send([m.send for m in encoded.messages], lambda: hit("sink.before_commit"))
        hit("deliver.between")
        self._offsets.store(self._plain, records)

    def _refusal(self, encoded: EncodedBatch) -> SemelError:
        if not encoded.messages:
            return self._offsets.refused()
        sizes = {m.topic: m.largest for m in encoded.messages}
        largest = max(sizes, key=lambda topic: sizes[topic])
        keyless = next((m.topic for m in encoded.messages if m.keys.null_count), "")
        return BadRecord(
            f"connector {self._name}: the brokers refuse a record; nothing of its transaction was "
            f"written. The largest one is for topic {named(largest)} and has {sizes[largest]:,} "
            f"bytes: is that more than max.message.bytes of {largest} allows?"
            + (f" Is {keyless} compacted? It has records without a key." if keyless else "")
            + (self._offsets.clock if self._offsets.in_transactions else "")
        )
