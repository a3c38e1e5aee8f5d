"""Lag: how far the positions published to the consumer groups are behind the topics' ends."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semel.config import GROUPS, connector_of, group_of
from semel.core.errors import NotKnown
from semel.core.ledger import TopicPartition
from semel.kafka.cluster import Cluster
from semel.kafka.contact import wait_for_brokers
from semel.kafka.groups import Groups

_PATIENCE = 1.0
"""Seconds to wait for brokers that refuse connections: a person is waiting for the answer."""
_SHOWN = 20


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
    found = []
    for group in groups:
        positions = published(client, group)
        if connector and not positions:
            raise _unknown(connector, cluster)
        ends = cluster.latest(positions)
        name = connector_of(group)
        found += [
            PartitionLag(name, tp.topic, tp.partition, at, ends[tp])
            for tp, at in sorted(positions.items())
        ]
    return found


def _unknown(connector: str, cluster: Cluster) -> NotKnown:
    others = [connector_of(g) for g in cluster.groups(GROUPS)]
    near = difflib.get_close_matches(connector, others, n=1)
    known = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
    hint = f"Did you mean {near[0]}? " if near else ""
    return NotKnown(
        f"connector {connector} has published no positions to consumer group "
        f"{group_of(connector)}. {hint}Connectors of this cluster: {known or 'none'}"
    )


def published(client: Mapping[str, Any], group: str) -> dict[TopicPartition, int]:
    """The positions that a consumer group has published for existing topics."""
    topics = Cluster(client).topics()
    places = [TopicPartition(t, p) for t, n in topics.items() for p in range(n)]
    found, _ = Groups(client).offsets(group, places)
    return {tp: at for tp, (at, _) in found.items()}
