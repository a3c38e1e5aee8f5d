"""Reports what semel would do with a cluster's connectors, without changing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from semel.config.cluster import ClusterConfig
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError, SemelError
from semel.driver.base import State
from semel.driver.planning import plan_any
from semel.kafka.cluster import Cluster, admin_client
from semel.kafka.errors import failure
from semel.kafka.followed import FollowedTopic
from semel.worker.cluster.records import Configs

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
class CheckResult:
    """A cluster's connectors, and the clients that are in its group now."""

    connectors: tuple[Verdict, ...]
    members: tuple[str, ...]


def check(config: ClusterConfig, client: Mapping[str, Any]) -> CheckResult:
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
    return CheckResult(
        tuple(_verdict(name, configs, config) for name in names), _members(config, client)
    )


def _members(config: ClusterConfig, client: Mapping[str, Any]) -> tuple[str, ...]:
    """The members of the group, whatever protocol they use: Kafka Connect's differs from
    semel's."""
    try:
        groups = admin_client(client).list_groups(config.group_id, timeout=_ASKED_IN)
    except KafkaException as error:
        raise failure(config.bootstrap_servers, error) from None
    members = (member for group in groups for member in group.members)
    return tuple(sorted(str(member.client_id) for member in members))


def check_alone(config: WorkerConfig, connectors: Sequence[Mapping[str, str]]) -> CheckResult:
    """Judge the connectors that a standalone worker is started with."""
    return CheckResult(
        tuple(_judged(c.get("name", ""), c, State.RUNNING, config) for c in connectors), ()
    )


def _verdict(name: str, configs: Configs, worker: ClusterConfig) -> Verdict:
    return _judged(name, configs.run(name), configs.target(name), worker)


def _judged(name: str, given: Mapping[str, str], state: State, worker: WorkerConfig) -> Verdict:
    facts = name, given.get("connector.class", ""), str(state)
    try:
        planned = plan_any(worker.inherited(worker.permitted(given)))
    except ConfigError as error:
        return Verdict(*facts, problem=str(error))
    try:
        begins, problem = planned.offsets.begins(), ""
    except SemelError as error:
        begins, problem = "", str(error)
    finally:
        planned.close()
    return Verdict(*facts, str(planned.guarantee), begins, tuple(planned.warnings), problem)
