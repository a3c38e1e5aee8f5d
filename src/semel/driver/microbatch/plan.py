"""What a micro-batch is made of: its offset ranges and their Spark partitions, the topics as its
driver knows them, and a DataFrame transform applied to one topic's part."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import accumulators
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from semel.config import ConnectorConfig
from semel.core import failpoints
from semel.core.delivery import Mechanism
from semel.core.errors import ConfigError, SemelError
from semel.core.ledger import LedgerEntry, OffsetRange, TopicPartition
from semel.core.quoting import named
from semel.core.records import HEADERS, METADATA, OFFSET, PARTITION, TIMESTAMP, TOPIC
from semel.driver import sample
from semel.driver.base import Run
from semel.tasks.batch import Refusals
from semel.tasks.control import Address
from semel.tasks.microbatch import frames
from semel.tasks.microbatch import task as microtask
from semel.tasks.microbatch.commit import KnownLogs, PinnedLogs, SideOutput, widened
from semel.tasks.microbatch.task import COMMIT, JobInput, MicroSpec
from semel.tasks.ranges import entering
from semel.tasks.workers import new_run
from semel.transforms import known_chain

FrameTransform = Callable[[DataFrame], DataFrame]
"""A transform of the micro-batch engine: the records of one topic in, rows of its target out."""
_STREAM, _PART = "DataSourceRDD", "KafkaSourceRDD"
"""The node at the root of a streaming query's batch, and of a batch query."""


class SideOutputs:
    """What decoding tasks report to the driver besides rows, through a Spark accumulator."""

    def __init__(self, spark: SparkSession) -> None:
        self.accumulator = spark.sparkContext.accumulator([], ListAccumulatorParam())

    def forget(self) -> None:
        self.accumulator.value = []

    def of(self, job_input: JobInput) -> dict[int, SideOutput]:
        """The reports by Spark partition. A task that Spark ran twice has reported the same
        twice."""
        return {
            index: pickle.loads(side)
            for id_, index, side in self.accumulator.value
            if id_ == job_input.id
        }


class ListAccumulatorParam(accumulators.AccumulatorParam[list[Any]]):
    """Concatenates the lists that tasks add."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1.extend(value2)
        return value1


@dataclass(frozen=True, slots=True)
class DecodedTopic:
    """One topic's records as the transform sees them; ``indices`` are its ranges in the batch."""

    topic: str
    indices: Sequence[int]
    job_input: JobInput
    frame: DataFrame
    source: int
    side_outputs: SideOutputs

    @property
    def ranges(self) -> Sequence[OffsetRange]:
        return self.job_input.ranges

    def drain(self) -> list[SideOutput]:
        """Decode all records only to collect what bypasses the transform."""
        self.frame.sparkSession.sparkContext.setLocalProperty(COMMIT, "driver")
        self.side_outputs.forget()
        frame: Any = self.frame
        frame._jdf.queryExecution().toRdd().count()
        outputs = self.side_outputs.of(self.job_input)
        return [outputs[i] for i in range(len(self.indices))]


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """``result`` is what the transform made; ``answers`` commits it in tasks, if they may do so."""

    decoded: DecodedTopic
    result: DataFrame
    answers: DataFrame
    one_to_one: bool

    def collect(self) -> tuple[pa.Table, list[SideOutput]]:
        """The rows, and what bypassed the transform."""
        decoded = self.decoded
        self.result.sparkSession.sparkContext.setLocalProperty(COMMIT, "driver")
        decoded.side_outputs.forget()
        rows = self.result.toArrow()
        outputs = decoded.side_outputs.of(decoded.job_input)
        if len(outputs) < len(decoded.indices):  # a plan may leave records unread
            return rows, decoded.drain()
        return rows, [outputs[i] for i in range(len(decoded.indices))]


class Widened(Exception):
    """The batch holds fields that its DataFrame lacks. They are known now, so plan again."""


class Planner:
    """Plans the parts of one run's batches."""

    def __init__(self, run: Run, transform: FrameTransform, topics: KnownTopics) -> None:
        self._run = run
        self._transform = transform
        self._topics = topics
        self._side_outputs: SideOutputs | None = None

    def decoded(
        self,
        source: BatchSource,
        topic: str,
        indices: Sequence[int],
        refused: Refusals,
        moved: Collection[TopicPartition],
        pinned: PinnedLogs,
    ) -> DecodedTopic:
        """The records of one topic as a DataFrame of the columns that are known."""
        if self._side_outputs is None:
            self._side_outputs = SideOutputs(source.spark)
        schema = self._topics.schema(topic) or pa.schema([])
        job_input = JobInput(
            [source.ranges[i] for i in indices],
            dict(refused),
            frozenset(moved),
            schema,
            uuid.uuid4().hex,
            pinned,
        )
        base, rdd = source.frame(indices)
        raw = raw_columns(self._run, base, key=True)
        body = _decoding(self._topics.spec, job_input, self._side_outputs.accumulator)
        frame = raw.mapInArrow(body, frames.spark_schema(schema))
        return DecodedTopic(topic, indices, job_input, frame, rdd, self._side_outputs)

    def plan(self, decoded: DecodedTopic) -> PlannedTopic:
        """Apply the transform.

        Raises:
            Widened: it uses a column that this batch has shown only now.
            ConfigError: it does not fit the records, or drops metadata that is needed.
        """
        try:
            result = self._transformed(decoded.frame)
            self._check(decoded.topic, result)
            answers = result.mapInArrow(
                _committing(self._topics.spec, decoded.job_input), "result binary"
            )
            one_to_one = is_one_to_one(answers, decoded.source)
        except AnalysisException as error:
            if self.widen(decoded.topic, decoded.drain()):
                raise Widened from None
            raise ConfigError(
                f"connector {self._run.connector.name}: the transform does not fit topic "
                f"{named(decoded.topic)}: {first_line(error)}"
            ) from None
        return PlannedTopic(decoded, result, answers, one_to_one)

    def widen(self, topic: str, side_outputs: Sequence[SideOutput]) -> bool:
        """Learn the fields that decoding found; returns whether there are any."""
        schemas = [side.grown for side in side_outputs if side.grown is not None]
        for schema in schemas:
            self._topics.learn(topic, schema)
        return bool(schemas)

    def _transformed(self, decoded: DataFrame) -> DataFrame:
        try:
            result = self._transform(decoded)
        except (AnalysisException, SemelError):
            raise
        except Exception as error:
            raise ConfigError(
                f"connector {self._run.connector.name}: the transform raised "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
        if not isinstance(result, DataFrame):
            raise ConfigError(
                f"connector {self._run.connector.name}: the transform must return a DataFrame, "
                f"not {type(result).__name__}"
            )
        return result

    def _check(self, topic: str, result: DataFrame) -> None:
        """Check that the transform kept the metadata that the configuration needs."""
        columns = set(result.columns)
        for name, reason in self._needed().items():
            if name not in columns:
                raise ConfigError(
                    f"connector {self._run.connector.name}: the transform of topic {named(topic)} "
                    f"drops the column {named(name)}, but {reason} needs it. Let the column pass, "
                    "or change that setting: rows that are made of several records cannot have it"
                )

    def _needed(self) -> Mapping[str, str]:
        run = self._run
        needed: dict[str, str] = {}
        if run.connector.provenance:
            needed |= dict.fromkeys((TOPIC, PARTITION, OFFSET, TIMESTAMP), "provenance=true")
        if run.guarantee.mechanism is Mechanism.IDEMPOTENT:
            # After a crash a batch may end elsewhere, so only rows of single records remain the
            # same.
            needed |= dict.fromkeys((PARTITION, OFFSET), "delivery.mechanism=idempotent")
        if run.sink.capabilities.takes_tombstones:
            needed |= dict.fromkeys((PARTITION, OFFSET), "deleting by tombstones")
        return needed | dict.fromkeys(run.sink.capabilities.key_metadata, "the key of the target")


def raw_columns(run: Run, base: DataFrame, *, key: bool) -> DataFrame:
    """The columns to read: keys and headers only if they are wanted. With ``key``, keys are wanted
    whatever the connector does."""
    names = ["value", "partition", "offset", "timestamp"]
    needs_key = key or run.sink.capabilities.uses_key or _has_dead_letters(run.connector)
    if needs_key or known_chain(run.connector.originals).needs_key:
        names.append("key")
    if wants_headers(run):
        names.append("headers")
    return base.select(*names)


def wants_headers(run: Run) -> bool:
    """Whether the sink, dead letters or transforms need the records' headers."""
    carried = HEADERS in run.sink.capabilities.carries or _has_dead_letters(run.connector)
    return carried or known_chain(run.connector.originals).needs_headers


def _has_dead_letters(connector: ConnectorConfig) -> bool:
    return bool(connector.dead_letter_table or connector.dead_letter_topic)


_Body = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _decoding(spec: MicroSpec, job_input: JobInput, report: Any) -> _Body:
    def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from microtask.decode(spec, job_input, batches, report)

    return body


def _committing(spec: MicroSpec, job_input: JobInput) -> _Body:
    def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield microtask.commit_rows(spec, job_input, batches)

    return body


def first_line(error: Exception) -> str:
    """The line that says what happened."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class BatchSource:
    """One micro-batch as an RDD whose partition ``i`` holds the records of ``ranges[i]``.

    Spark hands ``foreachBatch`` a DataFrame without its offsets, and a task sees only the rows that
    survive filters. The ranges are in the partitions of the RDD at the root of the batch, which the
    driver can reach; this class and :func:`is_one_to_one` are all that looks inside Spark.
    """

    def __init__(self, batch: DataFrame) -> None:
        frame: Any = batch
        self._spark: Any = batch.sparkSession
        self._rdd: Any = frame._jdf.queryExecution().toRdd()
        self._schema: Any = frame._jdf.schema()
        self.ranges = _ranges(self._rdd)

    @property
    def spark(self) -> SparkSession:
        session: SparkSession = self._spark
        return session

    def frame(self, indices: Sequence[int]) -> tuple[DataFrame, int]:
        """The records of some of the ranges, in that order, and the id of the RDD they are in."""
        rdd = self._rdd
        if len(indices) < len(self.ranges):
            jvm = self._spark._jvm
            chosen = jvm.java.util.HashSet()
            for index in indices:
                chosen.add(index)
            # A Scala set is also the predicate that tests for its elements.
            selected = jvm.scala.jdk.javaapi.CollectionConverters.asScala(chosen).toSet()
            rdd = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(rdd, selected)
        frame = self._spark._jsparkSession.internalCreateDataFrame(rdd, self._schema, False)
        return DataFrame(frame, self._spark), rdd.id()


def is_one_to_one(result: DataFrame, source: int) -> bool:
    """Whether partition ``i`` of ``result`` is made of partition ``i`` of the RDD ``source`` alone.

    Starts no job: a plan with an exchange, or one that Spark adapts while it runs, is not looked
    into further.
    """
    frame: Any = result
    execution = frame._jdf.queryExecution()
    if _exchanges(execution.executedPlan()):
        return False
    rdd = execution.toRdd()
    while rdd.id() != source:
        dependencies = rdd.dependencies()
        if dependencies.size() != 1:
            return False
        dependency = dependencies.apply(0)
        if dependency.getClass().getSimpleName() != "OneToOneDependency":
            return False
        rdd = dependency.rdd()
    return True


def _exchanges(plan: Any) -> bool:
    name = plan.getClass().getSimpleName()
    if "Exchange" in name or name == "AdaptiveSparkPlanExec":
        return True
    children = plan.children()
    return any(_exchanges(children.apply(i)) for i in range(children.size()))


def _ranges(rdd: Any) -> list[OffsetRange]:
    while (kind := rdd.getClass().getSimpleName()) not in (_STREAM, _PART):
        rdd = rdd.dependencies().apply(0).rdd()
    ranges = []
    for partition in rdd.partitions():
        offsets = (
            partition.inputPartitions().apply(0) if kind == _STREAM else partition
        ).offsetRange()
        tp = offsets.topicPartition()
        ranges.append(
            OffsetRange(tp.topic(), tp.partition(), offsets.fromOffset(), offsets.untilOffset())
        )
    return ranges


class KnownTopics:
    """The topics of a run, as its driver knows them: partitions entered, schemas found. Grows while
    the connector runs; ``spec`` is the part that tasks get.

    With ``frames``, schemas are those of decoded rows with their metadata. A DataFrame has fixed
    columns, so a field that nobody has seen before widens the schema, and its batch is planned
    again.
    """

    def __init__(self, run: Run, *, frames: bool, control: Address | None = None) -> None:
        self._run = run
        self._partitions: set[TopicPartition] = set()
        self._prepared: set[str] = set()
        self._sampled: set[str] = set()
        self._schemas: dict[str, pa.Schema] = {}
        self._logs = KnownLogs(run.cluster)
        self.spec = MicroSpec(
            run=new_run(),
            connector=run.connector,
            environment=failpoints.environment(),
            guarantee=run.guarantee,
            frames=frames,
            control=control,
        )

    def begin_again(self) -> None:
        """Make worker processes recreate what they keep for the run."""
        self.spec = replace(self.spec, run=new_run())

    def declare(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Take the columns that topics have had so far; these are not sampled."""
        for topic, schema in schemas.items():
            self.learn(topic, schema)
            self._sampled.add(topic)

    def schema(self, topic: str) -> pa.Schema | None:
        """The known columns of a topic's decoded rows."""
        return self._schemas.get(topic)

    def enter(self, entries: Iterable[LedgerEntry]) -> None:
        """The ledger's entries, of topics whose targets have been checked."""
        entries = list(entries)
        self._logs.expect(entries)
        self._partitions |= {e.topic_partition for e in entries}
        self._prepared |= {tp.topic for tp in self._partitions}

    def enter_new(self, ranges: Sequence[OffsetRange]) -> PinnedLogs:
        """Enter partitions that appeared while the connector runs, where Spark reads them from,
        and look at a sample of each topic that is met for the first time. Returns the logs that
        the ranges are about to be read from.

        Raises:
            ConfigError: a new topic's target is missing and may not be created.
            LogChanged: the ranges are not of the logs that the ledger knows.
        """
        run = self._run
        starts = {r.topic_partition: r.from_offset for r in ranges}
        new = {tp: at for tp, at in starts.items() if tp not in self._partitions}
        if new:
            topics = {tp.topic for tp in new} - self._prepared
            if topics:
                run.sink.prepare(topics)
            entries = entering(run.sink, run.cluster, new, self._prepared)
            self._prepared |= topics
            run.sink.start(entries)
            stored = {e.topic_partition: e for e in run.sink.entries()}
            self._logs.add([stored.get(e.topic_partition, e) for e in entries])
            self._partitions |= {e.topic_partition for e in entries}
        pinned = self._logs.pin(ranges)
        self.sample(starts)
        return pinned

    def forget_samples(self, topics: Iterable[str]) -> None:
        """Let topics be sampled again."""
        self._sampled -= set(topics)

    def sample(self, starts: Mapping[TopicPartition, int]) -> None:
        """Look at the first records of topics that have not been looked at yet."""
        run = self._run
        unseen = {tp: at for tp, at in starts.items() if tp.topic not in self._sampled}
        if not unseen:
            return
        facts = (run.connector, run.sink, run.cluster)
        if self.spec.frames:
            schemas = sample.row_schemas(*facts, unseen)
        else:
            schemas = sample.schemas(*facts, None, unseen)
        self._sampled |= {tp.topic for tp in unseen}
        for topic, schema in schemas.items():
            self.learn(topic, schema)

    def learn(self, topic: str, schema: pa.Schema) -> None:
        """Add fields that have been found.

        Raises:
            ConfigError: they contradict what is known.
        """
        known = self._schemas.get(topic)
        if known is not None:
            schema = widened(topic, known, schema)
        if schema == known:
            return
        self._schemas[topic] = schema
        values = {
            name: pa.schema([f for f in fields if f.name not in METADATA])
            for name, fields in self._schemas.items()
        }
        self.spec = replace(self.spec, version=self.spec.version + 1, schemas=values)
