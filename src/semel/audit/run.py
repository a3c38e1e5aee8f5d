"""Runs an audit: opens Kafka and the store, compares them and closes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Any

from semel.audit.auditor import Auditor
from semel.audit.named import gathered, splitter
from semel.audit.report import AuditReport, PartitionAudit, UnplacedField, breaks, together
from semel.audit.values import OnProgress, Values, audited
from semel.audit.workspace import Workspace
from semel.core.errors import NothingToAudit, OffsetOutOfRange
from semel.core.ledger import LedgerEntry
from semel.driver.planning import Plan, plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.sinks import protocols
from semel.sinks.base import Snapshot
from semel.sinks.rereading import NotShown, ShowsRows, View
from semel.tasks.pipeline import Pipeline
from semel.tasks.unplaced import Counts


def audit(
    config: Any,
    transform: Callable[..., Any] | None = None,
    *,
    values: bool = False,
    planned: Plan | None = None,
    progress: OnProgress = lambda *_: None,
) -> AuditReport:
    """Audit a connector.

    Args:
        config: as for :func:`semel.run`.
        transform: the run's transform. It is needed if rows replace each other by key, if it does
            not make one row per record, and with ``values``.
        values: also compare the values of all rows with their records.
        progress: is called with the audit's progress.

    Raises:
        semel.core.errors.NothingToAudit: the ledger does not know the connector.
        semel.core.errors.SemelError: configuration, Kafka or the store.
    """
    planned = planned or plan(config, transform)
    planned.check_auditable()
    connector, sink = planned.connector, planned.sink
    stage = splitter(planned)
    cluster = Cluster(client_config(connector, "admin"))
    with ExitStack() as stack:
        stack.callback(sink.close)
        topics = cluster.matching(connector)
        takes_frames = transform is not None and planned.engine == "micro-batch"
        exact = connector.provenance and not takes_frames
        not_judged: list[str] = []
        hidden = {
            "a DataFrame transform makes rows of many records": takes_frames,
            "records name their targets themselves": stage is not None,
        }
        if values and any(hidden.values()):
            not_judged += [f"values: {why}" for why, holds in hidden.items() if holds]
            values = False
        views: Sequence[View] = ()
        if values:
            try:
                views = stack.enter_context(opened(planned, topics))
            except NotShown as why:
                not_judged.append(f"values: {why}")
        pipeline = Pipeline(
            audited(connector),
            sink,
            target=sink.schema,
            transform=None if takes_frames else transform,
        )
        if views:
            snapshots: Sequence[Snapshot] = [view.snapshot(topics) for view in views]
        elif stage is not None:
            snapshots = [gathered(planned, cluster, pipeline, topics, stage)]
        else:
            snapshots = protocols.snapshots(sink, topics)
        parts: list[list[PartitionAudit]] = []
        auditors: list[Auditor] = []
        unplaced: Counts = {}
        if not any(e.topic in topics for s in snapshots for e in s.entries):
            raise NothingToAudit(
                f"the ledger holds nothing of connector {connector.name} and its topics, so there "
                "is nothing to compare. Has it run under this name and into this target?"
            )
        for snapshot, view in itertools.zip_longest(snapshots, views):
            entries = [e for e in snapshot.entries if e.topic in topics]
            check_not_recreated(connector.name, entries, topics, cluster)
            workspace = stack.enter_context(closing(Workspace()))
            judged = None
            if view is not None:
                judged = Values(sink, view, snapshot, workspace, exact=exact, progress=progress)
            auditor = Auditor(
                planned, cluster, snapshot, entries, pipeline, topics, workspace, judged, progress
            )
            parts.append(auditor.partitions(exact=exact, converts=not takes_frames))
            not_judged += auditor.not_judged
            auditors.append(auditor)
            unplaced = auditor.unplaced or unplaced  # each target gets the same records
        found = together(parts)
    gaps = tuple(dict.fromkeys(line for a in auditors for line in a.gaps))
    holes = dict.fromkeys(h for s in snapshots for h in s.holes if h.topic in topics)
    promised = planned.guarantee.delivery
    return AuditReport(
        connector.name,
        str(planned.guarantee),
        exact,
        found,
        bool(unplaced) or any(breaks(promised, p.lost, p.duplicated, p.changed) for p in found),
        (*not_judged, *gaps),
        tuple(row for a in auditors for row in a.changed_rows),
        sum(a.compared for a in auditors) if views else None,
        gaps,
        tuple(holes),
        tuple(UnplacedField(*field, count) for field, count in sorted(unplaced.items())),
    )


def opened(planned: Plan, topics: Mapping[str, int]) -> AbstractContextManager[Sequence[View]]:
    """Views of the sink's targets.

    Raises:
        NotShown: it does not show its rows.
    """
    if not isinstance(planned.sink, ShowsRows):
        kind = planned.connector.connector_class
        raise NotShown(f"the {kind} sink does not show its rows")
    return planned.sink.viewing(topics)


def check_not_recreated(
    connector: str, entries: Sequence[LedgerEntry], topics: Mapping[str, int], cluster: Cluster
) -> None:
    there = [e for e in entries if e.partition < topics[e.topic]]
    ends = cluster.latest((e.topic_partition for e in there), committed=False)
    for entry in entries:
        if entry.position > ends.get(entry.topic_partition, 0):
            raise OffsetOutOfRange(
                f"connector {connector}: the ledger is at {entry.position} for "
                f"{entry.topic_partition}, which Kafka does not have. Was the topic deleted and "
                "created again, or its log truncated? There is nothing to compare the rows with"
            )
