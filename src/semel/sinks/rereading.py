"""How a sink shows its rows to an audit: the rows it holds, and the rows that given records should
produce.

A sink opts in by having a method ``viewing``; see :class:`Viewable`. The values of a sink without
it are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from semel.core.ledger import OffsetRange, TopicPartition
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, Records, RowsRejected
from semel.sinks.base import Snapshot


def places(rows: pa.Table) -> pa.Table:
    """The partitions and offsets of the records behind rows, and their timestamps if they are
    known."""
    return rows.select([n for n in (PARTITION, OFFSET, TIMESTAMP) if n in rows.column_names])


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The rows that a target holds once records are written, one for each record, in their order.

    ``places`` has the columns :data:`~semel.core.records.PARTITION` and
    :data:`~semel.core.records.OFFSET`, and :data:`~semel.core.records.TIMESTAMP` if the records do
    (see :func:`places`), ``values`` the target's columns that the records fill in, in exactly the
    types and forms in which :meth:`View.rows` gives them. Provenance is not among them, nor are
    columns that the store computes. A null in one of the ``optional`` columns means "not given":
    the row may hold anything there. ``unlike`` names columns whose values cannot be compared, each
    with the reason.
    """

    places: pa.Table
    values: pa.Table
    optional: frozenset[str] = frozenset()
    unlike: dict[str, str] = field(default_factory=dict)


class SomeRefused(Exception):
    """The store refuses some of the records."""


class NotShown(Exception):
    """A sink does not show its rows, for this reason."""


class View(Protocol):
    """One target and its ledger, at one instant, for as long as the view is open."""

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        """See :meth:`~semel.sinks.base.Sink.snapshot`. For no topics it costs little: ledger, holes
        and dead letters are read, and no rows."""

    def target(self, topic: str) -> str:
        """The name of a topic's target, as in a snapshot."""

    def rows(
        self, topic: str, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a topic's target, a batch at a time; read one such iterator after the other.

        Each batch has the named columns. With ``provenance=true`` they come after the columns
        :data:`~semel.core.records.PARTITION` (int32), :data:`~semel.core.records.OFFSET` (int64)
        and, where the store keeps it, :data:`~semel.core.records.TIMESTAMP` (int64, milliseconds),
        and only rows of the topic are given. ``ranges`` limits the rows to these offsets; it needs
        provenance. A target that does not exist gives no rows.
        """

    def held(self, records: Records) -> HeldRows:
        """The rows that the target should hold for these records, without tombstones, as if nothing
        had replaced them. Nothing is written. Records that the store would refuse are left out, and
        so is everything if the target does not exist."""


@runtime_checkable
class Viewable(Protocol):
    """A sink that shows its rows."""

    def viewing(self, topics: Collection[str]) -> AbstractContextManager[Sequence[View]]:
        """Open views of the topics' targets: one, or one for each ledger, as with
        :meth:`~semel.sinks.protocols.SeveralLedgers.snapshots`. The connector may keep
        running; the views do not show what it commits after they were opened.

        Raises:
            NotShown: not with this configuration; says why.
        """


def held_of(records: Records, make: Callable[[Records], HeldRows]) -> HeldRows:
    """The result of ``make`` for those records that the store does not refuse. ``make`` raises
    RowsRejected, or :class:`SomeRefused` if it does not know which records these are."""
    rows = records.rows
    while rows.num_rows:
        try:
            return make(replace(records, rows=rows, tombstones=None))
        except RowsRejected as rejection:
            rows = _without(rows, {(r.partition, r.offset) for r in rejection.rejected})
        except SomeRefused:
            if rows.num_rows > 1:
                middle = rows.num_rows // 2
                parts = [
                    held_of(replace(records, rows=r, tombstones=None), make)
                    for r in (rows.slice(0, middle), rows.slice(middle))
                ]
                first, *others = [p for p in parts if p.places.num_rows] or parts[:1]
                return replace(
                    first,
                    places=pa.concat_tables([first.places, *(p.places for p in others)]),
                    values=pa.concat_tables([first.values, *(p.values for p in others)]),
                )
            rows = rows.slice(0, 0)
    return HeldRows(places(rows), pa.table({}))


def _without(rows: pa.Table, refused: Collection[tuple[int, int]]) -> pa.Table:
    keep = np.ones(rows.num_rows, dtype=bool)
    partitions, offsets = rows.column(PARTITION).to_numpy(), rows.column(OFFSET).to_numpy()
    for partition, offset in refused:
        keep &= ~((partitions == partition) & (offsets == offset))
    return rows.filter(pa.array(keep))


def in_ranges(rows: pa.Table, ranges: Sequence[OffsetRange] | None, topic: str) -> pa.Table:
    """Rows with their places, those of a topic's ranges; all of them for None."""
    if ranges is None:
        return rows
    partitions, offsets = rows.column(PARTITION).to_numpy(), rows.column(OFFSET).to_numpy()
    keep = np.zeros(rows.num_rows, dtype=bool)
    for r in ranges:
        inside = (offsets >= r.from_offset) & (offsets < r.until_offset)
        keep |= inside & (partitions == r.partition) & (r.topic == topic)
    return rows.filter(pa.array(keep))


def below(rows: pa.Table, topic: str, ends: Mapping[TopicPartition, int]) -> pa.Table:
    """Rows of a topic below the positions, by their columns ``partition`` and ``offset``."""
    keep = np.zeros(rows.num_rows, dtype=bool)
    partitions, offsets = (rows.column(n).to_numpy() for n in ("partition", "offset"))
    for tp, end in ends.items():
        if tp.topic == topic:
            keep |= (partitions == tp.partition) & (offsets < end)
    return rows.filter(pa.array(keep))


def canonical(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values in a type that can hold them all: times and dates as counts, because other programs
    cover fewer years than Arrow; of several equivalent types, the plainest."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return canonical(values.cast(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        plain = pa.chunked_array([c.storage for c in values.chunks], kind.storage_type)
        return canonical(plain)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return values.cast(pa.int32())
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return values.cast(pa.int64())
    if pa.types.is_float16(kind):
        return values.cast(pa.float32())
    if pa.types.is_decimal256(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return values.cast(pa.string())
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind):
        return values.cast(pa.binary())
    return values.cast(pa.binary()) if kind == pa.binary_view() else values
