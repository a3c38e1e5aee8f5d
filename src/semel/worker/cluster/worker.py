"""A worker of a cluster, and the check of what it would do there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from semel.config.worker import ClusterConfig, WorkerConfig
from semel.core.errors import ConfigError, SemelError, TransientError
from semel.driver.base import State
from semel.driver.planning import plan_any
from semel.driver.runtime import Runtime
from semel.kafka.answers import failure
from semel.kafka.cluster import Cluster, admin_client
from semel.kafka.compacted import FollowedTopic
from semel.worker.cluster.follower import Follower
from semel.worker.cluster.herder import ClusterHerder
from semel.worker.cluster.leader import Leader, Leadership
from semel.worker.cluster.membership import Membership
from semel.worker.cluster.records import Configs
from semel.worker.cluster.store import Store

log = logging.getLogger(__name__)

_LOOK, _CALM = 0.2, 1.0
_STIRS = 5.0
"""For this many seconds after a change of the topics or of the group, looks are more frequent."""
_ASKED_IN = 10.0


class ClusterWorker:
    """Takes part in its group from its start until it is closed. Use it in a ``with`` statement.

    Args:
        runtime: runs the connectors that this worker is assigned.
        client: librdkafka's settings to reach the cluster.

    Raises:
        ConfigError: a topic cannot be used as it is.
        ServiceError: a topic cannot be created.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ClusterConfig,
        client: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._store = Store(config, client)
        self._membership = Membership(config, client, self._store.wake)
        self._leadership = Leadership(config.group_id, client, self._store.config_topic)
        self._follower = Follower(config, self._store, self._membership, runtime)
        self._store.on_restart = self._follower.restart
        self._leader = Leader(config, self._store, self._membership, self._leadership)
        self.herder = ClusterHerder(
            config, self._store, self._membership, self._leadership, self._follower
        )
        self.failed: Exception | None = None
        """what has ended this worker early"""
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(look,), daemon=True, name=f"semel-{name}")
            for name, look in (
                ("follow", self._follower.look),
                ("report", self._follower.write),
                ("lead", self._leader.look),
            )
        ]

    def __enter__(self) -> ClusterWorker:
        try:
            self._store.start()
        except SemelError:
            self._store.close()
            raise
        self._membership.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Ask the others to wait for this worker, end its connectors, and leave the group."""
        self._follower.leave()
        self._ended.set()
        self._store.wake()
        for thread in self._threads:
            thread.join()
        self._follower.end()
        self._leadership.give_up()
        self._membership.leave()
        self._store.close()

    def wait(self, stop: threading.Event) -> None:
        """Wait until ``stop`` is set.

        Raises:
            Exception: this worker cannot continue. It ends even for an unforeseen reason, because
                the group would count on a member that does nothing.
        """
        while not stop.wait(_LOOK):
            if self.failed is not None:
                raise self.failed

    def _repeat(self, look: Callable[[], None]) -> None:
        calm_at = time.monotonic() + _STIRS
        while not self._ended.is_set():
            known = self._store.changes
            try:
                look()
            except TransientError as error:
                log.warning("%s; trying again", error)
            except Exception as error:
                self.failed = error
                return
            with self._store.changed:
                if self._store.changes == known and not self._ended.is_set():
                    is_calm = time.monotonic() > calm_at
                    self._store.changed.wait(_CALM if is_calm else _LOOK)
                if self._store.changes != known:
                    calm_at = time.monotonic() + _STIRS


# The check: what semel would do with the connectors, without changing anything


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
