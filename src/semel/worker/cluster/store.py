"""The config and status topics, as far as one worker has read them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from semel.config.source_connector import topic_settings
from semel.config.worker import CONFIGS, STATUSES, ClusterConfig
from semel.core.errors import TransientError
from semel.core.quoting import named
from semel.driver.base import State
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import FollowedTopic
from semel.kafka.transactions import PlainProducer, RecordsRefused
from semel.sources import is_source
from semel.worker import loggers
from semel.worker.cluster.records import Configs, Level, Record, Restart, StateRecord, Statuses
from semel.worker.errors import NotFound

log = logging.getLogger(__name__)

OnRestart = Callable[[Restart], None]


class Store:
    """Follows both topics, in threads of its own, from :meth:`start` until :meth:`close`.

    Hold ``changed`` while reading ``configs`` and ``statuses``; it is notified when they have
    changed. Restarts that are requested from then on are passed to ``on_restart``, and levels of
    loggers are set.
    """

    def __init__(self, config: ClusterConfig, client: Mapping[str, Any]) -> None:
        self.changed = threading.Condition()
        self.configs = Configs()
        self.statuses = Statuses()
        self._config = config
        self.on_restart: OnRestart = lambda _request: None
        self.changes = 0
        """how often ``changed`` was notified"""
        self.rebalances = 0
        """how often the assignment has changed since this worker started"""
        self.rebalanced_at = -math.inf
        self._is_new = False
        cluster = Cluster(client)
        self.config_topic = FollowedTopic(
            "config.storage.topic", config.config_topic, cluster, self._configure, self.wake
        )
        self._status_topic = FollowedTopic(
            "status.storage.topic", config.status_topic, cluster, self._state, self.wake
        )
        self._producer = PlainProducer(f"group {config.group_id}", client)
        self._producing = threading.Lock()

    def start(self) -> None:
        """Create the topics where they are missing, and read what they hold.

        Raises:
            ConfigError: a topic cannot be used as it is.
            ServiceError: a topic cannot be created.
            TransientError: a topic cannot be read.
        """
        config = self._config
        settings, of_status = (
            topic_settings(config.originals, prefix) for prefix in (CONFIGS, STATUSES)
        )
        self.config_topic.prepare(1, config.config_replication, settings, exactly=True)
        self._status_topic.prepare(config.status_partitions, config.status_replication, of_status)
        self.config_topic.start()
        self._status_topic.start()
        with self.changed:
            self._is_new = True

    def close(self) -> None:
        """Stop reading and writing."""
        with ExitStack() as ends:
            ends.callback(self.config_topic.close)
            ends.callback(self._status_topic.close)
            ends.callback(self._producer.drop)

    def wake(self) -> None:
        """Wake up those who wait for a change."""
        with self.changed:
            self.changes += 1
            self.changed.notify_all()

    def report(self, records: Sequence[Record]) -> None:
        """Write to the status topic.

        Raises:
            TransientError: the record may not have been written.
        """

        def send(producer: Any, failed: Any) -> None:
            for key, value in records:
                producer.produce(self._config.status_topic, value, key, on_delivery=failed)

        if records:
            with self._producing:
                try:
                    self._producer.send([send], lambda: None)
                except RecordsRefused:
                    text = refused(self._config.status_topic, records)
                    raise TransientError(text) from None

    def _configure(self, key: bytes, value: bytes | None) -> None:
        with self.changed:
            epoch = self.configs.assignment.epoch
            request = self.configs.apply(key, value)
            if not self._is_new:  # it is older than this worker
                return
            if epoch != self.configs.assignment.epoch:
                self.rebalances += 1
                self.rebalanced_at = time.monotonic()
        match request:
            case Restart():
                self.on_restart(request)
            case Level(logger, level):
                try:
                    loggers.set_level(logger, level)
                except NotFound as error:
                    log.warning("config topic: logger %s: %s", named(logger), error)

    def _state(self, key: bytes, value: bytes | None) -> None:
        with self.changed:
            self.statuses.apply(key, value)


def refused(topic: str, records: Sequence[Record]) -> str:
    """Why a topic does not take some records."""
    largest = max(len(key) + len(value or b"") for key, value in records)
    return (
        f"topic {named(topic)}: the brokers refuse a record; the largest has {largest:,} bytes. Do "
        "max.message.bytes of the topic and message.max.bytes of the brokers allow for it?"
    )


def stopped(store: Store, connector: str) -> bool:
    """Whether a connector should be stopped, and is. Hold ``store.changed``."""
    part = store.statuses.connectors.get(connector)
    return (
        store.configs.target(connector) is State.STOPPED
        and part is not None
        and part.state == State.STOPPED
        and not store.statuses.tasks.get(connector)
    )


def known_tasks(store: Store, connector: str) -> dict[int, StateRecord]:
    """The states of a connector's tasks by number. Those that no worker has reported are
    unassigned, at the worker that should run them. Hold ``store.changed``."""
    configs = store.configs
    tasks = dict(store.statuses.tasks.get(connector, {}))
    if configs.target(connector) is State.STOPPED:
        return tasks
    count = max(tasks, default=-1) + 1
    shares = len(configs.assignment.workers.get(connector, ()))
    name = configs.connectors.get(connector, {}).get("connector.class", "").strip()
    if shares > 1 and not is_source(name):  # a source may have fewer tasks
        count = max(count, shares)
    for number in range(count):
        owner = configs.assignment.owner(connector, number)
        if number not in tasks and owner is not None:
            tasks[number] = StateRecord(State.UNASSIGNED, urlsplit(owner).netloc)
    return tasks
