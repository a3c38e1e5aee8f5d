"""Reading given offset ranges of a topic outside a consumer group: for samples and audits."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import CommonConfig, ConnectorConfig, SourceConnectorConfig
from semel.core.errors import BadRecord, OffsetOutOfRange, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka.answers import SEEK_AGAIN, UNREADABLE
from semel.kafka.clients import QUIET, client_config
from semel.kafka.consumer import Sizes, close
from semel.kafka.damage import Damage, examine

_BATCH = 50_000
_ROOM = 16 * 1024 * 1024
"""The most records, and bytes, that are read at once."""
_SILENCE = 1.0
"""One poll counts as at most this many seconds of silence: during a longer one, the process was
frozen."""


def read_ranges(
    connector: ConnectorConfig | SourceConnectorConfig,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    client: Mapping[str, Any] | None = None,
    timeout: float = 30.0,
    damaged: Callable[[Damage], None] | None = None,
) -> Generator[Sequence[Message]]:
    """Yield the committed records in ``[start, end)`` of each partition, a poll at a time.

    ``client`` is the configuration of a consumer in another cluster than the connector reads from;
    ``damaged`` is called with offsets that cannot be read, which are skipped. The end of a log
    before the end of its range is waited out: a follower, or a broker that has just taken over, may
    not know all of it yet.

    Raises:
        OffsetOutOfRange: records at a start are gone.
        BadRecord: some cannot be read, and there is no ``damaged``.
        TransientError: Kafka sends nothing for ``timeout`` seconds before the ranges are read.
    """
    open_ = {tp: end for tp, end in ends.items() if starts[tp] < end}
    if not open_:
        return
    config = {
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 10,  # the end of a range may be told by an empty fetch
        "queued.max.messages.kbytes": _ROOM // 1024,
        **(client_config(connector, "consumer") if client is None else client),
        "group.id": f"{connector.group_id}-reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    consumer = Consumer(config, logger=QUIET)
    at = dict(starts)
    try:
        consumer.assign([KafkaPartition(t.topic, t.partition, starts[t]) for t in open_])
        silent, sizes = 0.0, Sizes()
        while open_:
            began = time.monotonic()
            polled: list[Message] = []
            rest = sum(end - at[tp] for tp, end in open_.items())  # the rest is not waited for
            sizes.gather(consumer.consume, polled, most=min(rest, _BATCH), room=_ROOM, wait=0.1)
            silent = 0.0 if polled else silent + min(time.monotonic() - began, _SILENCE)
            if silent > timeout:
                raise TransientError(
                    f"connector {connector.name}: Kafka sent nothing for {timeout:.0f} s; "
                    f"{', '.join(map(str, sorted(open_)))} could not be read to the end"
                )
            records, unreadable = _judged(connector, consumer, polled, at, open_)
            if records:
                yield records
            for tp in unreadable:
                at[tp] = _after(connector, config, tp, at[tp], open_[tp], damaged)
                if at[tp] >= open_[tp]:
                    del open_[tp]
            if unreadable:  # a consumer that has met damage does not always follow
                close(consumer)
                consumer = Consumer(config, logger=QUIET)
                consumer.assign([KafkaPartition(*tp, at[tp]) for tp in open_])
    finally:
        close(consumer)


def after_last_record(connector: ConnectorConfig, tp: TopicPartition, start: int, end: int) -> int:
    """The offset after the last committed record in ``[start, end)`` before one that cannot be
    read; ``start`` if there is none. Raises as :func:`read_ranges` does."""
    after = start
    with suppress(BadRecord):
        for records in read_ranges(connector, {tp: start}, {tp: end}):
            after = int(records[-1].offset() or 0) + 1
    return after


def _after(
    connector: CommonConfig,
    config: Mapping[str, Any],
    tp: TopicPartition,
    position: int,
    end: int,
    damaged: Callable[[Damage], None] | None,
) -> int:
    """Where to continue after unreadable offsets: at the same place, if a retry can read it; at the
    range's end, if they begin there, because then it holds no more records."""
    damage = examine(connector.name, config, tp, position)
    if damage is None:
        return position
    if damage.range.from_offset >= end:
        return end
    if damaged is None or not damage.is_bounded:
        raise BadRecord(f"connector {connector.name}: {tp}: {damage.described(position)}")
    damaged(damage)
    return damage.range.until_offset


def _judged(
    connector: CommonConfig,
    consumer: Consumer,
    polled: Sequence[Message],
    at: dict[TopicPartition, int],
    open_: dict[TopicPartition, int],
) -> tuple[list[Message], set[TopicPartition]]:
    """The records of a poll that lie in the ranges, and the partitions that came upon a batch that
    cannot be read; ``at`` and ``open_`` are updated."""
    records: list[Message] = []
    unreadable: set[TopicPartition] = set()
    for message in polled:
        tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
        error = message.error()
        offset = int(message.offset() or 0)
        if tp in unreadable or tp not in open_:
            continue
        if error is not None and error.code() in UNREADABLE:
            unreadable.add(tp)
            continue
        if error is not None and error.code() in SEEK_AGAIN:
            raise OffsetOutOfRange(
                f"connector {connector.name}: {tp} no longer has the records from offset "
                f"{at[tp]} on: retention has removed them meanwhile. Try again"
            )
        if error is None and offset < open_[tp]:
            records.append(message)
            at[tp] = offset + 1
        if _is_at_end(error, offset, open_[tp]):
            del open_[tp]
            consumer.incremental_unassign([KafkaPartition(tp.topic, tp.partition)])
    return records, unreadable


def _is_at_end(error: KafkaError | None, offset: int, end: int) -> bool:
    if error is None:
        return offset >= end - 1
    return error.code() == KafkaError._PARTITION_EOF and offset >= end
