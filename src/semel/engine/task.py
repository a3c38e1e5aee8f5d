"""One task of the direct engine: consume, convert, transform, commit, in a loop.

The task is a static member of the consumer group ``connect-<name>``. Kafka's group protocol gives
it partitions; the ledger gives it positions. While one batch is being committed by a second
thread, the next one is consumed and decoded; batches commit in order, one at a time.

After any error whose outcome is unknown, and after a ledger conflict, the batches in hand are
dropped and positions are read from the ledger again. Nothing that the task remembers is needed to
go on, so killing it is always safe.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.delivery import Delivery, Guarantee
from semel.engine import ranges
from semel.engine.batch import Batch, Batcher, bad_record
from semel.engine.control import Address, ControlLine, Report
from semel.engine.deadletters import DeadLetterProducer
from semel.engine.deliver import deliver
from semel.engine.pipeline import Pipeline, Transform
from semel.engine.poll import OutOfOrder, TopicPoll, by_topic
from semel.errors import Fenced, LedgerConflict, SemelError, ServiceError, TransientError
from semel.failpoints import hit
from semel.kafka import Cluster, client_config
from semel.ledger import Outcome, TopicPartition
from semel.records import DeadLetter, Rejected, RowsRejected
from semel.sinks import sink_class

log = logging.getLogger(__name__)

_IDLE = 0.25
_CONFLICTS = 5
_REPORT_EVERY = 0.2


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Everything a task needs; it travels in the Spark closure."""

    connector: ConnectorConfig
    raw: Mapping[str, str]
    guarantee: Guarantee
    control: Address
    environment: Mapping[str, str]
    transform: Transform | None = None
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that is being committed, and what it was made of."""

    batch: Batch
    polls: Sequence[TopicPoll]
    positions: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


class Task:
    """Lives for as long as the connector runs, or until it is restarted elsewhere."""

    def __init__(self, spec: TaskSpec, index: int, attempt: int, line: ControlLine) -> None:
        connector = spec.connector
        self._spec = spec
        self._connector = connector
        self._index = index
        self._attempt = attempt
        self._line = line
        self._sink = sink_class(connector.connector_class)(connector, spec.raw)
        pipeline = Pipeline(
            connector,
            spec.raw,
            self._sink,
            target=self._target,
            transform=spec.transform,
            schemas=spec.schemas,
        )
        self._batcher = Batcher(connector, pipeline)
        self._cluster = Cluster(client_config(connector, spec.raw, "admin"))
        self._consumer = Consumer(_consumer_config(connector, spec.raw, index), logger=log)
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="semel-commit")
        self._pending: tuple[Future[None], Work] | None = None
        self._letters: DeadLetterProducer | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._generation = 0
        self._trouble: SemelError | None = None
        self._conflicts = 0
        self._counts = {"records": 0, "rows": 0, "failed": 0, "commits": 0}
        self._committed: dict[TopicPartition, int] = {}
        self._reported = 0.0
        self._unreported = False

    def run(self) -> None:
        """Loop until the driver says stop; finishes the poll in hand.

        Raises:
            SemelError: what ends the connector.
        """
        self._report("started")
        topics = (
            [f"^{self._connector.topics_regex}$"]
            if self._connector.topics_regex
            else list(self._connector.topics)
        )
        self._consumer.subscribe(
            topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        try:
            while not self._line.stop.is_set():
                self._step()
            self._settle()
            self._report("progress")
        except TransientError:
            if not self._line.stop.is_set():
                raise
            # Stopped while a commit was being tried again: it is read again after the restart.
        finally:
            self._close()

    def _close(self) -> None:
        self._committer.shutdown(wait=True)
        self._sink.close()
        # Group membership is static: closing does not leave the group, so that a restart finds
        # its partitions again without a rebalance.
        self._consumer.close()

    def _step(self) -> None:
        """One poll, converted while the one before it commits."""
        try:
            polls = self._poll()
            if not polls and not self._ends:
                self._check_pending()
                if self._unreported:
                    self._report("progress")
                return
            hit("task.after_poll")
            batch = self._batcher.batch(polls, self._positions, self._ends)
            hit("task.after_convert")
            self._wait_pending()
            self._submit(batch, polls)
            self._ends = {}
            if batch.stop is not None:
                self._wait_pending()
                raise bad_record(self._connector.name, batch.stop)
        except OutOfOrder:
            self._synchronise()
        except LedgerConflict as conflict:
            self._lost(conflict)
        if self._trouble is not None:
            raise self._trouble

    # Reading

    def _poll(self) -> list[TopicPoll]:
        generation = self._generation
        first = self._consumer.consume(1, _IDLE if self._pending is None else 0.02)
        linger = self._connector.linger_ms / 1000
        more = self._connector.max_poll_records - 1
        messages = [*first, *self._consumer.consume(more, linger)] if first and more else first
        if any(map(Message.error, messages)):
            messages = self._without_events(messages)
        if generation != self._generation:
            # Partitions came and went inside this poll: what it holds may be theirs no more.
            raise OutOfOrder
        return by_topic(messages) if messages else []

    def _without_events(self, messages: Sequence[Message]) -> list[Message]:
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
                self._ends[tp] = int(message.offset() or 0)
            else:
                self._consumer_error(error, message)
        standing = self._positions
        self._ends = {tp: end for tp, end in self._ends.items() if end > standing.get(tp, end)}
        return records

    def _consumer_error(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):
            raise self._fenced(error.str())
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._synchronise()
        elif code == KafkaError._MAX_POLL_EXCEEDED:
            log.warning("task %d was too slow between two polls and joins again", self._index)
        elif code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
            raise ServiceError(f"connector {self._connector.name}: {error.str()}")
        else:
            log.info("task %d: %s %s", self._index, message.topic() or "", error.str())

    def _fenced(self, reason: str) -> Fenced:
        return Fenced(
            f"connector {self._connector.name}: task {self._index} was fenced: another run of this "
            f"connector has taken its place in consumer group {self._connector.group_id} "
            f"({reason}). This one has stopped; nothing was written twice"
        )

    # The group protocol

    def _assigned(self, _consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._generation += 1
        self._guarded(
            lambda: self._take({TopicPartition(p.topic, p.partition) for p in partitions})
        )

    def _revoked(self, _consumer: Consumer, _partitions: list[KafkaPartition]) -> None:
        self._generation += 1
        self._guarded(self._settle)
        self._positions = {}
        self._ends = {}
        self._consumer.unassign()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Callbacks run inside librdkafka: keep the error for the loop."""
        try:
            action()
        except LedgerConflict as conflict:
            log.info("%s", conflict)
        except SemelError as error:
            self._trouble = error

    def _take(self, partitions: set[TopicPartition]) -> None:
        """Read these partitions from where the ledger stands."""
        self._ends = {}
        self._positions = (
            self._retrying(
                lambda: ranges.positions(self._connector, self._sink, self._cluster, partitions)
            )
            if partitions
            else {}
        )
        self._consumer.assign(
            [KafkaPartition(tp.topic, tp.partition, at) for tp, at in self._positions.items()]
        )
        self._committed = dict(self._positions)
        self._report("assigned")

    def _synchronise(self) -> None:
        """Drop what is in hand and read on from the ledger's positions."""
        self._settle()
        self._take(set(self._positions))

    # Committing

    def _target(self, topic: str) -> pa.Schema | None:
        """The sink's columns; a sink serves one thread at a time, so the open commit ends first."""
        self._wait_pending()
        return self._sink.schema(topic)

    def _submit(self, batch: Batch, polls: Sequence[TopicPoll]) -> None:
        work = Work(batch, polls, dict(self._positions), dict(self._ends))
        self._positions.update(batch.until)
        self._pending = (self._committer.submit(self._commit, batch), work)

    def _check_pending(self) -> None:
        if self._pending is not None and self._pending[0].done():
            self._wait_pending()

    def _wait_pending(self) -> None:
        if self._pending is None:
            return
        (future, work), self._pending = self._pending, None
        try:
            future.result()
            self._published(work.batch)
        except RowsRejected as rejection:
            self._without(work, rejection.rejected)
        self._conflicts = 0

    def _without(self, work: Work, rejected: Sequence[Rejected]) -> None:
        """Commit again without the records that the sink has refused."""
        refused: list[Rejected] = []
        while True:
            refused.extend(rejected)
            batch = self._batcher.batch(work.polls, work.positions, work.ends, refused)
            try:
                self._committer.submit(self._commit, batch).result()
            except RowsRejected as rejection:
                rejected = rejection.rejected
                continue
            break
        self._published(batch)
        if batch.stop is not None:
            raise bad_record(self._connector.name, batch.stop)

    def _settle(self) -> None:
        """Let the open commit end, one way or the other."""
        try:
            self._wait_pending()
        except LedgerConflict as conflict:
            self._note(conflict)

    def _lost(self, conflict: LedgerConflict) -> None:
        if isinstance(conflict, Fenced):
            raise conflict
        self._note(conflict)
        self._synchronise()

    def _note(self, conflict: LedgerConflict) -> None:
        self._conflicts += 1
        self._report("log", message=str(conflict))
        if self._conflicts >= _CONFLICTS:
            raise Fenced(
                f"{conflict}. This happened {self._conflicts} times in a row, so another run of "
                f"{self._connector.name} is at work; this one has stopped"
            )

    def _commit(self, batch: Batch) -> None:
        """Runs in the committer's thread, one batch at a time."""
        if batch.advances:
            self._retrying(lambda: self._deliver(batch))

    def _deliver(self, batch: Batch) -> None:
        letters = batch.commit.dead_letters
        after = self._spec.guarantee.delivery is Delivery.AT_MOST_ONCE
        if not after:
            self._send_letters(letters)
        outcome = deliver(self._sink, self._spec.guarantee, batch.advances, batch.commit)
        if after and outcome is Outcome.APPLIED:
            self._send_letters(letters)

    def _send_letters(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        if self._connector.errors_log:
            for letter in letters:
                content = f": {letter.value!r}" if self._connector.errors_log_messages else ""
                self._report(
                    "log",
                    message=f"bad record at {letter.topic}-{letter.partition} offset "
                    f"{letter.offset} ({letter.stage}): {letter.message}{content}",
                )
        if self._connector.dead_letter_topic:
            if self._letters is None:
                config = client_config(self._connector, self._spec.raw, "producer")
                self._letters = DeadLetterProducer(self._connector, config, self._index)
            self._letters.send(letters)

    def _retrying(self, action: Callable[[], Any]) -> Any:
        """Run ``action`` again after transient failures; the ledger tells what took place."""
        for attempt in range(self._connector.max_retries + 1):
            try:
                return action()
            except TransientError as error:
                if attempt == self._connector.max_retries or self._line.orphaned:
                    raise ServiceError(
                        f"connector {self._connector.name}: gave up after {attempt} retries "
                        f"(max.retries): {error}"
                    ) from None
                self._report("log", message=f"{error}; trying again")
                if self._line.stop.wait(self._connector.retry_backoff_ms / 1000):
                    raise
        return None

    def _published(self, batch: Batch) -> None:
        """Copy the positions to the consumer group, for lag tools; never read back.

        Only the thread that polls may call the consumer: it would wait for a rebalance, and a
        rebalance waits for the commit in hand.
        """
        hit("task.before_publish")
        self._committed.update(batch.until)
        offsets = [KafkaPartition(tp.topic, tp.partition, at) for tp, at in batch.until.items()]
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.info("positions were not published: %s", error)
        counts = self._counts
        counts["records"] += sum(a.read for a in batch.advances)
        counts["rows"] += sum(a.written for a in batch.advances)
        counts["failed"] += sum(a.failed for a in batch.advances)
        counts["commits"] += 1
        self._unreported = True
        if time.monotonic() - self._reported > _REPORT_EVERY:
            self._report("progress")

    def _report(self, kind: str, message: str = "") -> None:
        self._reported = time.monotonic()
        self._unreported = False
        self._line.send(
            Report(
                kind,
                self._index,
                self._attempt,
                pid=os.getpid(),
                positions=dict(self._committed),
                message=message,
                records=self._counts["records"],
                rows=self._counts["rows"],
                failed=self._counts["failed"],
                commits=self._counts["commits"],
            )
        )


def _consumer_config(
    connector: ConnectorConfig, raw: Mapping[str, str], index: int
) -> dict[str, Any]:
    return {
        "fetch.queue.backoff.ms": 10,
        "queued.min.messages": max(100_000, connector.max_poll_records),
        "isolation.level": "read_committed",
        # Short, because the ledger, not the session, keeps a zombie from doing harm.
        "session.timeout.ms": 10_000,
        "topic.metadata.refresh.interval.ms": 30_000,
        "log_level": 0,
        **client_config(connector, raw, "consumer"),
        "queued.max.messages.kbytes": max(1, connector.max_poll_bytes // 1024),
        "group.id": connector.group_id,
        "group.instance.id": f"{connector.group_id}-{index}",
        "client.id": f"semel-{connector.name}-{index}",
        "partition.assignment.strategy": "roundrobin",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }


def run_task(spec: TaskSpec, index: int, attempt: int) -> None:
    """Run one task to its end. Errors that end the connector are told to the driver, not raised:
    Spark would only try again."""
    os.environ.update(spec.environment)
    try:
        line = ControlLine(spec.control)
    except (OSError, EOFError):
        return  # the driver has gone
    try:
        Task(spec, index, attempt, line).run()
        line.send(Report("stopped", index, attempt, os.getpid()))
    except Fenced as error:
        line.send(Report("fenced", index, attempt, os.getpid(), message=str(error), error="Fenced"))
    except SemelError as error:
        kind = type(error).__name__
        line.send(Report("failed", index, attempt, os.getpid(), message=str(error), error=kind))
    finally:
        line.close()
