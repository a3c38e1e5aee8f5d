"""Polls whose records are out of order: they are read again, but not forever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import BadRecord, OffsetOutOfRange, ServiceError
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.kafka.consumer import OutOfOrder
from semel.tasks.epochs import assignment
from semel.tasks.poll import TooEarly

_OFTEN = 20
"""After this many polls out of order in a row, it is logged, and the task pauses between them."""
_MOST = 60
_PAUSE = 1.0
_SURE = 5
"""After this many times in a row, a finding cannot be left over from an earlier assignment."""


class OutOfOrderPolls:
    """What one task has seen since the partitions in question last moved.

    ``tell`` writes a line to the log; ``pause`` waits a few seconds, or until the task must stop.
    """

    def __init__(
        self, connector: str, tell: Callable[[str], None], pause: Callable[[float], object]
    ) -> None:
        self._connector = connector
        self._tell = tell
        self._pause = pause
        self._counts: Counter[TopicPartition | None] = Counter()
        self._early: Counter[tuple[TopicPartition, int]] = Counter()
        self._whole: Counter[TopicPartition] = Counter()
        self._unprobed: set[TopicPartition] = set()
        self.diverged: dict[TopicPartition, int] = {}
        """Offsets below the position at which a record of a later epoch came: the log was cut there
        after the ledger had passed it."""

    def note(self, disorder: OutOfOrder, entries: Mapping[TopicPartition, LedgerEntry]) -> None:
        """Drop a poll; the positions are read from the ledger again.

        Raises:
            OffsetOutOfRange: a partition holds records where it held none.
            ServiceError: it happened too often.
        """
        tp = disorder.topic_partition
        if isinstance(disorder, TooEarly) and tp is not None and tp in entries:
            self._note_early(disorder, entries[tp])
        self._counts[tp] += 1
        times = self._counts[tp]
        if times >= _MOST:
            raise ServiceError(
                f"connector {self._connector}: {disorder}: the same {times} times in a row, though "
                "the ledger's positions fit the log. Is the log of a partition damaged, or do "
                "brokers answer differently? Nothing was written"
            )
        if times % _OFTEN == 0:
            self._tell(
                f"{disorder}: records come out of order, {times} times in a row by now. Is the log "
                "of a partition damaged?"
            )
        if times >= _OFTEN:
            self._pause(_PAUSE)

    def _note_early(self, early: TooEarly, entry: LedgerEntry) -> None:
        tp, at = entry.topic_partition, early.offset
        if not 0 <= at < entry.position:
            return
        if 0 <= entry.epoch_offset <= at and early.epoch > entry.leader_epoch:
            self.diverged[tp] = at
            return
        self._early[tp, at] += 1
        if self._early[tp, at] >= _SURE:
            raise OffsetOutOfRange(
                f"connector {self._connector}: {tp} has a record at offset {at} (leader epoch "
                f"{early.epoch}), before the ledger's position {entry.position}. There was none "
                f"when the ledger passed it: the last record before was at {entry.epoch_offset - 1}"
                f" (leader epoch {entry.leader_epoch}). Were the broker's files replaced or "
                "restored? To continue at the position, confirm it with semel offsets set; to read "
                f"these records, set it to {at}"
            )

    def whole(self, tp: TopicPartition, entry: LedgerEntry, position: int, reason: str) -> None:
        """Handle a consumer that could not read on although a new one reads from the position.

        The offsets between the last record and the position held no records when they were read. If
        they cannot be read any more, nothing is missing, and reading begins at the position.

        Raises:
            BadRecord: this task still cannot read it.
        """
        begun = assignment(entry).offset
        if tp not in self._unprobed and begun < position == entry.position:
            self._unprobed.add(tp)
            self._tell(
                f"{tp} cannot be read between its last record and the position, {position}: "
                f"{reason}. Reading continues at the position"
            )
            return
        self._whole[tp] += 1
        if self._whole[tp] >= _SURE:
            raise BadRecord(
                f"connector {self._connector}: {tp} cannot be read at offset {position}: {reason}. "
                f"This happened {_SURE} times in a row, although a new connection could read it "
                "each time. Everything before it is committed. Check the network between semel and "
                "the brokers, and start the connector again"
            )
        self._tell(f"{tp} at offset {position}: {reason}; it was intact when read again")

    def assignments(self, entries: Mapping[TopicPartition, LedgerEntry]) -> list[KafkaPartition]:
        """Where the consumer continues."""
        return [
            KafkaPartition(*tp, e.position) if tp in self._unprobed else assignment(e)
            for tp, e in entries.items()
        ]

    def moved(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions: they were read successfully, or belong to another task now."""
        if not (self._counts or self._early or self._whole or self._unprobed):
            return
        for tp in partitions:
            self._counts.pop(tp, None)
            self._whole.pop(tp, None)
            self._unprobed.discard(tp)
        self._counts.pop(None, None)
        for key in [key for key in self._early if key[0] in partitions]:
            del self._early[key]
