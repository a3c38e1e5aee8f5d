"""A DataFrame transform applied to one topic's part of a micro-batch."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import accumulators
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from semel.config import ConnectorConfig
from semel.core.delivery import Mechanism
from semel.core.errors import ConfigError, SemelError
from semel.core.ledger import OffsetRange, TopicPartition
from semel.core.quoting import named
from semel.core.records import HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC
from semel.driver.base import Run
from semel.driver.microbatch.lineage import BatchSource, is_one_to_one
from semel.driver.microbatch.topics import KnownTopics
from semel.tasks.batch import Refused
from semel.tasks.microbatch import frames
from semel.tasks.microbatch import task as microtask
from semel.tasks.microbatch.commit import SideOutput
from semel.tasks.microbatch.logs import Pinned
from semel.tasks.microbatch.task import COMMIT, MicroSpec, Reading
from semel.transforms import known_chain

FrameTransform = Callable[[DataFrame], DataFrame]
"""A transform of the micro-batch engine: the records of one topic in, rows of its target out."""


class SideOutputs:
    """What decoding tasks report to the driver besides rows, through a Spark accumulator."""

    def __init__(self, spark: SparkSession) -> None:
        self.accumulator = spark.sparkContext.accumulator([], _Gathered())

    def forget(self) -> None:
        self.accumulator.value = []

    def of(self, reading: Reading) -> dict[int, SideOutput]:
        """The reports by Spark partition. A task that Spark ran twice has reported the same
        twice."""
        return {
            index: pickle.loads(side)
            for id_, index, side in self.accumulator.value
            if id_ == reading.id
        }


class _Gathered(accumulators.AccumulatorParam[list[Any]]):
    """Concatenates the lists that tasks add."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1.extend(value2)
        return value1


@dataclass(frozen=True, slots=True)
class Decoded:
    """One topic's records as the transform sees them; ``indices`` are its ranges in the batch."""

    topic: str
    indices: Sequence[int]
    reading: Reading
    frame: DataFrame
    source: int
    side_outputs: SideOutputs

    @property
    def ranges(self) -> Sequence[OffsetRange]:
        return self.reading.ranges

    def drain(self) -> list[SideOutput]:
        """Decode all records only to collect what bypasses the transform."""
        self.frame.sparkSession.sparkContext.setLocalProperty(COMMIT, "driver")
        self.side_outputs.forget()
        frame: Any = self.frame
        frame._jdf.queryExecution().toRdd().count()
        found = self.side_outputs.of(self.reading)
        return [found[i] for i in range(len(self.indices))]


@dataclass(frozen=True, slots=True)
class Planned:
    """``result`` is what the transform made; ``answers`` commits it in tasks, if they may do so."""

    decoded: Decoded
    result: DataFrame
    answers: DataFrame
    one_to_one: bool

    def collect(self) -> tuple[pa.Table, list[SideOutput]]:
        """The rows, and what bypassed the transform."""
        decoded = self.decoded
        self.result.sparkSession.sparkContext.setLocalProperty(COMMIT, "driver")
        decoded.side_outputs.forget()
        rows = self.result.toArrow()
        found = decoded.side_outputs.of(decoded.reading)
        if len(found) < len(decoded.indices):  # a plan may leave records unread
            return rows, decoded.drain()
        return rows, [found[i] for i in range(len(decoded.indices))]


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
        refused: Refused,
        moved: Collection[TopicPartition],
        pinned: Pinned,
    ) -> Decoded:
        """The records of one topic as a DataFrame of the columns that are known."""
        if self._side_outputs is None:
            self._side_outputs = SideOutputs(source.spark)
        schema = self._topics.schema(topic) or pa.schema([])
        reading = Reading(
            [source.ranges[i] for i in indices],
            dict(refused),
            frozenset(moved),
            schema,
            uuid.uuid4().hex,
            pinned,
        )
        base, rdd = source.frame(indices)
        raw = raw_columns(self._run, base, key=True)
        body = _decoding(self._topics.spec, reading, self._side_outputs.accumulator)
        frame = raw.mapInArrow(body, frames.spark_schema(schema))
        return Decoded(topic, indices, reading, frame, rdd, self._side_outputs)

    def plan(self, decoded: Decoded) -> Planned:
        """Apply the transform.

        Raises:
            Widened: it uses a column that this batch has shown only now.
            ConfigError: it does not fit the records, or drops metadata that is needed.
        """
        try:
            result = self._transformed(decoded.frame)
            self._check(decoded.topic, result)
            answers = result.mapInArrow(
                _committing(self._topics.spec, decoded.reading), "result binary"
            )
            one_to_one = is_one_to_one(answers, decoded.source)
        except AnalysisException as error:
            if self.widen(decoded.topic, decoded.drain()):
                raise Widened from None
            raise ConfigError(
                f"connector {self._run.connector.name}: the transform does not fit topic "
                f"{named(decoded.topic)}: {first_line(error)}"
            ) from None
        return Planned(decoded, result, answers, one_to_one)

    def widen(self, topic: str, side_outputs: Sequence[SideOutput]) -> bool:
        """Learn the fields that decoding found; returns whether there are any."""
        found = [side.grown for side in side_outputs if side.grown is not None]
        for schema in found:
            self._topics.learn(topic, schema)
        return bool(found)

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
    wanted = key or run.sink.capabilities.uses_key or _has_dead_letters(run.connector)
    if wanted or known_chain(run.connector.originals).needs_key:
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


def _decoding(spec: MicroSpec, reading: Reading, report: Any) -> _Body:
    def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from microtask.decode(spec, reading, batches, report)

    return body


def _committing(spec: MicroSpec, reading: Reading) -> _Body:
    def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield microtask.commit_rows(spec, reading, batches)

    return body


def first_line(error: Exception) -> str:
    """The line that says what happened."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
