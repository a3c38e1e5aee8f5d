"""A worker's membership in its group, and the other members.

The group is a consumer group, subscribed to the config topic. That topic has one partition, so one
member owns it: the leader. Workers of Kafka Connect and of semel keep each other out of a group:
they speak different protocols, and the group's coordinator refuses the one that comes second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from semel.config.worker import ClusterConfig
from semel.core.errors import SemelError, ServiceError
from semel.kafka.answers import COORDINATOR_MOVED, MAY_PASS, UNBOUNDED, coordinators_answer, failure
from semel.kafka.cluster import admin_client

log = logging.getLogger(__name__)

_LOOK = 0.5
_POLL = 0.1
_ASKED_IN = 5.0
_SESSIONS = 3
"""For how many sessions a former process of this worker may linger in the group."""
_OTHERS = (KafkaError.INCONSISTENT_GROUP_PROTOCOL,)
_NOT_OURS = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError._INVALID_ARG)
"""The answers about the members of a group that has had no consumer yet: its members were Kafka
Connect's workers, or still are."""
_MAY_PASS = (*MAY_PASS, *COORDINATOR_MOVED)
"""After any other answer, joining finds out what is wrong."""


@dataclass(frozen=True, slots=True)
class Group:
    """The members of the group as its coordinator knows them: URLs of workers."""

    members: frozenset[str] = frozenset()
    leader: str | None = None
    namesakes: frozenset[str] = frozenset()
    """URLs that several members have."""

    def __str__(self) -> str:
        """For the log."""
        led = f"led by {self.leader}" if self.leader else "without a leader yet"
        return f"{len(self.members)} workers, {led}"


@dataclass
class _GroupSighting:
    group: Group = field(default_factory=Group)
    at: float = 0.0
    """when this worker was last seen to be a member"""
    absences: int = 0


class Membership:
    """Keeps a worker in its group. ``client`` configures its Kafka client; ``changed`` is called
    when the group has changed."""

    def __init__(
        self, config: ClusterConfig, client: Mapping[str, Any], changed: Callable[[], None]
    ) -> None:
        self._config = config
        self._changed = changed
        self._client = client
        self._me = config.url
        self._seen = _GroupSighting()
        self._failed: SemelError | None = None
        self._doubles = 0
        """How often in a row another member had this worker's URL."""
        self._joins = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True, name=f"semel-group-{work.__name__}")
            for work in (self._stay, self._look)
        ]

    def start(self) -> None:
        """Join the group."""
        for thread in self._threads:
            thread.start()

    @property
    def group(self) -> Group:
        """The members of the group. It is empty once this worker has not been seen in the group for
        the length of a session, because others may have taken over its work.

        Raises:
            ServiceError: this worker may not join.
        """
        if self._failed is not None:
            raise self._failed
        return Group() if self._has_lapsed else self._seen.group

    @property
    def _has_lapsed(self) -> bool:
        return time.monotonic() - self._seen.at > self._config.session_timeout_ms / 1000

    @property
    def absences(self) -> int:
        """How often this worker has come into :attr:`group`: the first time, and each time that it
        was not in there before."""
        return self._seen.absences

    def leave(self) -> None:
        """Leave the group."""
        self._stop.set()
        self._joins.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2 * _ASKED_IN)

    def _stay(self) -> None:
        self._joins.wait()
        if self._stop.is_set():
            return
        consumer = Consumer(
            {
                **self._client,
                "group.id": self._config.group_id,
                "client.id": self._me,
                "session.timeout.ms": self._config.session_timeout_ms,
                "heartbeat.interval.ms": self._config.heartbeat_interval_ms,
                # librdkafka wants no less than the session.
                "max.poll.interval.ms": max(
                    self._config.rebalance_timeout_ms, self._config.session_timeout_ms
                ),
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "allow.auto.create.topics": False,
                "log_level": 0,
            },
            logger=log,
        )
        # The partition is owned, not read: its owner leads.
        consumer.subscribe([self._config.config_topic], on_assign=_hold)
        try:
            while not self._stop.is_set():
                message = consumer.poll(_POLL)
                error = message.error() if message is not None else None
                if error is not None:
                    self._judge(error)
        finally:
            consumer.close()

    def _judge(self, error: KafkaError) -> None:
        if error.code() in _OTHERS:
            self._failed = ServiceError(
                f"group.id={self._config.group_id}: the group has members that are not workers of "
                "semel: workers of Kafka Connect, most likely. Stop them all first; this worker "
                "then continues where they stopped"
            )
        elif error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
            self._failed = ServiceError(
                f"session.timeout.ms={self._config.session_timeout_ms}: the brokers refuse it. Set "
                "it to at least their group.min.session.timeout.ms, and at most their "
                "group.max.session.timeout.ms"
            )
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self._failed = ServiceError(
                f"group.id={self._config.group_id}: {error.str()}. Grant READ and DESCRIBE on it"
            )
        else:
            log.warning("group %s: %s", self._config.group_id, error.str())

    def _look(self) -> None:
        admin = admin_client(self._client)
        while not self._stop.is_set():
            asked = time.monotonic()
            try:
                group = described(admin, self._config.group_id, self._config.config_topic)
            except KafkaException as error:
                if error.args[0].code() not in _MAY_PASS:
                    self._joins.set()
                if error.args[0].code() not in _NOT_OURS:
                    log.warning("%s", failure(str(self._client["bootstrap.servers"]), error))
                    admin = admin_client(self._client)
            else:
                before = self._seen.group, self._seen.absences
                self._note(group, asked)
                if before != (self._seen.group, self._seen.absences):
                    self._changed()
                self._tell_changes(before[0], self._seen.group)
            self._stop.wait(_LOOK)

    def _tell_changes(self, before: Group, now: Group) -> None:
        changes = [f"{worker} has left" for worker in sorted(before.members - now.members)]
        changes += [f"{worker} has joined" for worker in sorted(now.members - before.members)]
        if changes or before.leader != now.leader:
            log.info("group %s: %s", self._config.group_id, "; ".join([*changes, str(now)]))

    def _note(self, group: Group, asked: float) -> None:
        has_joined = self._joins.is_set()
        is_double = self._me in (group.namesakes if has_joined else group.members)
        self._doubles = self._doubles + 1 if is_double else 0
        if self._doubles * _LOOK > _SESSIONS * self._config.session_timeout_ms / 1000:
            self._failed = ServiceError(
                f"group.id={self._config.group_id}: another worker of the group already uses "
                f"{self._me}. Workers know one another by their addresses: set listeners to an "
                "address of this machine, or rest.advertised.host.name"
            )
            return
        if not has_joined:
            if self._me not in group.members:
                self._joins.set()
        elif self._me in group.members:
            if self._has_lapsed or self._me not in self._seen.group.members:
                if self._seen.absences:
                    log.warning(
                        "group %s: this worker was not seen in the group for %.1f s; others may "
                        "have its work now",
                        *(self._config.group_id, asked - self._seen.at),
                    )
                self._seen.absences += 1
            self._seen.at = asked
        self._seen.group = group  # last, so that whoever reads it knows of the absence


def _hold(consumer: Any, partitions: Any) -> None:
    consumer.incremental_assign(partitions)
    consumer.pause(partitions)


def described(admin: AdminClient, name: str, topic: str) -> Group:
    """A group, as its coordinator describes it; ``topic`` is its config topic.

    Raises:
        KafkaException: it could not be asked. This client must not be used again.
    """
    answer = admin.describe_consumer_groups([name], request_timeout=UNBOUNDED)
    description = coordinators_answer(admin, answer[name], _ASKED_IN)
    leader = None
    urls = Counter(member.client_id for member in description.members)
    for member in description.members:
        partitions = member.assignment.topic_partitions if member.assignment is not None else ()
        if any(tp.topic == topic for tp in partitions):
            leader = member.client_id
    return Group(frozenset(urls), leader, frozenset(url for url in urls if urls[url] > 1))
