"""One task of the direct engine: consume, convert, transform, commit, in a loop.

The task is a static member of the consumer group ``connect-<name>``. Kafka's group protocol gives
it partitions; the ledger gives it positions. While one batch is being committed by a second
thread, the next one is consumed and decoded; batches commit in order, one at a time.

After any error whose outcome is unknown, and after a ledger conflict, the batches in hand are
dropped and positions are read from the ledger again. Nothing that the task remembers is needed to
go on, so killing it is always safe.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message

from semel.config import ConnectorConfig
from semel.delivery import Guarantee
from semel.engine import memory, ranges
from semel.engine.batch import Batch, Batcher, bad_record, passing_over
from semel.engine.committer import Committer
from semel.engine.consumer import Events, Poll, raised, without_events
from semel.engine.control import Address, ControlLine
from semel.engine.direct.conflicts import Conflicts
from semel.engine.direct.disorders import Disorders
from semel.engine.direct.progress import Progress
from semel.engine.direct.subscription import Subscription
from semel.engine.direct.watch import Check, LogWatch, Recreated
from semel.engine.overdue import Overdue
from semel.engine.pipeline import Pipeline, Transform
from semel.engine.poll import GivenUp, OutOfOrder, RawRecords, by_topic, copied
from semel.engine.publish import copies, mark
from semel.engine.retry import Retries
from semel.errors import (
    Displaced,
    Fenced,
    LedgerConflict,
    NotAssigned,
    SemelError,
    TransientError,
)
from semel.failpoints import hit
from semel.kafka.damage import examine
from semel.ledger import LedgerEntry, TopicPartition
from semel.leftbehind import MOST, left
from semel.records import Rejected, RowsRejected
from semel.sinks import protocols, sink_class
from semel.sinks.protocols import Membership
from semel.sizes import Sizes

log = logging.getLogger(__name__)

_IDLE = 0.25
_OWN_LOSS = 30.0
"""Seconds after the end of a session in which Kafka may mistake the task for one of another run."""
_WORD = 2.0
"""Seconds that the driver's "stop" takes to be heard by a task that wakes up."""
_ASK_AGAIN = 0.5
"""Seconds until a task that the group could not confirm asks again."""
_COMMITS_A_COLLECTION = 256
_SMALL, _LITTLE = 1000, 200_000
"""Records, and bytes, below which converting them during a commit saves less time than a commit of
their own costs."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Everything a task needs; it travels in the Spark closure."""

    connector: ConnectorConfig
    raw: Mapping[str, str] = field(repr=False)
    guarantee: Guarantee
    control: Address
    environment: Mapping[str, str]
    transform: Transform | None = None
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)


class TooManyLeft(Exception):
    """The process holds as many calls that do not end as it may."""

    def __init__(self, what: Sequence[str]) -> None:
        super().__init__(f"{len(what)} calls do not end ({', '.join(sorted(set(what)))})")


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that is being committed, and what it was made of."""

    batch: Batch
    polls: Sequence[RawRecords]
    positions: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


class Task:
    """Lives for as long as the connector runs, or until it is restarted elsewhere."""

    def __init__(self, spec: TaskSpec, index: int, attempt: int, line: ControlLine) -> None:
        connector = spec.connector
        self._connector = connector
        self._index = index
        self._line = line
        self._progress = Progress(line, index, attempt)
        self._sink = sink_class(connector.connector_class, spec.raw)(connector, spec.raw)
        pipeline = Pipeline(
            connector,
            spec.raw,
            self._sink,
            target=self._target,
            transform=spec.transform,
            schemas=spec.schemas,
        )
        self._batcher = Batcher(connector, pipeline)
        self._subscription = Subscription(
            connector,
            spec.raw,
            index,
            self._progress.tell,
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        self.heartbeats = self._subscription.heartbeats
        self._committer = Committer(
            connector, spec.raw, spec.guarantee, self._sink, line, index, self._progress.tell
        )
        self._pending: tuple[Future[None], Work] | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._quiet = False
        self._paused = False
        self._uncollected = 0
        self._warm = False
        self._mark = mark(self._sink)
        self._member: Membership | None = None
        self._entries: dict[TopicPartition, LedgerEntry] = {}
        self._watch = LogWatch(self._subscription.cluster)
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._unreadable: Mapping[TopicPartition, str] = {}
        self._sizes = Sizes()
        self._disorders = Disorders(connector.name, self._progress.tell, line.stop.wait)
        self._generation = 0
        self._lost_at = float("-inf")
        self._trouble: SemelError | None = None
        self._ask_at = float("inf")
        self._conflicts = Conflicts(connector.name, self.heartbeats, self._progress.tell)
        self._left = 0
        self._overdue = Overdue(self._progress.tell, self._doing)
        self._retries = Retries(connector, spec.raw, self._progress.tell)

    def run(self) -> None:
        """Loop until the driver says stop; finishes the poll in hand.

        Raises:
            SemelError: what ends the connector.
        """
        self._progress.report("started")
        try:
            self._committer.retrying(self._sink.claim)
            self._committer.retrying(lambda: protocols.joining(self._sink, self._index))
            matching = self._subscription.cluster.matching
            self._subscription.ask(self._committer.retrying(lambda: matching(self._connector)))
            while not self._line.stop.is_set():
                self._step()
            self._settle()
            self._progress.report("progress")
        except TransientError:
            if not self._line.stop.is_set():
                raise
            # Stopped while a commit was being tried again: it is read again after the restart.
        except KafkaException as error:
            raise raised(self._connector, self._index, error) from error
        finally:
            self._close()

    def _close(self) -> None:
        """Never raises: it would hide what ended the task."""
        self._overdue.end()
        self._committer.close()
        pending, self._pending = self._pending, None
        try:
            if pending is not None and pending[0].exception() is None:
                self._published(pending[1].batch)
        except SemelError as error:
            log.info("%s", error)
        self._sink.close()
        try:
            self._subscription.close()
        except KafkaException as error:
            log.info("task %d: closing: %s", self._index, error)

    def _check_left_behind(self) -> None:
        """Raises TooManyLeft: a new process is needed, for one in which calls wait for ever only
        grows."""
        found = left()
        if len(found) >= MOST:
            raise TooManyLeft(found)
        if len(found) > self._left:
            self._progress.tell(f"was left behind: {found[-1]}; {len(found)} of {MOST}")
        self._left = len(found)

    def _step(self) -> None:
        """One poll, converted while the one before it commits unless it is small."""
        self._check_left_behind()
        try:
            if self._line.paused.is_set() or self._paused:
                self._pause()
                return
            self._subscription.find_back(self._owned, self._positions)
            polls = self._poll()
            self._subscription.renew()
            if self._unreadable:
                if polls or self._ends:
                    self._commit(polls)
                self._wait_pending()
                self._pass_over()
                return
            if not polls and not self._ends:
                self._check_pending()
                self._check_logs()
                if self._pending is None:
                    self._subscription.look_for_topics()
                if self._quiet:
                    self._overdue.end()
                    self._collect()
                    if time.monotonic() > self._ask_at:
                        self._take()
                self._progress.report_in_time()
                return
            self._commit(polls)
        except GivenUp:
            self._synchronise()
        except OutOfOrder as disorder:
            self._disorders.note(disorder, self._entries)
            self._synchronise()
        except LedgerConflict as conflict:
            self._conflicts.note(conflict)
            self._synchronise()
        except TransientError as error:
            self._failed(error)
            self._synchronise()

    def _pause(self) -> None:
        """Commit what is in hand, then keep the place in the group and read nothing, until the
        driver lets the task go on: from the ledger's positions, which may be others by then."""
        if not self._line.paused.is_set():
            self._paused = False
            self._synchronise()
            return
        if not self._paused:
            self._settle()
            self._paused = True
            self._hold()
        self._poll()
        self._subscription.renew()
        self._overdue.end()

    def _hold(self) -> None:
        """Let the consumer fetch nothing of what it has."""
        self._subscription.consumer.pause(self._subscription.consumer.assignment())
        self._progress.report("paused")

    def _commit(self, polls: Sequence[RawRecords]) -> None:
        """Convert a poll and begin to commit it."""
        self._overdue.begin()
        hit("task.after_poll")
        topics = {p.topic for p in polls} | {tp.topic for tp in self._ends}
        check = self._watch.check(topics, self._subscription.topic_ids.fetched)
        batch = self._batcher.batch(polls, self._positions, self._ends)
        hit("task.after_convert")
        self._wait_pending()
        self._subscription.look_for_topics()
        self._submit(batch, polls, check)
        self._ends = {}
        if batch.stop is not None:
            self._wait_pending()
            raise bad_record(self._connector.name, batch.stop)

    def _check_logs(self) -> None:
        if self._watch.changed():
            raise Recreated("a topic was created again")

    def _pass_over(self) -> None:
        """Find out what cannot be read; record the hole and go on after it, or stop there.

        Raises:
            BadRecord: it stays unreadable, and ``errors.tolerance`` is ``none``.
        """
        connector = self._connector
        for tp, reason in self._unreadable.items():
            position = self._positions.get(tp)
            if position is None:
                continue
            found = examine(connector.name, self._subscription.config, tp, position)
            if found is None:
                self._disorders.whole(tp, self._entries[tp], position, reason)
                continue
            if connector.errors_tolerance == "none":
                raise found.stop(connector.name, position)
            self._progress.tell(f"{tp}: {found.told(position)}; goes on after them")
            check = self._watch.check([tp.topic], self._subscription.topic_ids.fetched)
            for batch in passing_over(found, position):
                self._submit(batch, [], check)
                self._wait_pending()
        self._take()

    def _failed(self, error: TransientError) -> None:
        """A failure outside of what is retried on the spot: read on from the ledger."""
        if self._line.stop.is_set():
            raise error
        self._line.stop.wait(self._retries.failed(error))

    # Reading

    def _poll(self) -> list[RawRecords]:
        """What has come; a small poll takes in what comes until the open commit has ended."""
        connector, consumer = self._connector, self._subscription.consumer
        poll = Poll(connector, self._index, self._sizes)
        poll.take(consumer, 1, _IDLE if self._pending is None else 0.02)
        messages = poll.messages
        self._quiet = not messages and self._pending is None
        # A single message comes after the callbacks of its call, several may stand on both sides.
        generation = self._generation
        most = connector.max_poll_records
        if messages and most > 1:
            poll.take(consumer, most, connector.linger_ms / 1000)
            if self._pending is not None and self._is_small(messages):
                # Better off in this batch than in the next: what comes while the open commit ends.
                self._wait_pending()
                poll.take(consumer, most, 0)
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        if generation != self._generation:
            raise GivenUp("what the poll holds may be another task's by now")
        tell, at = self._progress.tell, self._positions
        found = without_events(messages, tell) if poll.has_events else Events(messages)
        self._ends = {tp: end for tp, end in found.ends.items() if end > at.get(tp, end)}
        self._unreadable = found.unreadable
        return copied(by_topic(found.records)) if found.records else []

    def _is_small(self, messages: Sequence[Message]) -> bool:
        few = len(messages) < min(_SMALL, self._connector.max_poll_records)
        return few and sum(map(len, messages)) < _LITTLE

    def _doing(self) -> str:
        """What becomes of the records in hand, for the log."""
        under_way = "their commit is under way" if self._pending else "the task converts them"
        return self._committer.trouble or under_way

    # The group protocol

    def _assigned(self, consumer: Consumer, owned: frozenset[TopicPartition]) -> None:
        self._owned = owned
        self._member = Membership(
            str(consumer.memberid()), owned, consumer.consumer_group_metadata()
        )
        self._guarded(self._take)

    def _revoked(self, away: bool) -> None:
        if away and self._line.stop.wait(_WORD):
            self._subscription.stay_out()
        self._overdue.end()
        self._generation += 1
        self._guarded(self._settle)
        self._disorders.moved(self._owned)
        self._owned, self._positions, self._ends = frozenset(), {}, {}
        self._ask_at = float("inf")
        self._subscription.consumer.unassign()

    def _lost(self) -> None:
        self._lost_at = time.monotonic()
        self._revoked(away=True)

    def excuse(self, fence: Fenced) -> str:
        """Why a fence does not end the run; empty if it does.

        Positions that were on their way to the group when the session ended are sent without a
        member id, and Kafka answers that another instance has taken this one's place.

        Of two runs, the one that holds the place of task 0 goes on. If any place could decide, each
        run could displace a task of the other, and both would end. The others only start again:
        if their run has lost, its task 0 says so.
        """
        if time.monotonic() - self._lost_at < _OWN_LOSS:
            return "its session had just ended"
        if not isinstance(fence, Displaced):
            return ""
        replaced = self._subscription.replaced()
        if replaced is None:
            return "Kafka does not say who is in its place"
        if not replaced:
            return "nobody else is in its place"
        return "the place of task 0 decides between two runs" if self._index else ""

    def _guarded(self, action: Callable[[], None]) -> None:
        """Callbacks run inside librdkafka: keep the error for the loop."""
        try:
            action()
        except SemelError as error:
            self._trouble = error

    def _take(self) -> None:
        """Read the partitions on from where the ledger stands."""
        self._generation += 1
        self._subscription.look_anew()
        self._positions, self._ends = {}, {}
        self._ask_at = float("inf")
        self._entries = {}
        if self._owned:
            try:
                self._entries = self._committer.retrying(self._stored)
                self._positions = {tp: e.position for tp, e in self._entries.items()}
            except NotAssigned as unsure:
                # The group's next answer says what is ours; there is none if its coordinator has
                # moved and does not know yet that we are in it.
                self._conflicts.note(unsure)
                self._ask_at = time.monotonic() + _ASK_AGAIN
        self._watch.expect(self._entries.values())
        self._subscription.consumer.assign(self._disorders.assignments(self._entries))
        self._progress.assigned(self._positions)
        if self._paused:
            self._hold()
        else:  # librdkafka leaves partitions paused when they are assigned again
            self._subscription.consumer.resume(self._subscription.consumer.assignment())

    def _stored(self) -> dict[TopicPartition, LedgerEntry]:
        assert self._member is not None
        while True:
            try:
                protocols.assigned(self._sink, self._member)
                cluster, parted = self._subscription.cluster, self._disorders.parted
                found = ranges.standing(self._connector, self._sink, cluster, self._owned, parted)
                parted.clear()
                return found
            except NotAssigned:
                raise
            except LedgerConflict as conflict:  # another task has entered or moved one meanwhile
                self._conflicts.note(conflict)

    def _synchronise(self) -> None:
        """Drop what is in hand and read on from the ledger's positions."""
        self._settle()
        self._take()

    # Committing

    def _target(self, topic: str) -> pa.Schema | None:
        """The sink's columns; a sink serves one thread at a time, so the open commit ends first."""
        self._wait_pending()
        return self._committer.retrying(lambda: self._sink.schema(topic))

    def _submit(self, batch: Batch, polls: Sequence[RawRecords], check: Check) -> None:
        work = Work(batch, polls, dict(self._positions), dict(self._ends))
        self._overdue.begin()
        self._positions.update(batch.until)
        self._pending = (self._committer.submit(batch, check.confirm), work)

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
        self._conflicts.clear()
        self._disorders.moved(work.batch.until)
        self._retries.succeeded()

    def _without(self, work: Work, rejected: Sequence[Rejected]) -> None:
        """Commit again without the records that the sink has refused."""
        refused: list[Rejected] = []
        while True:
            refused.extend(rejected)
            batch = self._batcher.batch(work.polls, work.positions, work.ends, refused)
            try:
                self._committer.without_rejected(batch).result()
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
            self._conflicts.note(conflict)
        except TransientError as error:
            if self._line.stop.is_set():
                raise
            self._progress.tell(f"{error}; reading on from the ledger")
        except Recreated as other:
            self._disorders.note(other, self._entries)

    def _published(self, batch: Batch) -> None:
        """Copy the positions to the consumer group, for lag tools; never read back.

        Only the thread that polls may call the consumer: it would wait for a rebalance, and a
        rebalance waits for the commit in hand.
        """
        self._overdue.end()
        hit("task.before_publish")
        try:
            if batch.until and not self._sink.capabilities.ledger_in_group:
                offsets = copies(self._mark, batch.until)
                self._subscription.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.info("positions were not published: %s", error)
        self._progress.committed(batch)
        if batch.nbytes > memory.LARGE:
            memory.give_back()
        self._uncollected += 1
        if self._uncollected >= _COMMITS_A_COLLECTION:
            self._collect()

    def _collect(self) -> None:
        """When nothing waits, or after many commits: it may take longer than a small one. Nearly
        all that the first collection leaves stays as long as the task: later ones pass it over."""
        if self._uncollected:
            gc.collect()
            if not self._warm:
                gc.freeze()
                self._warm = True
            self._uncollected = 0
