"""The Kafka sink: topic to topic, results and positions in one Kafka transaction.

A transaction alone does not compare and set. So a commit is judged by positions that nobody else
can have moved since they were read:

- The task's producer is created before they are read, so that an older one with the same
  ``transactional.id``, its predecessor's, is fenced and its open transaction is aborted.
- They are read once no transaction is pending on them.
- In the cluster that the connector reads from, the broker accepts offsets only from members of the
  group's current generation; partitions that have moved belong to another generation.
- Another cluster does not know the group. There, a task that is assigned partitions fences the
  producers of all tasks that are not in the group. It also checks that the group still assigns it
  these partitions: after creating its own producer, and in each commit once its offsets are
  pending. If two tasks believe that they own a partition, either the later one has fenced the
  earlier one, or the earlier one finds out that it no longer owns it.
- A driver moves positions only while no task is in the group. It is not a member, and brokers
  accept its offsets all the same. So it checks again, once they are pending, that the group has no
  members and that nobody has moved the positions since it read them.

After an error whose outcome is unknown, the producer is discarded and all of this is repeated.
Positions are stored in a compacted topic and also in the group's offsets: see
:mod:`semel.sinks.kafka.ledger`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from confluent_kafka import Producer

from semel.config import ConnectorConfig, read
from semel.config.worker import SECURITY
from semel.core.context import RUN
from semel.core.delivery import Delivery, Mechanism, Support
from semel.core.errors import LedgerConflict, Problem, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import (
    SKIPPED,
    TAKEN_OVER,
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    Target,
    TopicPartition,
    forgotten,
    holes_of,
    judge,
    now,
    pending,
    rebased,
    set_by_hand,
)
from semel.core.problems import refuse, together
from semel.core.quoting import named
from semel.core.records import HEADERS, TIMESTAMP, Commit, RowsRejected
from semel.kafka.clients import IDEMPOTENCE, acks, client_config, confirms_all, is_true
from semel.kafka.cluster import Cluster, wait_for_brokers
from semel.kafka.groups import Groups
from semel.kafka.messages import Messages
from semel.kafka.transactions import Report, Transactions
from semel.sinks.base import Capabilities, Sink, Snapshot
from semel.sinks.kafka.config import IGNORED, KafkaConfig
from semel.sinks.kafka.ledger import Ledger, LedgerTopic, Record
from semel.sinks.kafka.offsets import Group, GroupOffsets, never_copied, nonmember
from semel.sinks.kafka.sender import Sender
from semel.sinks.kafka.targets import Targets, take_snapshot
from semel.sinks.protocols import FencesByGroup, Membership, Transactional

log = logging.getLogger(__name__)

_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


class KafkaSink(Sink, Transactional, FencesByGroup):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/kafka.md."""

    section = KafkaConfig
    ignored = IGNORED
    defaults: ClassVar[Mapping[str, str]] = {"key.converter": _BYTES, "value.converter": _BYTES}

    def __init__(self, connector: ConnectorConfig) -> None:
        self._connector = connector
        self._config = read(KafkaConfig, connector.originals)
        self._clusters = clusters = Clusters.of(connector, self._config)
        self._source, self._target = clusters.source, clusters.target
        self._elsewhere = clusters.elsewhere
        self._group = Group(connector.name, connector.group_id, Groups(self._source.config))
        self._transactions = Transactions(f"connector {connector.name}", clusters.producer)
        ledger_topic = self._config.ledger_topic or f"{connector.group_id}-offsets"
        self._targets = Targets(
            connector,
            self._config,
            self._source,
            self._target,
            ledger_topic,
            self._transactions.limit,
        )
        together(lambda: refuse(_problems(connector, clusters.producer)), self._targets.check)
        self._offsets = GroupOffsets(
            connector.group_id,
            connector.tasks_max,
            Groups(self._target.config),
            self._config.topic if self._elsewhere else None,
        )
        self._ledger = Ledger(
            connector.name,
            LedgerTopic(
                connector.name,
                ledger_topic,
                self._config.ledger_replication,
                self._target,
                clusters.consumer,
            ),
            self._offsets,
        )
        self._sender = Sender(
            connector, self._config, clusters.producer, self._targets, self._transactions
        )
        self._task: int | None = None
        self._member: Membership | None = None
        self._nonmember: Any = None
        self._stored: dict[TopicPartition, LedgerEntry] = {}
        self._signed: set[TopicPartition] = set()

    # What it wants and promises

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            routes=True,
            engines=frozenset({"direct"}),
            carries=frozenset({TIMESTAMP, HEADERS}),
            takes_bytes=True,
            writes_documents=True,
            takes_tombstones=True,
            takes_dead_letters=True,
            any_order=True,
            ledger_in_group=not self._elsewhere,
        )

    def describe(self) -> dict[str, str]:
        servers, topic = self._clusters.servers, named(self._ledger.topic.name)
        group = self._connector.group_id
        return {
            "writes": f"topic {self._config.topic_format} at {servers}",
            "ledger": f"topic {topic} at {servers}, beside the offsets of consumer group {group}",
        }

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        names = {topic: self._targets.of(topic) for topic in topics}
        logs = self._target.logs(set(names.values()))
        targets = {name: Target(name, log.topic_id, log.cluster_id) for name, log in logs.items()}
        return {topic: targets.get(name) for topic, name in names.items()}

    def support(self) -> Mapping[Mechanism, Support]:
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                "records and positions, in the ledger topic and as offsets of the consumer group, "
                "are committed in one Kafka transaction, whose producer fences earlier ones",
            ),
            Mechanism.IDEMPOTENT: Support(
                False,
                "a topic cannot overwrite by key: the records of a replay would be in it twice. "
                "Set delivery.mechanism=transactional",
            ),
        }

    def prepare(self, topics: Collection[str]) -> None:
        self._meet_target()
        self._targets.prepare(topics)
        self._ledger.topic.prepare()
        self._carry_over()

    def _meet_target(self) -> None:
        """Make first contact with the other cluster's brokers."""
        if self._elsewhere:
            wait_for_brokers(
                self._target.config,
                say=lambda line: log.warning("connector %s: %s", self._connector.name, line),
                key="dest.kafka.bootstrap.servers",
            )

    def _carry_over(self) -> None:
        """Make the ledger topic and the group's offsets agree before a task can freeze: the topic
        may have been deleted, and offsets may have expired. Those in another cluster also say how
        many tasks there are."""
        recorded = self._recorded()
        entries = {e.topic_partition: e for e in recorded if e.topic in self._targets.names}
        if not entries or not self._alone(entries):
            return
        self._read(entries)
        counts, entered = self._source.topics(), {tp.topic for tp in self._ledger.stored.entries}
        missing = {
            TopicPartition(topic, p)
            for topic in {tp.topic for tp in entries} - entered
            for p in range(counts.get(topic, 0))
        } - entries.keys()
        lost = missing and missing - never_copied(self._source, self._target.config, missing)
        self._targets.refuse_written({tp.topic for tp in lost}, (), lost)
        outdated = self._elsewhere and self._offsets.recorded < self._connector.tasks_max
        if outdated or self._ledger.is_uneven(entries):
            try:
                self._transact(None, list(self._stored.values()), self._taken_over())
            except LedgerConflict as conflict:  # another run, which does this itself
                log.info("%s", conflict)

    def _taken_over(self) -> list[Hole]:
        """What another program has copied, which commits offsets without semel's facts."""
        new = [e for tp, e in self._stored.items() if tp not in self._ledger.stored.entries]
        return [
            Hole(*e.topic_partition, 0, e.position, TAKEN_OVER, at=now())
            for e in new
            if e.position and not e.updated_at
        ]

    # The life of a run

    def joining(self, task: int) -> None:
        self._task = task
        for topic in self._source.matching(self._connector):
            self._targets.of(topic)
        self._transactions.open(self._group.instance(task))

    def assigned(self, member: Membership) -> None:
        self._stored.clear()
        for tp in member.partitions:
            self._targets.of(tp.topic)
        self._member = member
        if self._elsewhere:
            self._recorded()  # knows of tasks that this run does not have
        absent = self._group.absent(member, self._offsets.tasks)
        if self._elsewhere or not self._transactions.is_open:
            self._transactions.open(self._group.instance(self._task))
        if self._elsewhere:
            for instance in {*absent, *self._group.absent(member, self._offsets.tasks)}:
                self._transactions.fence(instance)

    def close(self) -> None:
        self._transactions.drop()
        self._sender.drop()

    # The ledger

    def entries(self) -> list[LedgerEntry]:
        if self._member is not None:
            self._read(self._member.partitions)
            self._sign()
            return sorted(self._stored.values(), key=lambda e: (e.topic, e.partition))
        return self._recorded()

    def _recorded(self) -> list[LedgerEntry]:
        topics = self._source.matching(self._connector)
        entries = self._ledger.entries(topics, self._target.topics() if self._elsewhere else topics)
        return [entries[tp] for tp in sorted(entries)]

    def _read(self, partitions: Collection[TopicPartition]) -> None:
        """Read the positions of partitions of this task, when nothing is pending on them."""
        self._stored |= self._ledger.settled(
            partitions, self._fence_absent, 2 * self._transactions.seconds
        )

    def _sign(self) -> None:
        """Name this run in the group's offsets, even if no record comes: a run that is fenced then
        says by whom. In another cluster, the engine's copies do so."""
        unsigned = [e for tp, e in self._stored.items() if tp not in self._signed]
        if unsigned and not self._elsewhere and RUN in os.environ:
            self._transact(None, unsigned)
            self._signed |= {e.topic_partition for e in unsigned}

    def _fence_absent(self) -> None:
        """End the transactions of tasks that are not in the group."""
        if self._member is not None:
            for instance in self._group.absent(self._member, self._offsets.tasks):
                self._transactions.fence(instance)

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        positions = {e.topic_partition: e.position for e in entries}
        if self._member is None and not self._alone(positions):
            return positions  # the active run enters what is missing
        self._read(positions)
        new = [e for e in entries if e.topic_partition not in self._stored]
        if new:
            recorded = {e.topic for e in self._recorded()}
            stored = self._ledger.stored
            if not stored.is_reset:
                self._targets.refuse_written({e.topic for e in new} - recorded, recorded)
            self._transact(None, new, gone=self._ledger.topic.without_reset(stored))
        return {tp: self._stored[tp].position for tp in positions}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        partitions = {r.old.topic_partition for r in rebases}
        self._owned(partitions)
        self._read(partitions)
        remaining = pending(self._connector.name, self._stored, rebases)
        if remaining:
            self._transact(None, rebased(remaining, now()), holes_of(remaining))

    def _alone(self, partitions: Iterable[TopicPartition]) -> bool:
        """Create the driver's producer, unless a task of another run could move these positions."""
        for tp in partitions:
            self._targets.of(tp.topic)
        self._transactions.open(self._group.instance(None))
        self._stored.clear()
        return self._group.is_idle()

    def holes(self) -> list[Hole]:
        self._recorded()
        return list(self._ledger.stored.holes)

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        self._meet_target()
        self._targets.prepare(self._source.matching(self._connector))
        self._ledger.topic.prepare()
        self._group.refuse_running()
        recorded = {e.topic_partition: e for e in self._recorded()}
        self._ledger.forget()
        for task in range(self._offsets.tasks):
            self._transactions.fence(self._group.instance(task))
        topic, stored = self._ledger.topic, self._ledger.stored
        try:
            self._transactions.open(self._group.instance(None))
            if entries is None:
                self._group.refuse_running()  # another cluster deletes offsets despite members
                self._offsets.forget()
                holes = forgotten(recorded, stored.holes, by)
                self._transact(None, (), holes, topic.forgetting(stored))
            else:
                moved, holes = set_by_hand(recorded, stored.holes, entries, by, reason)
                ended = set(stored.holes) - set(holes)
                gone = [*topic.without(stored, ended), *topic.without_reset(stored)]
                self._transact(None, moved, set(holes) - set(stored.holes), gone)
        except (LedgerConflict, TransientError):
            self._group.refuse_running()
            raise

    # Committing

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        outcome = self._judge(advances)
        if outcome is Outcome.APPLIED:
            self._transact(
                self._sender.messages(commit, self._task or 0),
                self._moved(advances),
                holes_of(advances),
                along=commit.along,
            )
        return outcome

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        if guard is not None and self._judge(guard) is Outcome.REPLAYED:
            return Outcome.REPLAYED
        messages = self._sender.messages(commit, self._task or 0)
        if guard is None:  # at most once: a transaction, so that a refusal leaves nothing behind
            self._transact(messages, ())
        else:
            self._sender.send(messages)
        return Outcome.APPLIED

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        self._owned({a.range.topic_partition for a in advances})
        outcome = self._judge(advances)
        if outcome is Outcome.APPLIED:
            self._transact(None, self._moved(advances), holes_of(advances))
        return outcome

    def _owned(self, partitions: Collection[TopicPartition]) -> None:
        if self._member is None and not self._alone(partitions):
            raise self._group.conflict()

    def _reopen(self) -> None:
        """Reopen the producer, after checking whom the partitions belong to."""
        if self._member is not None:
            self.assigned(self._member)
        else:
            self._transactions.open(self._group.instance(self._task))

    def _judge(self, advances: Sequence[Advance]) -> Outcome:
        if not self._transactions.is_open:
            self._reopen()
        partitions = {a.range.topic_partition for a in advances}
        self._read(partitions - self._stored.keys())
        return judge(self._connector.name, self._stored, advances)

    def _moved(self, advances: Sequence[Advance]) -> list[LedgerEntry]:
        at = now()
        return [self._stored[a.range.topic_partition].after(a, at) for a in advances]

    def _transact(
        self,
        messages: Sequence[Messages] | None,
        entries: Collection[LedgerEntry],
        holes: Collection[Hole] = (),
        gone: Collection[Record] = (),
        along: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """Messages, entries and holes in one transaction; remembers the entries."""
        if not self._transactions.is_open:
            self._reopen()
        records = [*gone, *self._ledger.topic.records(entries, holes)]

        def send(producer: Producer, failed: Report) -> None:
            if along is not None:
                along(producer, failed)
            self._ledger.topic.send(producer, records, failed)

        try:
            self._sender.transact(
                messages,
                send,
                self._offsets.committed(entries),
                self._generation(),
                partial(self._confirm, {e.topic_partition for e in entries}),
            )
        except RowsRejected:
            raise  # nothing was written
        except BaseException:
            self._stored.clear()  # read again before the next judgement
            raise
        self._stored |= {e.topic_partition: e for e in entries}
        if messages is not None:
            hit("sink.after_commit")

    def _confirm(self, moved: set[TopicPartition]) -> None:
        """Check, with offsets pending, what no broker checks: that a driver is alone and knows the
        positions, and that a task still has its partitions when it commits in another cluster."""
        if self._member is None:
            if not self._group.is_idle() or self._ledger.has_moved(moved):
                raise self._group.conflict()
        elif self._elsewhere and moved:
            self._group.confirm(self._member)

    def _generation(self) -> Any:
        if self._member is not None and not self._elsewhere:
            return self._member.generation
        if self._nonmember is None:
            self._nonmember = nonmember(self._target.config, self._connector.group_id)
        return self._nonmember

    @property
    def letter_topic(self) -> tuple[Cluster, Mapping[str, Any]]:
        """The cluster of the dead letter topic, and a consumer's settings for it."""
        return self._target, self._clusters.consumer

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return take_snapshot(
            self._connector,
            self._config,
            self._recorded,
            lambda: self._ledger.stored.holes,
            self._target,
            {topic: self._targets.of(topic) for topic in topics},
            self._clusters.consumer,
            2 * self._transactions.seconds,
        )


def _problems(connector: ConnectorConfig, producer: Mapping[str, Any]) -> Iterator[Problem]:
    """The producer's settings with which the declared delivery cannot be kept, as far as that can
    be told without a cluster."""
    if "transactional.id" in producer:
        yield Problem(
            "producer.override.transactional.id",
            f"connector {connector.name}: producer.override.transactional.id is set by semel: "
            "the guarantee depends on it. Remove it",
        )
    if connector.delivery is not Delivery.AT_MOST_ONCE and not confirms_all(producer):
        yield Problem(
            "producer.override.acks",
            f"connector {connector.name}: producer.override.acks={acks(producer)} "
            "confirms records that a broker may still lose: no delivery but at-most-once can "
            "be kept. Set it to all, or remove it",
        )
    if connector.delivery is not Delivery.AT_LEAST_ONCE and IDEMPOTENCE in producer:
        idempotence = producer[IDEMPOTENCE]
        if not is_true(idempotence):
            yield Problem(
                "producer.override",
                f"connector {connector.name}: producer.override.{IDEMPOTENCE}={idempotence}: "
                "records are sent in transactions, which Kafka requires to be idempotent. Remove "
                "it, or set delivery=at-least-once, which sends them outside of transactions",
            )
    if connector.dead_letter_table:
        yield Problem(
            "errors.deadletterqueue.table",
            f"connector {connector.name}: errors.deadletterqueue.table="
            f"{connector.dead_letter_table}: Kafka has no tables. Set "
            "errors.deadletterqueue.topic.name, which is in the transaction, too",
        )


@dataclass(frozen=True, slots=True)
class Clusters:
    """``producer`` and ``consumer`` are clients' settings for the target, which is the source's
    cluster unless records go ``elsewhere``."""

    source: Cluster
    target: Cluster
    servers: str
    elsewhere: bool
    producer: Mapping[str, Any]
    consumer: Mapping[str, Any]

    @classmethod
    def of(cls, connector: ConnectorConfig, config: KafkaConfig) -> Clusters:
        """Another cluster is reached with the producer's security settings, and with each client's
        other settings."""
        servers = config.target_servers or connector.bootstrap_servers
        elsewhere = servers != connector.bootstrap_servers
        there = {"bootstrap.servers": servers}
        admin = client_config(connector, "admin")
        producer = client_config(connector, "producer", elsewhere=elsewhere) | there
        consumer = client_config(connector, "consumer")
        source = target = Cluster(admin)
        if elsewhere:
            security = {k: v for k, v in producer.items() if k.startswith(SECURITY)}
            target = Cluster(_without_login(admin) | security | there)
            consumer = {**_without_login(consumer), **target.config}
        return cls(source, target, servers, elsewhere, producer, consumer)


def _without_login(client: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in client.items() if not k.startswith(SECURITY)}
