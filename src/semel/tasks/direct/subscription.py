"""A task's membership in the consumer group: its topics, and a consumer with a working connection.

The task is a static member: it keeps its partitions across a restart, because closing its consumer
does not leave the group.

What the group says becomes events, :class:`Assigned`, :class:`Revoked` and :class:`Lost`, after the
poll that received them. Only the commit in progress must end within the poll, before partitions are
given up, because another task may read them from then on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.errors import SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka.clients import HEARTBEAT, SESSION, client_config
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import METADATA_AGE, close, consumer_config, fenced, logged_consumer
from semel.sinks.protocols import Membership
from semel.tasks.commit import Committer
from semel.tasks.direct.membership import StaticMembership, UnassignedPartitions

log = logging.getLogger(__name__)

_WAIT = 900
"""Milliseconds for which a broker holds a fetch that finds nothing, so that an idle task asks
rarely. The first fetch of a partition that is assigned meanwhile has to wait for it; from 1000 on,
librdkafka sends other requests to other brokers."""
_CONNECTS_IN = 1.0
_LOOK = 1.0
"""About how many seconds partitions without a leader may keep the others from being read."""
_NAMED = 5
"""How many partitions a line in the log names."""
_OUT = 30.0
"""A consumer gets at least this many seconds to reconnect to Kafka by itself."""
_CHECK_INTERVAL = 5.0
"""If two polls are further apart than this many seconds and than a session, silence says nothing:
the task was busy, or frozen."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The group has assigned these partitions. The task assigns them to the consumer itself, at the
    ledger's positions."""

    member: Membership


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group has revoked these partitions."""

    partitions: frozenset[TopicPartition]


class Lost(Revoked):
    """The session has ended, and with it the assignment: other tasks may own the partitions
    already."""


Event = Assigned | Revoked


class State(Enum):
    """How a task stands in its consumer group."""

    JOINING = auto()
    """It waits for the group's answer to its subscription."""
    MEMBER = auto()
    """The group has assigned partitions to it."""
    OUTDATED = auto()
    """The group has assigned partitions of topics that it no longer wants: it subscribes again."""
    OUT = auto()
    """Its session has ended, and it does not know yet whether it may join again."""
    CLOSING = auto()
    CLOSED = auto()


class Subscription:
    """Subscribes to topics, and keeps the group's events.

    After the end of a session it asks Kafka before it joins again: another run may have its place
    by then, and must not be displaced in turn.

    The commit in progress ends while the consumer is polled, before partitions are given up; the
    task asks the ``committer`` how. ``tell`` and ``wait`` are those of
    :class:`~semel.tasks.direct.membership.StaticMembership`.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        index: int,
        committer: Committer,
        tell: Callable[[str], None],
        wait: Callable[[float], bool],
    ) -> None:
        self._connector = connector
        self.index = index
        self._committer = committer
        self._tell = tell
        self._wait = wait
        self._state = State.JOINING
        self.member: Membership | None = None
        """The task as a member of the group; None while it has no partitions there."""
        self._events: list[Event] = []
        self._topics: list[str] = []
        self._looked = 0.0
        self.cluster = Cluster(client_config(connector, "admin"))
        self.config = config = consumer_config(connector, index, _WAIT)
        self.consumer, self.consumer_log = logged_consumer(config, log)
        self.membership = StaticMembership(connector, index, config, tell, wait)
        self._unassigned = UnassignedPartitions(self.cluster.config, connector.group_id)
        self._liveness = Liveness(float(config[SESSION]) / 1000)

    @property
    def heartbeats(self) -> float:
        """Seconds in which every task finds out that its place in the group was taken."""
        return 2 * float(self.config[HEARTBEAT]) / 1000

    def connect(self) -> None:
        """Connect to Kafka while the driver prepares the run: the first requests take longest."""
        with suppress(SemelError):
            self.cluster.topics(timeout=_CONNECTS_IN)

    @property
    def has_events(self) -> bool:
        """Whether :meth:`take_events` has events."""
        return bool(self._events)

    @property
    def rejoins(self) -> bool:
        """Whether it has subscribed again, and its partitions are about to be revoked. librdkafka
        may join the group, and so give them up, before it says so: no commit may begin."""
        return self.member is not None and not self._has_place

    @property
    def _has_place(self) -> bool:
        return self._state in (State.MEMBER, State.OUTDATED)

    def take_events(self) -> list[Event]:
        """The group's events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def subscribe(self, topics: Collection[str]) -> None:
        """Subscribe to topics. ``topics.regex`` is a Python pattern here and in the driver;
        librdkafka's regular expressions have a different syntax."""
        self._looked = time.monotonic()
        if sorted(topics) == self._topics:
            return
        self._topics = sorted(topics)
        if self._topics:
            self._enter(State.JOINING)
            self.consumer.subscribe(
                self._topics,
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._revoked,
            )

    def refresh(self) -> None:
        """From time to time, subscribe to the topics that match ``topics.regex`` now. Join the
        group again if it has left partitions unassigned."""
        if self._state is State.OUT:
            return
        age = float(self.config[METADATA_AGE]) / 1000
        if self._connector.topics_regex and time.monotonic() - self._looked > age:
            try:
                self.subscribe({*self.cluster.matching(self._connector)})
            except TransientError as error:
                self._looked = time.monotonic()
                log.info("%s", error)
        if not self._has_place:
            return
        if partitions := self._unassigned.look(self._topics):
            names = ", ".join(map(str, sorted(partitions)[:_NAMED])) + ", ..." * (
                len(partitions) > _NAMED
            )
            self._tell(f"no task reads {names}; joining the consumer group again")
            self._resubscribe()

    def renew(self) -> None:
        """Subscribe to the topics that are wanted now, once the group has answered the last
        subscription. After the end of a session, join again if nobody else has the place.

        Raises:
            Displaced: another consumer has it.
        """
        if self._state is State.OUTDATED:
            self.consumer.unsubscribe()
            self._resubscribe()
        elif self._state is State.OUT and not self._wait(0.0):
            is_free = self.membership.is_free()
            if is_free is None:
                return
            if not is_free:
                raise fenced(self._connector, self.index, "its session has ended")
            self.membership.note_rejoin()
            self._enter(State.JOINING)
            self._resubscribe()

    def reconnect_if_stalled(self, positions: Mapping[TopicPartition, int]) -> None:
        """Reconnect if Kafka answers other clients but has long sent nothing to the consumer.
        Without ``positions``, the group has not confirmed yet that the partitions are its own.

        If a broker that restarts alone tells a consumer that there are no brokers, the consumer
        forgets them all and waits for the group's coordinator forever (librdkafka's issue 5301).
        If the leaders of its partitions change again and again, it may stop fetching some of them.
        """
        owned = self.member is not None and self.member.partitions
        stands = "in" if positions or not owned else "unconfirmed"
        stands = stands if self._has_place else "out"
        alive = self._liveness
        alive.polls(stands)
        if not self._topics or not alive.is_doubtful:
            return
        group, waited = f"consumer group {self._connector.group_id}", f"{alive.silence:.0f} s"
        if self._state is State.OUT:
            alive.note_answer()
            self._tell(
                f"no reply from Kafka for {waited} about who has this task's place in {group}"
            )
            self.membership.ask_again()
            return
        try:
            trouble: str | None
            if stands == "unconfirmed":
                trouble = f"{group} has not confirmed its membership for {waited}"
            elif stands == "in":
                trouble = self._stalled(positions)
            else:
                Cluster(self.cluster.config).topics()
                trouble = f"has not been a member of {group} for {waited}"
        except SemelError as error:
            alive.forget_positions()
            log.info("%s", error)
            return
        finally:
            alive.note_answer()
        if trouble:
            self._tell(f"{trouble}; reconnecting")
            alive.replaced()
            self._reconnect()

    def _stalled(self, positions: Mapping[TopicPartition, int]) -> str | None:
        """Why the consumer must be replaced although it has its place; None if it need not be."""
        if not self.cluster.is_connected:
            self.connect()  # connecting may take as long as the request
        latest = self.cluster.latest(positions, timeout=_LOOK)
        still = ", ".join(map(str, self._liveness.standing_still(positions, latest)))
        return f"gets none of the records that wait for it in {still}" if still else None

    def _reconnect(self) -> None:
        """Replace the consumer, and ignore what the old one reports from now on."""
        self._give_up()
        old = self.consumer
        self.consumer, self.consumer_log = logged_consumer(self.config, log)
        self._enter(State.JOINING)
        close(old)  # before another one takes its place in the group, if it can be
        self.membership.note_rejoin()
        self._resubscribe()

    def close(self) -> None:
        """Close the consumer for good, and ignore what the group assigns to it meanwhile.

        Raises:
            KafkaException: as the consumer does.
        """
        self._enter(State.CLOSING)
        self.membership.note_id(str(self.consumer.memberid()))
        self.consumer.poll(0)  # an answer that is heard within close() may block it forever
        self._enter(State.CLOSED)
        close(self.consumer)

    def _resubscribe(self) -> None:
        topics, self._topics = self._topics, []
        self.subscribe(topics)

    def _assigned(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        """Kafka gives a static member that returns soon the partitions that it had before, even if
        it now asks for other topics (KIP-345): those of topics that it no longer asks for are left
        alone."""
        if not self._matters(consumer):
            return
        consumer.assign([])
        if self._state is State.CLOSING:
            return
        me = str(consumer.memberid())
        self._unassigned.assigned(new_member=self.membership.note_assignment(me))
        assigned = {TopicPartition(p.topic, p.partition) for p in partitions}
        owned = frozenset(tp for tp in assigned if tp.topic in self._topics)
        if self._state is not State.OUT:
            self._enter(State.MEMBER if assigned == owned else State.OUTDATED)
        self.member = Membership(me, owned, consumer.consumer_group_metadata())
        self._events.append(Assigned(self.member))

    def _revoked(self, consumer: Consumer, _partitions: list[KafkaPartition]) -> None:
        """Handle the end of an assignment, and of the session if the consumer has no member id any
        more. (librdkafka also calls partitions lost for other reasons, and not always for this
        one.) With an id, it joins again under that, and Kafka fences it if its place is taken."""
        if not self._matters(consumer):
            return
        is_over = not consumer.memberid()
        if is_over:
            self.membership.note_loss()
        if is_over or self._state is State.CLOSING:
            self._stay_out()
        self._give_up(Lost if is_over else Revoked)
        stays = self._state in (State.OUT, State.CLOSING)
        self._enter(self._state if stays else State.OUT if is_over else State.JOINING)

    def _matters(self, consumer: Consumer) -> bool:
        """Whether an answer still matters. Within close() it does not, and requests to the group
        may never be answered: librdkafka drops them once the group's part has ended, and the call
        waits forever while it holds the GIL."""
        return consumer is self.consumer and self._state is not State.CLOSED

    def _give_up(self, kind: type[Revoked] = Revoked) -> None:
        """Discard an assignment that the task has not taken yet."""
        self._committer.settle()
        partitions = frozenset() if self.member is None else self.member.partitions
        self.member = None
        earlier = [event for event in self._events if not isinstance(event, Assigned)]
        self._events = [*earlier, kind(partitions)]
        self.consumer.unassign()

    def _stay_out(self) -> None:
        """Do not join the group again before it is known that this displaces nobody. librdkafka
        would do so as a new member, and a static member's place belongs to the newest one."""
        with suppress(KafkaException):  # a consumer that closes does not join any more
            self.consumer.unsubscribe()

    def forget_positions(self) -> None:
        """Forget which partitions stood still: the positions have been read from the ledger."""
        self._liveness.forget_positions()

    def _enter(self, state: State) -> None:
        self._state = state
        self._liveness.restart()


class Liveness:
    """Whether a consumer whose session lasts ``session`` seconds still hears from Kafka, judged by
    time and by what it has read.

    It waits twice as long before each replacement of the consumer as before the last one, without a
    limit, until partitions have moved again: a fetch may simply take long.
    """

    def __init__(self, session: float) -> None:
        self._session = session
        self._patience = 1.0
        self._stands = ""
        self._since = self._asked = self._awake = time.monotonic()
        self._looks: dict[TopicPartition, tuple[int, int]] = {}

    def polls(self, stands: str) -> None:
        """Note that the task is about to poll, and how it stands in the group."""
        now = time.monotonic()
        gap, self._awake = now - self._awake, now
        if stands != self._stands or gap > max(_CHECK_INTERVAL, self._session):
            self._stands = stands
            self.restart()

    def restart(self) -> None:
        """Restart the count of silent seconds."""
        self._since = self._awake = time.monotonic()
        self._looks = {}

    @property
    def silence(self) -> float:
        """Seconds since the count was restarted."""
        return time.monotonic() - self._since

    @property
    def is_doubtful(self) -> bool:
        """Whether to ask other clients now, because nothing was heard for a long time."""
        most = self._patience * max(_OUT, 3 * self._session)
        return time.monotonic() - max(self._since, self._asked) >= most

    def note_answer(self) -> None:
        """Note an answer, or that there was none, which may have taken long."""
        self._asked = self._awake = time.monotonic()

    def standing_still(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """The partitions that have not moved since the last look although records were waiting,
        if all others have reached the end that they had then."""
        before = self._looks
        self._looks = {tp: (at, ends[tp]) for tp, at in positions.items()}
        behind = {tp: at for tp, (at, end) in before.items() if positions.get(tp, end) < end}
        still = sorted(tp for tp, at in behind.items() if positions[tp] == at)
        if before and not behind:
            self._patience = 1.0
        return still if len(still) == len(behind) else []

    def forget_positions(self) -> None:
        """Forget which partitions stood still."""
        self._looks = {}

    def replaced(self) -> None:
        """The consumer is replaced: its successor gets more time."""
        self._patience *= 2
