"""Decoding inside the plan of a query over streams.

Spark plans such a query once, so its columns are known before the first batch: a field that appears
later is left out until the query is planned again. What bypasses the plan (dead letters, counts)
goes to the driver as a :class:`StreamOutput`, through an accumulator. Tasks may run twice, for
retries or speculation, and two stages may read the same records; the driver tells by offsets what
it has been told before.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ConfigError, Failure, SemelError
from semel.core.ledger import OffsetRange
from semel.core.quoting import named
from semel.core.records import (
    DATA_EXCEPTION,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    DeadLetter,
    Records,
    RejectedRecord,
    one_array,
    rejected,
)
from semel.tasks.batch import Refusals
from semel.tasks.microbatch import frames
from semel.tasks.microbatch.commit import SideOutput
from semel.tasks.microbatch.task import (
    Decoder,
    JobInput,
    MicroBatchWorker,
    MicroSpec,
    at_work,
    task_context,
)
from semel.tasks.poll import TopicTable

BATCH = "semel.batch"
"""The Spark local property that holds the number of the batch."""
EVENT_TIME = pa.timestamp("us", "UTC")
MADE = frozenset({TOPIC, PARTITION, OFFSET, TIMESTAMP})
"""The metadata that rows of a query have whatever it makes: they say which batch has made them."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One topic of a query: its columns, and the field of the event time; empty for Kafka's own."""

    topic: str
    schema: pa.Schema
    event_time: str = ""


@dataclass(slots=True)
class StreamOutput:
    """What one task has found in a topic besides rows, in a batch of the query. ``read`` counts
    records by partition and first offset; ``others`` are fields without a column."""

    batch: str
    topic: str
    task: int
    side: SideOutput = field(default_factory=SideOutput)
    read: dict[tuple[int, int], int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)


def decode(
    spec: MicroSpec, stream: Stream, batches: Iterable[pa.RecordBatch], report: Any
) -> Iterator[pa.RecordBatch]:
    """Decode what one Spark task reads of a topic."""
    context = task_context()
    output = StreamOutput(
        context.getLocalProperty(BATCH) or "", stream.topic, context.partitionId()
    )
    with at_work(spec) as worker:
        decoder = _StreamDecoder(worker, stream, output)
        for batch in batches:
            try:
                yield from decoder.decode(batch)
            except SemelError as error:
                output.side.failed = Failure.of(error)
    report.add([pickle.dumps(output)])


class _StreamDecoder(Decoder):
    def __init__(self, worker: MicroBatchWorker, stream: Stream, output: StreamOutput) -> None:
        super().__init__(worker, JobInput([], schema=stream.schema), stream.topic)
        self.side = output.side
        self._stream = stream
        self._output = output

    def decode(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        read = self._output.read
        for partition, offset in _firsts(batch):
            key = next((place for place in read if place[0] == partition), (partition, offset))
            own = pc.equal(batch.column("partition"), partition)
            read[key] = read.get(key, 0) + int(pc.sum(own).as_py())
        batches = super().decode(batch)
        self.side.tombstones.clear()  # a query makes no deletes
        return batches

    def _converted(self, poll: TopicTable, refused: Refusals) -> tuple[Records, list[DeadLetter]]:
        records, letters = super()._converted(poll, refused)
        if not (name := self._stream.event_time):
            return records, letters
        rows, timeless = timed(records.rows, name)
        if timeless:
            records, letters = super()._converted(poll, {**refused, **timeless})
            rows, _ = timed(records.rows, name)
        return replace(records, rows=rows), letters

    def _carried(self, rows: pa.Table) -> list[pa.RecordBatch]:
        schema, topic = self._stream.schema, self._stream.topic
        self._output.others |= set(rows.column_names) - set(schema.names)
        try:
            return frames.carry(rows, schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise ConfigError(
                f"values of topic {named(topic)} do not fit the columns that the query was "
                f"planned with, {', '.join(_differing(rows.schema, schema))}: {error}. Declare "
                "their types in value.converter.schema, and begin anew"
            ) from None


def _firsts(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """The partitions of a batch, which is nearly always one, with the first offset of each."""
    table = pa.table({n: batch.column(n) for n in ("partition", "offset")})
    firsts = table.group_by("partition").aggregate([("offset", "min")])
    for row in firsts.to_pylist():
        yield row["partition"], row["offset_min"]


def _differing(schema: pa.Schema, known: pa.Schema) -> list[str]:
    return [
        f"{named(f.name)} ({known.field(f.name).type}, now {f.type})"
        for f in schema
        if f.name in known.names and known.field(f.name).type != f.type
    ]


# Event times


def may_be_time(kind: pa.DataType) -> bool:
    """Whether values of a type may be event times."""
    kinds = pa.types
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
    return bool(
        kinds.is_timestamp(kind) or kinds.is_date(kind) or kinds.is_integer(kind) or is_text
    )


def timed(
    rows: pa.Table, name: str
) -> tuple[pa.Table, Mapping[tuple[str, int, int], RejectedRecord]]:
    """Rows with their event time as a timestamp, and the records that have none."""
    at = rows.column_names.index(name) if name in rows.column_names else -1
    values = one_array(rows.column(at)) if at >= 0 else pa.nulls(rows.num_rows, EVENT_TIME)
    times = _times(values)
    rejections = {}
    for index in pc.indices_nonzero(times.is_null()).to_pylist():
        value = values[index].as_py()
        what = "is missing" if value is None else f"is no time: {str(value)[:40]!r}"
        bad = rejected(rows, index, f"event.time.field={name} {what}")
        rejections[bad.topic, bad.partition, bad.offset] = replace(bad, exception=DATA_EXCEPTION)
    if at < 0:
        return rows.append_column(name, times), rejections
    return rows.set_column(at, name, times), rejections


def _times(values: pa.Array) -> pa.Array:
    """Event times; null where a value is none."""
    kinds, kind = pa.types, values.type
    if kinds.is_timestamp(kind):
        return _each(values, lambda v: _utc(v.cast(pa.timestamp("us", kind.tz), safe=False)), None)
    if kinds.is_date(kind):
        return _each(values, lambda v: _utc(v.cast(pa.timestamp("us"))), None)
    if kinds.is_integer(kind):
        since = pa.timestamp("ms", "UTC")
        return _each(values, lambda v: v.cast(pa.int64()).cast(since).cast(EVENT_TIME), None)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _each(values, lambda v: v.cast(EVENT_TIME), _parsed)
    return pa.nulls(len(values), EVENT_TIME)


def _utc(values: pa.Array) -> pa.Array:
    aware = values if values.type.tz else pc.assume_timezone(values, "UTC")
    return aware.cast(EVENT_TIME)


def _each(
    values: pa.Array,
    convert: Callable[[pa.Array], pa.Array],
    convert_one: Callable[[Any], datetime | None] | None,
) -> pa.Array:
    """Convert values at once or, if one of them does not fit, each alone."""
    try:
        return convert(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError):
        pass
    if convert_one is not None:
        return pa.array([convert_one(v) for v in values.to_pylist()], EVENT_TIME)
    parts = []
    for index in range(len(values)):
        try:
            parts.append(convert(values.slice(index, 1)))
        except (pa.ArrowInvalid, OverflowError):
            parts.append(pa.nulls(1, EVENT_TIME))
    return pa.concat_arrays(parts) if parts else pa.nulls(0, EVENT_TIME)


def _parsed(text: str | None) -> datetime | None:
    """A time in ISO 8601; in UTC if it says nothing else."""
    try:
        moment = datetime.fromisoformat(text or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# What the driver is told


class TaskReports:
    """What the tasks of one batch have told, each record once."""

    def __init__(self, outputs: Iterable[StreamOutput], ranges: Iterable[OffsetRange]) -> None:
        self.failed: Failure | None = None
        self.others: dict[str, set[str]] = {}
        letters: dict[tuple[str, int, int], DeadLetter] = {}
        read: dict[tuple[str, int, int], int] = {}
        tasks: dict[str, set[int]] = {}
        stops: list[DeadLetter] = []
        for output in outputs:
            self.failed = self.failed or output.side.failed
            self.others.setdefault(output.topic, set()).update(output.others)
            tasks.setdefault(output.topic, set()).add(output.task)
            stops += [output.side.stop] if output.side.stop is not None else []
            letters |= {(x.topic, x.partition, x.offset): x for x in output.side.letters}
            for (partition, first), count in output.read.items():
                place = output.topic, partition, first
                read[place] = max(count, read.get(place, 0))
        self.stop = min(stops, key=lambda x: (x.topic, x.partition, x.offset), default=None)
        self.letters = [letters[place] for place in sorted(letters)]
        self.read: dict[tuple[str, int], int] = {}
        for (topic, partition, _), count in read.items():
            self.read[topic, partition] = self.read.get((topic, partition), 0) + count
        expected = Counter(r.topic for r in ranges)
        self.unread = sorted(t for t, n in expected.items() if len(tasks.get(t, ())) < n)
        """The topics of which the plan has left records unread."""
