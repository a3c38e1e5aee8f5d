"""One task of the bounded direct engine: read given offset ranges, convert, stage.

A task commits nothing and answers instead of raising, so Spark has no reason to run it again. From
trigger to trigger, its worker process keeps one sink and one consumer: reconnecting would take
longer than a small trigger.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import Failure, SemelError, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import Advance, LogId, OffsetRange, TopicPartition
from semel.core.quoting import named
from semel.core.records import DeadLetter, RejectedRecord, RowsRejected
from semel.kafka.consumer import (
    Events,
    OutOfOrder,
    Poll,
    Sizes,
    close,
    consumer_config,
    logged_consumer,
    raised,
    without_events,
)
from semel.kafka.damage import Damage, examine, intact
from semel.sinks.staging import Stager, StagingSink
from semel.spark.job_errors import unexpected
from semel.tasks import memory
from semel.tasks.batch import add_refused, with_unplaced
from semel.tasks.poll import RawRecords, TopicPoll, by_topic, copied
from semel.tasks.transform import Transform
from semel.tasks.unplaced import Counts
from semel.tasks.workers import RunWorker, Spec, Workers

log = logging.getLogger(__name__)

_PATIENCE = 60.0
_SILENCE = 10.0
"""After this many seconds of silence, check that the consumer still knows a broker. A consumer that
lost all brokers may never find one again (librdkafka's issue 5301). A consumer that skips aborted
records, or waits for a slow answer, is silent, too."""
_ANSWER = 5.0
_WAIT = 50
"""Milliseconds for which a broker holds a fetch that finds nothing. Only such a fetch shows that a
range ends with a transaction marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedSpec(Spec):
    """A run of the bounded engine."""

    transform: Transform | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task has staged.

    With ``errors.tolerance=none``, ``stop`` is the bad record before which its partition must end;
    it must also end before ``damage``, offsets that cannot be read. ``failure`` ends the connector
    unless it may pass (:class:`~semel.core.errors.TransientError`). With any of the three, nothing
    is staged.
    """

    index: int
    advances: Sequence[Advance] = ()
    letters: Sequence[DeadLetter] = ()
    files: Sequence[Any] = ()
    stop: DeadLetter | None = None
    damage: Damage | None = None
    failure: Failure | None = None


def run_task(
    spec: BoundedSpec, index: int, wanted: Sequence[OffsetRange], logs: Mapping[str, LogId]
) -> TaskResult:
    """Stage the records of some ranges of these logs, by topic; each topic-partition occurs once
    among them."""
    # Automatic collections walk over all messages of a poll again and again.
    gc.disable()
    try:
        with _workers.at_work(spec, index, lambda: BoundedWorker(spec, index)) as worker:
            return worker.stage(index, wanted, logs)
    except SemelError as error:
        return TaskResult(index, failure=Failure.of(error))
    except Exception as error:
        log.exception("task %d", index)
        return TaskResult(index, failure=Failure.of(unexpected(spec.connector, index, error)))
    finally:
        gc.enable()


class BoundedWorker(RunWorker):
    """What a worker process keeps for a run."""

    sink: StagingSink

    def __init__(self, spec: BoundedSpec, index: int) -> None:
        super().__init__(spec, transform=spec.transform)
        assert isinstance(self.sink, StagingSink)
        connector = spec.connector
        self._index = index
        self._config = config = consumer_config(connector, index, _WAIT)
        del config["group.instance.id"]  # the driver assigns; nobody joins the group
        config |= {"group.id": f"{connector.group_id}-reader"}
        self._consumer, self._consumer_log = logged_consumer(config, log)
        self._sizes = Sizes()
        self._logs: Mapping[str, LogId] = {}

    def close(self) -> None:
        super().close()
        close(self._consumer)

    def stage(
        self, index: int, wanted: Sequence[OffsetRange], logs: Mapping[str, LogId]
    ) -> TaskResult:
        """Read, convert and stage the ranges. Raises SemelError; nothing remains staged then."""
        self._logs = logs
        stager = self.sink.stager(_label(wanted))
        try:
            result = self._stage(index, wanted, stager)
            self._check()
        except KafkaException as error:
            stager.discard()
            raise raised(self.spec.connector, index, error) from error
        except _Damaged as damaged:
            stager.discard()
            return TaskResult(index, damage=damaged.damage)
        except BaseException:
            stager.discard()
            raise
        if result.stop is not None:
            stager.discard()
        return result

    def _stage(self, index: int, wanted: Sequence[OffsetRange], stager: Stager) -> TaskResult:
        counts = {r.topic_partition: np.zeros(4, dtype=np.int64) for r in wanted}
        epochs: dict[TopicPartition, tuple[int, int]] = {}
        positions = {r.topic_partition: r.from_offset for r in wanted}
        letters: list[DeadLetter] = []
        unplaced: list[Counts] = []
        for polls in self._read(wanted):
            hit("task.after_poll")
            refused: list[RejectedRecord] = []
            while True:
                try:
                    batch = self.batcher.batch(polls, positions, {}, refused)
                except OutOfOrder:
                    raise TransientError(
                        f"connector {self.spec.connector.name}: Kafka sent records out of order"
                    ) from None
                hit("task.after_convert")
                if batch.stop is not None:
                    return TaskResult(index, stop=batch.stop)
                try:
                    self.sink.accommodate_all(batch.commit)
                    stager.add(batch.commit)
                    break
                except RowsRejected as rejection:
                    add_refused(self.spec.connector.name, refused, rejection.rejected)
            for a in batch.advances:
                tp = a.range.topic_partition
                counts[tp] += (a.read, a.written, a.filtered, a.failed)
                positions[tp] = a.range.until_offset
                unplaced.append(a.unplaced)
                if a.read:
                    epochs[tp] = a.leader_epoch, a.epoch_offset
            letters += batch.commit.dead_letters
            memory.give_back_after(batch.nbytes)
        advances = []
        for r in wanted:
            read, written, filtered, failed = counts[r.topic_partition].tolist()
            epoch, after = epochs.get(r.topic_partition, (-1, -1))
            advance = Advance(r, read, written, filtered, failed)
            advances.append(replace(advance, leader_epoch=epoch, epoch_offset=after))
        advances = with_unplaced(advances, unplaced)
        return TaskResult(index, advances, letters, stager.finish())

    def _check(self) -> None:
        """Raises TransientError if the consumer's records come from different topics than they
        should; the topics are then compared with the ledger again."""
        for topic, log_id in self._logs.items():
            if log_id.contradicts(self._consumer_log.fetched(topic)):
                raise TransientError(
                    f"connector {self.spec.connector.name}: the topic {named(topic)} that "
                    "the consumer reads is not the one that the ledger knows. Was it created again?"
                )

    def _read(self, wanted: Sequence[OffsetRange]) -> Iterator[list[RawRecords]]:
        """The committed records of the ranges, poll by poll."""
        reading = _RangeProgress(wanted)
        self._consumer.assign(reading.left())
        heard = asked = time.monotonic()
        try:
            while reading.open:
                size = min(self.spec.connector.max_poll_records, reading.size)
                events = self._received(size)
                now = time.monotonic()
                if events.records or events.ends or events.unreadable:
                    heard = asked = now
                elif now - heard > _PATIENCE:
                    self._reconnect()
                    raise TransientError(
                        f"connector {self.spec.connector.name}: Kafka sent nothing for "
                        f"{_PATIENCE:.0f} s; {', '.join(map(str, sorted(reading.open)))} could "
                        "not be read to the end"
                    )
                elif now - asked > _SILENCE:
                    if not self._knows_a_broker():
                        log.info("task %d: no answer from Kafka; reconnecting", self._index)
                        self._reconnect()
                        self._consumer.assign(reading.left())
                    asked = time.monotonic()
                polls = copied(reading.take(events.records))
                for tp, end in events.ends.items():  # after the records before it
                    reading.reached(tp, end)
                unreadable = [tp for tp in events.unreadable if tp in reading.open]
                for tp in unreadable:
                    self._examine(reading, tp, events.unreadable[tp])
                if unreadable:
                    reading.finished()  # the new consumer has none of them
                    self._consumer.assign(reading.left())
                    heard = asked = time.monotonic()
                for tp in reading.finished():
                    self._consumer.incremental_unassign([KafkaPartition(*tp)])
                if polls:
                    yield polls
                    heard = asked = time.monotonic()
        finally:
            self._consumer.unassign()

    def _examine(self, reading: _RangeProgress, tp: TopicPartition, reason: str) -> None:
        """Examine what cannot be read. If it begins after the range, the range holds no more
        records: offsets before it may be those of transaction markers."""
        name, position = self.spec.connector.name, reading.position(tp)
        self._reconnect()  # a consumer that has met damage is not reliable
        damage = examine(name, self._config, tp, position)
        if damage is None:
            raise intact(name, tp, position, reason)
        if damage.range.from_offset < reading.open[tp].until_offset:
            raise _Damaged(damage)
        reading.reached(tp, damage.range.from_offset)

    def _received(self, most: int) -> Events:
        connector = self.spec.connector
        poll = Poll(connector, self._index, self._sizes, self._consumer_log)
        poll.take(self._consumer, most, 0.1)
        try:
            return (
                without_events(poll.messages, log.info)
                if poll.has_events
                else Events(poll.messages)
            )
        except OutOfOrder as error:
            raise TransientError(f"connector {connector.name}: {error}") from None

    def _knows_a_broker(self) -> bool:
        try:
            return bool(self._consumer.list_topics(timeout=_ANSWER).brokers)
        except KafkaException:
            return False

    def _reconnect(self) -> None:
        """Raises TransientError if the old consumer has read from other topics."""
        old, fresh = self._consumer, logged_consumer(self._config, log)
        try:
            self._check()
        finally:
            self._consumer, self._consumer_log = fresh
            close(old)


class _Damaged(Exception):
    """A range holds offsets that cannot be read."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.reason)
        self.damage = damage


class _RangeProgress:
    """Which ranges are still being read."""

    def __init__(self, wanted: Sequence[OffsetRange]) -> None:
        self.open = {r.topic_partition: r for r in wanted}
        self._at = {r.topic_partition: r.from_offset for r in wanted}
        self._done: list[TopicPartition] = []

    def left(self) -> list[KafkaPartition]:
        """The partitions that are still to be read, with their positions."""
        return [KafkaPartition(tp.topic, tp.partition, self._at[tp]) for tp in self.open]

    def position(self, tp: TopicPartition) -> int:
        """The next offset of a range that is still being read."""
        return self._at[tp]

    @property
    def size(self) -> int:
        """The number of offsets left, at least 1: trailing offsets may hold no record."""
        return max(1, sum(r.until_offset - self._at[tp] for tp, r in self.open.items()))

    def reached(self, tp: TopicPartition, position: int) -> None:
        """Note that all offsets before ``position`` have been seen."""
        if tp not in self.open:
            return
        self._at[tp] = max(self._at[tp], min(position, self.open[tp].until_offset))
        if position >= self.open[tp].until_offset:
            del self.open[tp]
            self._done.append(tp)

    def finished(self) -> list[TopicPartition]:
        """The partitions that were finished since the last call."""
        done, self._done = self._done, []
        return done

    def take(self, messages: Sequence[Message]) -> list[TopicPoll]:
        """The records that lie in the ranges."""
        polls = []
        for poll in by_topic(messages) if messages else ():
            keep = np.zeros(len(poll.offsets), dtype=bool)
            for partition in np.unique(poll.partitions).tolist():
                tp = TopicPartition(poll.topic, partition)
                mask = poll.partitions == partition
                last = int(poll.offsets[mask][-1])
                if tp in self.open:
                    keep |= mask & (poll.offsets < self.open[tp].until_offset)
                    self.reached(tp, last + 1)
            if keep.any():
                polls.append(poll if keep.all() else poll.only(keep))
        return polls


def _label(wanted: Sequence[OffsetRange]) -> str:
    first = wanted[0]
    more = f"-and-{len(wanted) - 1}" if len(wanted) > 1 else ""
    return f"{first.topic_partition}-{first.from_offset}-{first.until_offset}{more}"


_workers: Workers[BoundedWorker] = Workers()
