"""Checks that Kafka has the logs that the ledger knows."""

from __future__ import annotations

from collections.abc import Mapping

from semel.audit.run import check_not_recreated
from semel.core.errors import NothingToAudit, OffsetOutOfRange, TransientError
from semel.core.ledger import UNKNOWN_LOG, LedgerEntry, TopicPartition
from semel.core.quoting import named
from semel.driver.planning import Plan
from semel.kafka.cluster import Cluster


def check_logs(
    planned: Plan,
    cluster: Cluster,
    entries: Mapping[TopicPartition, LedgerEntry],
    topics: Mapping[str, int],
) -> None:
    """Check that the ledger has entries, and that Kafka has what they point at.

    Raises:
        NothingToAudit: the ledger does not know the connector.
        OffsetOutOfRange: a topic was created again or ends before the position.
        TransientError: a topic was created again, and the connector will continue with it.
    """
    name = planned.connector.name
    if not entries:
        raise NothingToAudit(
            f"the ledger holds nothing of connector {name} and its topics, so there is "
            "nothing to compare. Has it run under this name and into this target?"
        )
    logs = cluster.logs({tp.topic for tp in entries})
    for tp, entry in entries.items():
        log = logs.get(tp.topic, UNKNOWN_LOG)
        if not entry.log.contradicts(log):
            continue
        text = (
            f"connector {name}: topic {named(tp.topic)} was created again, or its cluster "
            f"replaced: the ledger knows topic id {entry.topic_id} in cluster {entry.cluster_id}, "
            f"Kafka has {log.topic_id} in {log.cluster_id}. There is nothing to compare the rows "
            "with"
        )
        if planned.connector.topic_recreated == "earliest":
            raise TransientError(f"{text} until the connector continues with the new one")
        raise OffsetOutOfRange(text)
    check_not_recreated(name, list(entries.values()), topics, cluster)
