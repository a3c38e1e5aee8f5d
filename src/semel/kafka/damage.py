"""Record batches that cannot be read: damaged in Kafka's log, or on their way from it.

After a batch with a wrong checksum, librdkafka continues in the middle of it, and what it takes for
the next offset may be any number. So semel uses nothing that a consumer reports of a partition
after such a batch, and reads the partition again from a known position.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.errors import BadRecord, TransientError
from semel.core.ledger import DAMAGED, Advance, OffsetRange, TopicPartition
from semel.core.records import DeadLetter
from semel.kafka.answers import UNREADABLE, UNREADABLE_BATCH
from semel.kafka.clients import QUIET
from semel.kafka.consumer import close

_JAVA = re.compile(r"Record(?: batch)? for partition (\S+)-(\d+) at offset (\d+) is invalid")
"""The message of the Java consumer."""

_TRIES = 3
_PAUSE = 1.0
"""Seconds between two tries."""
_PATIENCE = 10.0
"""Seconds that Kafka gets to answer one try."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Offsets that remain unreadable over several connections; nothing in the batch can be
    trusted. If it is not ``is_bounded``, the damage begins there, and its end is not known."""

    range: OffsetRange
    reason: str
    is_bounded: bool = True

    @property
    def topic_partition(self) -> TopicPartition:
        return self.range.topic_partition

    def advances(self, position: int) -> list[Advance]:
        """The advances that move a partition past the damage: to its start, if there is a gap, and
        over it."""
        tp, start = self.topic_partition, max(position, self.range.from_offset)
        hole = OffsetRange(*tp, start, self.range.until_offset)
        moved = [Advance(hole, lost=hole.until_offset - start, cause=DAMAGED)]
        return [Advance(OffsetRange(*tp, position, start)), *moved] if position < start else moved

    def letter(self, position: int) -> DeadLetter:
        """One dead letter for the batch. It holds no key and no value: which of the batch's bytes
        are wrong is not known."""
        start = max(position, self.range.from_offset)
        return DeadLetter(
            topic=self.range.topic,
            partition=self.range.partition,
            offset=start,
            key=None,
            value=None,
            headers=(),
            timestamp=None,
            stage="KAFKA_CONSUME",
            exception="org.apache.kafka.common.errors.CorruptRecordException",
            message=self.described(position),
        )

    def described(self, position: int) -> str:
        """The offsets that cannot be read, and the reason."""
        return f"{self._offsets(position)} cannot be read: {self.reason}"

    def _offsets(self, position: int) -> str:
        start, until = max(position, self.range.from_offset), self.range.until_offset
        return f"offsets {start} to {until - 1}" if self.is_bounded else f"offset {start}"

    def check_tolerated(self, connector: ConnectorConfig, position: int) -> None:
        """Check that a connector that has reached ``position`` may continue after the damage.

        Raises:
            BadRecord: ``errors.tolerance`` is ``none``, or it is not known where to continue.
        """
        name = connector.name
        if not self.is_bounded:
            raise BadRecord(
                f"connector {name}: {self.topic_partition} cannot be read at offset "
                f"{self.range.from_offset}: {self.reason}. Everything before it is committed. "
                "Where the damage ends is not known: find the next offset that can be read, and "
                "set it with semel offsets set"
            )
        if connector.errors_tolerance == "none":
            raise BadRecord(
                f"connector {name}: {self.topic_partition} is damaged: {self._offsets(position)} "
                f"cannot be read ({self.reason}; read {_TRIES} times over new "
                "connections). Everything before them is committed. If another replica is whole, "
                "let it lead the partition; or set errors.tolerance=all to continue after them and "
                "record the hole; or skip them: semel offsets set FILE "
                f"{self.topic_partition}={self.range.until_offset}"
            )


def examine(
    connector: str, config: Mapping[str, Any], tp: TopicPartition, position: int
) -> Damage | None:
    """Read a partition again from ``position``, over new connections. None if that succeeds: the
    batch was damaged in transit.

    ``config`` is the configuration of the consumer that could not read it.

    Raises:
        TransientError: Kafka does not answer.
    """
    own = {k: v for k, v in config.items() if k != "group.instance.id"}
    own["group.id"] = f"{config['group.id']}-examination"
    error: KafkaError | None = None
    for attempt in range(_TRIES):
        time.sleep(_PAUSE if attempt else 0)
        first = _first(connector, own, tp, position)
        error = first.error()
        if error is None or error.code() not in UNREADABLE:
            return None
        if attempt == _TRIES - 1 and error.code() in UNREADABLE_BATCH:
            damage = _extent(connector, own, tp, position, first)
            if damage is not None:
                return damage
    assert error is not None
    return Damage(OffsetRange(*tp, position, position + 1), error.str(), is_bounded=False)


def intact(connector: str, tp: TopicPartition, offset: int, reason: str) -> TransientError:
    """The error if what was unreadable, for this reason, can be read again."""
    return TransientError(
        f"connector {connector}: {tp} at offset {offset}: {reason}; it was intact when read again"
    )


def parse_java_error(text: str) -> tuple[TopicPartition, int] | None:
    """The partition and offset that an error of Java's consumer says it could not read."""
    match = _JAVA.search(text)
    return match and (TopicPartition(match[1], int(match[2])), int(match[3]))


def _extent(
    connector: str, config: dict[str, Any], tp: TopicPartition, position: int, first: Message
) -> Damage | None:
    """The damaged batch that a read at ``position`` has met; None if it is not known where it
    begins or ends. No checksum covers its first offset, so that may be damaged, too."""
    base, error = int(first.offset() or 0), first.error()
    assert error is not None

    def meets_it(offset: int) -> bool:
        message = _first(connector, config, tp, offset)
        code = message.error()
        return code is not None and code.code() in UNREADABLE and message.offset() == base

    def is_inside(offset: int) -> bool:
        try:
            return meets_it(offset)
        except TransientError:  # nothing can be read there before a transaction ends
            return False

    if base < 0 or (base > position and not meets_it(base)):
        return None
    start = max(base, position)
    return Damage(OffsetRange(*tp, start, end_of(start, is_inside)), error.str())


def end_of(base: int, is_inside: Callable[[int], bool]) -> int:
    """The first offset after ``base`` that is not inside of the batch that begins there."""
    inside, step = base, 1
    while is_inside(inside + step):
        inside, step = inside + step, 2 * step
    outside = inside + step
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return outside


def _first(connector: str, config: dict[str, Any], tp: TopicPartition, offset: int) -> Message:
    """The first record or event of a partition. A consumer that has met damage does not always
    follow when it is told to read elsewhere, so each read gets a consumer of its own."""
    consumer = Consumer(config, logger=QUIET)
    try:
        consumer.assign([KafkaPartition(*tp, offset)])
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            message: Message | None = consumer.poll(0.1)
            if message is not None and message.topic() == tp.topic:
                return message
    finally:
        close(consumer)
    raise TransientError(
        f"connector {connector}: {tp} could not be read at offset {offset}, and Kafka sent nothing "
        f"for {_PATIENCE:.0f} s when it was asked again"
    )
