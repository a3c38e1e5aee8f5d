"""What a micro-batch runs on executors: decode raw records, and commit what becomes of them.

A Spark task holds the records of one offset range. Without a transform it decodes and commits in
one go. With one, decoding comes before it and the commit after it, in two Python workers of the
same task; what must bypass the transform (dead letters, tombstones, counts) travels as a
:class:`SideOutput`: in a file if the same task commits, to the driver if the driver does.

Tasks answer with a :class:`Result` instead of raising, because Spark would try again. From batch to
batch, a worker process keeps one sink with its connection for each run.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkFiles, TaskContext

from semel.core.delivery import Guarantee
from semel.core.errors import Failure, LogChanged, SemelError, ServiceError, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import OffsetRange, TopicPartition
from semel.core.records import DeadLetter, Records, RejectedRecord, RowsRejected
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.tasks import memory
from semel.tasks.batch import Refusals, add_refused, left_out, with_unplaced
from semel.tasks.commit import Committer
from semel.tasks.microbatch import frames
from semel.tasks.microbatch.commit import (
    PinnedLogs,
    Result,
    SideOutput,
    arranged,
    assembled,
    committed,
    rejection_of,
    widened,
)
from semel.tasks.poll import TopicTable
from semel.tasks.unplaced import FieldCheck
from semel.tasks.workers import RunWorker, Spec, Workers

log = logging.getLogger(__name__)

COMMIT = "semel.commit"
"""The Spark local property that tells a decoding task who commits: ``task`` or ``driver``."""

_CHUNK = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroSpec(Spec):
    """A run of the micro-batch engine; with ``frames`` a DataFrame transform makes the rows."""

    guarantee: Guarantee
    frames: bool


@dataclass(frozen=True, slots=True)
class JobInput:
    """What one job reads: ``ranges[i]`` is Spark partition ``i``.

    ``schema`` holds the columns that decoded rows have on their way through a transform;
    ``refused`` are records that the sink has refused before, ``moved`` the partitions of those
    commits (see :meth:`semel.tasks.commit.Committer.commit`).
    """

    ranges: Sequence[OffsetRange]
    refused: Refusals = field(default_factory=dict)
    moved: Collection[TopicPartition] = ()
    schema: pa.Schema | None = None
    id: str = ""
    pinned: PinnedLogs = field(default_factory=PinnedLogs)


class MicroBatchWorker(RunWorker):
    """What a worker process keeps for a run."""

    def __init__(self, spec: MicroSpec) -> None:
        super().__init__(spec, frames=spec.frames)
        self.committer = Committer(
            spec.connector, spec.guarantee, self.sink, _partition_id(), log.warning
        )
        self.unplaced = FieldCheck(spec.connector, self.sink)
        self.cluster = Cluster(client_config(spec.connector, "admin"))


_workers: Workers[MicroBatchWorker] = Workers()


def at_work(spec: MicroSpec) -> AbstractContextManager[MicroBatchWorker]:
    return _workers.at_work(spec, _partition_id(), lambda: MicroBatchWorker(spec))


def task_context() -> Any:
    """The context of the Spark task."""
    return TaskContext.get()


def _partition_id() -> int:
    context = task_context()
    return context.partitionId() if context else 0


# Without a transform


def commit_raw(
    spec: MicroSpec, job_input: JobInput, batches: Iterable[pa.RecordBatch]
) -> pa.RecordBatch:
    """Decode one range and commit it."""
    index = _partition_id()
    range_ = job_input.ranges[index]
    with at_work(spec) as worker:
        polls = list(_chunks(range_.topic, batches))
        hit("task.after_poll")
        return _answer(index, lambda: _commit_raw(worker, range_, polls, index, job_input.pinned))


def _commit_raw(
    worker: MicroBatchWorker,
    range_: OffsetRange,
    polls: Sequence[TopicTable],
    index: int,
    pinned: PinnedLogs,
) -> Result:
    tp = range_.topic_partition
    refused: list[RejectedRecord] = []
    pinned.confirm(worker.cluster, [range_])
    while True:
        batch = pinned.stamped(
            worker.batcher.batch(
                polls, {tp: range_.from_offset}, {tp: range_.until_offset}, refused
            )
        )
        hit("task.after_convert")
        try:
            worker.committer.commit(batch.advances, batch.commit, [tp] if refused else ())
        except RowsRejected as rejection:
            add_refused(worker.spec.connector.name, refused, rejection.rejected)
            continue
        memory.give_back_after(batch.nbytes)
        return replace(committed(index, batch), size=sum(p.table.nbytes for p in polls))


def _chunks(topic: str, batches: Iterable[pa.RecordBatch]) -> Iterator[TopicTable]:
    """The range in chunks: one would be quickest, but an Arrow string array holds at most 2 GiB."""
    chunk: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        chunk.append(batch)
        size += batch.nbytes
        if size >= _CHUNK:
            yield TopicTable(topic, pa.Table.from_batches(chunk))
            chunk, size = [], 0
    if chunk:
        yield TopicTable(topic, pa.Table.from_batches(chunk))


# Before a transform


def decode(
    spec: MicroSpec, job_input: JobInput, batches: Iterable[pa.RecordBatch], report: Any
) -> Iterator[pa.RecordBatch]:
    """Decode one range for a transform; ``report`` takes what bypasses the transform to the
    driver."""
    context = task_context()
    index = context.partitionId()
    with at_work(spec) as worker:
        decoder = Decoder(worker, job_input, job_input.ranges[index].topic)
        for batch in batches:
            try:
                yield from decoder.decode(batch)
            except SemelError as error:
                decoder.side.failed = Failure.of(error)
    if context.getLocalProperty(COMMIT) == "task":
        _pass_on(_side_file(spec.run, context), decoder.side)
    else:
        report.add([(job_input.id, index, pickle.dumps(decoder.side))])


class Decoder:
    """Decodes the records of one topic, batch by batch. ``side`` is what bypasses the plan."""

    def __init__(self, worker: MicroBatchWorker, job_input: JobInput, topic: str) -> None:
        assert job_input.schema is not None
        self._batcher = worker.batcher
        self._tolerates = worker.spec.connector.errors_tolerance == "all"
        self._schema = job_input.schema
        self._refused = job_input.refused
        self._topic = topic
        self.side = SideOutput()

    def decode(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        side = self.side
        if side.stop is not None or side.failed is not None:
            return []
        poll = TopicTable(self._topic, pa.Table.from_batches([batch]))
        records, letters = self._converted(poll, self._refused)
        if letters and not self._tolerates:
            side.stop = min(letters, key=lambda letter: letter.offset)
            poll = poll.only(poll.offsets < side.stop.offset)
            records, letters = self._converted(poll, left_out(self._refused))
        side.read += len(poll.offsets)
        side.letters += letters
        if records.tombstones is not None:
            side.tombstones.append(records.tombstones)
        if not records.rows.num_rows:
            return []
        return self._carried(records.rows)

    def _converted(self, poll: TopicTable, refused: Refusals) -> tuple[Records, list[DeadLetter]]:
        (records,), letters, _ = self._batcher.convert(poll, refused)
        return records, letters

    def _carried(self, rows: pa.Table) -> list[pa.RecordBatch]:
        self._grow(rows.schema)
        return [] if self.side.grown is not None else frames.carry(rows, self._schema)

    def _grow(self, schema: pa.Schema) -> None:
        known = self.side.grown or self._schema
        schema = schema.remove_metadata()
        if all(_holds(known, f) for f in schema):
            return
        merged = widened(self._topic, known, schema)
        if merged != known:
            self.side.grown = merged


def _holds(schema: pa.Schema, field_: pa.Field) -> bool:
    at = schema.get_field_index(field_.name)
    return bool(at >= 0 and (pa.types.is_null(field_.type) or schema.field(at).type == field_.type))


# After a transform


def commit_rows(
    spec: MicroSpec, job_input: JobInput, batches: Iterable[pa.RecordBatch]
) -> pa.RecordBatch:
    """Commit what a transform made of one range."""
    index = _partition_id()
    with at_work(spec) as worker:
        parts = [batch for batch in batches if batch.num_rows]
        return _answer(index, lambda: _commit_rows(worker, job_input, index, parts))


def _commit_rows(
    worker: MicroBatchWorker, job_input: JobInput, index: int, parts: Sequence[pa.RecordBatch]
) -> Result:
    side = _passed_on(_side_file(worker.spec.run, task_context()))
    if side is None:
        return Result("unread", index)
    if side.failed is not None:
        return Result("failed", index, failure=side.failed)
    if side.grown is not None:
        return Result("grown", index, grown=side.grown)
    range_ = job_input.ranges[index]
    assert job_input.schema is not None
    tp = range_.topic_partition
    rows = pa.Table.from_batches(parts) if parts else job_input.schema.empty_table()
    records = arranged(rows, job_input.schema, range_.topic, [side], partition=range_.partition)
    job_input.pinned.confirm(worker.cluster, [range_])
    records, unplaced = worker.unplaced.without(records, typed=True)
    batch = job_input.pinned.stamped(assembled([range_], [side], [records], {tp: records.count}))
    batch = replace(batch, advances=with_unplaced(batch.advances, [unplaced]))
    hit("task.after_convert")
    try:
        worker.committer.commit(batch.advances, batch.commit, job_input.moved)
    except RowsRejected as rejection:
        return rejection_of(index, rejection, [range_])
    return replace(committed(index, batch), size=rows.nbytes)


def _side_file(run: str, context: Any) -> Path:
    """A file in the directory that Spark made for this application, and removes at its end."""
    return Path(SparkFiles.getRootDirectory()) / f"semel-{run}-{context.taskAttemptId()}"


def _pass_on(path: Path, side: SideOutput) -> None:
    """Leave a side output for the other worker of this task, in a file only this user can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(pickle.dumps(side))


def _passed_on(path: Path) -> SideOutput | None:
    """Take the side output that the other worker left. Another user's file is never unpickled."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        if os.fstat(handle).st_uid != os.geteuid():
            raise ServiceError(f"{path} belongs to another user; it is not read")
        side: SideOutput = pickle.loads(file.read())
    path.unlink()
    return side


def _answer(index: int, action: Any) -> pa.RecordBatch:
    """Run ``action`` and pack its result, or its error, as the one row that the task returns."""
    try:
        result = action()
    except LogChanged as error:  # the task cannot try this again
        result = Result("failed", index, failure=Failure.of(error))
    except TransientError as error:
        result = Result("transient", index, failure=Failure.of(error))
    except SemelError as error:
        result = Result("failed", index, failure=Failure.of(error))
    return pa.record_batch({"result": pa.array([pickle.dumps(result)], pa.binary())})
