"""One commit of a micro-batch, in a task or on the driver: its input and its result.

Nothing here knows about Spark. A *range* is the part of a batch from one topic-partition; a task
commits one of them, the driver all of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from semel.core.errors import BadRecord, ConfigError, Failure
from semel.core.ledger import Advance, OffsetRange, TopicPartition
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
from semel.tasks.batch import Batch, count_failed
from semel.tasks.microbatch import frames
from semel.tasks.poll import advances


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
