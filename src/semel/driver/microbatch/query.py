"""The driver of a query over streams: a Structured Streaming query with state, whose batches semel
commits.

What differs from a DataFrame transform: the query is planned once, over a stream of each topic, and
its checkpoint is durable, because it holds the state. A batch is committed on the driver with the
Kafka ranges that Spark has noted for it in the checkpoint, and with the number of the batch, as the
position of the ledger's entry :data:`~semel.core.ledger.QUERY`. So the ledger's rule judges every
batch, even one without records. If a batch comes again after a crash, it runs again for its state,
and the ledger knows its rows. See :mod:`semel.driver.microbatch.checkpoint`.
"""

from __future__ import annotations

import base64
import logging
import pickle
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from semel.config import under
from semel.converters import ddl
from semel.core.errors import (
    BadRecord,
    ConfigError,
    LedgerConflict,
    TransientError,
)
from semel.core.failpoints import hit
from semel.core.ledger import (
    QUERY,
    Advance,
    LedgerEntry,
    LogId,
    OffsetRange,
    Rebase,
    TopicPartition,
)
from semel.core.quoting import named
from semel.core.records import (
    METADATA_TYPES,
    OFFSET,
    PARTITION,
    Commit,
    DeadLetter,
    Records,
    RowsRejected,
)
from semel.driver.base import Progress, Run, Stopped
from semel.driver.microbatch import streaming
from semel.driver.microbatch.checkpoint import (
    ANEW,
    Checkpoint,
    CheckpointState,
    caution,
    check,
    check_unchanged,
)
from semel.driver.microbatch.engine import (
    MicroBatchEngine,
    kafka_options,
    range_options,
)
from semel.driver.microbatch.job import MicroBatches
from semel.driver.microbatch.plan import ListAccumulatorParam, wants_headers
from semel.driver.microbatch.streaming import Source, StreamPlan, Streams
from semel.driver.planning.programs import Query
from semel.tasks import ranges
from semel.tasks.batch import Batch, count_failed
from semel.tasks.control import Address
from semel.tasks.microbatch import frames
from semel.tasks.microbatch.commit import PinnedLogs, arranged
from semel.tasks.microbatch.streams import BATCH, StreamOutput, TaskReports
from semel.tasks.poll import advances
from semel.tasks.retry import Retries

log = logging.getLogger(__name__)

_NEWEST = 500
"""Offsets at the end of a partition that show the fields of its values."""
_LOOK = 2.0
"""Seconds after which a topic without records is looked at again."""
_LOOKS = 10
"""How often the checkpoint and the ledger are read while another run moves them on."""
_TWO_DRIVERS = "CONCURRENT_STREAM_LOG_UPDATE"
_OTHER_STATE = ("STATE_STORE_", "STATE_SCHEMA", "INCOMPATIBLE", "Provided schema doesn't match")


class QueryEngine(MicroBatchEngine):
    """One run of a connector with a query."""

    made_by: ClassVar[str] = "the query"

    def __init__(self, run: Run, spark: Callable[[], SparkSession], query: Query) -> None:
        super().__init__(run, spark, None)
        self._query_of = query
        self._started = self._counted = False
        self._checkpoint: Checkpoint | None = None

    def _batches(self, control: Address) -> QueryBatches:
        spark = self._spark()
        streaming.prepared(spark)
        if warning := caution(self._run.connector):
            log.warning("%s", warning)
        self._checkpoint = Checkpoint(spark, self._run.connector)
        return QueryBatches(
            self._run, self._query_of, self._progress, control, self._checkpoint, spark
        )

    def _over(self, targets: Mapping[TopicPartition, int]) -> bool:
        """The last batch may have to run again for its state, or a watermark may have moved."""
        return self._run.stop.is_set() or (self._started and super()._over(targets))

    def _query(self, batches: MicroBatches, positions: Mapping[TopicPartition, int]) -> None:
        assert isinstance(batches, QueryBatches) and self._checkpoint is not None
        run, spark = self._run, self._spark()
        self._failure, self._counted, commits = "", False, self._progress.commits
        state, stored = self._in_step(self._checkpoint)
        others = {tp: e for tp, e in stored.items() if tp != QUERY}
        check(run.connector, state, stored.get(QUERY), others)
        if not batches.knows(state, positions):
            return
        options = kafka_options(run.connector, positions, headers=wants_headers(run))
        most = batches.size.records(positions)

        def source(session: SparkSession, topic: str) -> DataFrame:
            starts = {tp: at for tp, at in positions.items() if tp.topic == topic}
            own = kafka_options(run.connector, starts, headers=False)
            share = max(1, most * len(starts) // max(1, len(positions)))
            source_options = {
                **options,
                "subscribe": topic,
                "startingOffsets": own["startingOffsets"],
                "maxOffsetsPerTrigger": str(share),
            }
            return session.readStream.format("kafka").options(**source_options).load()

        planned = batches.begin(spark, source, state, stored)
        writer = (
            planned.result.writeStream.queryName(f"semel-{run.connector.name}-{time.time_ns()}")
            .option("checkpointLocation", self._checkpoint.location)
            .outputMode(planned.mode)
            .foreachBatch(
                lambda batch, n: self._process(batches, lambda: batches.process_batch(batch, n))
            )
        )
        self._watch(self._triggered(writer).start())
        self._started = True
        self._judge(commits)

    def _in_step(
        self, checkpoint: Checkpoint
    ) -> tuple[CheckpointState, dict[TopicPartition, LedgerEntry]]:
        """What the checkpoint and the ledger hold at one moment: an earlier run that has not ended
        yet may still commit to both."""
        state, stored = checkpoint.read(), {}
        for _ in range(_LOOKS):
            stored = {e.topic_partition: e for e in self._run.sink.entries()}
            before, state = state, checkpoint.read()
            if state == before:
                break
        return state, stored

    def _may_pass(self, error: TransientError) -> None:
        self._counted = True
        super()._may_pass(error)

    def _judge(self, commits: int) -> None:
        """What the end of a query means that no batch has failed with."""
        name, failure = self._run.connector.name, self._failure
        if self._error is not None or self._counted or not failure or self._run.stop.is_set():
            return
        if self._unreadable is not None:
            tp, offset = self._unreadable
            self._error = BadRecord(
                f"connector {name}: the record at {tp} offset {offset} cannot be read from Kafka: "
                f"{failure}. A query cannot pass it over: Spark has noted that the batch reads it. "
                "Restore the broker's log; or begin anew after it: empty the target, run semel "
                f"offsets reset FILE and semel offsets set FILE {tp}={offset + 1}, and set "
                "checkpoint.location to a new directory"
            )
        elif _TWO_DRIVERS in failure:
            self._error = LedgerConflict(
                f"connector {name}: another run writes to "
                f"checkpoint.location={self._run.connector.checkpoint_location}: {failure}. "
                "Nothing was written."
            )
        elif any(mark in failure for mark in _OTHER_STATE):
            self._error = ConfigError(
                f"connector {name}: the state in "
                f"checkpoint.location={self._run.connector.checkpoint_location} is not of this "
                f"query: {failure}. Change the query back; or begin anew: {ANEW}"
            )
        elif self._progress.commits == commits and not self._run.interrupted:
            self._may_pass(TransientError(failure))


class QueryBatches(MicroBatches):
    """Plans the query of a run, and commits its batches."""

    def __init__(
        self,
        run: Run,
        query: Query,
        progress: Progress,
        control: Address,
        checkpoint: Checkpoint,
        spark: SparkSession,
    ) -> None:
        super().__init__(run, _frames_only, progress, control)
        self._spark = spark
        self._checkpoint = checkpoint
        self._reports = spark.sparkContext.accumulator([], ListAccumulatorParam())
        self._query = query
        self._streams = Streams(run, query, self._topics, self._reports)
        self._planned: StreamPlan | None = None
        self._log_id = LogId()
        self._left_out: set[tuple[str, str]] = set()

    # Before the first batch

    def knows(self, state: CheckpointState, positions: Mapping[TopicPartition, int]) -> bool:
        """Learn the columns of all topics: those that the checkpoint has noted, those that are
        declared, or those of the first records, which are waited for. Returns whether all are
        known; they are not if the run is asked to stop.

        Raises:
            ConfigError: a topic has no records, and the run ends when it has caught up.
        """
        run, has_warned = self._run, False
        noted: Mapping[str, str] = state.notes.get("schemas", {})
        self._topics.declare(
            {
                topic: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
                for topic, text in noted.items()
                if topic in run.connector.topics and self._topics.schema(topic) is None
            }
        )
        while not run.stop.is_set() and not run.interrupted:
            self._topics.sample(self._newest(positions))
            unknown = [t for t in run.connector.topics if self._topics.schema(t) is None]
            if not unknown:
                return True
            if (declared := _declared(run)) is not None:
                self._topics.declare(dict.fromkeys(unknown, declared))
                continue
            text = (
                f"topic {named(unknown[0])} has no record whose columns the query could be planned "
                "with"
            )
            if run.until_caught_up:
                raise ConfigError(
                    f"connector {run.connector.name}: {text}. Write one, or declare the columns in "
                    "value.converter.schema"
                )
            if not has_warned:
                log.warning("%s; waiting for one", text)
                has_warned = True
            run.stop.wait(_LOOK)
            self._topics.forget_samples(unknown)
        return False

    def _newest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the newest records of partitions begin: they have the fields that queries name."""
        cluster = self._run.cluster
        first, ends = cluster.earliest(partitions), cluster.latest(partitions)
        return {tp: max(first[tp], ends[tp] - _NEWEST) for tp in partitions}

    def begin(
        self,
        spark: SparkSession,
        source: Source,
        state: CheckpointState,
        stored: Mapping[TopicPartition, LedgerEntry],
    ) -> StreamPlan:
        """Plan the query, and enter it into the ledger unless it is there.

        Raises:
            ConfigError: it does not fit its topics or its sink, or the checkpoint does not belong
                to the ledger.
        """
        run = self._run
        planned = self._planned = self._plan(spark, source, state, stored)
        entry = stored.get(QUERY)
        check_unchanged(run.connector, state, entry, planned.digest)
        if entry is not None and entry.position:
            self._check_positions(entry.position - 1, stored)
        self._make_target(planned)
        id_ = state.id or self._checkpoint.begin()
        self._log_id = LogId(id_, planned.digest)
        self._checkpoint.note(
            {
                "connector": run.connector.name,
                "query": planned.text,
                "digest": planned.digest,
                "schemas": {
                    topic: base64.b64encode(schema.serialize().to_pybytes()).decode()
                    for topic in run.connector.topics
                    if (schema := self._topics.schema(topic)) is not None
                },
            }
        )
        if entry is None:
            run.sink.start(ranges.first_entries(run.sink, {QUERY: 0}, {QUERY.topic: self._log_id}))
        elif entry.log != self._log_id:
            new = replace(entry, cluster_id=id_, topic_id=planned.digest)
            run.sink.rebase([Rebase(entry, new)])
        return planned

    def _plan(
        self,
        spark: SparkSession,
        source: Source,
        state: CheckpointState,
        stored: Mapping[TopicPartition, LedgerEntry],
    ) -> StreamPlan:
        """The query over the columns that are known. If it asks for others, newer records may have
        them, or older ones."""
        try:
            return self._streams.plan(spark, source)
        except ConfigError:
            version = self._topics.spec.version
            partitions = [tp for tp in stored if tp != QUERY]
            for starts in (self._newest(partitions), self._run.cluster.earliest(partitions)):
                self._topics.forget_samples(self._connector.topics)
                self._topics.sample(starts)
            if self._topics.spec.version == version:
                raise
        return self._streams.plan(spark, source)

    def _check_positions(self, batch: int, stored: Mapping[TopicPartition, LedgerEntry]) -> None:
        """Raises ConfigError: positions are not those that the last batch has reached."""
        for tp, end in sorted(self._checkpoint.offsets(batch).items()):
            if tp in stored and stored[tp].position != end:
                raise ConfigError(
                    f"connector {self._connector.name}: the ledger is at {stored[tp].position} for "
                    f"{tp}, but batch {batch} of the query, the last one whose rows it has, ends "
                    f"at {end}. The state cannot follow a position that was set by hand. Set it "
                    f"back to {end}, or begin anew: {ANEW}"
                )

    def _make_target(self, planned: StreamPlan) -> None:
        """Make the target before there are rows, so that a store whose tables hold the ledger can
        keep positions from the first batch on."""
        exact = frames.exact_schema(planned.result.schema)
        row = pa.table([pa.nulls(1, f.type) for f in exact], names=exact.names)
        try:
            self._run.sink.accommodate(self._records(row, 0))
        except RowsRejected as rejection:
            log.debug("the target is made with the first rows: %s", rejection)

    # One batch

    def process_batch(self, batch: DataFrame, number: int) -> None:
        """Run a batch, and commit its rows with what it has read.

        Raises:
            SemelError: what ends the connector.
            LogChanged: the batch may not be of the logs that the ledger knows.
            Stopped: asked to stop between two attempts.
        """
        moves = self._moves(number)
        self._pinned = self._topics.enter_new(moves) if moves else PinnedLogs()
        self._overdue.begin()
        report, rows = self._ran(batch, number, moves)
        hit("task.after_convert")
        if moves:
            self._pinned.confirm(self._run.cluster, moves)
        result = self._batch(report, rows, number, moves)
        retries = Retries(self._connector, log.warning, partial(self._run.waits, self._progress))
        while True:
            try:
                self._committer.commit(result.advances, result.commit)
                break
            except RowsRejected as rejection:
                raise BadRecord(
                    f"connector {self._connector.name}: a row of batch {number} does not fit the "
                    f"target: {rejection.rejected[0].message}. The batch is not committed. Correct "
                    "the query or the target"
                ) from None
            except TransientError as error:
                if self._run.stop.wait(retries.failed(error)):
                    raise Stopped from None
        self._overdue.end()
        self._note(result, rows)

    def _moves(self, number: int) -> list[OffsetRange]:
        """What a batch reads, by the offsets in the checkpoint."""
        until = self._checkpoint.offsets(number)
        starts = self._checkpoint.offsets(number - 1) if number else {}
        if new := until.keys() - starts.keys():
            first = {e.topic_partition: e.start_position for e in self._run.sink.entries()}
            starts |= {tp: first.get(tp, 0) for tp in new}
        ends = sorted(until.items())
        return [OffsetRange(*tp, starts[tp], end) for tp, end in ends if starts[tp] < end]

    def _ran(
        self, batch: DataFrame, number: int, moves: Sequence[OffsetRange]
    ) -> tuple[TaskReports, pa.Table]:
        """Run a batch once, also if it is a replay: its state must follow. Returns what its tasks
        have told, and the rows."""
        self._reports.value = []
        self._spark.sparkContext.setLocalProperty(BATCH, str(number))
        rows = batch.toArrow()
        report = self._heard(number, moves)
        if report.unread:
            unread = [r for r in moves if r.topic in report.unread]
            for topic in report.unread:
                options = range_options(self._run, [r for r in unread if r.topic == topic])
                base = self._spark.read.format("kafka").options(**options).load()
                whole: Any = self._streams.decoded(topic, base)
                whole._jdf.queryExecution().toRdd().count()
            report = self._heard(number, moves)
        if report.failed is not None:
            raise report.failed.error()
        if report.stop is not None:
            raise _bad(self._connector.name, report.stop, number)
        self._mention(report)
        return report, rows

    def _heard(self, number: int, moves: Sequence[OffsetRange]) -> TaskReports:
        outputs: list[StreamOutput] = [pickle.loads(data) for data in self._reports.value]
        return TaskReports([o for o in outputs if o.batch == str(number)], moves)

    def _mention(self, report: TaskReports) -> None:
        """Say once which fields have no column."""
        for topic, fields in report.others.items():
            for name in sorted(fields):
                if (topic, name) not in self._left_out:
                    self._left_out.add((topic, name))
                    log.warning(
                        "topic %s: records have a field %s that the query was planned without; it "
                        "is left out",
                        *(named(topic), named(name)),
                    )

    def _records(self, rows: pa.Table, number: int) -> Records:
        """Rows as records of the query: their origin is the batch."""
        assert self._planned is not None
        for name, value in ((PARTITION, QUERY.partition), (OFFSET, number)):
            constant = pa.repeat(pa.scalar(value, METADATA_TYPES[name]), rows.num_rows)
            if name in rows.column_names:
                rows = rows.set_column(rows.column_names.index(name), name, constant)
            else:
                rows = rows.append_column(name, constant)
        return arranged(rows, self._planned.schema, QUERY.topic, [], QUERY.partition)

    def _batch(
        self, report: TaskReports, rows: pa.Table, number: int, moves: Sequence[OffsetRange]
    ) -> Batch:
        records, unplaced = self._unplaced.without(self._records(rows, number), typed=True)
        moved = advances(
            {r.topic_partition: r.until_offset for r in moves},
            {r.topic_partition: r.from_offset for r in moves},
            {TopicPartition(*tp): n for tp, n in report.read.items()},
            {},
            count_failed(report.letters),
        )
        # A query makes rows of many records: none can be said to be left out.
        moved = [replace(a, filtered=0) for a in moved]
        batch = self._pinned.stamped(Batch(moved, Commit([records], report.letters)))
        own = Advance(
            OffsetRange(*QUERY, number, number + 1),
            written=records.count,
            log=self._log_id,
            unplaced=unplaced,
        )
        return replace(batch, advances=[own, *batch.advances])

    def _note(self, batch: Batch, rows: pa.Table) -> None:
        progress = self._progress
        progress.commits += 1
        progress.deliveries = self._committer.totals
        self._log(batch.commit.dead_letters)
        own, *others = batch.advances
        progress.rows += own.written
        progress.records += sum(a.read for a in others)
        progress.failed += sum(a.failed for a in others)
        moved = {a.range.topic_partition: a.range.until_offset for a in others}
        progress.positions |= moved
        if moved:
            hit("task.before_publish")
            self._publisher.publish(moved)


def _frames_only(_frame: DataFrame) -> DataFrame:
    raise AssertionError("a query has no transform")


def _declared(run: Run) -> pa.Schema | None:
    """The columns that the configuration declares for all topics, with the metadata of rows."""
    declared = under(run.connector.originals, "value.converter.").get("schema", "").strip()
    if not declared or not run.connector.value_converter.endswith("JsonConverter"):
        return None
    return pa.schema([*ddl.parse(declared), *(pa.field(n, t) for n, t in METADATA_TYPES.items())])


def _bad(name: str, letter: DeadLetter, number: int) -> BadRecord:
    tp = TopicPartition(letter.topic, letter.partition)
    return BadRecord(
        f"connector {name}: record at {tp} offset {letter.offset} failed in {letter.stage}: "
        f"{letter.message.rstrip('.')}. Batch {number} of the query is not committed; everything "
        "before it is. The record cannot be corrected in Kafka. Set bad records aside: "
        "errors.tolerance=all with errors.deadletterqueue.table or "
        "errors.deadletterqueue.topic.name; or change the converter"
    )
