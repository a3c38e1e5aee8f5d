"""Compares one snapshot of a store with Kafka's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from semel.audit.offsets import Seen, offsets_of, within
from semel.audit.replacing import Replacing
from semel.audit.report import PartitionAudit
from semel.damage import Damage
from semel.engine.pipeline import Pipeline
from semel.engine.poll import TopicPoll, by_topic
from semel.kafka import Cluster
from semel.ledger import DAMAGED, RETENTION, Hole, LedgerEntry, TopicPartition
from semel.reader import read_ranges
from semel.run import Plan
from semel.sinks.base import Snapshot


class Auditor:
    def __init__(
        self,
        planned: Plan,
        cluster: Cluster,
        snapshot: Snapshot,
        entries: Sequence[LedgerEntry],
        pipeline: Pipeline,
    ) -> None:
        self._planned = planned
        self._snapshot = snapshot
        self._pipeline = pipeline
        self._entries = {e.topic_partition: e for e in entries}
        self._compacted = cluster.compacted({e.topic for e in entries})
        self._untraced = dict(snapshot.untraced)
        self._earliest = cluster.earliest(self._entries)
        self._latest = cluster.latest(self._entries)
        self._unreadable: list[Damage] = []

    def partitions(self, *, exact: bool) -> list[PartitionAudit]:
        offsets = self._kafka(exact=exact)
        if not exact:
            return self._by_counts(offsets)
        return [self._exact(tp, offsets[tp]) for tp in sorted(self._entries)]

    def _start(self, entry: LedgerEntry) -> int:
        """Where Kafka's records can still be compared from."""
        return max(entry.start_position, self._earliest[entry.topic_partition])

    def _expired(self, entry: LedgerEntry) -> int:
        """How many offsets retention has removed since the connector began there."""
        return max(0, self._earliest[entry.topic_partition] - entry.start_position)

    def _kafka(self, *, exact: bool) -> dict[TopicPartition, Seen]:
        """Read what Kafka has below each position."""
        connector, raw = self._planned.connector, self._planned.raw
        seen = {tp: Seen() for tp in self._entries}
        replacing = Replacing(self._pipeline, self._planned)
        starts = {tp: self._start(e) for tp, e in self._entries.items()}
        ends = {tp: e.position for tp, e in self._entries.items()}
        for messages in read_ranges(connector, raw, starts, ends, damaged=self._unreadable.append):
            for poll in by_topic(messages):
                for partition in np.unique(poll.partitions).tolist():
                    mine = poll.offsets[poll.partitions == partition]
                    seen[TopicPartition(poll.topic, partition)].offsets.append(mine)
                if exact:
                    taken = poll.only(self._taken(poll))
                    replacing.add(poll.topic, taken.raw(key=True, timestamp=True))
        for tp, (gone, unsure) in replacing.gone().items():
            seen[tp].replaced, seen[tp].unsure = gone, unsure
        return seen

    def _taken(self, poll: TopicPoll) -> np.ndarray:
        """Where the sink has not refused a record: one that it refused has replaced nothing."""
        dead = self._snapshot.dead.get(poll.topic)
        keep = np.ones(len(poll.offsets), dtype=bool)
        for partition in np.unique(poll.partitions).tolist():
            refused = offsets_of(dead, partition)
            keep &= ~((poll.partitions == partition) & np.isin(poll.offsets, refused))
        return keep

    def _exact(self, tp: TopicPartition, seen: Seen) -> PartitionAudit:
        entry = self._entries[tp]
        rows = offsets_of(self._snapshot.records.get(tp.topic), tp.partition)
        rows = rows[rows >= entry.start_position]
        dead = offsets_of(self._snapshot.dead.get(tp.topic), tp.partition)
        dead = dead[dead >= entry.start_position]
        dead = dead[~within(dead, self._holes_of(tp))]  # they count as lost, not as failed
        kafka = seen.all()
        distinct = np.unique(rows)
        judged = np.setdiff1d(distinct[distinct >= self._start(entry)], seen.unsure)
        gone = np.concatenate([seen.replaced, seen.unsure, dead])
        expected = np.setdiff1d(kafka, gone)
        missing = len(np.setdiff1d(expected, judged))
        # A record that failed or was filtered has no row; the ledger counts them, and its counts
        # move with its position.
        failed_or_filtered = entry.records_filtered + entry.records_failed - len(dead)
        failed_or_filtered += self._snapshot.elsewhere.get(tp, 0)
        excused = min(missing, max(0, failed_or_filtered))
        missing -= excused
        stray = np.setdiff1d(judged, expected)
        unknown = len(seen.unsure)
        if self._expired(entry):
            unknown += excused  # the filtered ones may be among those that Kafka has no more
        if tp.topic in self._compacted:
            compacted = (stray < entry.position) & ~np.isin(stray, kafka)
            unknown += int(compacted.sum())
            stray = stray[~compacted]
        unreadable = [d.range for d in self._unreadable if d.topic_partition == tp]
        damaged = within(stray, unreadable) & (stray < entry.position)
        unknown += int(damaged.sum())  # written before the damage was done
        stray = stray[~damaged]
        target = self._snapshot.targets[tp.topic]
        untraced = min(missing, self._untraced.get(target, 0))
        if untraced:
            self._untraced[target] -= untraced
        if self._planned.sink.only_updates or tp.topic in self._snapshot.incomplete:
            untraced = missing
        unknown += untraced
        missing -= untraced
        return PartitionAudit(
            tp.topic,
            tp.partition,
            kafka=len(kafka),
            rows=len(rows),
            lost=missing,
            duplicated=len(rows) - len(distinct) + len(stray),
            replaced=len(seen.replaced),
            filtered=entry.records_filtered,
            failed=entry.records_failed,
            retention=entry.records_lost,
            behind=max(0, self._latest[tp] - entry.position),
            unknown=unknown,
        )

    def _holes_of(self, tp: TopicPartition) -> list[Hole]:
        """Those that were never read."""
        unread = [h for h in self._snapshot.holes if h.reason in (RETENTION, DAMAGED)]
        return [h for h in unread if h.topic_partition == tp]

    def _by_counts(self, offsets: Mapping[TopicPartition, Seen]) -> list[PartitionAudit]:
        """Records in Kafka against records read; rows in the table against rows written, which
        only the whole table can tell, so a difference stands with its first partition."""
        found = []
        whole = self._table_differences()
        for tp in sorted(self._entries):
            entry = self._entries[tp]
            expired = self._expired(entry)
            kafka = len(offsets[tp].all())
            # Of the expired offsets any number may have held records.
            unread = max(0, kafka - entry.records_read)
            twice = max(0, entry.records_read - kafka - expired)
            unknown = max(0, kafka + expired - entry.records_read - unread)
            if tp.topic in self._compacted:
                twice, unknown = 0, unknown + twice
            lost, duplicated = whole.pop(self._snapshot.targets.get(tp.topic, ""), (0, 0))
            found.append(
                PartitionAudit(
                    tp.topic,
                    tp.partition,
                    kafka=kafka,
                    rows=entry.rows_written,
                    lost=lost + unread,
                    duplicated=duplicated + twice,
                    filtered=entry.records_filtered,
                    failed=entry.records_failed,
                    retention=entry.records_lost,
                    behind=max(0, self._latest[tp] - entry.position),
                    unknown=unknown,
                )
            )
        return found

    def _table_differences(self) -> dict[str, tuple[int, int]]:
        if self._planned.sink.replaces:
            return {}  # rows replace each other: their number says nothing
        written: dict[str, int] = {}
        for entry in self._entries.values():
            target = self._snapshot.targets[entry.topic]
            written[target] = written.get(target, 0) + entry.rows_written
        dropped = {self._snapshot.targets[t] for t in self._snapshot.incomplete}
        return {
            target: (max(0, written[target] - rows), max(0, rows - written[target]))
            for target, rows in self._snapshot.rows.items()
            if target in written and target not in dropped
        }
