"""Reports what semel would do with a cluster's connectors, without changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from semel.config.cluster import ClusterConfig
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError, SemelError
from semel.driver.planning import AnyPlan, Plan, SourcePlan, plan_any
from semel.driver.source_positions import source_offsets
from semel.driver.states import State
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster, admin_client
from semel.kafka.errors import failure
from semel.kafka.followed import FollowedTopic
from semel.kafka.groups import Groups
from semel.tasks.ranges import partitions
from semel.worker.cluster.records import Configs
from semel.worker.cluster.took_over import as_taken_over

_ASKED_IN = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a connector would do here, or the ``problem`` that would make it fail."""

    name: str
    connector_class: str
    state: str
    guarantee: str = ""
    begins: str = ""
    warnings: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster's connectors, and the clients that are in its group now."""

    connectors: tuple[Verdict, ...]
    members: tuple[str, ...]


def check(config: ClusterConfig, client: Mapping[str, Any]) -> Found:
    """Judge each connector of the cluster.

    Raises:
        ConfigError: there is no such cluster.
        TransientError: its config topic could not be read.
    """
    cluster = Cluster(client)
    if config.config_topic not in cluster.topics():
        raise ConfigError(
            f"config.storage.topic={config.config_topic} does not exist in Kafka at "
            f"{config.bootstrap_servers}: there is no cluster to check"
        )
    configs = Configs()
    topic = FollowedTopic("config.storage.topic", config.config_topic, cluster, configs.apply)
    try:
        topic.start()
    finally:
        topic.close()
    names = sorted(configs.connectors)
    return Found(tuple(_verdict(name, configs, config) for name in names), _members(config, client))


def _members(config: ClusterConfig, client: Mapping[str, Any]) -> tuple[str, ...]:
    """The members of the group, whatever protocol they use: Kafka Connect's differs from
    semel's."""
    try:
        groups = admin_client(client).list_groups(config.group_id, timeout=_ASKED_IN)
    except KafkaException as error:
        raise failure(config.bootstrap_servers, error) from None
    members = (member for group in groups for member in group.members)
    return tuple(sorted(str(member.client_id) for member in members))


def check_alone(config: WorkerConfig, connectors: Sequence[Mapping[str, str]]) -> Found:
    """Judge the connectors that a standalone worker is started with."""
    return Found(
        tuple(_judged(c.get("name", ""), c, State.RUNNING, config) for c in connectors), ()
    )


def _verdict(name: str, configs: Configs, worker: ClusterConfig) -> Verdict:
    run = as_taken_over(configs.connectors[name], configs.tasks.get(name))
    return _judged(name, run, configs.target(name), worker)


def _judged(name: str, given: Mapping[str, str], state: State, worker: WorkerConfig) -> Verdict:
    facts = name, given.get("connector.class", ""), str(state)
    try:
        planned = plan_any(worker.inherited(worker.permitted(given)))
    except ConfigError as error:
        return Verdict(*facts, problem=str(error))
    try:
        begins, problem = _begins(planned), ""
    except SemelError as error:
        begins, problem = "", str(error)
    finally:
        planned.close()
    return Verdict(*facts, str(planned.guarantee), begins, tuple(planned.warnings), problem)


def _begins(planned: AnyPlan) -> str:
    if isinstance(planned, SourcePlan):
        found = source_offsets(planned)
        offsets = (f"{_text(p)} at {_text(o)}" for p, o in found)
        return _said("source offsets", offsets) or "at the beginning of the source"
    entries = planned.sink.entries()
    if entries:
        positions = (f"{e.topic_partition} at {e.position}" for e in entries)
        return _said("its ledger", positions)
    return _first(planned)


def _first(planned: Plan) -> str:
    connector = planned.connector
    reset = f"auto.offset.reset={connector.offset_reset}"
    cluster = Cluster(client_config(connector, "admin"))
    topics = cluster.matching(connector)
    if not topics:
        return f"{reset}, once its topics exist"
    found, _ = Groups(cluster.config).offsets(connector.group_id, partitions(topics))
    positions = (f"{tp} at {at}" for tp, (at, _) in sorted(found.items()))
    if connector.first_position == "reset":
        return reset
    return _said(f"consumer group {connector.group_id}", positions) or reset


def _said(where: str, positions: Iterable[str]) -> str:
    text = ", ".join(positions)
    return f"{where}: {text}" if text else ""


def _text(facts: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (facts or {}).items())
