"""The topics that a source connector writes to: they exist, or may be created."""

from __future__ import annotations

import logging
from collections.abc import Callable

from semel.config import SourceConnectorConfig
from semel.errors import ConfigError, ServiceError
from semel.kafka.cluster import Cluster
from semel.kafka.presence import check_replicas, description

log = logging.getLogger(__name__)


class Topics:
    """The topics of one connector. ``largest`` is the most bytes that all of those which were
    looked at take at once; None as long as none says."""

    def __init__(
        self,
        connector: SourceConnectorConfig,
        cluster: Cluster,
        tell: Callable[[str], object] = log.warning,
    ) -> None:
        self._tell = tell
        self._connector = connector
        self._cluster = cluster
        self._known: set[str] = set()
        self.largest: int | None = None

    def ensure(self, topic: str) -> None:
        """Create a topic that is missing, if that is allowed. Without ``topic.creation.*`` it is
        created with the brokers' defaults, if they create topics for producers, too.

        Raises:
            ConfigError: it is missing and may not be created, or it cannot be written.
            ServiceError: it cannot be created.
        """
        if topic in self._known:
            return
        connector = self._connector
        where = f"connector {connector.name}: topic {topic}"
        if topic == connector.offsets_topic:
            raise ConfigError(
                f"{where} holds the source offsets: records there would be taken for offsets. "
                "Write to another topic, or set offsets.storage.topic"
            )
        if topic not in self._cluster.topics() and description(self._cluster, topic) is None:
            self._create(topic, where)
        check_replicas(where, self._cluster, topic)
        largest = self._cluster.largest_batch(topic)
        if largest is not None:
            self.largest = min(largest, self.largest or largest)
        self._known.add(topic)

    def _ask_brokers(self, where: str) -> None:
        """Raises ConfigError: the brokers would not create a topic for a producer."""
        creates = self._cluster.creates_topics()
        if creates:
            return
        why = "where auto.create.topics.enable=false"
        if creates is None:
            why = "and this user may not ask whether auto.create.topics.enable=true"
        raise ConfigError(
            f"{where} does not exist in {self._connector.bootstrap_servers}, {why}. Create it, or "
            "set topic.creation.default.partitions and topic.creation.default.replication.factor"
        )

    def _create(self, topic: str, where: str) -> None:
        creation = self._connector.topic_creation
        group = creation.group_of(topic)
        if group is None:
            raise ConfigError(
                f"{where} does not exist in {self._connector.bootstrap_servers}, and "
                "topic.creation.enable=false. Create it"
            )
        if creation.as_brokers_do:
            self._ask_brokers(where)
        try:
            self._cluster.create_topic(topic, group.partitions, group.replication, group.config)
        except ServiceError as error:
            raise ServiceError(
                f"connector {self._connector.name}: {error}. Correct "
                f"topic.creation.{group.name}.*, grant CREATE on it to this user, or create it"
            ) from None
        if creation.as_brokers_do:
            self._tell(
                f"{where} was missing and is created with the brokers' defaults: "
                "topic.creation.default.* is not set"
            )
