"""One micro-batch on the driver: plan it, choose who commits, run it until it is committed.

If each partition of the transformed DataFrame is made of one Kafka range alone, the tasks commit,
each its own range (*partition commit*). Where rows of several ranges meet (an exchange), they are
collected as Arrow and the driver commits all of them with all ranges (*batch commit*).

A range is done when it is committed. Until then its job is run again without the records that the
sink has refused, with a wider schema, or after a pause, whatever its last result asks for; the
ledger tells what has been committed already.
"""

from __future__ import annotations

import logging
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from pyspark import accumulators
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from semel import errors, failpoints
from semel.delivery import Mechanism
from semel.engine import frames, microtask, sample
from semel.engine.base import Progress, Run
from semel.engine.batch import Batch, bad_record
from semel.engine.lineage import Source, is_one_to_one
from semel.engine.microcommit import (
    Committer,
    Result,
    Side,
    arranged,
    assembled,
    rejection_of,
)
from semel.engine.microtask import COMMIT, MicroSpec, Reading
from semel.engine.pipeline import count_by_partition
from semel.errors import BadRecord, ConfigError, SemelError, ServiceError, TransientError
from semel.failpoints import hit
from semel.kafka import client_config
from semel.ledger import OffsetRange, TopicPartition
from semel.records import (
    KEY,
    METADATA,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    DeadLetter,
    Records,
    Rejected,
    RowsRejected,
)

log = logging.getLogger(__name__)

FrameTransform = Callable[[DataFrame], DataFrame]
"""A transform of the micro-batch engine: a batch of one topic as a DataFrame in, rows out."""

_COLUMNS = ("value", "partition", "offset", "timestamp")


class Stopped(Exception):
    """The run was asked to stop; nothing of the batch in hand is lost."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One topic's part of a batch: ``indices`` of its ranges in the batch, and what reads them."""

    topic: str
    indices: Sequence[int]
    reading: Reading
    decoded: DataFrame
    result: DataFrame
    answers: DataFrame
    one_to_one: bool


class MicroBatches:
    """Commits the batches of one run, one at a time."""

    def __init__(self, run: Run, transform: FrameTransform | None, progress: Progress) -> None:
        self._run = run
        self._transform = transform
        self._progress = progress
        self._connector = run.connector
        self._known: set[TopicPartition] = set(progress.positions)
        self._prepared = {tp.topic for tp in self._known}
        self._sampled: set[str] = set()
        self._schemas: dict[str, pa.Schema] = {}
        self._spec = MicroSpec(
            uuid.uuid4().hex[:12],
            run.connector,
            run.raw,
            run.guarantee,
            failpoints.environment(),
            frames=transform is not None,
        )
        self._committer = Committer(run.connector, run.raw, run.guarantee, run.sink)
        self._sides: Any = None
        self._driver_commits = False
        self._publisher = Publisher(run)

    def close(self) -> None:
        self._publisher.close()

    def process(self, batch: DataFrame) -> None:
        """Commit all of a batch.

        Raises:
            SemelError: what ends the connector.
            Stopped: asked to stop between two attempts.
        """
        source = Source(batch)
        if not source.ranges:
            return
        self._enter(source.ranges)
        self._sample(source.ranges)
        pending = list(range(len(source.ranges)))
        refused: dict[tuple[str, int, int], Rejected] = {}
        stops: list[DeadLetter] = []
        failures = 0
        while pending:
            results = self._results(source, pending, refused)
            for result in results:
                if result.kind == "committed":
                    pending.remove(result.index)
                    stops += [result.stop] if result.stop is not None else []
                elif result.kind == "failed":
                    found: type[SemelError] = getattr(errors, result.error, SemelError)
                    raise found(result.message)
                elif result.kind == "unread":
                    log.info("the transform does not read all records; the driver commits")
                    self._driver_commits = True
                elif result.kind == "grown":
                    self._learn(source.ranges[result.index].topic, result.grown)
                elif result.kind == "rejected":
                    self._refuse(refused, result.rejected)
            self._count(results)
            failures = self._pause(results, failures)
        if stops:
            raise bad_record(self._connector.name, stops[0])

    # What the driver knows of topics

    def _enter(self, found: Sequence[OffsetRange]) -> None:
        """Partitions that appeared while the connector runs begin where Spark reads them from."""
        starts = {r.topic_partition: r.from_offset for r in found}
        new = {tp: at for tp, at in starts.items() if tp not in self._known}
        if not new:
            return
        topics = {tp.topic for tp in new} - self._prepared
        if topics:
            self._run.sink.prepare(topics)
            self._prepared |= topics
        self._run.sink.start(new)
        self._known |= new.keys()

    def _sample(self, found: Sequence[OffsetRange]) -> None:
        run = self._run
        starts = {r.topic_partition: r.from_offset for r in found if r.topic not in self._sampled}
        if not starts:
            return
        if self._transform is None:
            learnt = sample.schemas(run.connector, run.raw, run.sink, run.cluster, None, starts)
        else:
            learnt = sample.row_schemas(run.connector, run.raw, run.sink, run.cluster, starts)
        self._sampled |= {tp.topic for tp in starts}
        for topic, schema in learnt.items():
            self._learn(topic, schema)

    def _learn(self, topic: str, schema: pa.Schema | None) -> None:
        known = self._schemas.get(topic)
        if schema is None or schema == known:
            return
        if known is not None:
            try:
                schema = pa.unify_schemas([known, schema], promote_options="permissive")
            except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
                raise ConfigError(
                    f"connector {self._connector.name}: values of topic {topic} do not agree on "
                    f"their types: {error}. Declare them in value.converter.schema"
                ) from None
        self._schemas[topic] = schema
        values = {
            name: pa.schema([f for f in fields if f.name not in METADATA])
            for name, fields in self._schemas.items()
        }
        self._spec = replace(self._spec, version=self._spec.version + 1, schemas=values)

    def _refuse(
        self, refused: dict[tuple[str, int, int], Rejected], rejected: Iterable[Rejected]
    ) -> None:
        for record in rejected:
            where = (record.topic, record.partition, record.offset)
            if where in refused:
                raise BadRecord(
                    f"connector {self._connector.name}: the sink refuses a row of the record at "
                    f"{record.topic}-{record.partition} offset {record.offset} also without that "
                    f"record: {record.message}. Let {PARTITION} and {OFFSET} pass the transform "
                    "unchanged"
                )
            refused[where] = record

    # Running

    def _results(
        self,
        source: Source,
        pending: Sequence[int],
        refused: dict[tuple[str, int, int], Rejected],
    ) -> list[Result]:
        if self._transform is None:
            return self._run_raw(source, pending)
        topics: dict[str, list[int]] = {}
        for index in pending:
            topics.setdefault(source.ranges[index].topic, []).append(index)
        plans = []
        for topic, indices in topics.items():
            planned = self._plan(source, topic, indices, refused)
            if isinstance(planned, list):
                return planned
            plans.append(planned)
        if not self._driver_commits and all(p.one_to_one for p in plans):
            return [result for p in plans for result in self._run_tasks(source, p)]
        return self._run_driver(plans)

    def _run_raw(self, source: Source, pending: Sequence[int]) -> list[Result]:
        """Without a transform one job decodes and commits all topics."""
        spec = self._spec
        reading = Reading([source.ranges[i] for i in pending])
        base, _ = source.frame(pending)

        def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield microtask.commit_raw(spec, reading, batches)

        key = self._run.sink.uses_key
        return self._answers(
            self._columns(base, key=key).mapInArrow(body, "result binary"), pending
        )

    def _columns(self, base: DataFrame, *, key: bool) -> DataFrame:
        """What is read of the records: keys and headers only where somebody wants them."""
        names = list(_COLUMNS)
        letters = bool(self._connector.dead_letter_table or self._connector.dead_letter_topic)
        if key or letters:
            names.append("key")
        if letters:
            names.append("headers")
        return base.select(*names)

    def _plan(
        self,
        source: Source,
        topic: str,
        indices: Sequence[int],
        refused: dict[tuple[str, int, int], Rejected],
    ) -> Planned | list[Result]:
        """Apply the transform; or results, where its columns are found only by reading on."""
        schema = self._schemas.get(topic, pa.schema([]))
        reading = Reading(
            [source.ranges[i] for i in indices], dict(refused), schema, uuid.uuid4().hex
        )
        base, rdd = source.frame(indices)
        decoded = self._decoded(source, base, reading)
        if topic not in self._schemas:
            sides = self._drain(decoded, reading)
            if any(side.grown is not None for side in sides):
                return _grown(indices, sides)
            return self._commit_sides(topic, indices, reading, sides)
        try:
            result = self._transformed(decoded)
            spec = self._spec

            def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                yield microtask.commit_rows(spec, reading, batches)

            answers = result.mapInArrow(body, "result binary")
            self._check(topic, result)
            return Planned(
                topic, indices, reading, decoded, result, answers, is_one_to_one(answers, rdd)
            )
        except AnalysisException as error:
            sides = self._drain(decoded, reading)
            if any(side.grown is not None for side in sides):
                return _grown(indices, sides)
            raise ConfigError(
                f"connector {self._connector.name}: the transform does not fit topic {topic}: "
                f"{_first(error)}"
            ) from None

    def _decoded(self, source: Source, base: DataFrame, reading: Reading) -> DataFrame:
        spec = self._spec
        if self._sides is None:
            self._sides = source.spark.sparkContext.accumulator([], _Gathered())
        report = self._sides

        def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from microtask.decode(spec, reading, batches, report)

        assert reading.schema is not None
        return self._columns(base, key=True).mapInArrow(body, frames.spark_schema(reading.schema))

    def _transformed(self, decoded: DataFrame) -> DataFrame:
        assert self._transform is not None
        try:
            result = self._transform(decoded)
        except (AnalysisException, SemelError):
            raise
        except Exception as error:
            raise ConfigError(
                f"connector {self._connector.name}: the transform raised "
                f"{type(error).__name__}: {_first(error)}"
            ) from error
        if not isinstance(result, DataFrame):
            raise ConfigError(
                f"connector {self._connector.name}: the transform must return a DataFrame, not "
                f"{type(result).__name__}"
            )
        return result

    def _check(self, topic: str, result: DataFrame) -> None:
        """Whether the metadata that the configuration needs has passed the transform."""
        run, columns = self._run, set(result.columns)
        wants: dict[str, str] = {}
        if run.connector.provenance:
            wants |= dict.fromkeys((TOPIC, PARTITION, OFFSET, TIMESTAMP), "provenance=true")
        if run.guarantee.mechanism is Mechanism.IDEMPOTENT:
            wants |= dict.fromkeys((PARTITION, OFFSET), "delivery.mechanism=idempotent")
        if run.sink.takes_tombstones:
            wants |= dict.fromkeys((PARTITION, OFFSET), "deleting by tombstones")
        if run.sink.uses_key:
            wants |= {KEY: "a key made of the record's key"}
        for name, reason in wants.items():
            if name not in columns:
                raise ConfigError(
                    f"connector {self._connector.name}: the transform of topic {topic} drops the "
                    f"column {name}, but {reason} needs it: its rows must say which record they "
                    "come from. Let the column pass, or change that setting; rows that are made "
                    "of several records have no such column"
                )

    def _run_tasks(self, source: Source, planned: Planned) -> list[Result]:
        source.spark.sparkContext.setLocalProperty(COMMIT, "task")
        return self._answers(planned.answers, planned.indices)

    def _answers(self, frame: DataFrame, indices: Sequence[int]) -> list[Result]:
        """Run a job whose tasks commit; each answers for the range of its partition."""
        answers: list[Result] = [pickle.loads(row["result"]) for row in frame.collect()]
        self._progress.commits += sum(answer.advance is not None for answer in answers)
        return [replace(answer, index=indices[answer.index]) for answer in answers]

    def _run_driver(self, plans: Sequence[Planned]) -> list[Result]:
        records: list[Records] = []
        moved: list[OffsetRange] = []
        sides: list[Side] = []
        written: dict[TopicPartition, int] = {}
        where: dict[TopicPartition, int] = {}
        single = True
        for planned in plans:
            rows, found = self._collect(planned)
            failed = next((s.failed for s in found if s.failed is not None), None)
            if failed is not None:
                return [Result("failed", planned.indices[0], error=failed[0], message=failed[1])]
            if any(side.grown is not None for side in found):
                return _grown(planned.indices, found)
            assert planned.reading.schema is not None
            made = arranged(rows, planned.reading.schema, planned.topic, found, partition=None)
            records.append(made)
            moved += planned.reading.ranges
            sides += found
            single &= _count_written(written, made, planned.reading.ranges)
            tps = [r.topic_partition for r in planned.reading.ranges]
            where |= dict(zip(tps, planned.indices, strict=True))
        batch = assembled(moved, sides, records, written)
        if not single:  # rows made of several records: nothing can be said to be left out
            batch = replace(batch, advances=[replace(a, filtered=0) for a in batch.advances])
        return self._commit(batch, where)

    def _commit(self, batch: Batch, where: dict[TopicPartition, int]) -> list[Result]:
        first = min(where.values())
        try:
            self._committer.commit(batch)
        except RowsRejected as rejection:
            return [rejection_of(first, rejection)]
        except TransientError as error:
            return [Result("transient", first, message=str(error))]
        advances = {where[a.range.topic_partition]: a for a in batch.advances}
        self._progress.commits += 1 if advances else 0
        letters = batch.commit.dead_letters
        return [
            Result(
                "committed",
                index,
                advances.get(index),
                letters if index == first else (),
                batch.stop if index == first else None,
            )
            for index in where.values()
        ]

    def _commit_sides(
        self, topic: str, indices: Sequence[int], reading: Reading, sides: Sequence[Side]
    ) -> list[Result]:
        """Commit ranges in which no value could be decoded: there is nothing to transform."""
        assert reading.schema is not None
        made = arranged(reading.schema.empty_table(), reading.schema, topic, sides, partition=None)
        written: dict[TopicPartition, int] = {}
        _count_written(written, made, reading.ranges)
        batch = assembled(reading.ranges, sides, [made], written)
        tps = [r.topic_partition for r in reading.ranges]
        return self._commit(batch, dict(zip(tps, indices, strict=True)))

    def _collect(self, planned: Planned) -> tuple[pa.Table, list[Side]]:
        """The rows of a transform, and what went around it."""
        context = planned.result.sparkSession.sparkContext
        context.setLocalProperty(COMMIT, "driver")
        self._sides.value = []
        rows = planned.result.toArrow()
        found = self._gathered(planned.reading)
        if len(found) < len(planned.indices):  # a plan may leave records unread
            return rows, self._drain(planned.decoded, planned.reading)
        return rows, [found[i] for i in range(len(planned.indices))]

    def _drain(self, decoded: DataFrame, reading: Reading) -> list[Side]:
        """Decode all records for what goes around the transform alone."""
        decoded.sparkSession.sparkContext.setLocalProperty(COMMIT, "driver")
        self._sides.value = []
        frame: Any = decoded
        frame._jdf.queryExecution().toRdd().count()
        found = self._gathered(reading)
        return [found[i] for i in range(len(reading.ranges))]

    def _gathered(self, reading: Reading) -> dict[int, Side]:
        """By Spark partition; a task that Spark ran twice found the same twice."""
        return {
            index: pickle.loads(side) for id_, index, side in self._sides.value if id_ == reading.id
        }

    # After an attempt

    def _count(self, results: Sequence[Result]) -> None:
        progress = self._progress
        moved: dict[TopicPartition, int] = {}
        for result in results:
            self._log(result.letters)
            advance = result.advance
            if advance is None:
                continue
            progress.records += advance.read
            progress.rows += advance.written
            progress.failed += advance.failed
            moved[advance.range.topic_partition] = advance.range.until_offset
        progress.positions |= moved
        if moved:
            hit("task.before_publish")
            self._publisher.publish(moved)

    def _log(self, letters: Sequence[DeadLetter]) -> None:
        if not self._connector.errors_log:
            return
        for letter in letters:
            content = f": {letter.value!r}" if self._connector.errors_log_messages else ""
            log.warning(
                "bad record at %s-%d offset %d (%s): %s%s",
                letter.topic,
                letter.partition,
                letter.offset,
                letter.stage,
                letter.message,
                content,
            )

    def _pause(self, results: Sequence[Result], failures: int) -> int:
        """Wait after a transient failure, as often as ``max.retries`` allows."""
        messages = [r.message for r in results if r.kind == "transient"]
        if not messages:
            return failures
        if failures >= self._connector.max_retries:
            raise ServiceError(
                f"connector {self._connector.name}: gave up after {failures} retries "
                f"(max.retries): {messages[0]}"
            )
        log.warning("%s; trying again", messages[0])
        if self._run.stop.wait(self._connector.retry_backoff_ms / 1000):
            raise Stopped
        return failures + 1


class Publisher:
    """Copies positions to the consumer group, for lag tools; never read back."""

    def __init__(self, run: Run) -> None:
        self._consumer = Consumer(
            {
                **client_config(run.connector, run.raw, "consumer"),
                "group.id": run.connector.group_id,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._published: dict[TopicPartition, int] = {}

    def publish(self, positions: dict[TopicPartition, int]) -> None:
        self._published |= positions
        self._commit(positions, asynchronous=True)

    def close(self) -> None:
        self._commit(self._published, asynchronous=False)
        self._consumer.close()

    def _commit(self, positions: dict[TopicPartition, int], *, asynchronous: bool) -> None:
        offsets = [KafkaPartition(tp.topic, tp.partition, at) for tp, at in positions.items()]
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=asynchronous)  # type: ignore[call-overload]
        except KafkaException as error:
            log.info("positions were not published: %s", error)


class _Gathered(accumulators.AccumulatorParam[list[Any]]):
    """Tasks add lists, the driver gets one."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1.extend(value2)
        return value1


def _grown(indices: Sequence[int], sides: Sequence[Side]) -> list[Result]:
    return [
        Result("grown", index, grown=side.grown)
        for index, side in zip(indices, sides, strict=True)
        if side.grown is not None
    ]


def _count_written(
    written: dict[TopicPartition, int], made: Records, found: Sequence[OffsetRange]
) -> bool:
    """Count rows by range, if they say where they come from; else all on the first range."""
    known = {r.partition for r in found}
    counts = count_by_partition(made.rows)
    single = counts.keys() <= known
    if not single:
        counts = {found[0].partition: made.rows.num_rows}
    for counted in (counts, count_by_partition(made.tombstones)):
        for partition, rows in counted.items():
            tp = TopicPartition(made.topic, partition)
            written[tp] = written.get(tp, 0) + rows
    return single


def _first(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
