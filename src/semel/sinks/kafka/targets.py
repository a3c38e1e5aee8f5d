"""The target topics: checks that they can take what is sent to them, and what an audit reads in
them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, Problem, TransientError, misconfigured
from semel.core.ledger import Hole, LedgerEntry, TopicPartition
from semel.core.problems import refuse
from semel.core.quoting import named
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import headers_of
from semel.kafka.dead_letters import ERRORS
from semel.kafka.reader import read_ranges
from semel.kafka.topics import check_replicas, create_dead_letter_topic, like, of_copy
from semel.sinks.base import Snapshot
from semel.sinks.kafka.config import KEEP, KafkaConfig

log = logging.getLogger(__name__)


class Targets:
    """The targets of one connector. ``names`` holds those that have been looked at.

    ``ledger`` is the ledger topic; ``limit`` is told how many bytes a target takes at once.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        config: KafkaConfig,
        source: Cluster,
        target: Cluster,
        ledger: str,
        limit: Callable[[int], None],
    ) -> None:
        self._connector = connector
        self._config = config
        self._source = source
        self._target = target
        self._ledger = ledger
        self._limit = limit
        self._elsewhere = target is not source
        self.names: dict[str, str] = {}

    def check(self) -> None:
        """Check what can be checked without a cluster.

        Raises:
            ConfigError: records would come back, or the ledger cannot hold a position.
        """
        refuse(self._problems())

    def _problems(self) -> Iterator[Problem]:
        connector = self._connector
        for topic in connector.topics:
            yield from self._loop(topic)
            if self._ledger in (topic, self._config.topic(topic)):
                yield Problem(
                    "offset.storage.topic",
                    f"connector {connector.name}: {self._ledger} is the ledger topic "
                    "(offset.storage.topic), and holds nothing else: it can neither be "
                    "copied nor be a target",
                )
            if self._config.topic(topic) == connector.dead_letter_topic:
                yield Problem(
                    "errors.deadletterqueue.topic.name",
                    f"connector {connector.name}: errors.deadletterqueue.topic.name="
                    f"{connector.dead_letter_topic} is the target of topic {named(topic)} too: "
                    "dead letters need a topic of their own",
                )
        pattern = connector.topics_regex
        if pattern and not self._elsewhere and connector.reads(self._ledger):
            yield Problem(
                "topics.regex",
                f"connector {connector.name}: topics.regex={pattern!r} matches the ledger "
                f"topic {named(self._ledger)}: each commit would make one more record to copy, "
                "forever. Exclude it, or name another topic in offset.storage.topic",
            )
        several = len(connector.topics) > 1 or connector.topics_regex
        if self._elsewhere and several and "${topic}" not in self._config.topic_format:
            yield Problem(
                "topic.rename.format",
                f"connector {connector.name}: topic.rename.format={self._config.topic_format!r} "
                "sends several topics to one topic of another cluster, where the ledger keeps a "
                "position for each topic and partition. Let it contain ${topic}, or make a "
                "connector for each topic",
            )
        yield from self._merged(connector.topics)

    def _merged(self, topics: Collection[str]) -> list[Problem]:
        """Why transforms cannot send several topics to one topic of another cluster."""
        seen: dict[str, str] = {}
        for topic in sorted(topics) if self._elsewhere else ():
            other = seen.setdefault(self._config.topic(topic), topic)
            if other != topic and "${topic}" in self._config.topic_format:
                return [
                    Problem(
                        "transforms",
                        f"connector {self._connector.name}: transforms send topics {named(other)} "
                        f"and {named(topic)} to topic {named(self._config.topic(topic))} of "
                        "another cluster, where the ledger keeps a position for each topic and "
                        "partition. Make a connector for each topic",
                    )
                ]
        return []

    def _loop(self, topic: str) -> list[Problem]:
        """Why a topic cannot be copied to its target: the records would come back."""
        name = self._config.topic(topic)
        connector = self._connector
        if connector.reads(name) and not self._elsewhere:
            return [
                Problem(
                    "topic.rename.format",
                    f"connector {connector.name}: "
                    f"topic.rename.format={self._config.topic_format!r} sends topic {named(topic)} "
                    f"to topic {named(name)}, which the connector reads: its records would go "
                    "round forever. Choose another name, such as ${topic}.copy, or another cluster "
                    "by dest.kafka.bootstrap.servers",
                )
            ]
        return []

    def prepare(self, topics: Collection[str]) -> None:
        """Check all targets, and create the dead letter topic.

        Raises:
            ConfigError: a target is missing or too small.
        """
        connector, config = self._connector, self._config
        if merged := self._merged(topics):
            raise ConfigError(*merged)
        there = self._target.cluster_id() if self._elsewhere else ""
        if there and there == self._source.cluster_id():
            raise misconfigured(
                "dest.kafka.bootstrap.servers",
                f"connector {connector.name}: dest.kafka.bootstrap.servers={config.target_servers} "
                f"is the cluster of bootstrap.servers={connector.bootstrap_servers}. Remove it",
            )
        for topic in topics:
            self.of(topic)
            self._warn(topic)
        if connector.dead_letter_topic:
            create_dead_letter_topic(connector, self._target)

    def _warn(self, topic: str) -> None:
        """Warn of a target that deletes records that the source still has."""
        name = self.of(topic)
        source, target = self._source.topic_config(topic), self._target.topic_config(name)
        if source is None or target is None:
            return
        if (warning := of_copy(name, target, topic, source)) is not None:
            log.warning("connector %s: %s", self._connector.name, warning)

    def of(self, topic: str) -> str:
        """The target of a topic; created if it may be.

        Raises:
            ConfigError: it is missing, or has too few partitions.
        """
        if topic in self.names:
            return self.names[topic]
        if loop := self._loop(topic):
            raise ConfigError(*loop)
        name = self._config.topic(topic)
        if name == self._ledger:
            raise ConfigError(
                f"connector {self._connector.name}: topic.rename.format="
                f"{self._config.topic_format!r} sends topic {named(topic)} to {named(name)}, which "
                "is the ledger topic (offset.storage.topic) and holds nothing else. Choose "
                "another name"
            )
        partitions = self._source.topics().get(topic, 0)
        count = self._target.topics().get(name, 0)
        if not count and self._config.auto_create:
            config = like(self._source.topic_config(topic) or {})
            self._target.create_topic(name, partitions, self._config.replication, config)
            count = partitions
        where = f"connector {self._connector.name}: topic {named(name)} for topic {named(topic)}"
        if not count:
            raise ConfigError(
                f"{where} does not exist. Create it, or set auto.create=true; "
                f"topic.rename.format={self._config.topic_format!r} names it"
            )
        keeps = self._config.partitioner == KEEP
        if count < partitions and (keeps or self._elsewhere):
            why = (
                "partitioner=keep writes to the same partition"
                if keeps
                else "in another cluster the ledger keeps a position for each of them there"
            )
            raise ConfigError(
                f"{where} has {count} partitions, but {topic} has {partitions}, and {why}. Add "
                "partitions"
            )
        check_replicas(where, self._target, name)
        batch = self._target.largest_batch(name)
        if batch is not None:
            self._limit(batch)
        self.names[topic] = name
        return name

    def refuse_written(
        self,
        topics: Collection[str],
        recorded: Collection[str],
        lost: Collection[TopicPartition] = (),
    ) -> None:
        """Refuse to start copying topics whose targets hold records that nobody accounts for.

        Args:
            topics: those for which the ledger has no position, or not for all partitions.
            recorded: those for which it has one: the records in a target shared with them are
                theirs.
            lost: the partitions without a position, if only some have none.

        Raises:
            ConfigError: records could be copied again, or skipped.
        """
        if self._config.nonempty == "append":
            return
        shared = {self.of(topic) for topic in recorded}
        for topic in sorted(topics):
            name = self.of(topic)
            if name in shared or not self._is_written(name):
                continue
            some = sorted(tp for tp in lost if tp.topic == topic) or [TopicPartition(topic, 0)]
            what = f"topic {named(topic)} was copied"
            if lost:
                what = f"{' and '.join(map(str, some))} {'were' if some[1:] else 'was'} copied"
            raise ConfigError(
                f"connector {self._connector.name}: topic {named(name)} holds records, but the "
                f"ledger (topic {named(self._ledger)}, and the offsets of consumer group "
                f"{self._connector.group_id}) does not know how far {what}. "
                "Starting now could copy records again, or skip some. If this connector has copied "
                "it before, its ledger is lost: say where to continue for each partition, with "
                f"semel offsets set, its file and {' '.join(f'{tp}=OFFSET' for tp in some)}. If "
                "the records are somebody else's, set dest.topic.nonempty=append"
            )

    def _is_written(self, name: str) -> bool:
        """Whether a topic has ever had a record, or a transaction."""
        partitions = [TopicPartition(name, p) for p in range(self._target.topics().get(name, 0))]
        return any(self._target.latest(partitions, committed=False).values())


# For the audit

_POLL = 0.05
_PLACE = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64())])


def take_snapshot(
    connector: ConnectorConfig,
    config: KafkaConfig,
    recorded: Callable[[], list[LedgerEntry]],
    holes: Callable[[], Sequence[Hole]],
    cluster: Cluster,
    targets: Mapping[str, str],
    consumer: Mapping[str, Any],
    timeout: float,
) -> Snapshot:
    """The ledger, the committed records in the targets, and where each came from.

    Kafka cannot be read at one instant. The ledger is read first, then all that the targets hold by
    then, once open transactions have ended. Records that were committed in between lie beyond the
    ledger's positions, which their provenance shows.

    ``recorded`` reads the ledger, and ``holes`` then gives its holes; ``timeout`` is how long to
    wait for open transactions, in seconds.
    """
    entries = recorded()
    unread = holes()
    coordinates = _Coordinates(entries)
    names = (config.topic_header, config.partition_header, config.offset_header)
    letters = connector.dead_letter_topic if connector.dead_letter_headers else ""
    counted = {*targets.values(), *([letters] if letters else [])}
    partitions = [
        TopicPartition(t, p) for t, n in cluster.topics().items() if t in counted for p in range(n)
    ]
    earliest = cluster.earliest(partitions)
    ends = cluster.latest(partitions, committed=False)
    _await_committed(cluster, ends, timeout)
    rows = dict.fromkeys(targets.values(), 0)
    for messages in read_ranges(connector, earliest, ends, client=consumer):
        for message in messages:
            topic = str(message.topic())
            if topic == letters:
                coordinates.letter(connector.name, message)
            if topic in rows:
                rows[topic] += 1
                if connector.provenance:
                    coordinates.record(message, names)
    dropped = {tp.topic for tp, at in earliest.items() if at} | cluster.compacted(rows)
    return Snapshot(
        entries=entries,
        holes=unread,
        records=_tables(coordinates.records),
        rows=_settled(rows, targets, entries, recorded()),
        untraced=coordinates.untraced,
        targets=targets,
        dead=_tables(coordinates.dead),
        incomplete=frozenset(t for t, target in targets.items() if target in dropped),
        restamps=True,
    )


class _Coordinates:
    """Coordinates below the ledger's positions, by topic."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self._positions = {e.topic_partition: e.position for e in entries}
        self.records: dict[str, list[tuple[int, ...]]] = {}
        self.dead: dict[str, list[tuple[int, ...]]] = {}
        self.untraced: Counter[str] = Counter()

    def record(self, message: Message, names: tuple[str, str, str]) -> None:
        if not self._add(self.records, _header(message), names):
            self.untraced[str(message.topic())] += 1

    def letter(self, connector: str, message: Message) -> None:
        headers = _header(message)
        if headers.get(f"{ERRORS}connector.name") == connector.encode():
            names = (f"{ERRORS}topic", f"{ERRORS}partition", f"{ERRORS}offset")
            kind, millis = message.timestamp()
            dated = kind == TIMESTAMP_CREATE_TIME and millis > 0
            self._add(self.dead, headers, names, millis if dated else -1)

    def _add(
        self,
        to: dict[str, list[tuple[int, ...]]],
        headers: Mapping[str, bytes | None],
        names: tuple[str, str, str],
        *more: int,
    ) -> bool:
        """Add a record; returns whether its headers say where it came from."""
        try:
            topic, partition, offset = ((headers[n] or b"").decode() for n in names)
            place, at = TopicPartition(topic, int(partition)), int(offset)
        except (KeyError, ValueError):
            return False
        if at < self._positions.get(place, 0):
            to.setdefault(topic, []).append((place.partition, at, *more))
        return True


def _header(message: Message) -> Mapping[str, bytes | None]:
    """Headers by name; of several, the last one: those before it came with the record."""
    return dict(headers_of(message) or ())


def _tables(places_by_topic: Mapping[str, Sequence[tuple[int, ...]]]) -> dict[str, pa.Table]:
    tables = {}
    for topic, places in places_by_topic.items():
        columns = zip(_PLACE, zip(*places, strict=True), strict=False)
        tables[topic] = pa.table({f.name: pa.array(column, f.type) for f, column in columns})
    return tables


def _await_committed(cluster: Cluster, ends: Mapping[TopicPartition, int], timeout: float) -> None:
    """Wait until no transaction is open below these ends."""
    asked = time.monotonic()
    while True:
        stable = cluster.latest(ends)
        if all(stable[tp] >= end for tp, end in ends.items()):
            return
        if time.monotonic() - asked > timeout:
            raise TransientError("a transaction in a target topic does not end")
        time.sleep(_POLL)


def _settled(
    rows: Mapping[str, int],
    targets: Mapping[str, str],
    before: Sequence[LedgerEntry],
    after: Sequence[LedgerEntry],
) -> dict[str, int]:
    """The number of records of each target when the ledger was read first: those that the ledger
    has counted since then are no excess."""

    def written(entries: Sequence[LedgerEntry], target: str) -> int:
        return sum(e.rows_written for e in entries if targets.get(e.topic) == target)

    settled = {}
    for target, count in rows.items():
        least, most = written(before, target), written(after, target)
        settled[target] = count if count < least else least + max(0, count - most)
    return settled
