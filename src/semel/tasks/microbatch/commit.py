"""One commit of a micro-batch, in a task or on the driver: its input, the logs that the input is
from, and its result.

Nothing here knows about Spark. A *range* is the part of a batch from one topic-partition; a task
commits one of them, the driver all of a batch.

Spark's Kafka source gives neither the id of a topic nor the leader epoch of a record. So a batch is
*pinned* before it is read: Kafka is asked for the id of each topic, for the end of each partition,
and for its leader epoch. All offsets below the end were written in that epoch or an earlier one,
which is what an entry needs to know (KIP-320). Whoever commits asks once more after reading. If the
ids and epochs are the same, the records are those of the pinned logs; if only an epoch is a later
one, the new leader tells whether it still has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from semel.core.errors import BadRecord, ConfigError, Failure, LogChanged
from semel.core.ledger import (
    UNKNOWN_LOG,
    Advance,
    LedgerEntry,
    LogId,
    OffsetRange,
    TopicPartition,
    of_logs,
)
from semel.core.quoting import named
from semel.core.records import (
    KEY,
    METADATA_TYPES,
    OFFSET,
    PARTITION,
    TOPIC,
    Commit,
    DeadLetter,
    Records,
    RejectedRecord,
    RowsRejected,
)
from semel.kafka.cluster import Cluster
from semel.tasks.batch import Batch, count_failed
from semel.tasks.microbatch import frames
from semel.tasks.poll import advances
from semel.tasks.ranges import divergences


@dataclass(slots=True)
class SideOutput:
    """What decoding one range yields besides rows.

    With ``errors.tolerance=none`` the rows end before the first bad record, ``stop``. ``grown`` is
    the schema that the rows need, if it is wider than the one they were read with. ``failed`` is
    an error that ends the connector.
    """

    read: int = 0
    letters: list[DeadLetter] = field(default_factory=list)
    tombstones: list[pa.Table] = field(default_factory=list)
    stop: DeadLetter | None = None
    grown: pa.Schema | None = None
    failed: Failure | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one range.

    ``kind`` is ``committed``, ``rejected`` (by the sink, in a commit of ``ranges``; try without
    those), ``grown`` (try with this schema), ``unread`` (the transform did not read all of it),
    ``transient`` or ``failed``. ``size`` is the bytes that were read.
    """

    kind: str
    index: int
    advance: Advance | None = None
    letters: Sequence[DeadLetter] = ()
    stop: DeadLetter | None = None
    rejected: Sequence[RejectedRecord] = ()
    ranges: Sequence[OffsetRange] = ()
    grown: pa.Schema | None = None
    failure: Failure | None = None
    size: int = 0


def arranged(
    rows: pa.Table,
    schema: pa.Schema,
    topic: str,
    side_outputs: Sequence[SideOutput],
    partition: int | None,
) -> Records:
    """A transform's rows for the sink: in order, in their own types, with all metadata columns.
    Columns that the transform has dropped are null unless their value is known."""
    names = rows.column_names
    if rows.num_rows and PARTITION in names and OFFSET in names:
        rows = rows.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])  # stable
    rows = frames.restore(rows, schema)
    deletes = [t for side in side_outputs for t in side.tombstones]
    tombstones = pa.concat_tables(deletes, promote_options="permissive") if deletes else None
    constants = {TOPIC: topic, PARTITION: partition}
    key = pa.null() if tombstones is None else tombstones.schema.field(KEY).type
    kinds = METADATA_TYPES | {KEY: key}
    for name, kind in kinds.items():
        constant = pa.repeat(pa.scalar(constants.get(name), kind), rows.num_rows)
        if name not in names:
            rows = rows.append_column(name, constant)
        elif name == TOPIC:  # no transform may change it
            rows = rows.set_column(rows.column_names.index(name), name, constant)
        elif name in METADATA_TYPES and rows.column(name).type != kind:
            position = rows.column_names.index(name)
            rows = rows.set_column(position, name, rows.column(name).cast(kind, safe=False))
    return Records(topic, rows, tombstones)


def assembled(
    ranges: Sequence[OffsetRange],
    side_outputs: Sequence[SideOutput],
    records: Sequence[Records],
    written: Mapping[TopicPartition, int],
) -> Batch:
    """The batch that commits ``records`` and moves ``ranges``, each up to its first bad record."""
    positions = {r.topic_partition: r.from_offset for r in ranges}
    until = {r.topic_partition: r.until_offset for r in ranges}
    stops = [side.stop for side in side_outputs if side.stop is not None]
    until |= {TopicPartition(s.topic, s.partition): s.offset for s in stops}
    read = {r.topic_partition: side.read for r, side in zip(ranges, side_outputs, strict=True)}
    letters = [letter for side in side_outputs for letter in side.letters]
    moved = advances(until, positions, read, written, count_failed(letters))
    return Batch(moved, Commit(records, letters), stop=stops[0] if stops else None)


def committed(index: int, batch: Batch) -> Result:
    """The result of a batch of one range."""
    advance = batch.advances[0] if batch.advances else None
    return Result("committed", index, advance, batch.commit.dead_letters, batch.stop)


def rejection_of(index: int, rejection: RowsRejected, ranges: Sequence[OffsetRange]) -> Result:
    """The result that asks for another attempt without the refused records. A row whose offset is
    unknown ends the connector."""
    unknown = [r for r in rejection.rejected if r.offset is None]
    if unknown:
        error = BadRecord(
            f"a row that the transform made does not fit: {unknown[0].message}. It does not say "
            f"which record it comes from: let the columns {PARTITION} and {OFFSET} pass the "
            "transform"
        )
        return Result("failed", index, failure=Failure.of(error))
    return Result("rejected", index, rejected=rejection.rejected, ranges=ranges)


def widened(topic: str, known: pa.Schema, added: pa.Schema) -> pa.Schema:
    """One schema for both.

    Raises:
        ConfigError: there is none.
    """
    try:
        return pa.unify_schemas([known, added], promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise ConfigError(
            f"values of topic {named(topic)} do not agree on their types: {error}. Declare them in "
            "value.converter.schema"
        ) from None


@dataclass(frozen=True, slots=True)
class PinnedLogs:
    """The logs that a batch is read from. An epoch of -1 is not known."""

    logs: Mapping[str, LogId] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def confirm(self, cluster: Cluster, ranges: Collection[OffsetRange]) -> None:
        """Check that records of these ranges, all of them read by now, are of the pinned logs.

        Raises:
            LogChanged: they may be of others.
            TransientError: Kafka does not answer.
        """
        _compare(self.logs, cluster, {r.topic for r in ranges})
        read = [_epoch_entry(r.topic_partition, r.until_offset, self._epoch(r)) for r in ranges]
        _check_kept(cluster, read, cluster.ends([e.topic_partition for e in read]))

    def stamped(self, batch: Batch) -> Batch:
        """The batch with its logs, and with the epochs that the ledger keeps."""
        advances = [
            replace(a, leader_epoch=self._epoch(a.range), epoch_offset=a.range.until_offset)
            if self._epoch(a.range) >= 0 and not a.lost
            else a
            for a in of_logs(batch.advances, self.logs)
        ]
        return replace(batch, advances=advances)

    def _epoch(self, range_: OffsetRange) -> int:
        return self.epochs.get(range_.topic_partition, -1)


class KnownLogs:
    """The logs that a run's positions belong to; used by the driver."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs: dict[str, LogId] = {}
        self._entries: dict[TopicPartition, LedgerEntry] = {}

    def expect(self, entries: Iterable[LedgerEntry]) -> None:
        """Take entries that have just been compared with Kafka or just been made."""
        for entry in entries:
            self._logs[entry.topic] = entry.log
            self._entries[entry.topic_partition] = entry

    def add(self, entries: Collection[LedgerEntry]) -> None:
        """Take the ledger's entries of partitions that have appeared.

        Raises:
            LogChanged: they are not of the logs that the topics' other entries are of.
        """
        logs = dict(self._logs)
        for entry in entries:
            known = logs.get(entry.topic, UNKNOWN_LOG)
            if known.contradicts(entry.log):
                raise LogChanged(f"topic {named(entry.topic)} was created again")
            logs[entry.topic] = known.completed(entry.log)
        self.expect(entries)
        self._logs = logs

    def pin(self, ranges: Sequence[OffsetRange]) -> PinnedLogs:
        """Ask Kafka for the logs of a batch that has not been read yet.

        Raises:
            LogChanged: they are not those of the positions that the batch begins at.
            TransientError: Kafka does not answer.
        """
        _compare(self._logs, self._cluster, {r.topic for r in ranges})
        ends = self._cluster.ends([r.topic_partition for r in ranges])
        for r in ranges:
            if ends[r.topic_partition][0] < r.until_offset:
                raise LogChanged(f"{r.topic_partition} ends before {r.until_offset}")
        _check_kept(self._cluster, [self._entries[tp] for tp in ends], ends)
        epochs = {tp: epoch for tp, (_, epoch) in ends.items()}
        for r in ranges:
            tp = r.topic_partition
            self._entries[tp] = _epoch_entry(tp, r.until_offset, epochs[tp])
        return PinnedLogs({r.topic: self._logs[r.topic] for r in ranges}, epochs)


def _epoch_entry(tp: TopicPartition, position: int, epoch: int) -> LedgerEntry:
    """The epoch facts of a position whose records were all written in this epoch or before."""
    return LedgerEntry(*tp, position, position, leader_epoch=epoch, epoch_offset=position)


def _compare(logs: Mapping[str, LogId], cluster: Cluster, topics: Collection[str]) -> None:
    current = cluster.logs(topics)
    for topic in sorted(topics):
        if topic not in current:
            raise LogChanged(f"topic {named(topic)} is gone")
        if logs[topic].contradicts(current[topic]):
            raise LogChanged(f"topic {named(topic)} was created again")


def _check_kept(
    cluster: Cluster,
    reached: Collection[LedgerEntry],
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> None:
    """Check that the logs still have what was read."""
    if cut := divergences(cluster, reached, ends):
        raise LogChanged(f"the log of {', '.join(map(str, sorted(cut)))} was truncated")
