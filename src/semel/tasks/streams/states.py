"""The states of a task's partitions, and the commits that move them together with the target.

The state never runs ahead of the ledger, and at most one commit is in doubt. A commit:

1. computes a step on what the stores hold (:mod:`semel.tasks.streams.unit`);
2. sends what the stores have changed, the position that this leads to and records for other topics,
   in a Kafka transaction that stays open;
3. commits rows and ledger to the target, in one transaction there;
4. commits the Kafka transaction;
5. writes the changes and the position to the local state.

If the target is Kafka itself, 2 to 4 are one transaction. After a crash between 3 and 4 the state
is one commit behind the ledger: exactly that commit's records are read again, and the ledger
recognises the rows as a replay while the state catches up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core import records as core
from semel.core.errors import (
    BadRecord,
    ConfigError,
    LedgerConflict,
    NotAssigned,
    RolledBack,
    ServiceError,
    TransientError,
)
from semel.core.failpoints import hit
from semel.core.ledger import UNREAD, Advance, Hole, LedgerEntry, TopicPartition, outside
from semel.core.quoting import named
from semel.core.records import Commit, DeadLetter
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster, admin_client
from semel.kafka.groups import Groups
from semel.kafka.reader import read_ranges
from semel.kafka.transactions import RecordsRefused, Report, Transactions
from semel.sinks.base import Sink
from semel.sinks.kafka.offsets import Group
from semel.sinks.protocols import Membership
from semel.streams.changelog import (
    Keeper,
    Marker,
    Topics,
    positions_of,
    results_of,
    state_of,
)
from semel.streams.store import State
from semel.streams.topology import SubTopology, Topology
from semel.tasks.batch import Batch, with_unplaced
from semel.tasks.poll import RawRecords, by_topic, copied, last_records
from semel.tasks.publish import copies
from semel.tasks.streams.globals import Globals
from semel.tasks.streams.unit import Decoder, Outputs, Queue, Step, Unit, leaving
from semel.tasks.unplaced import Counts

_PENDING, _FENCE_AFTER = 0.02, 0.5
_CHECKPOINT = 10.0
"""Seconds after which it is noted how much of the changelogs the local state has."""
_TOMBSTONES = 12 * 3600.0
"""Seconds after which local state is not continued: brokers drop a changelog's tombstones after
``delete.retention.ms``, a day by default, and deleted keys would stay."""
_ALIVE = 5.0
_PURGE = 30.0
"""Seconds between two looks, as Kafka Streams has them (``repartition.purge.interval.ms``)."""


@dataclass(frozen=True, slots=True)
class ComputedCommit(Commit):
    """What steps have made: ``records`` for the target, and what goes to Kafka."""

    steps: Sequence[Step] = ()


class States:
    """The partitions of one task. ``mark`` is the metadata of offsets; ``tell`` writes a line to
    the log. ``alive`` is called now and then while state is restored; ``flatten`` makes rows for
    the target."""

    def __init__(
        self,
        connector: ConnectorConfig,
        topology: Topology,
        sink: Sink,
        index: int,
        mark: str,
        tell: Callable[[str], None],
    ) -> None:
        self._connector = connector
        self._sink = sink
        self._index = index
        self._metadata = mark
        self._tell = tell
        self.alive: Callable[[], None] = lambda: None
        self.flatten: Callable[[core.ConnectRecords], tuple[list[core.Records], Counts]]
        self._digest = topology.digest
        self._topics = Topics(connector.name, topology)
        self.reads = self._topics.read
        admin = client_config(connector, "admin")
        self._cluster = Cluster(admin)
        self._admin = admin_client(admin)
        self._purge_at = time.monotonic() + _PURGE
        self._groups = Groups(admin)
        self._group = Group(connector.name, connector.group_id, self._groups)
        self._keeper = Keeper(connector, self._topics, self._cluster)
        self._producer = Transactions(
            f"connector {connector.name}", client_config(connector, "producer")
        )
        self._has_opened = False
        self._member: Membership | None = None
        self._done: ComputedCommit | None = None
        """The last commit that Kafka has: it must not be sent again."""
        self._decoders = {t: Decoder(connector, source) for t, (_, source) in self.reads.items()}
        self._outputs = Outputs(connector, self._topics, self._cluster)
        base = Path(connector.state_dir or Path(gettempdir()) / "semel-streams")
        self._folder = base / quote(connector.name, safe="")
        folder = self._folder / f"globals_{index}"
        self.globals = Globals(connector, self._topics, self._cluster, folder, tell)
        self.units: dict[tuple[int, int], Unit] = {}
        self._placed: set[TopicPartition] = set()

    @property
    def shares(self) -> bool:
        """Whether the target's own transaction takes along what goes to Kafka."""
        return self._sink.capabilities.ledger_in_group

    def expect(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Take the schemas that the driver has inferred from samples."""
        for topic, schema in schemas.items():
            self._decoders[topic].expect(schema)

    def unit(self, tp: TopicPartition) -> tuple[Unit, str]:
        """The unit that reads a partition, and what the topology calls the topic."""
        sub, source = self.reads[tp.topic]
        return self.units[sub.number, tp.partition], source.topic

    # Recovery

    def settle(self, member: Membership) -> None:
        """Fence the predecessor, and wait until nobody else's transaction can move the state of
        this task's partitions.

        Raises:
            NotAssigned: they may belong to another task by now.
            TransientError: a transaction does not end.
        """
        self._member = member
        if self.shares:
            return
        if not self._producer.is_open:
            self._open(member)
        began = time.monotonic()
        fence_at, longest = began + _FENCE_AFTER, 2 * self._producer.seconds
        group = self._connector.group_id
        while pending := self._groups.offsets(group, member.partitions, stable=True)[1]:
            now = time.monotonic()
            if now > fence_at:
                for instance in self._group.absent(member, self._connector.tasks_max):
                    self._producer.fence(instance)
                fence_at = now + _FENCE_AFTER
            if now - began > longest:
                raise TransientError(
                    f"connector {self._connector.name}: a transaction is pending on "
                    f"{' or '.join(map(str, sorted(pending)))} and does not end"
                )
            time.sleep(_PENDING)

    def _open(self, member: Membership) -> None:
        """Take the task's ``transactional.id``. It is not taken back from a successor: a task that
        was frozen would fence it, and be fenced by it in turn.

        Raises:
            NotAssigned: the partitions may belong to another task by now.
        """
        if self._has_opened:
            self._group.confirm(member)
        self._producer.open(self._group.instance(self._index))
        self._has_opened = True

    def recover(
        self,
        entries: Mapping[TopicPartition, LedgerEntry],
        commit: Callable[[Sequence[Advance], Commit], None],
    ) -> None:
        """Bring the state of each partition to where the ledger is.

        Raises:
            SemelError: that cannot be done; says what to do.
        """
        wanted = self._wanted(entries)
        self.globals.start(self._beat())
        for key in self.units.keys() - wanted.keys():
            self.units.pop(key).state.close()
        for (number, partition), (sub, own) in wanted.items():
            unit = self.units.get((number, partition))
            if unit is None:
                unit = self.units[number, partition] = self._opened(sub, partition)
            marker = self._restored(unit, own)
            unit.begin(marker)
            self._catch_up(unit, own, commit)

    def _wanted(
        self, entries: Mapping[TopicPartition, LedgerEntry]
    ) -> dict[tuple[int, int], tuple[SubTopology, dict[str, LedgerEntry]]]:
        """The entries of each unit, by what the topology calls the topics."""
        units: dict[tuple[int, int], tuple[SubTopology, dict[str, LedgerEntry]]] = {}
        for tp, entry in entries.items():
            sub, source = self.reads[tp.topic]
            units.setdefault((sub.number, tp.partition), (sub, {}))[1][source.topic] = entry
        counts = self._cluster.topics()
        for (number, partition), (sub, own_entries) in units.items():
            own = positions_of(self._connector.name, number)
            if partition >= counts.get(own, partition + 1):
                raise ConfigError(
                    f"connector {self._connector.name}: {named(min(own_entries))} has got "
                    f"partition {partition}, and topic {named(own)} has {counts[own]} "
                    "partitions: state cannot be moved between partitions. Give the connector "
                    "another name, and it starts from the beginning"
                )
            missing = [
                topic
                for topic in sub.topics
                if topic not in own_entries and partition < counts.get(self._topics.real(topic), 0)
            ]
            if missing:
                raise NotAssigned(
                    f"connector {self._connector.name}: partition {partition} of "
                    f"{named(missing[0])} was given to another task than the same partition of "
                    f"{named(min(own_entries))}"
                )
        return units

    def _opened(self, sub: SubTopology, partition: int) -> Unit:
        folder = self._folder / f"{sub.number}_{partition}"
        state = State(folder, [spec.name for spec in sub.stores])
        real = {topic: self._topics.real(topic) for topic in sub.topics}
        decoders = {topic: self._decoders[name] for topic, name in real.items()}
        shared = {name: self.globals.stores[name] for name in sub.globals}
        results = self._topics.topology.results
        return Unit(sub, partition, state, decoders, real, shared, results)

    def _restored(self, unit: Unit, entries: Mapping[str, LedgerEntry]) -> Marker:
        """The position of a unit's state, which the local state is brought to."""
        sub, partition, name = unit.sub, unit.partition, self._connector.name
        where = state_of(name, sub, partition)
        logs = self._keeper.logs(sub)
        marker = self._keeper.marker(sub, partition, 2 * self._producer.seconds)
        if marker is None:
            marker = self._first(sub, partition, entries, logs)
        self._check(where, marker, entries, logs)
        marker = replace(marker, plan=self._digest)
        local = Marker.kept(unit.state.marker)
        if local is not None and (local.logs != logs or not logs):  # of another application
            local = None
        if local is not None and local.positions == marker.positions:
            return replace(marker, ends=local.ends, at=local.at)
        if local is not None and any(
            at > marker.positions.get(topic, at) for topic, at in local.positions.items()
        ):
            raise ServiceError(
                f"{where}: the local state in {unit.state.path} is at {_at(local.positions)}, but "
                f"topic {named(positions_of(name, sub.number))} says {_at(marker.positions)}: the "
                "application's topics have lost records. Restore them, or give the connector "
                "another name to begin anew"
            )
        began = time.monotonic()
        fresh = local is None or time.time() - local.at > _TOMBSTONES
        unit.state.drop()
        if fresh:
            unit.state.clear()
        since = {} if local is None or fresh else local.ends
        at = time.time()
        ends = self._keeper.restore(sub, partition, unit.state, since, self._beat())
        marker = replace(marker, ends=ends, at=at)
        unit.state.write({}, marker.dumped(local=True))
        unit.state.flush()
        took = time.monotonic() - began
        if any(ends.values()):
            self._tell(f"{where}: restored from its changelogs in {took:.1f} s")
        return marker

    def _beat(self) -> Callable[[], None]:
        last = time.monotonic()

        def beat() -> None:
            nonlocal last
            if time.monotonic() - last > _ALIVE:
                last = time.monotonic()
                self.alive()

        return beat

    def _first(
        self,
        sub: SubTopology,
        partition: int,
        entries: Mapping[str, LedgerEntry],
        logs: Mapping[str, str],
    ) -> Marker:
        """The first marker of a partition that has no state yet."""
        holes = self._unread()
        behind = [e for e in entries.values() if _was_read(e, holes)]
        if behind:
            raise ServiceError(
                f"connector {self._connector.name}: the ledger is at {behind[0].position} for "
                f"{behind[0].topic_partition}, but topic "
                f"{named(positions_of(self._connector.name, sub.number))} holds no position of the "
                "state: was it deleted? Restore the application's topics, or give the connector "
                "another name to begin anew"
            )
        marker = Marker({topic: e.position for topic, e in entries.items()}, logs, self._digest)
        if not self.shares:  # else it cannot differ from the ledger
            self._transact(
                lambda producer, report: self._outputs.mark(
                    producer, report, sub, partition, marker
                ),
                {e.topic_partition: e.position for e in entries.values()},
            )
        return marker

    def _unread(self) -> list[Hole]:
        """Offsets whose records have never been read."""
        return [hole for hole in self._sink.holes() if hole.reason in UNREAD]

    def _check(
        self,
        where: str,
        marker: Marker,
        entries: Mapping[str, LedgerEntry],
        logs: Mapping[str, str],
    ) -> None:
        other = [topic for topic, log_id in logs.items() if marker.logs.get(topic) != log_id]
        if other and set(marker.logs) == set(logs):
            raise ServiceError(
                f"{where}: changelog {named(other[0])} was created again, and the state that it "
                "held is gone. Restore it, or give the connector another name to begin anew"
            )
        changed = set(marker.positions) != set(entries) or set(marker.logs) != set(logs)
        if changed or (marker.plan != self._digest and self._connector.topology_changed == "stop"):
            raise ConfigError(
                f"{where}: it was made by another topology. Run the former one, or give the "
                "connector another name to begin anew"
                + (
                    ""
                    if changed
                    else ". If what is stored still fits, set topology.changed=continue"
                )
            )
        ahead = {t: e for t, e in entries.items() if marker.positions[t] > e.position}
        if ahead:
            topic, entry = min(ahead.items())
            raise RolledBack(
                f"{where} is at {marker.positions[topic]} for {entry.topic_partition}, but the "
                f"ledger ({self._sink.describe().get('ledger', 'of the target')}) at "
                f"{entry.position}: the target was restored from a backup, or its offsets were set "
                "by hand. The state cannot go back. Restore the target as it was, or give the "
                "connector another name to compute everything anew"
            )

    def _catch_up(
        self,
        unit: Unit,
        entries: Mapping[str, LedgerEntry],
        commit: Callable[[Sequence[Advance], Commit], None],
    ) -> None:
        """Compute the commit again that the target has and the state lacks, if there is one."""
        at = {e.topic_partition: unit.marker.positions[topic] for topic, e in entries.items()}
        behind = {
            e.topic_partition: topic
            for topic, e in entries.items()
            if at[e.topic_partition] < e.position
        }
        if not behind:
            return
        holes = self._unread()
        missed = {
            tp: outside(at[tp], entries[t].position, [h for h in holes if h.topic_partition == tp])
            for tp, t in behind.items()
        }
        if self.shares:
            # A replay would send no position, and the local state must not be ahead of the topic.
            if lost := [tp for tp in behind if missed[tp]]:
                tp = min(lost)
                where = state_of(self._connector.name, unit.sub, unit.partition)
                raise ServiceError(
                    f"{where} is at {at[tp]} for {tp}, but the ledger at "
                    f"{entries[behind[tp]].position}. Both move in one transaction, so the "
                    "application's topics have lost records, or another tool has set the group's "
                    "offsets. Restore the topics, set the offsets back, or give the connector "
                    "another name to begin anew"
                )
            positions = {topic: e.position for topic, e in entries.items()}
            unit.begin(replace(unit.marker, positions=positions))
            return
        for tp, topic in behind.items():
            for start, end in missed[tp]:
                ranges = {tp: start}, {tp: end}
                for messages in read_ranges(self._connector, *ranges):
                    for poll in copied(by_topic(messages)):
                        unit.add(topic, poll, stops=False)
            unit.queues[topic].reached(entries[topic].position)
        step = unit.step(0, everything=True)
        assert step is not None, "something has moved"
        facts = ", ".join(
            f"{tp} [{at[tp]}, {entries[t].position})" for tp, t in sorted(behind.items())
        )
        self._tell(f"the state catches up with the ledger: {facts}")
        batch = self.batch([step])
        commit(batch.advances, batch.commit)

    # Steps

    def add(self, polls: Sequence[RawRecords], positions: Mapping[TopicPartition, int]) -> None:
        """Queue the records of a poll.

        Raises:
            OutOfOrder: see :func:`semel.tasks.poll.last_records`.
            ConfigError: see :meth:`~semel.tasks.streams.unit.Outputs.check_places`.
        """
        stops = self._connector.errors_tolerance == "none"
        for poll in polls:
            last_records(poll, positions)
            for partition in np.unique(poll.partitions).tolist():
                unit, topic = self.unit(place := TopicPartition(poll.topic, partition))
                part = poll.only(poll.partitions == partition)
                if poll.topic in self._topics.met and place not in self._placed:
                    self._outputs.check_places(part, place)
                    self._placed.add(place)
                unit.add(topic, part, stops)

    def reached(self, ends: Mapping[TopicPartition, int]) -> None:
        """Note the ends of logs that the consumer has seen."""
        for tp, end in ends.items():
            unit, topic = self.unit(tp)
            unit.queues[topic].reached(end)

    @property
    def _queues(self) -> list[Queue]:
        return [queue for unit in self.units.values() for queue in unit.queues.values()]

    def full(self) -> set[TopicPartition]:
        """The partitions of which about as much waits as two polls bring: one has at most a quarter
        of the bytes."""
        limits = 2 * self._connector.max_poll_records, self._connector.max_poll_bytes // 2
        return {queue.topic_partition for queue in self._queues if queue.holds(*limits)}

    def read_up_to(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that has not been queued."""
        return {queue.topic_partition: queue.end for queue in self._queues}

    def steps(self) -> list[Step]:
        """Process what may be processed now."""
        self.globals.follow()
        idle = self._connector.max_task_idle_ms / 1000
        results = [unit.step(idle) for unit in self.units.values()]
        return [step for step in results if step is not None]

    @property
    def stop(self) -> DeadLetter | None:
        """A bad record before which everything is processed."""
        stops = [unit.stop for unit in self.units.values()]
        return next((letter for letter in stops if letter is not None), None)

    def batch(self, steps: Sequence[Step]) -> Batch:
        """What one commit of steps holds."""
        records: list[core.Records] = []
        counts: list[Counts] = []
        for step in steps:
            for name, results in step.outputs.items():
                if step.unit.sub.sinks[name].topic is None and len(results):
                    called = results_of(self._connector.name, name)
                    parts, unplaced = self.flatten(leaving(called, results, step.unit.partition))
                    records += parts
                    counts.append(unplaced)
        letters = [letter for step in steps for letter in step.letters]
        advances = with_unplaced([a for step in steps for a in step.advances], counts)
        computed = ComputedCommit(records, letters, steps=steps)
        return Batch(advances, computed, self.stop, self._refuse)

    def _refuse(self, rejected: Sequence[core.RejectedRecord]) -> Batch:
        first = rejected[0]
        raise BadRecord(
            f"connector {self._connector.name}: the target does not take a result of "
            f"{first.topic}, partition {first.partition}: {first.message}. Nothing of its commit "
            "was written. Change the topology, or the target"
        )

    # Commits

    def commit(
        self,
        results: ComputedCommit,
        advances: Sequence[Advance],
        target: Callable[[ComputedCommit], None],
    ) -> None:
        """Commit steps with what ``target`` commits; safe to call again after any error.

        Raises:
            LedgerConflict: the positions are others now: the state must be recovered.
            SemelError: see the sink's contract.
        """

        def send(producer: Producer, report: Report) -> None:
            for step in results.steps:
                self._outputs.send(producer, report, step)

        if self.shares:
            target(replace(results, along=send))
        elif self._done is not results and (
            self._producer.is_open or not self._is_done(results.steps)
        ):

            def commit_target() -> None:
                hit("streams.after_changes")
                target(results)
                hit("streams.before_kafka")

            until = {a.range.topic_partition: a.range.until_offset for a in advances}
            self._transact(send, until, commit_target)
        self._done = results
        hit("streams.after_kafka")
        for step in results.steps:
            self._keep(step)
        hit("streams.after_state")

    def _is_done(self, steps: Sequence[Step]) -> bool:
        """Whether a transaction with an unknown outcome has been committed. Its producer is gone;
        the next one has fenced it."""
        assert self._member is not None
        self.settle(self._member)
        markers = [
            self._keeper.marker(s.unit.sub, s.unit.partition, 2 * self._producer.seconds)
            for s in steps
        ]
        reached = [
            m is not None and m.positions == s.marker.positions
            for m, s in zip(markers, steps, strict=True)
        ]
        if any(reached) and not all(reached):
            raise LedgerConflict(
                f"connector {self._connector.name}: the state has moved without this task"
            )
        return any(reached)

    def _transact(
        self,
        send: Callable[[Producer, Report], None],
        until: Mapping[TopicPartition, int],
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        assert self._member is not None
        if not self._producer.is_open:
            self._open(self._member)
        try:
            offsets = copies(self._metadata, until)
            self._producer.run(send, offsets, self._member.generation, before_commit)
        except RecordsRefused:
            raise ServiceError(
                f"connector {self._connector.name}: a topic of the application does not take a "
                "record: it is larger than max.message.bytes allows. Raise it for the changelogs "
                "and the repartition topics"
            ) from None

    def _keep(self, step: Step) -> None:
        unit = step.unit
        marker = replace(step.marker, ends=unit.marker.ends, at=unit.marker.at)
        unit.state.keep(step.changes, marker.dumped(local=True))
        unit.marker = marker
        if time.monotonic() - unit.checkpointed > _CHECKPOINT:
            unit.checkpointed = time.monotonic()
            at = time.time()
            with suppress(TransientError):
                ends = self._keeper.ends(unit.sub, unit.partition)
                unit.marker = replace(marker, ends=ends, at=at)
                unit.state.write({}, unit.marker.dumped(local=True))
            unit.state.flush(wait=False)

    def purge(self) -> None:
        """From time to time, delete what is not needed any more from repartition topics. Nobody
        waits for that."""
        if time.monotonic() < self._purge_at:
            return
        self._purge_at = time.monotonic() + _PURGE
        done = [
            KafkaPartition(*queue.topic_partition, unit.marker.positions[topic])
            for unit in self.units.values()
            for topic, queue in unit.queues.items()
            if unit.sub.sources[topic].is_repartition and unit.marker.positions[topic]
        ]
        if done:
            self._admin.delete_records(done)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Close the local states of partitions that are no longer the task's."""
        for tp in partitions:
            if unit := self.units.pop((self.reads[tp.topic][0].number, tp.partition), None):
                unit.state.close()

    def close(self) -> None:
        """Close the local states."""
        self._producer.drop()
        self.globals.close()
        for unit in self.units.values():
            unit.state.close()
        self.units.clear()


def _at(positions: Mapping[str, int]) -> str:
    return ", ".join(f"{topic} {at}" for topic, at in sorted(positions.items()))


def _was_read(entry: LedgerEntry, holes: Sequence[Hole]) -> bool:
    """Whether records of a partition have ever been read."""
    own = [h for h in holes if h.topic_partition == entry.topic_partition]
    return bool(outside(entry.start_position, entry.position, own))
