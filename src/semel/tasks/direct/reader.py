"""Reading a task's partitions: from the ledger's positions, poll by poll."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.errors import (
    BadRecord,
    Fenced,
    LedgerConflict,
    NotAssigned,
    OffsetOutOfRange,
    ServiceError,
    TopicGone,
    TransientError,
)
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.kafka.consumer import Events, OutOfOrder, Poll, Sizes, without_events
from semel.kafka.damage import Damage, examine
from semel.sinks import protocols
from semel.sinks.base import Sink
from semel.sinks.protocols import Membership
from semel.tasks import ranges
from semel.tasks.attempt import Reporter
from semel.tasks.commit import Committer
from semel.tasks.control import ControlLine
from semel.tasks.direct.subscription import Event, Subscription
from semel.tasks.direct.watch import Check, LogWatch, Recreated
from semel.tasks.poll import RawRecords, TooEarly, by_topic, copied
from semel.tasks.ranges import assignment

_IDLE, _CALM = 0.25, 0.7
_JOINING = 0.02
"""Short, because the group's answer does not end a wait for records."""
_BUSY = 0.02
"""Seconds that a poll waits for a first record, without and with a commit under way."""
_CALM_AFTER, _CALM_POLLS = 10.0, 3
"""Seconds without a record after which polls wait longer, and how many are then made at a time:
what is done between two polls costs more than they do."""
_IDLE_AFTER = 30.0
"""Seconds without a record after which a task seldom asks whether a topic was created again."""
_ASK_AGAIN = 0.5
"""Seconds until a task that the group could not confirm asks again."""
_SMALL, _LITTLE = 1000, 200_000
"""Below this many records and bytes, converting them during a commit saves less time than a
separate commit costs."""
_OFTEN = 20
"""After this many polls out of order in a row, it is logged, and the task pauses between them."""
_MOST = 60
_PAUSE = 1.0
_SURE = 5
"""After this many times in a row, a finding cannot be left over from an earlier assignment."""
_ENOUGH = 5
_NOTICED_IN = 3.0
"""Conflicts must last at least this many seconds before they prove that another run is at work. A
run that the group has fenced may need that long to notice, and must not stop its successor."""


@dataclass(frozen=True, slots=True)
class PolledRecords:
    """The records of a poll, by topic; empty if none arrived.

    ``at_end`` are the ends of logs that were reached, and ``ends`` those of them that are positions
    after trailing offsets that hold no record; ``unreadable`` gives the
    reason for each partition that could not be read further. ``quiet`` says that no record arrived
    and no commit was under way.
    """

    polls: Sequence[RawRecords] = ()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    unreadable: Mapping[TopicPartition, str] = field(default_factory=dict)
    quiet: bool = False
    at_end: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        return {p.topic for p in self.polls} | {tp.topic for tp in self.ends}


class Reader:
    """Reads the partitions that the group has assigned to one task."""

    def __init__(
        self,
        connector: ConnectorConfig,
        sink: Sink,
        subscription: Subscription,
        committer: Committer,
        conflicts: Conflicts,
        reporter: Reporter,
        line: ControlLine,
    ) -> None:
        self._connector = connector
        self._sink = sink
        self._subscription = subscription
        self._committer = committer
        self._conflicts = conflicts
        self._reporter = reporter
        self._out_of_order = OutOfOrderPolls(connector.name, reporter.tell, line.stop.wait)
        self._line = line
        self._watch = LogWatch(subscription.cluster)
        self._sizes = Sizes()
        self._entries: dict[TopicPartition, LedgerEntry] = {}
        self._ask_at = float("inf")
        self._heard = time.monotonic()
        self.positions: dict[TopicPartition, int] = {}
        """The next offsets to read, assuming that the commit under way succeeds."""
        self.held = False
        """Whether the task is paused: it keeps its partitions and reads nothing."""

    def seek(self) -> None:
        """Continue to read the partitions from the ledger's positions."""
        self._subscription.forget_positions()
        self.positions, self._entries = {}, {}
        self._ask_at = float("inf")
        member = self._subscription.member
        if member is not None and member.partitions:
            try:
                self._entries = self._committer.retrying(lambda: self._ledger_entries(member))
                self.positions = {tp: e.position for tp, e in self._entries.items()}
            except NotAssigned as unsure:
                # The group's next answer says which partitions are ours; there is none if its
                # coordinator has moved and does not know this member yet.
                self._conflicts.note(unsure)
                self._ask_at = time.monotonic() + _ASK_AGAIN
        self._watch.expect(self._entries.values())
        self._subscription.consumer.assign(self._out_of_order.assignments(self._entries))
        self._reporter.assigned(self.positions)
        if self.held:
            self.hold()
        else:
            self._go_on()

    def _ledger_entries(self, member: Membership) -> dict[TopicPartition, LedgerEntry]:
        while True:
            try:
                return self._read_ledger(member)
            except NotAssigned:
                raise
            except LedgerConflict as conflict:
                self._conflicts.note(conflict)
                if self._line.stop.wait(_JOINING):
                    raise TransientError(str(conflict)) from None

    def _read_ledger(self, member: Membership) -> dict[TopicPartition, LedgerEntry]:
        """The ledger's entries.

        Raises:
            LedgerConflict: another task has entered or moved one meanwhile.
            NotAssigned: a topic was deleted.
        """
        cluster, diverged = self._subscription.cluster, self._out_of_order.diverged
        try:
            protocols.assigned(self._sink, member)
            entries = ranges.stored_entries(
                self._connector, self._sink, cluster, member.partitions, diverged
            )
        except TopicGone as gone:  # the group's next answer leaves it out
            raise NotAssigned(str(gone)) from None
        diverged.clear()
        return entries

    def given_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget these partitions: they no longer belong to the task."""
        self._out_of_order.moved(partitions)
        self.positions = {}
        self._ask_at = float("inf")

    def hold(self) -> None:
        """Fetch nothing from the task's partitions."""
        consumer = self._subscription.consumer
        consumer.pause(consumer.assignment())
        self._reporter.report("paused")

    def _go_on(self) -> None:
        """Read again: librdkafka leaves partitions paused when they are assigned again."""
        consumer = self._subscription.consumer
        consumer.resume(consumer.assignment())

    def poll(self) -> Sequence[Event | PolledRecords]:
        """Poll the group's events, if there are any; otherwise the records that have arrived.

        A small poll keeps collecting until the commit in progress has ended. When the group assigns
        or revokes partitions, what was polled is dropped: it is read again from the ledger's
        positions, here or by another task.

        Raises:
            SemelError: the consumer can no longer be used.
            OutOfOrder: the positions must be read from the ledger again.
        """
        if events := self._subscription.take_events():
            return events
        connector, subscription = self._connector, self._subscription
        consumer = subscription.consumer
        poll = Poll(connector, subscription.index, self._sizes, subscription.consumer_log)
        self._take_first(poll)
        messages, most = poll.messages, connector.max_poll_records
        if messages:
            self._heard = time.monotonic()
        quiet = not messages and not self._committer.under_way
        if messages and most > 1:
            poll.take(consumer, most, connector.linger_ms / 1000)
            if self._committer.under_way and self._is_small(messages):
                # Records that arrive while the open commit ends fit into this batch.
                self._committer.join()
                poll.take(consumer, most, 0)
        if events := self._subscription.take_events():
            return events
        tell, at = self._reporter.tell, self.positions
        received = without_events(messages, tell) if poll.has_events else Events(messages)
        ends = {tp: end for tp, end in received.ends.items() if end > at.get(tp, end)}
        polls = copied(by_topic(received.records)) if received.records else []
        return [PolledRecords(polls, ends, received.unreadable, quiet, received.ends)]

    def _take_first(self, poll: Poll) -> None:
        """Wait briefly for a first record."""
        consumer, subscription = self._subscription.consumer, self._subscription
        returns_soon = self.held or self._ask_at < float("inf")
        if self._committer.under_way:
            poll.take(consumer, 1, _BUSY)
        elif subscription.member is None or subscription.rejoins:
            poll.take(consumer, 1, _JOINING)
        elif time.monotonic() - self._heard < _CALM_AFTER:
            poll.take(consumer, 1, _IDLE)
        else:
            for _ in range(1 if returns_soon else _CALM_POLLS):
                came = poll.take_first(consumer, _CALM)
                if came or subscription.has_events or self._line.has_order:
                    return

    def _is_small(self, messages: Sequence[Message]) -> bool:
        few = len(messages) < min(_SMALL, self._connector.max_poll_records)
        return few and sum(map(len, messages)) < _LITTLE

    def check(self, topics: set[str]) -> Check:
        """Start to check whether the topics are still those of the ledger.

        Raises:
            Recreated: the consumer fetches another topic.
        """
        return self._watch.check(topics, self._subscription.consumer_log.fetched)

    def check_now_and_then(self) -> None:
        """Make the same check while no records arrive, without waiting for the answer.

        Raises:
            Recreated: a topic was created again.
        """
        is_idle = time.monotonic() - self._heard > _IDLE_AFTER
        if self._watch.changed(seldom=is_idle):
            raise Recreated("a topic was created again")

    def ask_again(self) -> None:
        """Read the positions if the group could not confirm the task's partitions before."""
        if time.monotonic() > self._ask_at:
            self.seek()

    def damage(self, tp: TopicPartition, reason: str) -> Damage | None:
        """The offsets after a partition's position that cannot be read; None if they can, or if the
        task does not read the partition.

        Raises:
            TransientError: Kafka does not answer.
        """
        position = self.positions.get(tp)
        if position is None:
            return None
        damage = examine(self._connector.name, self._subscription.config, tp, position)
        if damage is None:
            self._out_of_order.whole(tp, self._entries[tp], position, reason)
        return damage

    def note(self, disorder: OutOfOrder) -> None:
        """Drop a poll; see :meth:`OutOfOrderPolls.note`."""
        self._out_of_order.note(disorder, self._entries)

    def moved(self, until: Mapping[TopicPartition, int]) -> None:
        """These positions are committed."""
        self._out_of_order.moved(until)


class OutOfOrderPolls:
    """Polls whose records are out of order, since the partitions in question last moved: they are
    read again, but not forever.

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


class Conflicts:
    """Decides when ledger conflicts in a row prove that another run of the connector is at work.
    ``heartbeats`` is in seconds; ``tell`` writes a line to the driver's log."""

    def __init__(self, connector: str, heartbeats: float, tell: Callable[[str], None]) -> None:
        self._connector = connector
        self._lasts = max(heartbeats, _NOTICED_IN)
        self._tell = tell
        self._count = 0
        self._since = 0.0
        self._moved = False

    def clear(self) -> None:
        """Reset the count: a commit has succeeded."""
        self._count = 0
        self._moved = False

    def note(self, conflict: LedgerConflict) -> None:
        """Count a conflict. Partitions that move between tasks do not indicate another run.

        Raises:
            Fenced: another run is at work.
        """
        if isinstance(conflict, Fenced):
            raise conflict
        if isinstance(conflict, NotAssigned):
            if not self._moved:
                self._tell(str(conflict))
            self._moved = True
            return
        if not self._count:
            self._since = time.monotonic()
        self._count += 1
        self._tell(str(conflict))
        if self._count >= _ENOUGH and time.monotonic() - self._since > self._lasts:
            raise Fenced(
                f"another run of connector {self._connector} is active: this one has stopped "
                f"after {self._count} conflicts in a row. The last one: {conflict}"
            )
