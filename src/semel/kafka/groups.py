"""Asks a Kafka cluster about a consumer group, and sets its offsets by hand. Lag: how far the
positions published to groups are behind the topics' ends."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, MemberDescription

from semel.config import GROUPS, connector_of, group_of
from semel.core.errors import NotKnown, SemelError
from semel.core.ledger import TopicPartition
from semel.kafka.answers import COORDINATOR_MOVED, UNBOUNDED, UNSTABLE, coordinators_answer, failure
from semel.kafka.clients import QUIET
from semel.kafka.cluster import Cluster, admin_client, wait_for_brokers

log = logging.getLogger(__name__)

T = TypeVar("T")

_AT_ONCE = 1000
"""Partitions per request: librdkafka searches all of them for each one."""
_PENDING = 1.0
"""Seconds after which a missing position is attributed to an open transaction, not to the
network."""
_TIMEOUT = 5.0
"""A client that has seen a broker restart may keep asking its old coordinator; a new one does
not."""
_TRIES = 2
"""How often to ask for offsets while no answer comes: starts depend on it."""

_MOVES_FOR = 30.0
"""Seconds that another broker gets to take a group over."""
_PAUSE = 0.2
_PATIENCE = 1.0
"""Seconds to wait for brokers that refuse connections: a person is waiting for the answer."""
_SHOWN = 20


class Groups:
    """The consumer groups of a cluster. Raises as :class:`~semel.kafka.cluster.Cluster` does."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._client: AdminClient | None = None
        self._readers: dict[tuple[str, bool], Consumer] = {}

    def offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, stable: bool = False
    ) -> tuple[dict[TopicPartition, tuple[int, str]], set[TopicPartition]]:
        """A group's offsets with their metadata.

        With ``stable``, the partitions that an open transaction may still change are returned
        separately, without offsets.
        """
        listed = list(partitions)
        try:
            tries = 1 if stable else _TRIES
            return self._asking(lambda: self._committed(group, listed, stable), tries), set()
        except KafkaException as error:
            if not stable or error.args[0].code() not in UNSTABLE:
                raise self._failed(error) from None
            self.offsets(group, listed)  # waits for no transaction: proves that the broker answers
            return {}, set(listed)

    def _committed(
        self, group: str, partitions: Sequence[TopicPartition], stable: bool
    ) -> dict[TopicPartition, tuple[int, str]]:
        asked = [KafkaPartition(tp.topic, tp.partition) for tp in partitions]
        reader, timeout = self._reader(group, stable), _PENDING if stable else _TIMEOUT
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for at in range(0, len(asked), _AT_ONCE):
            for p in reader.committed(asked[at : at + _AT_ONCE], timeout):
                if p.error is not None:
                    raise KafkaException(p.error)
                if p.offset >= 0:
                    offsets[TopicPartition(p.topic, p.partition)] = (p.offset, p.metadata or "")
        return offsets

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = admin_client(self._config)
        return self._client

    def find_coordinator(self, group: str) -> None:
        """Begin to look for a group's coordinator, without waiting for it."""
        self._reader(group, stable=False)

    def disconnect(self) -> None:
        """Disconnect; the next question connects again."""
        self._client = None
        self._readers.clear()

    def _reader(self, group: str, stable: bool) -> Consumer:
        """A consumer that never joins the group.

        librdkafka's (2.16) admin client crashes the process (SIGSEGV) if it asks for offsets when
        the group's coordinator has just changed.
        """
        if (group, stable) not in self._readers:
            level = "read_committed" if stable else "read_uncommitted"
            settings = {**self._config, "group.id": group, "isolation.level": level}
            settings["retry.backoff.ms"] = 20  # most pending transactions end soon
            self._readers[group, stable] = Consumer({**settings, "log_level": 0}, logger=QUIET)
        return self._readers[group, stable]

    def describe(self, group: str) -> ConsumerGroupDescription | None:
        """The members of a group, as its coordinator knows them; None if there is no group."""

        def ask() -> ConsumerGroupDescription:
            admin = self._admin
            answer = admin.describe_consumer_groups([group], request_timeout=UNBOUNDED)
            description: ConsumerGroupDescription = coordinators_answer(
                admin, answer[group], _TIMEOUT
            )
            return description

        try:
            return self._asking(ask)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise self._failed(error) from None

    def is_idle(self, group: str) -> bool:
        """Whether a group has no members."""
        description = self.describe(group)
        idle = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
        return description is None or description.state in idle

    def set_offsets(self, group: str, offsets: list[KafkaPartition]) -> None:
        """Commit offsets for a group; Kafka refuses it while the group has members."""

        def ask() -> None:
            admin = self._admin
            answer = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, offsets)], request_timeout=UNBOUNDED
            )
            result = coordinators_answer(admin, answer[group], _TIMEOUT)
            refused = [p.error for p in result.topic_partitions if p.error]
            if refused:
                raise KafkaException(refused[0])

        try:
            self._asking(ask)
        except KafkaException as error:
            raise self._failed(error) from None

    def delete(self, group: str) -> None:
        """Delete a group with its offsets, if there is one; refused while it has members."""

        def ask() -> None:
            admin = self._admin
            answer = admin.delete_consumer_groups([group], request_timeout=UNBOUNDED)
            coordinators_answer(admin, answer[group], _TIMEOUT)

        try:
            self._asking(ask)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise self._failed(error) from None

    def _asking(self, ask: Callable[[], T], tries: int = 1) -> T:
        """Ask again while another broker takes the group over, as Java's clients do. ``tries`` is
        how often to ask, with a new client each time, while no answer comes."""
        deadline = time.monotonic() + _MOVES_FOR
        while True:
            try:
                return ask()
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError._TIMED_OUT and tries > 1:
                    tries -= 1
                elif code not in COORDINATOR_MOVED or time.monotonic() > deadline:
                    raise
                log.debug("%s; asking again", error)
            self.disconnect()
            time.sleep(_PAUSE)

    def _failed(self, error: KafkaException) -> SemelError:
        self.disconnect()
        return failure(str(self._config["bootstrap.servers"]), error)


def assigned_to(members: Iterable[MemberDescription]) -> set[TopicPartition]:
    """The partitions that a group has assigned to these members."""
    return {
        TopicPartition(p.topic, p.partition)
        for member in members
        if member.assignment is not None
        for p in member.assignment.topic_partitions
    }


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One topic-partition of one connector; ``end`` is the last stable offset."""

    connector: str
    topic: str
    partition: int
    position: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.position)


def lag(client: Mapping[str, Any], connector: str | None = None) -> list[PartitionLag]:
    """The lag of one connector, or of every connector.

    Args:
        client: librdkafka's configuration; needs ``bootstrap.servers``.
        connector: a connector's name.

    Raises:
        ServiceError: no broker answers.
        NotKnown: nothing is known of this connector.
    """
    wait_for_brokers(client, _PATIENCE)
    cluster = Cluster(client)
    groups = [group_of(connector)] if connector else cluster.groups(GROUPS)
    lags = []
    for group in groups:
        positions = published(client, group)
        if connector and not positions:
            raise _unknown(connector, cluster)
        ends = cluster.latest(positions)
        name = connector_of(group)
        lags += [
            PartitionLag(name, tp.topic, tp.partition, at, ends[tp])
            for tp, at in sorted(positions.items())
        ]
    return lags


def _unknown(connector: str, cluster: Cluster) -> NotKnown:
    others = [connector_of(g) for g in cluster.groups(GROUPS)]
    near = difflib.get_close_matches(connector, others, n=1)
    names = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
    hint = f"Did you mean {near[0]}? " if near else ""
    return NotKnown(
        f"connector {connector} has published no positions to consumer group "
        f"{group_of(connector)}. {hint}Connectors of this cluster: {names or 'none'}"
    )


def published(client: Mapping[str, Any], group: str) -> dict[TopicPartition, int]:
    """The positions that a consumer group has published for existing topics."""
    topics = Cluster(client).topics()
    places = [TopicPartition(t, p) for t, n in topics.items() for p in range(n)]
    committed, _ = Groups(client).offsets(group, places)
    return {tp: at for tp, (at, _) in committed.items()}
