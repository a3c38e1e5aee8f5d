"""Whether Kafka still has the logs that the ledger's positions point into. The offsets of any other
log say nothing about the rows.

Each function raises OffsetOutOfRange if Kafka no longer has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from semel.core.errors import OffsetOutOfRange
from semel.core.ledger import UNKNOWN_LOG, LedgerEntry
from semel.core.quoting import named
from semel.kafka.cluster import Cluster
from semel.tasks.ranges import divergences


def check_logs(
    connector: str,
    entries: Collection[LedgerEntry],
    topics: Mapping[str, int],
    cluster: Cluster,
) -> None:
    """Check everything below."""
    check_topics(connector, entries, cluster)
    check_positions(connector, entries, topics, cluster)
    check_not_truncated(connector, entries, topics, cluster)


def check_topics(connector: str, entries: Collection[LedgerEntry], cluster: Cluster) -> None:
    """Check that no topic was created again."""
    logs = cluster.logs({e.topic for e in entries})
    for entry in entries:
        log = logs.get(entry.topic, UNKNOWN_LOG)
        if entry.log.contradicts(log):
            raise OffsetOutOfRange(
                f"connector {connector}: topic {named(entry.topic)} was created again, or its "
                f"cluster replaced: the ledger knows topic id {entry.topic_id} in cluster "
                f"{entry.cluster_id}, Kafka has {log.topic_id} in {log.cluster_id}. There is "
                "nothing to compare the rows with"
            )


def check_positions(
    connector: str,
    entries: Collection[LedgerEntry],
    topics: Mapping[str, int],
    cluster: Cluster,
) -> None:
    """Check that no position lies beyond the end of its log."""
    there = [e for e in entries if e.partition < topics[e.topic]]
    ends = cluster.latest((e.topic_partition for e in there), committed=False)
    for entry in entries:
        if entry.position > ends.get(entry.topic_partition, 0):
            raise OffsetOutOfRange(
                f"connector {connector}: the ledger is at {entry.position} for "
                f"{entry.topic_partition}, which Kafka does not have. Was the topic deleted and "
                "created again, or its log truncated? There is nothing to compare the rows with"
            )


def check_not_truncated(
    connector: str,
    entries: Collection[LedgerEntry],
    topics: Mapping[str, int],
    cluster: Cluster,
) -> None:
    """Check by leader epochs (KIP-320) that no log was truncated below the position, even if it
    has grown past it since."""
    there = {e.topic_partition: e for e in entries if e.partition < topics[e.topic]}
    earliest, ends = cluster.earliest(there), cluster.ends(there)
    known = [e for tp, e in there.items() if e.epoch_offset >= earliest[tp]]
    for tp, fork in sorted(divergences(cluster, known, ends).items()):
        since = f"from offset {fork} on, the log is" if fork >= 0 else "the log is"
        raise OffsetOutOfRange(
            f"connector {connector}: the log of {tp} was truncated, as after an unclean leader "
            f"election: the ledger is at {there[tp].position}, but {since} not the one that was "
            "read. There is nothing to compare the rows with"
        )
