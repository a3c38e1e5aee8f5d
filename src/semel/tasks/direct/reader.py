"""Reading a task's partitions: from the ledger's positions, poll by poll."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message

from semel.config import ConnectorConfig
from semel.core.errors import LedgerConflict, NotAssigned
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.kafka.consumer import Events, OutOfOrder, Poll, without_events
from semel.kafka.damage import Damage, examine
from semel.kafka.sizes import Sizes
from semel.sinks import protocols
from semel.sinks.base import Sink
from semel.sinks.protocols import Membership
from semel.tasks import ranges
from semel.tasks.commit import Committer
from semel.tasks.control import ControlLine
from semel.tasks.direct.conflicts import Conflicts
from semel.tasks.direct.out_of_order import OutOfOrderPolls
from semel.tasks.direct.subscription import Event, Subscription
from semel.tasks.direct.watch import Check, LogWatch, Recreated
from semel.tasks.poll import RawRecords, by_topic, copied
from semel.tasks.reporter import Reporter

_IDLE, _CALM = 0.25, 0.7
_JOINING = 0.02
"""Short, because the group's answer does not end a wait for records."""
_BUSY = 0.02
"""Seconds that a poll waits for a first record, without and with a commit under way."""
_CALM_AFTER, _CALM_POLLS = 10.0, 3
"""Seconds without a record after which polls wait longer, and how many are then made at a time:
what is done between two polls costs more than they do."""
_RESTS_AFTER = 30.0
"""Seconds without a record after which a task seldom asks whether a topic was created again."""
_ASK_AGAIN = 0.5
"""Seconds until a task that the group could not confirm asks again."""
_SMALL, _LITTLE = 1000, 200_000
"""Below this many records and bytes, converting them during a commit saves less time than a
separate commit costs."""


@dataclass(frozen=True, slots=True)
class Polled:
    """The records of a poll, by topic; empty if none arrived.

    ``ends`` are positions after trailing offsets that hold no record; ``unreadable`` gives the
    reason for each partition that could not be read further. ``quiet`` says that no record arrived
    and no commit was under way.
    """

    polls: Sequence[RawRecords] = ()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    unreadable: Mapping[TopicPartition, str] = field(default_factory=dict)
    quiet: bool = False

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
                self._entries = self._committer.retrying(lambda: self._stored(member))
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

    def _stored(self, member: Membership) -> dict[TopicPartition, LedgerEntry]:
        while True:
            try:
                protocols.assigned(self._sink, member)
                cluster, diverged = self._subscription.cluster, self._out_of_order.diverged
                found = ranges.stored_entries(
                    self._connector, self._sink, cluster, member.partitions, diverged
                )
                diverged.clear()
                return found
            except NotAssigned:
                raise
            except LedgerConflict as conflict:  # another task has entered or moved one meanwhile
                self._conflicts.note(conflict)

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

    def poll(self) -> Sequence[Event | Polled]:
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
        found = without_events(messages, tell) if poll.has_events else Events(messages)
        ends = {tp: end for tp, end in found.ends.items() if end > at.get(tp, end)}
        polls = copied(by_topic(found.records)) if found.records else []
        return [Polled(polls, ends, found.unreadable, quiet)]

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
        rests = time.monotonic() - self._heard > _RESTS_AFTER
        if self._watch.changed(seldom=rests):
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
        found = examine(self._connector.name, self._subscription.config, tp, position)
        if found is None:
            self._out_of_order.whole(tp, self._entries[tp], position, reason)
        return found

    def note(self, disorder: OutOfOrder) -> None:
        """Drop a poll; see :meth:`OutOfOrderPolls.note`."""
        self._out_of_order.note(disorder, self._entries)

    def moved(self, until: Mapping[TopicPartition, int]) -> None:
        """These positions are committed."""
        self._out_of_order.moved(until)
