"""The topics of an application's own: changelogs of stores, repartition topics, and how far the
state has come.

Their names are those that Kafka Streams gives. A changelog is compacted; a repartition topic keeps
everything. The state's position is a record of a compacted topic, written in the transaction that
holds the changes which lead to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.ledger import TopicPartition
from semel.core.quoting import named
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import CompactedTopic
from semel.kafka.reader import read_ranges
from semel.streams.store import State, Values
from semel.streams.topology import Source, SubTopology, Topology

POSITION = b"position"
"""The key of the record that says how far the state of a partition has come."""

_SEGMENT = str(50 * 1024 * 1024)
"""``segment.bytes``, as Kafka Streams has it: only closed segments are compacted."""
_COMPACT = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "86400000",  # local state that is older than this is read anew
    "segment.bytes": _SEGMENT,
}
_FOREVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "segment.bytes": _SEGMENT,
}
_WRONG = {
    "cleanup.policy": "delete records that are still needed",
    "message.timestamp.type": "give records another time",
}
"""Settings of a topic that is there already, and what another value would do."""
_PAUSE = 0.02
_FORMAT = 3
"""How markers, and the keys and values of stores (:mod:`semel.streams.codec`), are written."""
_UNNAMED = "KSTREAM-SINK-"


def changelog_of(application: str, store: str) -> str:
    """The topic of a store's changes."""
    return f"{application}-{store}-changelog"


def repartition_of(application: str, name: str) -> str:
    """The topic in which records are distributed anew."""
    return f"{application}-{name}-repartition"


def positions_of(application: str, number: int) -> str:
    """The topic that says how far the states of a sub-topology's partitions have come."""
    return f"{application}-{number}-positions-changelog"


def state_of(application: str, sub: SubTopology, partition: int) -> str:
    """What messages call a partition's state."""
    return f"connector {application}: state of sub-topology {sub.number}, partition {partition}"


def results_of(application: str, sink: str) -> str:
    """What the results of a sink are called in the target, the ``${topic}`` of a table's name: the
    sink's name, if it was given one."""
    return application if sink.startswith(_UNNAMED) else sink


def written(application: str, topology: Topology) -> list[str]:
    """What the results for the target are called there."""
    sinks = [item for sub in topology.subs for item in sub.sinks.items()]
    return [results_of(application, name) for name, sink in sinks if sink.topic is None]


def _owners(count: int, tasks: int) -> np.ndarray:
    """Which task Kafka's range assignor gives each of so many partitions of a topic."""
    return np.repeat(np.arange(tasks), [len(p) for p in np.array_split(np.arange(count), tasks)])


@dataclass(frozen=True, slots=True)
class Marker:
    """How far the state of a partition has come.

    ``positions`` are those of the topics that it reads; ``logs`` the ids of its changelogs;
    ``plan`` tells topologies apart. Beside the local state, ``ends`` are offsets of the changelogs:
    it has all changes before them, as was known at the time ``at``, in seconds since 1970.
    """

    positions: Mapping[str, int]
    logs: Mapping[str, str]
    plan: str
    ends: Mapping[str, int] = field(default_factory=dict)
    at: float = 0.0
    format: int = _FORMAT

    def dumped(self, *, local: bool) -> bytes:
        """The marker as text, for the topic or for the ``local`` state."""
        facts = asdict(self)
        if not local:
            del facts["ends"], facts["at"]
        return json.dumps(facts, sort_keys=True).encode()

    @classmethod
    def kept(cls, text: bytes | None) -> Marker | None:
        """The marker of a local state, None if it has none, or if this version of semel cannot read
        that state: it is restored then."""
        facts = json.loads(text or b"{}")
        return cls(**facts) if facts.get("format") == _FORMAT else None

    @classmethod
    def loaded(cls, text: bytes, where: str) -> Marker:
        """The marker of a text. ``where`` says whose state it belongs to.

        Raises:
            ServiceError: another version of semel has written the state.
        """
        facts = json.loads(text)
        written = facts.get("format", 1)
        if written != _FORMAT:
            raise ServiceError(
                f"{where}: it was stored in format {written} by another version of semel; this one "
                f"reads format {_FORMAT}. Run that version, or give the connector another name to "
                "begin anew"
            )
        return cls(**facts)


class Topics:
    """The topics of one application, by what the topology calls them."""

    def __init__(self, application: str, topology: Topology) -> None:
        self.application = application
        self.topology = topology
        internal = {
            sink.topic
            for sub in topology.subs
            for sink in sub.sinks.values()
            if sink.is_repartition and sink.topic
        }
        self._internal = {topic: repartition_of(application, topic) for topic in internal}

    def real(self, topic: str) -> str:
        """The name in Kafka of a topic of the topology."""
        return self._internal.get(topic, topic)

    @cached_property
    def read(self) -> dict[str, tuple[SubTopology, Source]]:
        """What is read, by the topic's name in Kafka: not what global tables are made of."""
        sources: dict[str, tuple[SubTopology, Source]] = {}
        for sub in (s for s in self.topology.subs if not s.is_global):
            for topic, source in sub.sources.items():
                if self.real(topic) in sources:
                    raise ConfigError(
                        f"connector {self.application}: topic {named(topic)} is read in two "
                        "places that share nothing. Read it once, and use the stream twice"
                    )
                sources[self.real(topic)] = sub, source
        return sources

    @cached_property
    def globals(self) -> dict[str, tuple[SubTopology, Source]]:
        """What global tables are made of, by the topic's name."""
        subs = [sub for sub in self.topology.subs if sub.is_global]
        return {topic: (sub, source) for sub in subs for topic, source in sub.sources.items()}

    def beside(self, topic: str) -> Source | None:
        """A topic of others that is joined with a repartition topic, if there is one: equal keys
        must be in partitions of the same number."""
        others = {
            t for together in self.topology.copartitioned if topic in together for t in together
        }
        sources = [source for _, source in self.read.values() if source.topic in others]
        return next((source for source in sources if not source.is_repartition), None)

    @cached_property
    def met(self) -> set[str]:
        """The topics of others that are joined with a repartition topic."""
        inside = self._internal.keys()
        together = [group for group in self.topology.copartitioned if group & inside]
        return {topic for group in together for topic in group - inside}

    def outside(self) -> list[str]:
        """The topics of others that are read."""
        inside = set(self._internal.values())
        return [topic for topic in self.read if topic not in inside]

    def changelogs(self, sub: SubTopology) -> dict[str, str]:
        """The changelog of each store that has one."""
        logged = [spec.name for spec in sub.stores if spec.logged]
        return {name: changelog_of(self.application, name) for name in logged}

    def create(self, cluster: Cluster, tasks: int) -> dict[str, int]:
        """Create what is missing; returns the partitions of each topic that is read, by so many
        tasks.

        Raises:
            TopicMissing, ConfigError: a topic of others is missing, or topics do not fit.
            ServiceError: one cannot be created.
        """
        there = cluster.topics()
        counts = {topic: there.get(topic, 0) for topic in self.outside()}
        for logical, count in self.topology.partitions(counts).items():
            topic = self.real(logical)
            self._create(cluster, there, topic, count, _FOREVER)
            counts[topic] = count
        for sub in (s for s in self.topology.subs if not s.is_global):
            numbers = {topic: counts[topic] for topic in sorted(map(self.real, sub.topics))}
            count = max(numbers.values())
            owners = _owners(count, tasks)
            if any((_owners(n, tasks) != owners[:n]).any() for n in numbers.values()):
                text = ", ".join(f"{topic}: {n}" for topic, n in numbers.items())
                raise ConfigError(
                    f"connector {self.application}: these topics have different numbers of "
                    f"partitions ({text}). With tasks.max={tasks}, partitions of the same number "
                    f"would go to different tasks. Set tasks.max to 1 or to at least {count}"
                )
            topics = [*self.changelogs(sub).values(), positions_of(self.application, sub.number)]
            for topic in topics:
                self._create(cluster, there, topic, count, _COMPACT)
        return counts

    def _create(
        self,
        cluster: Cluster,
        there: Mapping[str, int],
        topic: str,
        count: int,
        config: Mapping[str, str],
    ) -> None:
        if topic not in there:
            cluster.create_topic(topic, count, config=config)
            return
        if there[topic] != count:
            raise ConfigError(
                f"connector {self.application}: topic {named(topic)} has {there[topic]} "
                f"partitions, but {count} are needed: a topic that is read, or the topology, has "
                "changed. State cannot be moved between partitions. Give the connector another "
                "name, and it starts from the beginning"
            )
        current = cluster.topic_config(topic) or config
        for key in _WRONG.keys() & config.keys():
            if (value := current.get(key, config[key])) != config[key]:
                raise ConfigError(
                    f"connector {self.application}: topic {named(topic)} has {key}={value}, "
                    f"which would {_WRONG[key]}. Set it to {config[key]}"
                )


class Keeper:
    """Reads what the application's topics hold of one partition after another."""

    def __init__(self, connector: ConnectorConfig, topics: Topics, cluster: Cluster) -> None:
        self._connector = connector
        self._topics = topics
        self._cluster = cluster
        self._client: Mapping[str, Any] = client_config(connector, "consumer")
        self._positions: dict[int, CompactedTopic] = {}

    def logs(self, sub: SubTopology) -> dict[str, str]:
        """The ids of the changelogs.

        Raises:
            ServiceError: one is gone.
        """
        topics = self._topics.changelogs(sub).values()
        logs = self._cluster.logs(topics)
        for topic in topics:
            if topic not in logs:
                raise ServiceError(
                    f"connector {self._connector.name}: changelog {named(topic)} is gone"
                )
        return {topic: logs[topic].topic_id for topic in topics}

    def marker(self, sub: SubTopology, partition: int, longest: float) -> Marker | None:
        """How far the state of a partition has come; None if nothing says so. Nobody may write
        there meanwhile, but a transaction that is open may hold up the answer.

        Raises:
            ServiceError: another version of semel has written it.
            TransientError: such a transaction does not end within ``longest`` seconds.
        """
        name = positions_of(self._connector.name, sub.number)
        if sub.number not in self._positions:
            self._positions[sub.number] = CompactedTopic(
                self._connector.name, "positions topic", name, self._cluster, self._client
            )
        topic, until = self._positions[sub.number], time.monotonic() + longest
        while True:
            contents = topic.read(lambda key: key == POSITION, [partition], 0.0, expected=True)
            if contents.is_complete:
                text = contents.values.get(POSITION)
                where = state_of(self._connector.name, sub, partition)
                return None if text is None else Marker.loaded(text, where)
            if time.monotonic() > until:
                raise TransientError(
                    f"connector {self._connector.name}: a transaction is open on partition "
                    f"{partition} of topic {named(name)} and does not end. If "
                    "kafka-transactions.sh find-hanging names it, a broker has lost the "
                    "marker that ends it. Do "
                    "not abort it: other partitions may have its commit. Give the connector "
                    "another name and an empty target, and it starts from the beginning"
                )
            time.sleep(_PAUSE)

    def ends(self, sub: SubTopology, partition: int) -> dict[str, int]:
        """Where the changelogs end now, as far as transactions have ended."""
        places = {
            topic: TopicPartition(topic, partition)
            for topic in self._topics.changelogs(sub).values()
        }
        ends = self._cluster.latest(places.values())
        return {topic: ends[tp] for topic, tp in places.items()}

    def restore(
        self,
        sub: SubTopology,
        partition: int,
        state: State,
        since: Mapping[str, int],
        alive: Callable[[], None],
    ) -> dict[str, int]:
        """Bring the local state up to the ends of its changelogs, which are returned. ``since`` are
        the offsets from which it lacks changes, and ``alive`` is called now and then.

        Raises:
            SemelError: a changelog cannot be read.
        """
        ends = self.ends(sub, partition)
        for store, topic in self._topics.changelogs(sub).items():
            place = TopicPartition(topic, partition)
            earliest = self._cluster.earliest([place])[place]
            start = max(earliest, since.get(topic, 0))
            for values in self._changes(place, start, ends[topic]):
                state.write({store: values}, None)
                alive()
        return ends

    def _changes(self, place: TopicPartition, start: int, end: int) -> Iterator[Values]:
        if start >= end:
            return
        for messages in read_ranges(self._connector, {place: start}, {place: end}):
            yield {bytes(m.key() or b""): m.value() for m in messages}
