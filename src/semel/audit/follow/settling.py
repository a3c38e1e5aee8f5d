"""Decides which missing rows are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from semel.audit.auditor import Auditor
from semel.audit.follow.look import StoreContents, dead_letters
from semel.audit.follow.progress import PartitionProgress
from semel.audit.holes import by_reading
from semel.audit.referee import NONE
from semel.audit.report import IntervalReport, breaks
from semel.audit.workspace import Workspace
from semel.core.errors import OffsetOutOfRange, TransientError
from semel.core.ledger import TopicPartition
from semel.driver.planning import Plan
from semel.kafka.cluster import Cluster
from semel.sinks import protocols
from semel.tasks.pipeline import Pipeline

SHARE = 0.025
"""The share of the time that the store may be busy with intervals, and again with counts."""


class Settlement:
    """Decides what is lost. ``tell`` gets lines for the user."""

    def __init__(
        self, planned: Plan, cluster: Cluster, pipeline: Pipeline, tell: Callable[[str], None]
    ) -> None:
        self._planned = planned
        self._cluster = cluster
        self._pipeline = pipeline
        self._tell = tell
        self._not_before: dict[str, float] = {}

    def breaks(self, finding: IntervalReport) -> bool:
        """Whether a finding violates the declared guarantee."""
        promised = self._planned.guarantee.delivery
        return breaks(promised, finding.lost, finding.duplicated, finding.changed)

    def by_offsets(
        self,
        contents: StoreContents,
        findings: list[IntervalReport],
        progress: Mapping[TopicPartition, PartitionProgress],
    ) -> list[IntervalReport]:
        """Add what is lost, and move the marks of what is settled.

        The whole audit decides. It knows what a round does not: which keys are in several
        partitions, and how many rows have no provenance.
        """
        settled = []
        lost: dict[str, Mapping[TopicPartition, int] | None] = {}
        for judged in findings:
            tp = TopicPartition(judged.topic, judged.partition)
            own, entry = progress[tp], contents.entries[tp]
            before = own.mark
            facts = entry, dead_letters(contents, tp), contents.snapshot.elsewhere.get(tp, 0)
            missing, among = own.settle(*facts)
            if missing and tp.topic not in lost:
                lost[tp.topic] = self._judged_whole(tp.topic)
            certain = lost.get(tp.topic)
            now = judged
            if missing and certain is not None:
                count = min(missing, certain.get(tp, 0))
                named = tuple(among.tolist()) if count else ()
                unknown = judged.unknown + missing - count
                now = replace(judged, lost=count, lost_offsets=named, unknown=unknown)
                own.due = NONE.copy()
                own.settle(*facts)
            if self.breaks(now):  # let a restart find it again
                own.mark = before
            settled.append(now)
        return settled

    def by_counts(
        self,
        contents: StoreContents,
        findings: list[IntervalReport],
        progress: Mapping[TopicPartition, PartitionProgress],
    ) -> list[IntervalReport]:
        """Compare the number of Kafka's records with the number that the ledger counts as read."""
        return [self._counted(contents, judged, progress) for judged in findings]

    def _counted(
        self,
        contents: StoreContents,
        judged: IntervalReport,
        progress: Mapping[TopicPartition, PartitionProgress],
    ) -> IntervalReport:
        tp = TopicPartition(judged.topic, judged.partition)
        own, entry = progress[tp], contents.entries[tp]
        if own.at < entry.position:
            return judged
        lost, twice, unknown = by_reading(
            entry,
            [
                h
                for h in contents.snapshot.holes
                if not own.mark.read or h.until_offset > own.mark.offset
            ],
            own.records,
            entry.records_read - own.mark.read,
            replaces=self._planned.sink.capabilities.replaces,
        )
        if own.gaps:
            twice, unknown = 0, unknown + twice
        now = replace(judged, lost=lost, duplicated=twice, unknown=unknown)
        if not self.breaks(now):
            own.settle(entry, NONE)
        return now

    def _judged_whole(self, topic: str) -> Mapping[TopicPartition, int] | None:
        """The number of a topic's records that the whole audit finds lost; None if it cannot run
        now or ran a short time ago."""
        began = time.monotonic()
        if began < self._not_before.get(topic, 0.0):
            return None
        self._tell(f"{topic}: rows are missing; judging the whole topic to be sure")
        lost: dict[TopicPartition, int] = {}
        try:
            topics = self._cluster.matching(self._planned.connector)
            # While a compacted topic is read, a key's last record may replace an earlier one.
            for _ in range(2 if self._cluster.compacted({topic}) else 1):
                (snapshot,) = protocols.snapshots(self._planned.sink, {topic})
                entries = [e for e in snapshot.entries if e.topic == topic]
                with closing(Workspace()) as workspace:
                    auditor = Auditor(
                        self._planned,
                        self._cluster,
                        snapshot,
                        entries,
                        self._pipeline,
                        topics,
                        workspace,
                    )
                    parts = auditor.partitions(exact=True, converts=True)
                lost = {TopicPartition(p.topic, p.partition): p.lost for p in parts}
        except (OffsetOutOfRange, TransientError) as error:
            self._tell(f"{topic}: {error}; trying again later")
            return None
        now = time.monotonic()
        self._not_before[topic] = now + (now - began) * (1 - SHARE) / SHARE
        return lost
