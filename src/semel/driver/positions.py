"""Positions set by hand: the ledger of a connector that does not run."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, SemelError
from semel.core.ledger import UNKNOWN_LOG, Hole, LedgerEntry, TopicPartition, first, firsts
from semel.core.quoting import named
from semel.driver.planning import Plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups
from semel.tasks.publish import copies, mark

log = logging.getLogger(__name__)

_SESSIONS = 30.0
"""Seconds after which a consumer group no longer lists members that are gone."""


def set_positions(
    planned: Plan,
    wanted: Mapping[TopicPartition, int],
    by: str,
    *,
    force: bool = False,
    hint: str = "",
) -> None:
    """Let a connector continue at these positions, and copy them to the consumer group. ``by``
    names who wants that; ``force`` accepts them whatever Kafka holds. If Kafka does not have them,
    the error ends with ``hint``, which says how to set ``force``.

    Raises:
        ConfigError: the connector runs, or does not read such a topic, or Kafka has no such offset.
    """
    for tp in wanted:
        check_topic(planned.connector, tp.topic)
    known = firsts(wanted) if force else _in_kafka(planned, wanted, hint)
    entries = [replace(e, start_position=0) for e in known] if force else known
    planned.sink.set_positions(entries, by)
    if not planned.sink.capabilities.ledger_in_group:
        _copy(planned, wanted)


def _copy(planned: Plan, positions: Mapping[TopicPartition, int]) -> None:
    """Copy positions for lag tools. The ledger has them, so a failure is only logged."""
    groups, group = _groups(planned), planned.connector.group_id
    try:
        if _is_idle(groups, group):
            groups.set_offsets(group, copies(mark(planned.sink), positions))
            return
        why = "it has members"
    except SemelError as error:
        why = str(error)
    log.warning(
        "the positions are set, but consumer group %s has no copies of them, so lag tools will "
        "show its former offsets until the connector commits: %s",
        group,
        why,
    )


def first_positions(planned: Plan, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Where ``auto.offset.reset`` would start these partitions now.

    Raises:
        ConfigError: the connector does not read such a topic, or Kafka has no such partition.
    """
    for tp in wanted:
        check_topic(planned.connector, tp.topic)
    cluster = Cluster(client_config(planned.connector, "admin"))
    _check_partitions(planned, cluster, wanted)
    begin = cluster.latest if planned.connector.offset_reset == "latest" else cluster.earliest
    return begin(wanted) if wanted else {}


def reset_positions(planned: Plan, by: str) -> None:
    """Forget all positions, and their copies in the consumer group. ``by`` names who wants that.

    Raises:
        ConfigError: the connector runs.
    """
    planned.sink.set_positions(None, by)
    if not planned.sink.capabilities.ledger_in_group:
        _forget_group(planned)


def _in_kafka(planned: Plan, wanted: Mapping[TopicPartition, int], hint: str) -> list[LedgerEntry]:
    """Entries at these positions, of the logs that Kafka has now, from their first offsets on.

    Raises:
        ConfigError: it has no such partition or offset.
    """
    name = planned.connector.name
    cluster = Cluster(client_config(planned.connector, "admin"))
    _check_partitions(planned, cluster, wanted, hint)
    logs = cluster.logs({tp.topic for tp in wanted})
    earliest, ends = cluster.earliest(wanted), cluster.ends(wanted)
    for tp, at in wanted.items():
        if not earliest[tp] <= at <= ends[tp][0]:
            raise ConfigError(
                f"connector {name}: {tp}={at} is outside the log, which begins at "
                f"{earliest[tp]} and ends at {ends[tp][0]}. Correct it{hint}"
            )
    found = [first(tp, at, logs.get(tp.topic, UNKNOWN_LOG)) for tp, at in wanted.items()]
    return [replace(e, start_position=earliest[e.topic_partition]) for e in found]


def _check_partitions(
    planned: Plan, cluster: Cluster, wanted: Collection[TopicPartition], hint: str = ""
) -> None:
    """Raises ConfigError: Kafka has no such partition."""
    there = cluster.topics()
    for tp in wanted:
        count = there.get(tp.topic, 0)
        if not 0 <= tp.partition < count:
            raise ConfigError(
                f"connector {planned.connector.name}: {tp} does not exist: topic {named(tp.topic)} "
                f"has {count} partitions. Correct it{hint}"
            )


def _forget_group(planned: Plan) -> None:
    """Delete the consumer group: its offsets would be the next run's first positions.

    Raises:
        ConfigError: it has members.
    """
    groups, group = _groups(planned), planned.connector.group_id
    if not _is_idle(groups, group):
        raise ConfigError(
            f"connector {planned.connector.name}: its ledger is empty now, but consumer group "
            f"{group} has members, so its offsets stay. Stop the connector, and run this again"
        )
    groups.delete(group)


def _groups(planned: Plan) -> Groups:
    return Groups(client_config(planned.connector, "admin"))


def _is_idle(groups: Groups, group: str) -> bool:
    """Whether a group has no members, once it no longer lists those that have stopped."""
    deadline = time.monotonic() + _SESSIONS
    while not groups.is_idle(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def check_topic(connector: ConnectorConfig, topic: str) -> None:
    """Raises ConfigError: the connector does not read this topic."""
    if not connector.reads(topic):
        reads = ", ".join(connector.topics) or f"topics matching {connector.topics_regex}"
        raise ConfigError(
            f"connector {connector.name} does not read topic {named(topic)}; it reads {reads}"
        )


def ledger_facts(entries: Collection[LedgerEntry], holes: Collection[Hole]) -> list[dict[str, Any]]:
    """The ledger for programs: each entry with its holes. A partition whose position was reset has
    only holes."""
    spans = [(h.topic_partition, asdict(h)) for h in holes]
    facts: dict[TopicPartition, dict[str, Any]] = {
        tp: {**tp._asdict(), "position": None} for tp, _ in spans
    }
    facts |= {e.topic_partition: asdict(e) for e in entries}
    own = ("from_offset", "until_offset", "reason", "by", "at")
    return [
        {**facts[tp], "holes": [{n: h[n] for n in own} for at, h in spans if at == tp]}
        for tp in sorted(facts)
    ]
