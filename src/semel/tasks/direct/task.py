"""One task of the direct engine: consume, convert, transform, commit, in a loop.

The task is a static member of the consumer group ``connect-<name>``. Kafka's group protocol gives
it partitions; the ledger gives it positions. While one batch is being committed by a second
thread, the next one is consumed and decoded; batches commit in order, one at a time.

A commit whose outcome is unknown is repeated: the ledger tells whether it took place. After a
ledger conflict, or an error outside a commit, the batches in hand are dropped and positions are
read from the ledger again. Nothing that the task remembers is needed to continue, so killing it is
always safe.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import KafkaException

from semel import sinks
from semel.config import ConnectorConfig
from semel.core import abandoned
from semel.core.delivery import Guarantee
from semel.core.errors import Fenced, LedgerConflict, SemelError, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import TopicPartition
from semel.kafka.consumer import OutOfOrder, raised
from semel.kafka.damage import Damage
from semel.sinks import protocols
from semel.tasks import memory
from semel.tasks.attempt import Reporter, TaskSpec
from semel.tasks.batch import Batch, Batcher, bad_record, passing_over
from semel.tasks.commit import Committer
from semel.tasks.control import ControlLine
from semel.tasks.direct.reader import Conflicts, PolledRecords, Reader
from semel.tasks.direct.subscription import Assigned, Event, Lost, Revoked, Subscription
from semel.tasks.direct.watch import Check, Recreated
from semel.tasks.pipeline import Pipeline
from semel.tasks.publish import copies, mark
from semel.tasks.retry import OverdueWarning, Retries
from semel.tasks.transform import Transform

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DirectSpec(TaskSpec):
    """What a task needs to begin; it travels in the Spark closure. The plan, which the driver sends
    later, holds the fields of topics that were sampled."""

    connector: ConnectorConfig
    guarantee: Guarantee
    transform: Transform | None = None

    def task(self, index: int, attempt: int, line: ControlLine) -> Task:
        return Task(self, index, attempt, line)


class Task:
    """Lives for as long as the connector runs, or until it is restarted elsewhere."""

    def __init__(self, spec: DirectSpec, index: int, attempt: int, line: ControlLine) -> None:
        connector = spec.connector
        self._connector = connector
        self._index = index
        self._line = line
        self._reporter = Reporter(line, index, attempt)
        tell, waits = self._reporter.tell, self._reporter.waits
        self._sink = sink = sinks.create(connector)
        self._mark = mark(sink)
        self._committer = committer = self._new_committer(spec)
        self._pipeline = Pipeline(
            connector,
            sink,
            target=lambda topic: committer.ask(lambda: sink.schema(topic)),
            transform=spec.transform,
            lacking=lambda topic, fields: committer.ask(lambda: sink.lacking(topic, fields)),
        )
        self._batcher = Batcher(connector, self._pipeline)
        self._subscription = Subscription(connector, index, committer, tell, line.stop.wait)
        self.heartbeats = self._subscription.heartbeats
        self._conflicts = Conflicts(connector.name, self.heartbeats, tell)
        self._reader = self._new_reader()
        self._retries = Retries(connector, tell, waits)
        self._overdue = OverdueWarning(tell, committer.doing)
        self._garbage = memory.Garbage()
        self._abandoned = 0

    def _new_committer(self, spec: DirectSpec) -> Committer:
        return Committer(
            self._connector,
            spec.guarantee,
            self._sink,
            self._index,
            self._reporter.tell,
            counter=self._reporter.counter,
            waits=self._reporter.waits,
            ends=self._line.ends_within,
            logs_bad_records=True,
        )

    def _new_reader(self) -> Reader:
        return Reader(
            self._connector,
            self._sink,
            self._subscription,
            self._committer,
            self._conflicts,
            self._reporter,
            self._line,
        )

    @property
    def reads(self) -> str:
        """The partitions that it reads, and from where."""
        positions = sorted(self._reader.positions.items())
        return ", ".join(f"{tp} from offset {at}" for tp, at in positions[:8])

    def false_fence_reason(self, error: Fenced) -> str | None:
        return self._subscription.membership.false_fence_reason(error)

    def run(self) -> None:
        """Loop until the driver says stop; finishes the poll in hand.

        Until the driver has prepared the run, the task only connects: it fences nobody, and does
        not join the group.

        Raises:
            SemelError: what ends the connector.
        """
        try:
            self._connect()
            plan: Mapping[str, pa.Schema] | None = self._line.plan()
            if plan is None:
                return
            self._expect(plan)
            self._reporter.report("started")
            self._committer.retrying(self._sink.claim)
            self._committer.retrying(lambda: protocols.joining(self._sink, self._index))
            matching = self._subscription.cluster.matching
            self._subscription.subscribe(
                self._committer.retrying(lambda: matching(self._connector))
            )
            while not self._line.stop.is_set():
                self._step()
            self._settle()
            self._reporter.report("progress")
        except TransientError:
            if not self._line.stop.is_set():
                raise
            # Stopped while a commit was being retried: its records are read again after the
            # restart.
        except KafkaException as error:
            raise raised(self._connector, self._index, error) from error
        finally:
            self._close()

    @property
    def _read_up_to(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition that the consumer is to deliver."""
        return self._reader.positions

    def _expect(self, plan: Mapping[str, pa.Schema]) -> None:
        self._pipeline.add_schemas(plan)

    def _connect(self) -> None:
        """Connect to Kafka and to the store while the driver prepares the run."""
        kafka = abandoned.BackgroundCall("connecting to Kafka", self._subscription.connect)
        try:
            with suppress(SemelError):  # the first call that needs the store says what is wrong
                protocols.connect_early(self._sink)
        finally:
            kafka.wait()

    def _close(self) -> None:
        """Never raises: it would hide what ended the task."""
        self._overdue.end()
        if (batch := self._committer.close()) is not None:
            self._note(batch)
        self._reporter.report_rest()
        self._sink.close()
        try:
            self._subscription.close()
        except KafkaException as error:
            log.info("task %d: closing: %s", self._index, error)

    def _check_left_behind(self) -> None:
        """Log newly abandoned calls. Raises TooManyAbandoned if there are too many."""
        calls = abandoned.check()
        if len(calls) > self._abandoned:
            most = abandoned.MOST
            self._reporter.tell(f"abandoned a call: {calls[-1]}; {len(calls)} of {most}")
        self._abandoned = len(calls)

    def _step(self) -> None:
        """One poll, converted while the previous one commits, unless it is small."""
        self._check_left_behind()
        try:
            if self._line.paused.is_set() or self._reader.held:
                self._pause()
                return
            self._subscription.reconnect_if_stalled(self._read_up_to)
            for event in self._reader.poll():
                self._handle(event)
            self._subscription.renew()
        except OutOfOrder as disorder:
            self._reader.note(disorder)
            self._synchronise()
        except LedgerConflict as conflict:
            self._conflicts.note(conflict)
            self._synchronise()
        except TransientError as error:
            self._failed(error)
            self._synchronise()

    def _handle(self, event: Event | PolledRecords) -> None:
        match event:
            case Assigned():
                self._synchronise()
                self._publish(self._reader.positions)  # says who has the place now
            case Lost():
                self._reporter.tell("its session in the consumer group has ended")
                self._forget(event)
            case Revoked():
                self._forget(event)
            case PolledRecords() if self._subscription.rejoins:
                pass  # whoever gets the partitions reads the records again
            case PolledRecords(unreadable=unreadable) if unreadable:
                if event.topics:
                    self._commit(event)
                self._finish()
                self._pass_over(unreadable)
            case PolledRecords() if event.topics:
                self._commit(event)
            case PolledRecords():
                self._idle(event.quiet)

    def _forget(self, event: Revoked) -> None:
        """Forget the positions of partitions that are no longer the task's. The commit that was
        open has ended before they were given up."""
        self._reader.given_up(event.partitions)
        self._overdue.end()
        self._settle()
        self._reporter.given_up()

    def _idle(self, quiet: bool) -> None:
        """No records arrived: do what would otherwise have to wait for the next ones."""
        if self._committer.has_ended:
            self._finish()
        self._reader.check_now_and_then()
        if quiet:
            self._overdue.end()
            self._garbage.collect()
            self._reader.ask_again()
        if not self._committer.under_way:
            self._subscription.refresh()
        self._reporter.report_in_time()

    def _pause(self) -> None:
        """Commit the batches in hand, then stay in the group without reading until the driver
        resumes the task. It continues from the ledger's positions, which may have changed by
        then."""
        reader = self._reader
        if not self._line.paused.is_set():
            reader.held = False
            self._synchronise()
            return
        if not reader.held:
            self._settle()
            reader.held = True
            reader.hold()
        for event in reader.poll():
            if not isinstance(event, PolledRecords):
                self._handle(event)
        self._subscription.renew()
        self._overdue.end()

    def _commit(self, polled: PolledRecords) -> None:
        """Convert a poll and begin to commit it."""
        if self._committer.has_ended:
            self._finish()
        self._overdue.begin()
        hit("task.after_poll")
        check = self._reader.check(polled.topics)
        positions = dict(self._reader.positions)
        batch = self._batcher.batch(polled.polls, positions, polled.ends, logs=check.logs)
        hit("task.after_convert")
        self._finish()
        self._subscription.refresh()
        if self._subscription.rejoins:
            return
        self._begin(batch, check)
        if batch.stop is not None:
            self._finish()

    def _begin(self, batch: Batch, check: Check) -> None:
        """Begin to commit, once Kafka confirms that the records are of the ledger's topics."""
        self._overdue.begin()
        self._reader.positions.update(batch.until)
        self._committer.begin(batch, check.confirm)

    def _finish(self) -> None:
        """Wait for the commit in progress, if there is one.

        Raises:
            SemelError: it has failed.
            BadRecord: it has succeeded, and ends before a bad record.
            Recreated: a topic was created again.
        """
        batch = self._committer.wait()
        if batch is None:
            return
        self._note(batch)
        if batch.stop is not None:
            raise bad_record(self._connector.name, batch.stop)

    def _pass_over(self, unreadable: Mapping[TopicPartition, str]) -> None:
        """Find out which offsets cannot be read; record a hole and continue after it, or stop. Not
        if the task has subscribed again: no commit may begin.

        Raises:
            BadRecord: it stays unreadable, and may not be passed over.
        """
        if self._subscription.rejoins:
            return
        for tp, reason in unreadable.items():
            if (damage := self._reader.damage(tp, reason)) is not None:
                self._record(damage)
        self._reader.seek()

    def _record(self, damage: Damage) -> None:
        tp = damage.topic_partition
        position = self._reader.positions[tp]
        damage.check_tolerated(self._connector, position)
        self._reporter.tell(f"{tp}: {damage.described(position)}; continuing after them")
        check = self._reader.check({tp.topic})
        for batch in passing_over(damage, position):
            self._begin(batch.of(check.logs), check)
            self._finish()

    def _failed(self, error: TransientError) -> None:
        """Handle a failure that was not retried on the spot: continue from the ledger's
        positions."""
        if self._line.stop.is_set():
            raise error
        self._line.stop.wait(self._retries.failed(error))

    def _synchronise(self) -> None:
        """Drop the batches in hand and continue from the ledger's positions."""
        self._settle()
        self._reader.seek()

    def _settle(self) -> None:
        """Wait for the open commit to end, whether or not it succeeds."""
        try:
            self._finish()
        except LedgerConflict as conflict:
            self._conflicts.note(conflict)
        except TransientError as error:
            if self._line.stop.is_set():
                raise
            self._reporter.tell(f"{error}; continuing from the ledger's positions")
        except Recreated as other:
            self._reader.note(other)

    def _publish(self, positions: Mapping[TopicPartition, int]) -> None:
        """Copy positions to the consumer group, for lag tools; never read back. Whoever gets
        partitions that the task has given up copies theirs."""
        member = self._subscription.member
        owned = frozenset() if member is None else member.partitions
        positions = {tp: at for tp, at in positions.items() if tp in owned}
        try:
            if positions and not self._sink.capabilities.ledger_in_group:
                offsets = copies(self._mark, positions)
                self._subscription.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.info("positions were not published: %s", error)

    def _note(self, batch: Batch) -> None:
        """Count what is committed, and publish its positions.

        Only the thread that polls may call the consumer: another one would wait for a rebalance,
        and the rebalance for the commit in hand.
        """
        self._overdue.end()
        hit("task.before_publish")
        self._publish(batch.until)
        self._reporter.committed(batch)
        self._conflicts.clear()
        self._reader.moved(batch.until)
        self._retries.succeeded()
        self._garbage.note(batch.nbytes)
