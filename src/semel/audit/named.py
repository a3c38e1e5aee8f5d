"""The targets that records name, where transforms decide for each record where it goes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from semel.core.errors import NothingToAudit
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.driver.planning import Plan
from semel.kafka.cluster import Cluster
from semel.kafka.reader import read_ranges
from semel.sinks.base import Snapshot
from semel.sinks.protocols import Gathering
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import by_topic
from semel.transforms import known_chain
from semel.transforms.chain import Stage


class Names:
    """Reads from Kafka where records go. Reads each record only once."""

    def __init__(
        self, planned: Plan, cluster: Cluster, pipeline: Pipeline, topics: Collection[str]
    ) -> None:
        self._connector = planned.connector
        self._cluster = cluster
        self._pipeline = pipeline
        self._topics = topics
        self._at: dict[TopicPartition, int] = {}
        self._targets: set[str] = set()
        self.expired: set[str] = set()
        """The topics whose first records Kafka no longer has."""

    def __call__(self, entries: Sequence[LedgerEntry]) -> Collection[str]:
        """The topics that records up to these positions go to."""
        own = {e.topic_partition: e for e in entries if e.topic in self._topics}
        earliest = self._cluster.earliest(own)
        for tp, entry in own.items():
            if tp not in self._at:
                self._at[tp] = max(entry.start_position, earliest[tp])
                if earliest[tp] > entry.start_position:
                    self.expired.add(tp.topic)
        ends = {tp: e.position for tp, e in own.items()}
        for messages in read_ranges(self._connector, self._at, ends, damaged=lambda _: None):
            for poll in by_topic(messages):
                raw = poll.raw(key=True, timestamp=True, headers=self._pipeline.wants_headers)
                self._targets |= {p.topic for p in self._pipeline.convert(poll.topic, raw).parts}
        self._at |= {tp: max(self._at[tp], end) for tp, end in ends.items()}
        return self._targets


def target_of(snapshot: Snapshot, topic: str, to: str = "") -> str:
    """A name that distinguishes the target of a topic's records from all others. Records that name
    their targets go ``to`` one of the named topics."""
    return snapshot.named.get(to or topic) or snapshot.targets.get(topic, topic)


def splitter(planned: Plan) -> Stage | None:
    """The transform that sends the records of one topic to several targets, if there is one."""
    if planned.sink.capabilities.ignores_topics:
        return None
    routers = known_chain(planned.connector.originals).routers
    return next((stage for stage in routers if not stage.goes_by_topic), None)


def gathered(
    planned: Plan, cluster: Cluster, pipeline: Pipeline, topics: Collection[str], stage: Stage
) -> Snapshot:
    """One snapshot of all targets.

    Raises:
        NothingToAudit: the sink does not find them.
    """
    if not isinstance(planned.sink, Gathering):
        raise not_found(planned, stage)
    names = Names(planned, cluster, pipeline, topics)
    snapshot = planned.sink.gathered(topics, names)
    unjudged = dict.fromkeys(
        names.expired,
        "records that Kafka no longer has may have named other targets; set provenance=true",
    )
    return replace(snapshot, unjudged={**snapshot.unjudged, **unjudged})


def not_found(planned: Plan, stage: Stage) -> NothingToAudit:
    """The error for an audit that does not know which targets hold the rows."""
    connector, where = planned.connector, stage.where
    return NothingToAudit(
        f"connector {connector.name}: {where}={connector.originals[where]} decides for each "
        "record where it goes, so this audit does not know which targets hold the rows. With "
        "provenance=true each row says from which offset it comes"
    )
