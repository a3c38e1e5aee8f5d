"""The topics that a source connector writes to: they exist, or may be created."""

from __future__ import annotations

from semel.config import SourceConnectorConfig
from semel.errors import ConfigError, ServiceError
from semel.kafka.cluster import Cluster
from semel.kafka.presence import check_replicas


class Topics:
    """The topics of one connector. ``largest`` is the most bytes that all of those which were
    looked at take at once; None as long as none says."""

    def __init__(self, connector: SourceConnectorConfig, cluster: Cluster) -> None:
        self._connector = connector
        self._cluster = cluster
        self._known: set[str] = set()
        self.largest: int | None = None

    def ensure(self, topic: str) -> None:
        """Create a topic that is missing, if that is allowed. The brokers' own creation, with their
        defaults, is never relied on.

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
        if topic not in self._cluster.topics():
            self._create(topic, where)
        check_replicas(where, self._cluster, topic)
        largest = self._cluster.largest_batch(topic)
        if largest is not None:
            self.largest = min(largest, self.largest or largest)
        self._known.add(topic)

    def _create(self, topic: str, where: str) -> None:
        group = self._connector.topic_creation.group_of(topic)
        if group is None:
            raise ConfigError(
                f"{where} does not exist in {self._connector.bootstrap_servers}. Create it, or set "
                "topic.creation.default.partitions and topic.creation.default.replication.factor"
            )
        try:
            self._cluster.create_topic(topic, group.partitions, group.replication, group.config)
        except ServiceError as error:
            raise ServiceError(
                f"connector {self._connector.name}: {error}. Correct "
                f"topic.creation.{group.name}.*, allow this user to create topics, or create it"
            ) from None
