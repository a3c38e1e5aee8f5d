"""Partitions that a consumer group has assigned to no member.

A static member that returns within its session timeout gets its old partitions back without a
rebalance, and is not told if it leads the group (KIP-345; KIP-814 fixed Java's clients). So nobody
assigns partitions that were added in the meantime, until the leader joins again, which causes a
rebalance. When partitions are added later on, librdkafka's members join again by themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupState

from semel.core.abandoned import BackgroundCall
from semel.core.ledger import TopicPartition
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups, assigned_to

log = logging.getLogger(__name__)

_SOON, _SELDOM = 1.0, 600.0
"""Seconds until the first look (an earlier one would delay the first records), and between looks
once nothing was missing (a broker may learn of new partitions late)."""

Partitions = frozenset[TopicPartition]


class Unassigned:
    """Looks for unassigned partitions once a task has become a member.

    While some are found, or the group gives no answer, each pause is twice as long as the one
    before: a leader that is not semel's may never assign them.
    """

    def __init__(self, admin: Mapping[str, Any], group: str) -> None:
        self._admin = admin
        self._group = group
        self._pause = _SOON
        self._due = float("inf")
        self._looking: BackgroundCall[Partitions | None] | None = None

    def assigned(self, *, new_member: bool) -> None:
        """The group has just assigned partitions: an answer that is under way is outdated. Look
        soon for a new member."""
        self._looking = None
        if new_member:
            self._pause = _SOON
            self._due = time.monotonic() + _SOON

    def look(self, topics: Collection[str]) -> Partitions:
        """The unassigned partitions of these topics, if an answer has just come."""
        if self._looking is None:
            if time.monotonic() >= self._due:
                asked = sorted(topics)
                self._looking = BackgroundCall("unassigned partitions", lambda: self._ask(asked))
            return frozenset()
        if not self._looking.ended(0):
            return frozenset()
        found, self._looking = self._looking.result(), None
        is_well = found is not None and not found
        self._pause = _SELDOM if is_well else min(2 * self._pause, _SELDOM)
        self._due = time.monotonic() + self._pause
        return found or frozenset()

    def _ask(self, topics: Collection[str]) -> Partitions | None:
        """None without an answer, or while the group is not stable. Never raises: a traceback would
        keep the clients alive."""
        try:
            counts = Cluster(self._admin).topics()
            found = Groups(self._admin).describe(self._group)
        except Exception as error:  # the task continues without the answer
            log.info("%s", error)
            return None
        if found is None or found.state != ConsumerGroupState.STABLE:
            return None
        existing = {TopicPartition(t, p) for t in topics for p in range(counts.get(t, 0))}
        return frozenset(existing - assigned_to(found.members))
