"""One audit from start to end: Kafka and the store are opened, compared and closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.audit.auditor import Auditor
from semel.audit.report import AuditReport, PartitionAudit, together
from semel.delivery import Delivery
from semel.engine.pipeline import Pipeline
from semel.errors import NothingToAudit, OffsetOutOfRange
from semel.kafka import Cluster, client_config
from semel.ledger import LedgerEntry
from semel.run import Plan, plan


def audit(
    config: Any, transform: Callable[..., Any] | None = None, *, planned: Plan | None = None
) -> AuditReport:
    """Audit a connector.

    Args:
        config: as for :func:`semel.run`.
        transform: the run's transform, where rows replace each other by key, or where it makes
            other rows than one a record.

    Raises:
        semel.errors.NothingToAudit: the ledger knows nothing of the connector.
        semel.errors.SemelError: configuration, Kafka or the store.
    """
    planned = planned or plan(config, transform)
    connector, raw, sink = planned.connector, planned.raw, planned.sink
    cluster = Cluster(client_config(connector, raw, "admin"))
    try:
        topics = cluster.matching(connector)
        snapshots = sink.snapshots(topics)
        takes_frames = transform is not None and planned.engine == "micro-batch"
        exact = connector.provenance and not takes_frames
        pipeline = Pipeline(
            connector,
            raw,
            sink,
            target=sink.schema,
            transform=None if takes_frames else transform,
        )
        parts: list[list[PartitionAudit]] = []
        not_judged: list[str] = []
        if not any(e.topic in topics for s in snapshots for e in s.entries):
            raise NothingToAudit(
                f"the ledger holds nothing of connector {connector.name} and its topics, so there "
                "is nothing to compare. Has it run, under this name and into this target?"
            )
        for snapshot in snapshots:
            entries = [e for e in snapshot.entries if e.topic in topics]
            check_not_recreated(connector.name, entries, topics, cluster)
            auditor = Auditor(planned, cluster, snapshot, entries, pipeline, topics)
            parts.append(auditor.partitions(exact=exact, converts=not takes_frames))
            not_judged += auditor.not_judged
        found = together(parts)
    finally:
        sink.close()
    lost = any(p.lost for p in found)
    duplicated = any(p.duplicated for p in found)
    promised = planned.guarantee.delivery
    broken = (lost and promised is not Delivery.AT_MOST_ONCE) or (
        duplicated and promised is not Delivery.AT_LEAST_ONCE
    )
    return AuditReport(
        connector.name, str(planned.guarantee), exact, found, broken, tuple(not_judged)
    )


def check_not_recreated(
    connector: str, entries: Sequence[LedgerEntry], topics: Mapping[str, int], cluster: Cluster
) -> None:
    there = [e for e in entries if e.partition < topics[e.topic]]
    ends = cluster.latest((e.topic_partition for e in there), committed=False)
    for entry in entries:
        if entry.position > ends.get(entry.topic_partition, 0):
            raise OffsetOutOfRange(
                f"connector {connector}: the ledger stands at {entry.position} for "
                f"{entry.topic_partition}, which Kafka does not have. Was the topic deleted and "
                "created again? There is nothing to compare the rows with"
            )
