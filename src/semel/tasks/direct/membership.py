"""A task's place in its consumer group, and whether another run has taken it; partitions of the
group that nobody reads.

A fence does not prove it. Positions that were on their way to the group when the session ended are
sent without a member id, and Kafka answers that another instance has taken this one's place. A
consumer that was given up may have asked to join before that: brokers that come back answer it
late, under a member id that no consumer knows. (Nor would a client id tell the runs apart: for a
static member, brokers keep the first one.)

So the task asks Kafka who the members are. Nobody sends heartbeats for such an id, and it is gone
once its session has ended. One that stays belongs to another run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupState

from semel.config import ConnectorConfig
from semel.core.abandoned import BackgroundCall
from semel.core.errors import Displaced, Fenced, SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka.clients import SESSION, client_config
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups, assigned_to
from semel.tasks.control import STOP_DELAY

log = logging.getLogger(__name__)

_OWN_DOING = 30.0
"""Seconds after the end of a session, or after the task has joined again, in which Kafka may
mistake it for one of another run."""
_LOOK = 0.5
"""Seconds between checks of the group."""
_RETRY = 0.5
"""Seconds until a task whose session has ended asks again whether it may join."""
_SESSIONS = 2
"""How many sessions another member must stay to be taken for another run."""
_FIRST_LOOK, _SELDOM = 1.0, 600.0
"""Seconds until the first look (an earlier one would delay the first records), and between looks
once nothing was missing (a broker may learn of new partitions late)."""


class StaticMembership:
    """The place of one task, and the member ids that the task has had there.

    ``tell`` writes a line to the driver's log. ``wait`` waits for so many seconds, or until the
    driver says stop; it returns whether the driver has.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        index: int,
        consumer: Mapping[str, Any],
        tell: Callable[[str], None],
        wait: Callable[[float], bool],
    ) -> None:
        self._index = index
        self._admin = client_config(connector, "admin")
        self._group = connector.group_id
        self._instance = consumer["group.instance.id"]
        self._stays = _SESSIONS * float(consumer[SESSION]) / 1000
        self._tell = tell
        self._wait = wait
        self._own: set[str] = set()
        self._lost_at = self._joining_until = float("-inf")
        self._due = float("inf")
        self._asking: BackgroundCall[bool | None] | None = None

    def note_id(self, member_id: str) -> bool:
        """Note an id of the task as a member; returns whether it is new."""
        is_known = member_id in self._own
        self._own.add(member_id)
        return not is_known

    def note_assignment(self, member_id: str) -> bool:
        """Note that the group has assigned partitions; returns whether the id is new."""
        self._joining_until = min(self._joining_until, time.monotonic() + _OWN_DOING)
        return self.note_id(member_id)

    def note_loss(self) -> None:
        """Note that the session has ended."""
        self._lost_at = time.monotonic()
        self._due = self._lost_at + STOP_DELAY

    def note_rejoin(self) -> None:
        """Note that the task joins again: an earlier request may yet be answered after this one."""
        self._joining_until = float("inf")

    def is_taken(self) -> bool | None:
        """Whether another consumer has the place; None if Kafka does not answer.

        Raises:
            SemelError: Kafka will not answer the next time either.
        """
        other, _ = self._look()
        return None if other is None else other != ""

    def is_free(self) -> bool | None:
        """Whether the task may join again, once its session has ended; None until Kafka has
        answered. Asks in the background."""
        if self._asking is None:
            if time.monotonic() >= self._due:
                self._asking = BackgroundCall("the place in the group", self._seems_taken)
            return None
        if not self._asking.ended(0):
            return None
        taken, self._asking = self._asking.result(), None
        if taken is None:
            self._due = time.monotonic() + _RETRY
            return None
        return not taken

    def ask_again(self) -> None:
        """Give up an answer that does not come."""
        if self._asking is not None:
            self._asking.abandon()
            self._asking = None

    def _seems_taken(self) -> bool | None:
        try:
            return self.is_taken()
        except SemelError as error:
            # The consumer may be allowed to join all the same: admin.override may name another
            # user.
            log.warning("%s", error)
            return False

    def false_fence_reason(self, fence: Fenced) -> str | None:
        """Why a fence does not end the run; None if it does.

        If two runs compete, the one that holds the place of task 0 continues. If any place could
        decide, each run could displace a task of the other, and both would end. Other tasks only
        start again, and wait longer than task 0 does: if their run has lost, it has ended by then.
        """
        now, own, displaced = time.monotonic(), "", isinstance(fence, Displaced)
        if now - self._lost_at < _OWN_DOING:
            own = "its session had just expired"
        elif displaced and now < self._joining_until:
            own = "an earlier request of its own to join may have been answered late"
        if not own and not displaced:
            return None
        try:
            taken = self._is_taken_for(self._stays * (2 if self._index else bool(own)))
        except SemelError as error:
            log.warning("%s", error)
            taken = not own
        if not taken:
            return own or "nobody else has taken its place"
        return "the place of task 0 decides between two runs" if self._index else None

    def _is_taken_for(self, seconds: float) -> bool:
        """Whether the same other member holds the place for this long. Asks until Kafka answers;
        False if the driver says stop first. No session ends while the group rebalances."""
        before, until, has_told = "", float("inf"), False
        while True:
            other, is_stable = self._look()
            if other == "":
                return False
            if other is None:
                before, until = "", float("inf")
            elif other != before or not is_stable:
                before, until = other, time.monotonic() + seconds
            if time.monotonic() >= until:
                return True
            if not has_told:
                has_told = True
                self._tell(
                    "waiting to see whether another run has its place in consumer group "
                    f"{self._group}"
                )
            if self._wait(_LOOK):
                return False

    def _look(self) -> tuple[str | None, bool]:
        """The id of another member that has the place, empty if there is none, None if Kafka does
        not answer; and whether the group is stable."""
        try:
            description = Groups(self._admin).describe(self._group)
        except TransientError as error:
            log.info("%s", error)
            return None, False
        if description is None:
            return "", True
        ids = (m.member_id for m in description.members if m.group_instance_id == self._instance)
        other = next((member_id for member_id in ids if member_id not in self._own), "")
        return other, description.state == ConsumerGroupState.STABLE


class UnassignedPartitions:
    """Looks for partitions that the group has assigned to no member, once a task has become one.

    A static member that returns within its session timeout gets its old partitions back without a
    rebalance, and is not told if it leads the group (KIP-345; KIP-814 fixed Java's clients). So
    nobody assigns partitions that were added in the meantime, until the leader joins again, which
    causes a rebalance. When partitions are added later on, librdkafka's members join again by
    themselves.

    While some are found, or the group gives no answer, each pause is twice as long as the one
    before: a leader that is not semel's may never assign them.
    """

    def __init__(self, admin: Mapping[str, Any], group: str) -> None:
        self._admin = admin
        self._group = group
        self._pause = _FIRST_LOOK
        self._due = float("inf")
        self._looking: BackgroundCall[frozenset[TopicPartition] | None] | None = None

    def assigned(self, *, new_member: bool) -> None:
        """The group has just assigned partitions: an answer that is under way is outdated. Look
        soon for a new member."""
        self._looking = None
        if new_member:
            self._pause = _FIRST_LOOK
            self._due = time.monotonic() + _FIRST_LOOK

    def look(self, topics: Collection[str]) -> frozenset[TopicPartition]:
        """The unassigned partitions of these topics, if an answer has just come."""
        if self._looking is None:
            if time.monotonic() >= self._due:
                asked = sorted(topics)
                self._looking = BackgroundCall("unassigned partitions", lambda: self._ask(asked))
            return frozenset()
        if not self._looking.ended(0):
            return frozenset()
        partitions, self._looking = self._looking.result(), None
        is_well = partitions is not None and not partitions
        self._pause = _SELDOM if is_well else min(2 * self._pause, _SELDOM)
        self._due = time.monotonic() + self._pause
        return partitions or frozenset()

    def _ask(self, topics: Collection[str]) -> frozenset[TopicPartition] | None:
        """None without an answer, or while the group is not stable. Never raises: a traceback would
        keep the clients alive."""
        try:
            counts = Cluster(self._admin).topics()
            description = Groups(self._admin).describe(self._group)
        except Exception as error:  # the task continues without the answer
            log.info("%s", error)
            return None
        if description is None or description.state != ConsumerGroupState.STABLE:
            return None
        existing = {TopicPartition(t, p) for t in topics for p in range(counts.get(t, 0))}
        return frozenset(existing - assigned_to(description.members))
