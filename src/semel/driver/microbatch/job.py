"""One micro-batch on the driver: plan it, choose who commits, run it until it is committed.

If each partition of the transformed DataFrame comes from a single Kafka range, the tasks commit,
each its own range (*partition commit*). Where rows of several ranges meet (an exchange), they are
collected as Arrow and the driver commits all of them with all ranges (*batch commit*).

A range is done when it is committed. Until then its job is run again without the records that the
sink has refused, with a wider schema, or after a pause, whatever its last result asks for; the
ledger tells what has been committed already.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from semel.core.errors import BadRecord, Failure, Fenced, LedgerConflict, SemelError, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import LedgerEntry, LogId, OffsetRange, TopicPartition
from semel.core.records import OFFSET, PARTITION, DeadLetter, Records, RejectedRecord, RowsRejected
from semel.driver import sampler
from semel.driver.base import Progress, Run, Stopped
from semel.driver.microbatch.plan import (
    BatchSource,
    DecodedTopic,
    FrameTransform,
    KnownTopics,
    PlannedTopic,
    Planner,
    Widened,
    raw_columns,
)
from semel.kafka.damage import Damage
from semel.sinks.staging import StagingSink
from semel.tasks.batch import Batch, bad_record, passing_over, with_unplaced
from semel.tasks.commit import Committer, errors_log
from semel.tasks.control import Address
from semel.tasks.microbatch import task as microtask
from semel.tasks.microbatch.commit import (
    PinnedLogs,
    Result,
    SideOutput,
    arranged,
    assembled,
    rejection_of,
)
from semel.tasks.microbatch.task import COMMIT, JobInput
from semel.tasks.pipeline import count_by_partition
from semel.tasks.publish import Publisher
from semel.tasks.retry import OverdueWarning, Retries
from semel.tasks.unplaced import Counts, FieldCheck, UnplacedLog, sum_of

log = logging.getLogger(__name__)

Rejections = dict[tuple[str, int, int], RejectedRecord]
_LOOKS = 20
"""A query samples at most this many records of each partition before it starts."""
_BYTES = 4 * 1024 * 1024
_SHARES = 2
_SLACK = 2
"""A query ends if a batch is larger than its limit by this factor."""


class MicroBatches:
    """Commits the batches of one run, one at a time."""

    def __init__(
        self, run: Run, transform: FrameTransform | None, progress: Progress, control: Address
    ) -> None:
        self._run = run
        self._progress = progress
        self._connector = run.connector
        self._topics = KnownTopics(run, frames=transform is not None, control=control)
        self._planner = Planner(run, transform, self._topics) if transform is not None else None
        self._committer = Committer(run.connector, run.guarantee, run.sink, 0, log.warning)
        self._publisher = Publisher(
            run.connector, run.sink, run.topics, run.stop, moves=run.assignment.moves
        )
        self._unplaced_log = UnplacedLog(run.connector, run.sink)
        self._unplaced = FieldCheck(run.connector, run.sink)
        self._overdue = OverdueWarning(log.warning, lambda: "Spark is working on a batch")
        self.size = BatchSize(run)
        self._commits_here = isinstance(run.sink, StagingSink)
        """Whether the driver commits regardless of the plan."""
        self._moved: set[TopicPartition] = set()
        self._pinned = PinnedLogs()

    def enter(self, entries: Iterable[LedgerEntry]) -> None:
        """The ledger's entries at the start of a query, compared with Kafka."""
        self._topics.enter(entries)

    def begin_again(self) -> None:
        """Make worker processes recreate what they keep for the run."""
        self._topics.begin_again()

    def log_start(self) -> None:
        """See :meth:`~semel.tasks.publish.Publisher.log_start`."""
        self._publisher.log_start()

    def fenced(self, conflict: LedgerConflict) -> Fenced:
        """See :meth:`~semel.tasks.publish.Publisher.fenced`."""
        return self._publisher.fenced(conflict)

    def close(self) -> None:
        self._overdue.end()
        self._publisher.close()

    def process(self, batch: DataFrame) -> None:
        """Commit all of a batch.

        Raises:
            SemelError: what ends the connector.
            LogChanged: the batch may not be of the logs that the ledger knows.
            Stopped: asked to stop between two attempts.
        """
        source = BatchSource(batch)
        if not source.ranges:
            return
        self._pinned = self._topics.enter_new(source.ranges)
        self._overdue.begin()
        pending = list(range(len(source.ranges)))
        refused: Rejections = {}
        stops: list[DeadLetter] = []
        self._moved = set()
        waits = partial(self._run.waits, self._progress)
        retries = Retries(self._connector, log.warning, waits)
        while pending:
            results = self._attempt(source, pending, refused)
            self._count(results)
            for result in results:
                if result.kind == "committed":
                    pending.remove(result.index)
                    stops += [result.stop] if result.stop is not None else []
                else:
                    self._apply(result, refused)
            self._pause(results, retries)
        self._overdue.end()
        if stops:
            raise bad_record(self._connector.name, stops[0])

    def pass_over(self, damage: Damage, position: int, log_id: LogId) -> None:
        """Record unreadable offsets of this log as a hole."""
        tp = damage.topic_partition
        log.warning("%s: %s; continuing after them", tp, damage.described(position))
        for batch in passing_over(damage, position):
            self._committer.commit(batch.of({tp.topic: log_id}).advances, batch.commit)
        self._progress.positions |= {tp: damage.range.until_offset}
        self._publisher.publish({tp: damage.range.until_offset})

    def _apply(self, result: Result, refused: Rejections) -> None:
        """Prepare the next attempt."""
        if result.kind == "failed" and result.failure is not None:
            raise _naming(self._connector.name, result.failure)
        if result.kind == "unread":
            log.info("the transform leaves records unread; the driver commits from now on")
            self._commits_here = True
        self._moved |= {r.topic_partition for r in result.ranges}
        for record in result.rejected:
            where = (record.topic, record.partition, record.offset)
            if where in refused:
                raise BadRecord(
                    f"connector {self._connector.name}: the sink refuses a row of the record at "
                    f"{record.topic}-{record.partition} offset {record.offset}, even after that "
                    f"record was left out: {record.message}. Let {PARTITION} and {OFFSET} pass "
                    "the transform unchanged"
                )
            refused[where] = record

    def _attempt(
        self, source: BatchSource, pending: Sequence[int], refused: Rejections
    ) -> list[Result]:
        if self._planner is None:
            return self._commit_raw(source, pending)
        topics: dict[str, list[int]] = {}
        for index in pending:
            topics.setdefault(source.ranges[index].topic, []).append(index)
        plans = []
        try:
            for topic, indices in topics.items():
                decoded = self._planner.decoded(
                    source, topic, indices, refused, self._moved, self._pinned
                )
                if self._topics.schema(topic) is None:
                    return self._without_schema(decoded)
                plans.append(self._planner.plan(decoded))
        except Widened:
            return []
        if not self._commits_here and all(p.one_to_one for p in plans):
            return [result for p in plans for result in self._commit_in_tasks(p)]
        return self._commit_here(plans)

    # Partition commit

    def _commit_raw(self, source: BatchSource, pending: Sequence[int]) -> list[Result]:
        """Without a transform one job decodes and commits all topics."""
        spec = self._topics.spec
        job_input = JobInput([source.ranges[i] for i in pending], pinned=self._pinned)
        base, _ = source.frame(pending)
        raw = raw_columns(self._run, base, key=False)

        def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield microtask.commit_raw(spec, job_input, batches)

        return self._answers(raw.mapInArrow(body, "result binary"), pending)

    def _commit_in_tasks(self, planned: PlannedTopic) -> list[Result]:
        planned.answers.sparkSession.sparkContext.setLocalProperty(COMMIT, "task")
        results = self._answers(planned.answers, planned.decoded.indices)
        for result in results:
            if result.grown is not None:
                self._topics.learn(planned.decoded.topic, result.grown)
        return results

    def _answers(self, frame: DataFrame, indices: Sequence[int]) -> list[Result]:
        """Run a job whose tasks commit; each answers for the range of its partition."""
        answers: list[Result] = [pickle.loads(row["result"]) for row in frame.collect()]
        self._progress.commits += sum(answer.advance is not None for answer in answers)
        return [replace(answer, index=indices[answer.index]) for answer in answers]

    # Batch commit

    def _commit_here(self, plans: Sequence[PlannedTopic]) -> list[Result]:
        assert self._planner is not None
        parts: list[tuple[DecodedTopic, pa.Table, list[SideOutput]]] = []
        for planned in plans:
            rows, side_outputs = planned.collect()
            failed = next((side.failed for side in side_outputs if side.failed is not None), None)
            if failed is not None:
                return [Result("failed", 0, failure=failed)]
            if self._planner.widen(planned.decoded.topic, side_outputs):
                return []
            parts.append((planned.decoded, rows, side_outputs))
        return self._commit(parts)

    def _without_schema(self, decoded: DecodedTopic) -> list[Result]:
        """A topic in whose sample no value could be decoded: look at all of the batch."""
        assert self._planner is not None
        side_outputs = decoded.drain()
        if self._planner.widen(decoded.topic, side_outputs):
            return []
        return self._commit([(decoded, pa.table({}), side_outputs)])

    def _commit(
        self, parts: Sequence[tuple[DecodedTopic, pa.Table, list[SideOutput]]]
    ) -> list[Result]:
        """Commit the rows of all parts with all of their ranges."""
        ranges = [r for decoded, _, _ in parts for r in decoded.ranges]
        side_outputs = [side for _, _, sides in parts for side in sides]
        indices = [index for decoded, _, _ in parts for index in decoded.indices]
        records: list[Records] = []
        written: dict[TopicPartition, int] = {}
        unplaced: list[Counts] = []
        traced = True
        for decoded, rows, sides in parts:
            assert decoded.job_input.schema is not None
            part = arranged(rows, decoded.job_input.schema, decoded.topic, sides, partition=None)
            traced &= _count_written(written, part, decoded.ranges)
            kept, counts = self._unplaced.without(part, typed=True)
            unplaced.append(counts)
            records.append(kept)
        self._pinned.confirm(self._run.cluster, ranges)
        batch = self._pinned.stamped(assembled(ranges, side_outputs, records, written))
        batch = replace(batch, advances=with_unplaced(batch.advances, unplaced))
        if not traced:  # rows made of several records: none can be said to be left out
            batch = replace(batch, advances=[replace(a, filtered=0) for a in batch.advances])
        try:
            self._committer.commit(batch.advances, batch.commit, self._moved)
        except RowsRejected as rejection:
            return [rejection_of(indices[0], rejection, ranges)]
        except TransientError as error:
            return [Result("transient", indices[0], failure=Failure.of(error))]
        self._progress.commits += 1 if batch.advances else 0
        self._progress.deliveries = self._committer.totals
        self.size.note(batch.nbytes // len(ranges))
        return _committed(batch, dict(zip(ranges, indices, strict=True)))

    # After an attempt

    def _count(self, results: Sequence[Result]) -> None:
        progress = self._progress
        moved: dict[TopicPartition, int] = {}
        for result in results:
            self._log(result.letters)
            self.size.note(result.size)
            advance = result.advance
            if advance is None:
                continue
            progress.records += advance.read
            progress.rows += advance.written
            progress.failed += advance.failed
            progress.unplaced = sum_of([progress.unplaced, advance.unplaced])
            moved[advance.range.topic_partition] = advance.range.until_offset
        self._unplaced_log.tell(progress.unplaced)
        progress.positions |= moved
        if moved:
            hit("task.before_publish")
            self._publisher.publish(moved)

    def _log(self, letters: Sequence[DeadLetter]) -> None:
        for line in errors_log(self._connector, letters):
            log.warning("%s", line)

    def _pause(self, results: Sequence[Result], retries: Retries) -> None:
        """Wait after a transient failure."""
        failed = [r.failure for r in results if r.kind == "transient" and r.failure is not None]
        if not failed:
            retries.succeeded()
        elif self._run.stop.wait(retries.failed(failed[0].error())):
            raise Stopped


def _committed(batch: Batch, indices: dict[OffsetRange, int]) -> list[Result]:
    """The results of one commit of many ranges; the first one carries what concerns them all."""
    places = {r.topic_partition: index for r, index in indices.items()}
    advances = {places[a.range.topic_partition]: a for a in batch.advances}
    first, *others = places.values()
    return [
        Result("committed", first, advances.get(first), batch.commit.dead_letters, batch.stop),
        *(Result("committed", index, advances.get(index)) for index in others),
    ]


def _count_written(
    written: dict[TopicPartition, int], records: Records, ranges: Sequence[OffsetRange]
) -> bool:
    """Count rows by the range that their metadata names; without metadata, count all for the first
    range."""
    counts = count_by_partition(records.rows)
    traced = counts.keys() <= {r.partition for r in ranges}
    if not traced:
        counts = {ranges[0].partition: records.rows.num_rows}
    for counted in (counts, count_by_partition(records.tombstones)):
        for partition, rows in counted.items():
            tp = TopicPartition(records.topic, partition)
            written[tp] = written.get(tp, 0) + rows
    return traced


def _naming(name: str, failure: Failure) -> SemelError:
    """A task's error, which may name the connector already."""
    prefix = f"connector {name}: "
    return replace(failure, message=prefix + failure.message.removeprefix(prefix)).error()


class BatchSize:
    """Spark limits records, not bytes: ``maxOffsetsPerTrigger`` is lowered to as many as fit,
    judging by the size of the next ones. Each partition's part of a batch may have half of
    ``max.poll.bytes``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._most = run.connector.max_offsets_per_trigger
        self._room = run.connector.max_poll_bytes // _SHARES
        self._smallest = False
        self.outgrown = False

    def records(self, positions: Mapping[TopicPartition, int]) -> int:
        """The most records that a batch may hold in a query that starts there."""
        self.outgrown = False
        try:
            average = self._average(positions)
        except SemelError as error:  # the query will meet the same error and be retried
            log.info("the size of the records is not known: %s", error)
            return self._most
        fitting = fits(self._room, len(positions), average, self._most)
        self._smallest = fitting <= len(positions)
        if fitting < self._most:
            log.info("records of %d bytes: %d of them in each batch", average, fitting)
        return fitting

    def note(self, size: int) -> None:
        """Note the bytes of a partition's part of a batch."""
        self.outgrown |= size > _SLACK * self._room and not self._smallest

    def _average(self, positions: Mapping[TopicPartition, int]) -> int:
        run = self._run
        latest = run.cluster.latest(positions)
        ends = {tp: min(latest[tp], at + _LOOKS) for tp, at in positions.items()}
        if not any(positions[tp] < end for tp, end in ends.items()):
            return 0
        read = sampler.read(run.connector, positions, ends, _BYTES)
        values = [table.column("value") for table in read.tables.values()]
        if not values:  # the first one is too large
            return self._room if read.cut else 0
        size = sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in values)
        return int(size // sum(map(len, values)))


def fits(room: int, partitions: int, average: int, most: int) -> int:
    """How many records of this size ``partitions`` times ``room`` bytes hold: at least one for each
    partition, at most ``most``."""
    return min(most, max(partitions, partitions * room // max(1, average)))
