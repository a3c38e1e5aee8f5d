"""Positions set by hand: the ledger of a connector that does not run."""

from __future__ import annotations

import time
from collections.abc import Mapping

from semel.config import ConnectorConfig
from semel.errors import ConfigError
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups
from semel.ledger import UNKNOWN_LOG, LedgerEntry, TopicPartition, first, firsts
from semel.planning import Plan

_SESSIONS = 30.0
"""Seconds after which a consumer group no longer lists members that are gone."""


def set_positions(
    planned: Plan, wanted: Mapping[TopicPartition, int], *, force: bool = False, hint: str = ""
) -> None:
    """Let a connector continue at these positions; ``force`` accepts them whatever Kafka holds. If
    Kafka does not have them, the error ends with ``hint``, which says how to set ``force``.

    Raises:
        ConfigError: the connector runs, or does not read such a topic, or Kafka has no such offset.
    """
    for tp in wanted:
        check_topic(planned.connector, tp.topic)
    planned.sink.set_positions(firsts(wanted) if force else _in_kafka(planned, wanted, hint))


def first_position(planned: Plan, tp: TopicPartition) -> int:
    """Where ``auto.offset.reset`` would start a partition now."""
    cluster = Cluster(client_config(planned.connector, "admin"))
    begin = cluster.latest if planned.connector.offset_reset == "latest" else cluster.earliest
    return begin([tp])[tp]


def reset_positions(planned: Plan) -> None:
    """Forget all positions, and their copies in the consumer group.

    Raises:
        ConfigError: the connector runs.
    """
    planned.sink.set_positions(None)
    if not planned.sink.capabilities.ledger_in_group:
        _forget_group(planned)


def _in_kafka(planned: Plan, wanted: Mapping[TopicPartition, int], hint: str) -> list[LedgerEntry]:
    """First entries at these positions, of the logs that Kafka has now.

    Raises:
        ConfigError: it has no such partition or offset.
    """
    name = planned.connector.name
    cluster = Cluster(client_config(planned.connector, "admin"))
    there = cluster.topics()
    for tp in wanted:
        if tp.partition >= there.get(tp.topic, 0):
            raise ConfigError(
                f"connector {name}: {tp} does not exist: topic {tp.topic} has "
                f"{there.get(tp.topic, 0)} partitions. Correct it{hint}"
            )
    logs = cluster.logs({tp.topic for tp in wanted})
    earliest, ends = cluster.earliest(wanted), cluster.ends(wanted)
    for tp, at in wanted.items():
        if not earliest[tp] <= at <= ends[tp][0]:
            raise ConfigError(
                f"connector {name}: {tp}={at} is outside the log, which begins at "
                f"{earliest[tp]} and ends at {ends[tp][0]}. Correct it{hint}"
            )
    return [first(tp, at, logs.get(tp.topic, UNKNOWN_LOG)) for tp, at in wanted.items()]


def _forget_group(planned: Plan) -> None:
    """Delete the consumer group: its offsets would be the next run's first positions.

    Raises:
        ConfigError: it has members.
    """
    group = planned.connector.group_id
    groups = Groups(client_config(planned.connector, "admin"))
    deadline = time.monotonic() + _SESSIONS
    while not groups.is_idle(group):  # the group lists stopped tasks for a while
        if time.monotonic() > deadline:
            raise ConfigError(
                f"connector {planned.connector.name}: its ledger is empty now, but consumer group "
                f"{group} has members, so its offsets stay. Stop the connector, and run this again"
            )
        time.sleep(0.2)
    groups.delete(group)


def check_topic(connector: ConnectorConfig, topic: str) -> None:
    """Raises ConfigError: the connector does not read this topic."""
    if not connector.reads(topic):
        reads = ", ".join(connector.topics) or f"topics matching {connector.topics_regex}"
        raise ConfigError(
            f"connector {connector.name} does not read topic {topic}; it reads {reads}"
        )
