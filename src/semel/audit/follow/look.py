"""Reads from the store at one instant what the next intervals need."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from semel.audit import holes
from semel.audit.referee import (
    NONE,
    Interval,
    RecordOffsets,
    given_up,
    letters,
    offsets_of,
    times_of,
    wants_times,
    within,
)
from semel.audit.values import Values
from semel.audit.workspace import Workspace
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.ledger import NOT_HERE, UNREAD, Hole, LedgerEntry, OffsetRange, TopicPartition
from semel.core.records import OFFSET, PARTITION, TIMESTAMP
from semel.driver.planning import Plan
from semel.kafka.damage import Damage
from semel.kafka.reader import read_ranges
from semel.sinks import protocols
from semel.sinks.base import Sink, Snapshot
from semel.sinks.rereading import NotShown, View, Viewable
from semel.tasks.poll import TopicPoll, by_topic

Spans = Mapping[TopicPartition, tuple[int, int | None]]
"""The offsets ``[from, until)`` of each topic-partition; None means no end."""
_END = 1 << 62
_PLACES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The contents of the store, and how many ``seconds`` it took to read them.

    ``records`` holds the coordinates of each topic's rows, at least of those that were asked for.
    ``counts`` holds the number of rows of each topic or, without provenance, of each target, if
    they were counted. ``view`` shows the same instant while it is open.
    """

    snapshot: Snapshot
    entries: Mapping[TopicPartition, LedgerEntry]
    records: Mapping[str, pa.Table] = field(default_factory=dict)
    counts: Mapping[str, int] | None = None
    seconds: float = 0.0
    view: View | None = None

    def rows(
        self, tp: TopicPartition, from_offset: int, until_offset: int | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The offsets and timestamps of a partition's rows in an interval, or from an offset on."""
        records = self.records.get(tp.topic)
        rows, times = offsets_of(records, tp.partition), times_of(records, tp.partition)
        mask = rows >= from_offset
        if until_offset is not None:
            mask &= rows < until_offset
        return rows[mask], None if times is None else times[mask]

    def surplus(self, *, by_target: bool) -> dict[str, int]:
        """How many more rows each topic, or each target, has than the ledger counts."""
        targets = self.snapshot.targets
        surplus = {}
        for name, rows in (self.counts or {}).items():
            topics = [t for t in targets if targets[t] == name] if by_target else [name]
            if not self.snapshot.incomplete & set(topics):
                entries = self.entries.values()
                surplus[name] = rows - sum(e.rows_written for e in entries if e.topic in topics)
        return surplus


def look(
    sink: Sink,
    topics: Collection[str],
    spans: Spans,
    views: ExitStack,
    *,
    exact: bool,
    count: bool = True,
) -> StoreContents:
    """Look at the store. ``exact`` says that the rows have provenance. With ``count``, or if the
    sink cannot show only some of its rows, all rows are read and counted. A view stays open until
    ``views`` is closed.

    Raises:
        ConfigError: a topic's records go to several targets with ledgers of their own, or a target
            has no provenance columns.
    """
    began = time.monotonic()
    if exact and isinstance(sink, Viewable):
        try:
            contents = _viewed(sink, topics, spans, views, count=count)
        except TransientError:
            raise
        except NotShown:
            contents = _whole(sink, topics, exact=exact)
        except ServiceError:
            protocols.snapshots(sink, topics)  # its error names what is wrong with a target
            raise
    else:
        contents = _whole(sink, topics, exact=exact)
    return replace(contents, seconds=time.monotonic() - began)


def _whole(sink: Sink, topics: Collection[str], *, exact: bool) -> StoreContents:
    snapshots = protocols.snapshots(sink, topics)
    if len(snapshots) != 1:
        raise _several(len(snapshots))
    (snapshot,) = snapshots
    entries = {e.topic_partition: e for e in snapshot.entries if e.topic in topics}
    records = {t: snapshot.records[t] for t in snapshot.records if t in topics}
    counts = {t: r.num_rows for t, r in records.items()} if exact else snapshot.rows
    return StoreContents(snapshot, entries, records, counts)


def _viewed(
    sink: Viewable, topics: Collection[str], spans: Spans, views: ExitStack, *, count: bool
) -> StoreContents:
    opened = views.enter_context(sink.viewing(topics))
    if len(opened) != 1:
        raise _several(len(opened))
    (view,) = opened
    targets = {topic: view.target(topic) for topic in topics}
    snapshot = replace(view.snapshot(()), targets=targets)
    entries = {e.topic_partition: e for e in snapshot.entries if e.topic in topics}
    records, counts = {}, {}
    for topic, ranges in ranges_of(spans).items():
        parts, counts[topic] = [_PLACES.empty_table()], 0
        for batch in view.rows(topic, (), None if count else ranges):
            counts[topic] += batch.num_rows
            parts.append(_among(batch, ranges))
        records[topic] = pa.concat_tables(parts, promote_options="default")
    return StoreContents(snapshot, entries, records, counts if count else None, view=view)


def ranges_of(spans: Spans) -> dict[str, list[OffsetRange]]:
    """The ranges to ask a view for, by topic, without empty spans."""
    ranges: dict[str, list[OffsetRange]] = {tp.topic: [] for tp in spans}
    for tp, (start, until) in sorted(spans.items()):
        end = _END if until is None else until
        if start < end:
            ranges[tp.topic].append(OffsetRange(*tp, start, end))
    return ranges


def _among(rows: pa.RecordBatch, ranges: Sequence[OffsetRange]) -> pa.Table:
    """The coordinates of the rows in one of the ranges."""
    partitions, offsets = (
        rows.column(n).to_numpy(zero_copy_only=False) for n in (PARTITION, OFFSET)
    )
    keep = np.zeros(rows.num_rows, dtype=bool)
    for r in ranges:
        keep |= (
            (partitions == r.partition) & (offsets >= r.from_offset) & (offsets < r.until_offset)
        )
    columns = {"partition": rows.column(PARTITION), "offset": rows.column(OFFSET)}
    if TIMESTAMP in rows.schema.names:
        columns["timestamp"] = rows.column(TIMESTAMP)
    return pa.table(columns).filter(pa.array(keep))


def _several(count: int) -> ConfigError:
    return ConfigError(
        f"--follow cannot judge records that go to {count} tables with ledgers of their own. Run "
        "semel audit without it, as often as you need"
    )


def ledger_only(
    entries: Mapping[TopicPartition, LedgerEntry], holes: Sequence[Hole]
) -> StoreContents:
    """A look at the ledger alone, for cases in which rows show nothing."""
    return StoreContents(Snapshot(list(entries.values()), holes), entries)


def read(
    planned: Plan,
    contents: StoreContents,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    taken: Callable[[TopicPoll], None] | None,
) -> tuple[dict[TopicPartition, RecordOffsets], list[Damage]]:
    """Kafka's records in ``[start, end)`` of each partition, and what cannot be read of them.
    ``taken`` gets the records that the sink has not refused.

    Raises:
        OffsetOutOfRange: retention has removed some of them meanwhile.
        TransientError: Kafka cannot be reached.
    """
    kafka = {tp: RecordOffsets() for tp in starts}
    damaged: list[Damage] = []
    dated = wants_times(contents.snapshot, contents.records)
    # Without provenance, records that have rows in another target count as read.
    reasons = NOT_HERE if contents.records else UNREAD
    messages = read_ranges(planned.connector, starts, ends, damaged=damaged.append)
    for polled in messages:
        for poll in by_topic(polled):
            keep = np.ones(len(poll.offsets), dtype=bool)
            stamps = poll.timestamps() if dated else None
            for partition in np.unique(poll.partitions).tolist():
                tp = TopicPartition(poll.topic, partition)
                mask = poll.partitions == partition
                rows = offsets_of(contents.records.get(tp.topic), tp.partition)
                absent = given_up(
                    poll.offsets, rows, holes.of(contents.snapshot.holes, tp), reasons
                )
                keep &= ~(mask & absent)
                mask &= ~absent
                kafka[tp].offsets.append(poll.offsets[mask])
                times = NONE if stamps is None else stamps[mask]
                kafka[tp].times.append(times)
                if taken is not None:
                    refused, _ = letters(contents.snapshot, tp, poll.offsets[mask], times)
                    keep &= ~(mask & np.isin(poll.offsets, refused))
            if taken is not None:
                taken(poll.only(keep))
    return kafka, damaged


def dead_letters(contents: StoreContents, tp: TopicPartition) -> np.ndarray:
    """The offsets of dead letters, except those in holes: these were never read, and are lost."""
    dead = np.unique(offsets_of(contents.snapshot.dead.get(tp.topic), tp.partition))
    unread = within(dead, holes.of(contents.snapshot.holes, tp, *UNREAD))
    offsets: np.ndarray = dead[~unread]
    return offsets


def interval(
    contents: StoreContents,
    tp: TopicPartition,
    span: tuple[int, int],
    kafka: RecordOffsets,
    unreadable: Sequence[OffsetRange],
) -> Interval:
    """The offsets ``[from, until)`` in Kafka and in the store."""
    dead, _ = letters(contents.snapshot, tp, kafka.all(), kafka.all_times())
    rows, times = contents.rows(tp, *span)

    def inside(offsets: np.ndarray) -> np.ndarray:
        chosen: np.ndarray = offsets[(offsets >= span[0]) & (offsets < span[1])]
        return chosen

    return Interval(
        kafka.all(),
        rows,
        kafka.all_times(),
        times,
        inside(kafka.replaced),
        inside(kafka.unsure),
        inside(dead),
        holes.of(contents.snapshot.holes, tp),
        unreadable,
        start=span[0],
        position=span[1],
    )


def values_of(
    sink: Sink,
    contents: StoreContents,
    view: View,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    workspace: Workspace,
) -> Values:
    """What compares the rows of these intervals with the records that it is given."""
    return Values(
        sink,
        view,
        replace(contents.snapshot, records=contents.records),
        workspace,
        exact=True,
        progress=lambda *_: None,
        ranges=ranges_of({tp: (starts[tp], ends[tp]) for tp in starts}),
    )
