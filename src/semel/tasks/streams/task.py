"""One task of a topology: a task of the direct engine whose commits move a state, too.

It reads the partitions that the group gives it, in units: one partition of all topics of a
sub-topology. See :mod:`semel.tasks.streams.states` for what a commit consists of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import BadRecord, NotAssigned
from semel.core.failpoints import hit
from semel.core.ledger import Advance, LedgerEntry, TopicPartition
from semel.sinks.protocols import Membership
from semel.streams.topology import Topology
from semel.tasks.batch import bad_record
from semel.tasks.commit import Committer, Results
from semel.tasks.control import ControlLine
from semel.tasks.direct.reader import PolledRecords, Reader
from semel.tasks.direct.subscription import Event
from semel.tasks.direct.task import DirectSpec, Task
from semel.tasks.streams.states import ComputedCommit, States


@dataclass(frozen=True, kw_only=True)
class StreamsSpec(DirectSpec):
    """What a task of a topology needs to begin."""

    topology: Topology

    def task(self, index: int, attempt: int, line: ControlLine) -> Task:
        return StreamsTask(self, index, attempt, line)


class StatefulCommitter(Committer):
    """Commits what the target gets within what moves the state."""

    states: States

    def commit(
        self,
        advances: Sequence[Advance],
        results: Results,
        moved: Collection[TopicPartition] = (),
    ) -> None:
        target = super().commit
        if not isinstance(results, ComputedCommit):
            target(advances, results, moved)
            return
        self.states.commit(results, advances, lambda rows: target(advances, rows, moved))


class StatefulReader(Reader):
    """Brings the state of the task's partitions to the ledger's positions."""

    states: States

    def _read_ledger(self, member: Membership) -> dict[TopicPartition, LedgerEntry]:
        self.states.settle(member)
        entries = super()._read_ledger(member)
        self.states.recover(entries, self._committer.commit)
        return entries

    def given_up(self, partitions: frozenset[TopicPartition]) -> None:
        super().given_up(partitions)
        self.states.release(partitions)

    def stay_alive(self) -> None:
        """Keep the place in the group while state is restored. What is polled is read again.

        Raises:
            NotAssigned: the group has other plans.
        """
        self._subscription.consumer.poll(0)
        if self._subscription.has_events:
            raise NotAssigned("the group has moved on while state was restored")


class StreamsTask(Task):
    """Lives for as long as the connector runs, or until it is restarted elsewhere."""

    def __init__(self, spec: StreamsSpec, index: int, attempt: int, line: ControlLine) -> None:
        self._topology = spec.topology
        super().__init__(spec, index, attempt, line)
        self._states.flatten = self._pipeline.flatten
        self._full: set[TopicPartition] = set()

    def _new_committer(self, spec: DirectSpec) -> Committer:
        tell = self._reporter.tell
        self._states = States(
            self._connector, self._topology, self._sink, self._index, self._mark, tell
        )
        committer = StatefulCommitter(
            self._connector,
            spec.guarantee,
            self._sink,
            self._index,
            tell,
            counter=self._reporter.counter,
            waits=self._reporter.waits,
            ends=self._line.ends_within,
            logs_bad_records=True,
        )
        committer.states = self._states
        return committer

    def _new_reader(self) -> Reader:
        reader = StatefulReader(
            self._connector,
            self._sink,
            self._subscription,
            self._committer,
            self._conflicts,
            self._reporter,
            self._line,
        )
        reader.states = self._states
        self._states.alive = reader.stay_alive
        return reader

    @property
    def _read_up_to(self) -> Mapping[TopicPartition, int]:
        return self._reader.positions and self._states.read_up_to()

    def _expect(self, plan: Mapping[str, pa.Schema]) -> None:
        self._states.expect(plan)

    def _close(self) -> None:
        super()._close()
        self._states.close()

    def _handle(self, event: Event | PolledRecords) -> None:
        if isinstance(event, PolledRecords) and not event.polls and not self._subscription.rejoins:
            self._states.reached(event.at_end)
        super()._handle(event)

    def _idle(self, quiet: bool) -> None:
        super()._idle(quiet)
        self._states.purge()
        self._proceed()

    def _commit(self, polled: PolledRecords) -> None:
        if self._committer.has_ended:
            self._finish()
        self._overdue.begin()
        hit("task.after_poll")
        self._states.add(polled.polls, self._reader.positions)
        self._states.reached(polled.at_end)
        self._proceed()

    def _synchronise(self) -> None:
        super()._synchronise()
        self._full = set()

    def _regulate(self) -> None:
        """Read nothing more of partitions of which much waits already."""
        full = self._states.full()
        if full == self._full:
            return
        consumer = self._subscription.consumer
        consumer.pause([KafkaPartition(*tp) for tp in full - self._full])
        consumer.resume([KafkaPartition(*tp) for tp in self._full - full])
        self._full = full

    def _proceed(self) -> None:
        """Make a step of each partition that can move, and begin to commit them."""
        steps = self._states.steps()
        self._regulate()
        if not steps:
            self._finish_if_stopped()
            return
        batch = self._states.batch(steps)
        hit("task.after_convert")
        self._finish()
        self._subscription.refresh()
        if self._subscription.rejoins:
            return
        check = self._reader.check({a.range.topic for a in batch.advances})
        self._begin(batch.of(check.logs), check)
        if batch.stop is not None:
            self._finish()

    def _finish_if_stopped(self) -> None:
        if (letter := self._states.stop) is not None:
            self._finish()
            raise bad_record(self._connector.name, letter)

    def _pass_over(self, unreadable: Mapping[TopicPartition, str]) -> None:
        if self._subscription.rejoins:
            return
        for tp, reason in unreadable.items():
            if (damage := self._reader.damage(tp, reason)) is not None:
                position = self._reader.positions[tp]
                raise BadRecord(
                    f"connector {self._connector.name}: {tp}: {damage.described(position)}. A "
                    "topology does not continue without records that its state may need"
                )
        self._reader.seek()
