"""Where reading begins: the ledger's positions, first positions, and offsets out of range."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from semel.config import ConnectorConfig
from semel.errors import OffsetOutOfRange
from semel.kafka import Cluster
from semel.ledger import Advance, OffsetRange, TopicPartition, firsts
from semel.sinks.base import Sink


def first_positions(
    connector: ConnectorConfig, sink: Sink, cluster: Cluster, topics: Mapping[str, int]
) -> None:
    """Enter every partition that exists at start into the ledger.

    A topic that the ledger has never seen starts by ``auto.offset.reset``. A partition that was
    added to a known topic starts at its earliest offset, whatever the setting: its records came
    after the connector did.
    """
    known = {e.topic_partition for e in sink.entries()}
    present = {TopicPartition(t, p) for t, count in topics.items() for p in range(count)}
    missing = present - known
    if not missing:
        return
    from_latest = connector.offset_reset == "latest"
    known_topics = sink.known_topics()
    latest = {tp for tp in missing if from_latest and tp.topic not in known_topics}
    sink.start(firsts(cluster.earliest(missing - latest) | cluster.latest(latest)))


def entering(
    sink: Sink, cluster: Cluster, new: Mapping[TopicPartition, int], known: Collection[str]
) -> Mapping[TopicPartition, int]:
    """First positions of partitions that have appeared, with those of the other partitions of a
    topic that is not ``known``, if the sink wants them at once."""
    topics = {tp.topic for tp in new} - set(known)
    if not topics or not sink.enters_whole_topics:
        return new
    counts = cluster.topics()
    present = {TopicPartition(t, p) for t in topics for p in range(counts.get(t, 0))}
    return {**cluster.earliest(present - new.keys()), **new}


def positions(
    connector: ConnectorConfig, sink: Sink, cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The position of each partition, checked against what Kafka has.

    A partition that appeared while the connector runs is entered at its earliest offset. With
    ``offset.out.of.range=earliest`` a hole left by retention is recorded and skipped.

    Raises:
        OffsetOutOfRange: the stored position is not in Kafka any more, or not yet.
    """
    stored = {e.topic_partition: e.position for e in sink.entries()}
    earliest = cluster.earliest(partitions)
    new = {tp: earliest[tp] for tp in partitions if tp not in stored}
    if new:
        stored |= sink.start(firsts(entering(sink, cluster, new, {tp.topic for tp in stored})))
    found = {tp: stored[tp] for tp in partitions}
    behind = {tp: at for tp, at in found.items() if at < earliest[tp]}
    if behind:
        found |= _skip(connector, sink, behind, earliest)
    beyond = cluster.latest(partitions, committed=False)
    for tp, at in found.items():
        if at > beyond[tp]:
            raise OffsetOutOfRange(
                f"connector {connector.name}: the ledger stands at {at} for {tp}, but the "
                f"partition ends at {beyond[tp]}. Was the topic deleted and created again? If so, "
                "run semel offsets reset with the connector's file"
            )
    return found


def _skip(
    connector: ConnectorConfig,
    sink: Sink,
    behind: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if connector.offset_out_of_range == "stop":
        facts = "; ".join(
            f"{tp}: stored position {at}, earliest available {earliest[tp]}, "
            f"{earliest[tp] - at} records lost"
            for tp, at in sorted(behind.items())
        )
        raise OffsetOutOfRange(
            f"connector {connector.name}: retention removed records before they were read. "
            f"{facts}. To go on and record the hole, set offset.out.of.range=earliest"
        )
    for tp, at in behind.items():
        hole = OffsetRange(tp.topic, tp.partition, at, earliest[tp])
        sink.advance([Advance(hole, lost=earliest[tp] - at)])
    return {tp: earliest[tp] for tp in behind}
