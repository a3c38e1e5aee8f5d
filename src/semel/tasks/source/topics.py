"""The topics that a source connector writes to: they exist, or may be created."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable

from semel.config import SourceConnectorConfig
from semel.config.connector import TOPIC_NAME
from semel.config.source_connector import TopicGroup
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import TopicPartition
from semel.core.quoting import named
from semel.kafka.cluster import Cluster
from semel.kafka.topics import check_replicas, description

log = logging.getLogger(__name__)


def with_records(cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Those of these topics that hold records."""
    counts = cluster.topics()
    places = [TopicPartition(t, p) for t in sorted({*names}) for p in range(counts.get(t, 0))]
    starts, ends = cluster.earliest(places), cluster.latest(places)
    return sorted({tp.topic for tp in places if ends[tp] > starts[tp]})


class Topics:
    """The topics of one connector. ``largest`` is the largest batch, in bytes, that all topics seen
    so far accept; None until one of them sets a limit."""

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
        created with the brokers' defaults, if they would create topics for producers.

        Raises:
            ConfigError: it is missing and may not be created, or it cannot be written.
            ServiceError: it cannot be created.
        """
        if topic in self._known:
            return
        where = self._where(topic)
        if not self._exists(topic, self._cluster.topics()):
            self._create(topic, where)
        check_replicas(where, self._cluster, topic)
        largest = self._cluster.largest_batch(topic)
        if largest is not None:
            self.largest = min(largest, self.largest or largest)
        self._known.add(topic)

    def check(self, topics: Iterable[str]) -> None:
        """Check topics whose first records may come later, or never: each exists or may be created.

        Raises:
            ConfigError: one is missing and may not be created.
            ServiceError: one may not be described.
        """
        there = self._cluster.topics()
        missing = [t for t in topics if t not in self._known and not self._exists(t, there)]
        for topic in missing:
            self._check_creation(topic)
        if missing and self._connector.topic_creation.as_brokers_do:
            self._ask_brokers(self._where(missing[0]))

    def _where(self, topic: str) -> str:
        return f"connector {self._connector.name}: topic {named(topic)}"

    def _exists(self, topic: str, there: Container[str]) -> bool:
        """Whether a topic is there; ``there`` are those that a broker has listed.

        Raises:
            ConfigError: no topic can have the name, or it is the topic of the source offsets.
        """
        if not TOPIC_NAME.fullmatch(topic):
            raise ConfigError(
                f"{self._where(topic)}: Kafka allows only letters, digits, '.', '_' and '-' in a "
                "topic's name, 249 at most, and neither '.' nor '..'. Choose another name with "
                "transforms, such as org.apache.kafka.connect.transforms.RegexRouter"
            )
        if topic == self._connector.offsets_topic:
            raise ConfigError(
                f"{self._where(topic)} holds the source offsets: records there would be taken for "
                "offsets. Write to another topic, or set offsets.storage.topic"
            )
        return topic in there or description(self._cluster, topic) is not None

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

    def _check_creation(self, topic: str) -> TopicGroup:
        """How a missing topic is created. Raises ConfigError: it may not be."""
        group = self._connector.topic_creation.group_of(topic)
        if group is None:
            raise ConfigError(
                f"{self._where(topic)} does not exist in {self._connector.bootstrap_servers}, and "
                "topic.creation.enable=false. Create it"
            )
        return group

    def _create(self, topic: str, where: str) -> None:
        creation = self._connector.topic_creation
        group = self._check_creation(topic)
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
