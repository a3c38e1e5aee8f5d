"""Reads from the store at one instant what the next intervals need."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from semel.audit.offsets import offsets_of, times_of
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.ledger import Hole, LedgerEntry, OffsetRange, TopicPartition
from semel.core.records import OFFSET, PARTITION, TIMESTAMP
from semel.sinks import protocols
from semel.sinks.base import Sink, Snapshot
from semel.sinks.rereading import NotShown, ShowsRows, View


@dataclass(frozen=True, slots=True)
class Look:
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
        mine = rows >= from_offset
        if until_offset is not None:
            mine &= rows < until_offset
        return rows[mine], None if times is None else times[mine]

    def surplus(self, *, by_target: bool) -> dict[str, int]:
        """How many more rows each topic, or each target, has than the ledger counts."""
        targets = self.snapshot.targets
        found = {}
        for name, rows in (self.counts or {}).items():
            topics = [t for t in targets if targets[t] == name] if by_target else [name]
            if not self.snapshot.incomplete & set(topics):
                entries = self.entries.values()
                found[name] = rows - sum(e.rows_written for e in entries if e.topic in topics)
        return found


Spans = Mapping[TopicPartition, tuple[int, int | None]]
"""The offsets ``[from, until)`` of each topic-partition; None means no end."""
_END = 1 << 62


def look(
    sink: Sink,
    topics: Collection[str],
    spans: Spans,
    views: ExitStack,
    *,
    exact: bool,
    count: bool = True,
) -> Look:
    """Look at the store. ``exact`` says that the rows have provenance. With ``count``, or if the
    sink cannot show only some of its rows, all rows are read and counted. A view stays open until
    ``views`` is closed.

    Raises:
        ConfigError: a topic's records go to several targets with ledgers of their own, or a target
            has no provenance columns.
    """
    began = time.monotonic()
    if exact and isinstance(sink, ShowsRows):
        try:
            seen = _viewed(sink, topics, spans, views, count=count)
        except TransientError:
            raise
        except NotShown:
            seen = _whole(sink, topics, exact=exact)
        except ServiceError:
            protocols.snapshots(sink, topics)  # its error names what is wrong with a target
            raise
    else:
        seen = _whole(sink, topics, exact=exact)
    return replace(seen, seconds=time.monotonic() - began)


def _whole(sink: Sink, topics: Collection[str], *, exact: bool) -> Look:
    snapshots = protocols.snapshots(sink, topics)
    if len(snapshots) != 1:
        raise _several(len(snapshots))
    (snapshot,) = snapshots
    entries = {e.topic_partition: e for e in snapshot.entries if e.topic in topics}
    records = {t: snapshot.records[t] for t in snapshot.records if t in topics}
    counts = {t: r.num_rows for t, r in records.items()} if exact else snapshot.rows
    return Look(snapshot, entries, records, counts)


def _viewed(
    sink: ShowsRows, topics: Collection[str], spans: Spans, views: ExitStack, *, count: bool
) -> Look:
    opened = views.enter_context(sink.viewing(topics))
    if len(opened) != 1:
        raise _several(len(opened))
    (view,) = opened
    targets = {topic: view.target(topic) for topic in topics}
    snapshot = replace(view.snapshot(()), targets=targets)
    entries = {e.topic_partition: e for e in snapshot.entries if e.topic in topics}
    records, counts = {}, {}
    for topic, wanted in ranges_of(spans).items():
        parts, counts[topic] = [_PLACES.empty_table()], 0
        for batch in view.rows(topic, (), None if count else wanted):
            counts[topic] += batch.num_rows
            parts.append(_among(batch, wanted))
        records[topic] = pa.concat_tables(parts, promote_options="default")
    return Look(snapshot, entries, records, counts if count else None, view=view)


def ranges_of(spans: Spans) -> dict[str, list[OffsetRange]]:
    """The ranges to ask a view for, by topic, without empty spans."""
    found: dict[str, list[OffsetRange]] = {tp.topic: [] for tp in spans}
    for tp, (start, until) in sorted(spans.items()):
        end = _END if until is None else until
        if start < end:
            found[tp.topic].append(OffsetRange(*tp, start, end))
    return found


_PLACES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


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


def ledger_only(entries: Mapping[TopicPartition, LedgerEntry], holes: Sequence[Hole]) -> Look:
    """A look at the ledger alone, for cases in which rows show nothing."""
    return Look(Snapshot(list(entries.values()), holes), entries)
