"""The audit: compare Kafka with the store, record by record, and say what is lost or duplicated.

The store is read at one instant. Because rows and positions are committed together, everything
below the ledger's position must be there exactly once and nothing above it may be there, so the
audit may run while the connector does.

With provenance columns it is exact to the record. Where a later record of a key replaces the row
of an earlier one, the rows that must be there are computed from Kafka's records by the connector's
own converters. What cannot be told is called ``unknown`` rather than lost or duplicated: a record
without a row where ``insert.mode=update`` may have found none to update, or where there are rows
without provenance, written before it was switched on; a row whose record compaction may have
removed; and which of a key's rows came last if it stands in several partitions.

Without provenance, and with a DataFrame transform, which no single record can be put through,
counts are compared: records in Kafka with records the ledger says were read, and rows in the table
with rows the ledger says were written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.damage import Damage
from semel.delivery import Delivery
from semel.engine.pipeline import Pipeline
from semel.engine.poll import TopicPoll, by_topic
from semel.errors import OffsetOutOfRange
from semel.kafka import Cluster, client_config
from semel.ledger import DAMAGED, RETENTION, Hole, LedgerEntry, OffsetRange, TopicPartition
from semel.reader import read_ranges
from semel.run import Plan, plan
from semel.sinks.base import Snapshot


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """What the audit found for one topic-partition.

    ``kafka`` counts the records that Kafka still has below the position; ``rows`` the rows (or,
    by counts, the records read); ``replaced`` records whose row a later record of the same key
    has replaced; ``filtered`` and ``failed`` those that were left out or went to the dead letters;
    ``retention`` offsets that retention removed before they were read (lost, but not by semel);
    ``behind`` the records that are still to be read; ``unknown`` records or rows that cannot be
    judged (see :mod:`semel.audit`).
    """

    topic: str
    partition: int
    kafka: int
    rows: int
    lost: int
    duplicated: int
    replaced: int = 0
    filtered: int = 0
    failed: int = 0
    retention: int = 0
    behind: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit's verdict. ``exact`` tells whether it went record by record or by counts."""

    connector: str
    delivery: str
    exact: bool
    partitions: list[PartitionAudit]
    kept: bool

    @property
    def records(self) -> int:
        return sum(p.kafka for p in self.partitions)

    @property
    def lost(self) -> int:
        return sum(p.lost for p in self.partitions)

    @property
    def duplicated(self) -> int:
        return sum(p.duplicated for p in self.partitions)

    @property
    def unknown(self) -> int:
        return sum(p.unknown for p in self.partitions)


def audit(
    config: Any, transform: Callable[..., Any] | None = None, *, planned: Plan | None = None
) -> AuditReport:
    """Audit a connector.

    Args:
        config: as for :func:`semel.run`.
        transform: the run's transform, where rows replace each other by key, or where it makes
            other rows than one a record.

    Raises:
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
        parts = []
        for snapshot in snapshots:
            entries = [e for e in snapshot.entries if e.topic in topics]
            _check_not_recreated(connector.name, entries, topics, cluster)
            auditor = _Auditor(planned, cluster, snapshot, entries, pipeline)
            parts.append(auditor.partitions(exact=exact))
        found = _together(parts)
    finally:
        sink.close()
    lost = any(p.lost for p in found)
    duplicated = any(p.duplicated for p in found)
    promised = planned.guarantee.delivery
    kept = not (lost and promised is not Delivery.AT_MOST_ONCE) and not (
        duplicated and promised is not Delivery.AT_LEAST_ONCE
    )
    return AuditReport(connector.name, str(planned.guarantee), exact, found, kept)


def _together(parts: Sequence[Sequence[PartitionAudit]]) -> list[PartitionAudit]:
    """What was found in several targets, by topic-partition."""
    found: dict[TopicPartition, PartitionAudit] = {}
    for p in itertools.chain.from_iterable(parts):
        tp = TopicPartition(p.topic, p.partition)
        known = found.get(tp)
        found[tp] = (
            p
            if known is None
            else replace(
                known,
                kafka=max(known.kafka, p.kafka),
                rows=known.rows + p.rows,
                lost=known.lost + p.lost,
                duplicated=known.duplicated + p.duplicated,
                filtered=max(known.filtered, p.filtered),
                behind=max(known.behind, p.behind),
                unknown=known.unknown + p.unknown,
            )
        )
    return [found[tp] for tp in sorted(found)]


def _check_not_recreated(
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


class _Auditor:
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

    def _kafka(self, *, exact: bool) -> dict[TopicPartition, _Seen]:
        """Read what Kafka has below each position."""
        connector, raw = self._planned.connector, self._planned.raw
        seen = {tp: _Seen() for tp in self._entries}
        replacing = _Replacing(self._pipeline, self._planned)
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
            refused = _offsets_of(dead, partition)
            keep &= ~((poll.partitions == partition) & np.isin(poll.offsets, refused))
        return keep

    def _exact(self, tp: TopicPartition, seen: _Seen) -> PartitionAudit:
        entry = self._entries[tp]
        rows = _offsets_of(self._snapshot.records.get(tp.topic), tp.partition)
        rows = rows[rows >= entry.start_position]
        dead = _offsets_of(self._snapshot.dead.get(tp.topic), tp.partition)
        dead = dead[dead >= entry.start_position]
        dead = dead[~_within(dead, self._holes_of(tp))]  # they count as lost, not as failed
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
        damaged = _within(stray, unreadable) & (stray < entry.position)
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

    def _by_counts(self, offsets: Mapping[TopicPartition, _Seen]) -> list[PartitionAudit]:
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


class _Seen:
    """Kafka's offsets of one partition below the position."""

    def __init__(self) -> None:
        self.offsets: list[np.ndarray] = []
        self.replaced = np.array([], dtype=np.int64)
        self.unsure = np.array([], dtype=np.int64)

    def all(self) -> np.ndarray:
        return np.concatenate(self.offsets) if self.offsets else np.array([], dtype=np.int64)


class _Replacing:
    """Which records have no row any more, because a later one of their key replaced or deleted it.

    The last change of each key is computed from Kafka alone.
    """

    def __init__(self, pipeline: Pipeline, planned: Plan) -> None:
        self._pipeline = pipeline
        self._sink = planned.sink
        self._changes: dict[str, list[pa.Table]] = {}

    def add(self, topic: str, raw: pa.Table) -> None:
        if not self._sink.replaces:
            return
        records = self._pipeline.convert(topic, raw).records
        for keys, source, deleted in zip(
            self._sink.key_of(records),
            (records.rows, records.tombstones),
            (False, True),
            strict=True,
        ):
            if keys is None or source is None or not keys.num_rows:
                continue
            place = source.select(["__connect_partition", "__connect_offset"])
            self._changes.setdefault(topic, []).append(
                pa.table(
                    {
                        **dict(zip(keys.column_names, keys.columns, strict=True)),
                        "__partition": place.column(0),
                        "__offset": place.column(1),
                        "__deleted": pa.repeat(pa.scalar(deleted), keys.num_rows),
                    }
                )
            )

    def gone(self) -> dict[TopicPartition, tuple[np.ndarray, np.ndarray]]:
        """By topic-partition: the offsets without a row, and those that may have one or not,
        because other partitions have the same key and the order between them is not known."""
        found = {}
        for topic, tables in self._changes.items():
            changes = pa.concat_tables(tables).sort_by("__offset")
            keys = changes.column_names[:-3]
            index = pa.array(np.arange(changes.num_rows, dtype=np.int64))
            last = (
                changes.select([*keys, "__partition"])
                .append_column("__index", index)
                .group_by([*keys, "__partition"], use_threads=False)
                .aggregate([("__index", "max")])
            )
            spread = (
                last.group_by(keys, use_threads=False)
                .aggregate([("__index_max", "max"), ("__index_max", "count")])
                .filter(pc.field("__index_max_count") > 1)
            )
            both = last.join(spread.select(keys), keys, join_type="left semi", use_threads=False)
            alive = np.zeros(changes.num_rows, dtype=bool)
            alive[last.column("__index_max").to_numpy()] = True
            alive &= ~changes.column("__deleted").to_numpy(zero_copy_only=False)
            unsure = np.zeros(changes.num_rows, dtype=bool)
            unsure[both.column("__index_max").to_numpy()] = True
            partitions = changes.column("__partition").to_numpy()
            offsets = changes.column("__offset").to_numpy()
            for partition in np.unique(partitions).tolist():
                mine = partitions == partition
                found[TopicPartition(topic, partition)] = (
                    offsets[mine & ~alive & ~unsure],
                    offsets[mine & unsure],
                )
        return found


def _within(offsets: np.ndarray, ranges: Sequence[Hole | OffsetRange]) -> np.ndarray:
    """Which offsets lie in one of the ranges."""
    found = np.zeros(len(offsets), dtype=bool)
    for r in ranges:
        found |= (offsets >= r.from_offset) & (offsets < r.until_offset)
    return found


def _offsets_of(table: pa.Table | None, partition: int) -> np.ndarray:
    if table is None or not table.num_rows:
        return np.array([], dtype=np.int64)
    partitions = table.column("partition").to_numpy()
    offsets: np.ndarray = table.column("offset").to_numpy()[partitions == partition]
    return offsets
