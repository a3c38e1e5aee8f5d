"""The micro-batch engine's driver: a Structured Streaming query whose batches semel commits.

Spark plans the batches and reads Kafka; the ledger says where the first one begins. The query's
checkpoint is temporary and new at each start: whatever ends the query, the next one starts from the
ledger's positions. See :mod:`semel.driver.microbatch.job` for what happens to a batch.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    PySparkException,
    PythonException,
    SparkRuntimeException,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel.config import ConnectorConfig, under
from semel.core.context import CONNECTOR
from semel.core.errors import (
    BadRecord,
    ConfigError,
    GaveUp,
    LedgerConflict,
    LogChanged,
    OtherLog,
    RolledBack,
    SemelError,
    ServiceError,
    TransientError,
    prefixed,
)
from semel.core.ledger import LedgerEntry, OffsetRange, TopicPartition
from semel.driver import sampler, startup
from semel.driver.base import Progress, Run, State, Stopped
from semel.driver.microbatch.job import MicroBatches
from semel.driver.microbatch.plan import FrameTransform, wants_headers
from semel.kafka import security
from semel.kafka.consumer import consumer_config
from semel.kafka.damage import Damage, examine, intact, parse_java_error
from semel.kafka.reader import after_last_record
from semel.spark.gateway import require_token_of_jvm
from semel.spark.jars import SOURCE, SPARK_KAFKA
from semel.spark.job_errors import CRASHED, first_error, not_shipped, spark_gone
from semel.tasks import ranges
from semel.tasks.control import Address, Lines
from semel.tasks.retry import LONGEST, Backoff, Retries

log = logging.getLogger(__name__)

_SETTLE = 20.0
_CANCELLED = 20.0
"""Seconds that a batch gets to end, and again after it is cancelled."""
_LOOK = 0.2
"""Seconds after which a paused run checks whether it may continue."""
_NOT_SPARKS = (
    "bootstrap.servers",
    "auto.offset.reset",
    "key.deserializer",
    "value.deserializer",
    "interceptor.classes",
    "isolation.level",
)
"""Consumer keys that Spark refuses or that are set here."""


class MicroBatchEngine:
    """One run of a connector."""

    made_by: ClassVar[str] = "the transform"
    """What makes rows, for messages."""

    def __init__(
        self, run: Run, spark: Callable[[], SparkSession], transform: FrameTransform | None
    ) -> None:
        # Spark's own failOnDataLoss=false would skip silently; the ledger records the hole.
        skips = not run.connector.fail_on_data_loss
        connector = replace(run.connector, offset_out_of_range="earliest") if skips else None
        self._run = replace(run, connector=connector) if connector else run
        self._spark = spark
        self._transform = transform
        self._progress = Progress()
        self._lines = Lines()
        self._in_hand = threading.Lock()
        self._error: Exception | None = None
        self._failure = ""
        self._waits = partial(self._run.waits, self._progress)
        self._retries = Retries(self._run.connector, log.warning, self._waits)
        self._unreadable: tuple[TopicPartition, int] | None = None

    def run(self) -> Progress:
        """Run a query until stopped, caught up, or an error ends the connector.

        Raises:
            SemelError: what ended it.
        """
        startup.enter(self._run)
        targets = startup.targets(self._run)
        require_source(self._spark())
        require_token_of_jvm()
        control = self._lines.address(self._spark().sparkContext)
        batches = self._batches(control)
        try:
            batches.log_start()
            self._supervise(batches, targets)
        except LedgerConflict as conflict:
            raise batches.fenced(conflict) from None
        except Stopped:
            log.debug("stopped while a batch was tried again")
        finally:
            batches.close()
            self._lines.close()
        return self._progress

    def _batches(self, control: Address) -> MicroBatches:
        return MicroBatches(self._run, self._transform, self._progress, control)

    def _supervise(self, batches: MicroBatches, targets: Mapping[TopicPartition, int]) -> None:
        """Run queries, one after the other, until no further one is needed."""
        backoff, answered = Backoff(longest=LONGEST), False
        questions = Retries(self._run.connector, log.warning, self._waits)
        while not self._run.stop.is_set():
            started = time.monotonic()
            paused = self._run.paused.is_set()
            self._progress.all_tasks(
                self._run.connector.tasks_max, State.PAUSED if paused else State.RUNNING
            )
            if paused:
                self._run.observe(self._progress)
                self._run.stop.wait(_LOOK)
                continue
            if self._run.run_control.drop_restarts():
                batches.begin_again()
                self._progress.restarts += 1
            try:
                self._pass_over(batches)
                entries = self._entries()
            except (GaveUp, RolledBack):
                raise
            except (ServiceError, TransientError) as error:
                # At the start the user is told at once; later a service may be restarting.
                if not answered:
                    raise
                self._run.stop.wait(questions.failed(error))
                continue
            else:
                questions.succeeded()
                answered = True
                if self._over(targets):
                    return
                batches.enter(entries.values())
                self._query(batches, {tp: e.position for tp, e in entries.items()})
                if self._error is not None:
                    raise self._error
                if self._unreadable is not None or batches.size.outgrown:
                    self._progress.restarts += 1
                    continue
                if self._run.over(self._progress, targets):
                    return
                if self._run.interrupted:
                    continue
            pause = backoff.after(time.monotonic() - started)
            log.warning(
                "the streaming query ended (%s); restarting it in %.0f s",
                self._failure or "early",
                pause,
            )
            self._progress.restarts += 1
            self._run.stop.wait(pause)

    def _over(self, targets: Mapping[TopicPartition, int]) -> bool:
        """Whether no query needs to be started."""
        return self._run.over(self._progress, targets)

    def _entries(self) -> dict[TopicPartition, LedgerEntry]:
        """The ledger's positions of all partitions that exist now."""
        run = self._run
        topics = ranges.topics_now(run.connector, run.cluster)
        run.sink.prepare(topics)
        partitions = ranges.partitions(topics)
        entries = ranges.stored_entries(run.connector, run.sink, run.cluster, partitions)
        self._progress.positions |= {tp: e.position for tp, e in entries.items()}
        return entries

    def _pass_over(self, batches: MicroBatches) -> None:
        """Commit the records before an unreadable record batch; then record the hole, or stop
        there.

        Raises:
            BadRecord: ``errors.tolerance`` is ``none``.
        """
        if self._unreadable is None:
            return
        run, connector, (tp, offset) = self._run, self._run.connector, self._unreadable
        entry = ranges.stored_entries(connector, run.sink, run.cluster, [tp])[tp]
        at = entry.position
        after, damage = sampler.read_apart(connector, {tp: at}, _meets, connector, tp, at, offset)
        if damage is None:
            run.stop.wait(self._retries.failed(intact(connector.name, tp, offset, self._failure)))
        else:
            if at < after:
                batches.process(self._part(OffsetRange(*tp, at, after)))
            position = max(at, after)
            damage.check_tolerated(connector, position)
            batches.pass_over(damage, position, entry.log)
        self._unreadable = None

    def _part(self, wanted: OffsetRange) -> DataFrame:
        """The records of one range, as a streaming query would give them."""
        options = range_options(self._run, [wanted])
        return self._spark().read.format("kafka").options(**options).load()

    # The query

    def _query(self, batches: MicroBatches, positions: Mapping[TopicPartition, int]) -> None:
        """Run one streaming query to its end."""
        run = self._run
        self._failure = ""
        checkpoint = tempfile.mkdtemp(prefix="semel-checkpoint-")
        reader = self._spark().readStream.format("kafka")
        options = kafka_options(run.connector, positions, headers=wants_headers(run))
        options["maxOffsetsPerTrigger"] = str(batches.size.records(positions))
        reader = reader.options(**options)
        try:
            writer = (
                reader.load()
                .writeStream.queryName(f"semel-{run.connector.name}-{time.time_ns()}")
                .option("checkpointLocation", f"file://{checkpoint}")
                .foreachBatch(
                    lambda batch, _id: self._process(batches, lambda: batches.process(batch))
                )
            )
            self._watch(self._triggered(writer).start())
        except AnalysisException as error:
            raise ConfigError(f"connector {run.connector.name}: {reason(error)}") from None
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _triggered(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self._run.until_caught_up:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self._run.connector.processing_time)

    def _watch(self, query: StreamingQuery) -> None:
        try:
            while not query.awaitTermination(0.1):  # type: ignore[arg-type]
                self._run.observe(self._progress)
                if self._run.stop.is_set():
                    self._settle(query)
                    query.stop()
                elif self._run.interrupted and self._in_hand.acquire(blocking=False):
                    self._in_hand.release()  # the batch in hand has ended, and no other begins
                    query.stop()
        except StreamingQueryException as error:
            self._failure = self._failure or reason(error)
        except (Py4JNetworkError, ConnectionError) as error:
            raise (spark_gone(self._run.connector, error) or error) from None
        self._run.observe(self._progress)

    def _settle(self, query: StreamingQuery) -> None:
        """Wait for the batch in hand. If it does not end in time, cancel it; what its tasks have
        not committed rolls back.

        Raises:
            ServiceError: the driver's own commit hangs; it rolls back when the process ends.
        """
        self._lines.stop()
        if not self._in_hand.acquire(timeout=_SETTLE):
            log.warning("the current batch has not finished; cancelling it")
            self._spark().sparkContext.cancelJobGroup(str(query.runId))
            if not self._in_hand.acquire(timeout=_CANCELLED):
                raise ServiceError(
                    f"connector {self._run.connector.name}: a commit does not finish: "
                    "the store does not answer. It rolls back when this process ends"
                )
        self._in_hand.release()

    def _process(self, batches: MicroBatches, process: Callable[[], None]) -> None:
        """Called by Spark, in a thread of its own. What is raised here ends the query."""
        CONNECTOR.set(self._run.connector.name)
        with self._in_hand:
            asked = self._run.stop.is_set() or self._run.interrupted
            if asked or self._error is not None or batches.size.outgrown:
                raise Stopped
            try:
                process()
                self._retries.succeeded()
            except TransientError as error:
                self._may_pass(error)
                raise
            except OtherLog as error:  # another run has moved it; the next query compares first
                self._may_pass(LogChanged(str(error)))
                raise
            except SemelError as error:
                self._error = error
                raise
            except Stopped:
                raise
            except Exception as error:
                self._failure = reason(error)
                self._unreadable = parse_java_error(str(error))
                if self._unreadable is not None:
                    raise
                self._error = self._lasting(error)
                log.debug("a batch failed", exc_info=True)
                raise

    def _may_pass(self, error: TransientError) -> None:
        """Let the next query try again, unless ``max.retries`` is used up."""
        self._failure = str(error)
        try:
            self._retries.failed(error)
        except GaveUp as end:
            self._error = end

    def _lasting(self, error: Exception) -> Exception | None:
        """An error that would occur again: one of the transform's code or expressions, or one that
        is not Spark's."""
        if not isinstance(error, (Py4JError, PySparkException)):
            return error
        missing = not_shipped(self._run.connector, str(error))
        if missing is not None:
            return missing
        if not isinstance(error, (PythonException, ArithmeticException, SparkRuntimeException)):
            return None
        return BadRecord(
            f"connector {self._run.connector.name}: {self.made_by} fails on a record of this "
            f"batch: {reason(error)}. What was committed before stays; correct it, or filter "
            "such records out before"
        )


def require_source(spark: SparkSession) -> None:
    """Check that Spark can read Kafka.

    Raises:
        ConfigError: its Kafka source is missing; says how to add it.
    """
    session: Any = spark
    if getattr(session, "_jvm", None) is None:
        raise ConfigError(
            "engine=micro-batch needs a classic Spark session: Spark Connect does not show which "
            "offsets a batch holds"
        )
    if not session._jvm.org.apache.spark.util.Utils.classIsLoadable(SOURCE):
        packages = ",".join(SPARK_KAFKA.coordinates)
        raise ConfigError(
            "this Spark session has no Kafka source, which engine=micro-batch needs, and jars "
            f"cannot be added to it any more. Start it with --packages {packages} (or "
            "spark.jars.packages), or let semel start Spark"
        )


def kafka_options(
    connector: ConnectorConfig, positions: Mapping[TopicPartition, int], *, headers: bool
) -> dict[str, str]:
    """The options of Spark's Kafka source; client settings keep Java's names."""
    starts: dict[str, dict[str, int]] = {}
    for tp, at in positions.items():
        starts.setdefault(tp.topic, {})[str(tp.partition)] = at
    subscribed = (
        {"subscribePattern": connector.topics_regex}
        if connector.topics_regex
        else {"subscribe": ",".join(connector.topics)}
    )
    overrides = under(connector.originals, "consumer.override.")
    title = f"connector {connector.name}: "
    try:
        overrides = security.java(overrides)
    except ConfigError as error:
        raise prefixed(error.problems, "consumer.override.", title=title) from None
    options = {f"kafka.{k}": v for k, v in overrides.items() if k not in _NOT_SPARKS}
    return {
        **options,
        **subscribed,
        "kafka.bootstrap.servers": connector.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "startingOffsets": json.dumps(starts) if starts else "earliest",
        "maxOffsetsPerTrigger": str(connector.max_offsets_per_trigger),
        "failOnDataLoss": "true",
        "includeHeaders": str(headers).lower(),
    }


def range_options(run: Run, ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """The options of Spark's Kafka source to read just these ranges."""
    options = kafka_options(run.connector, {}, headers=wants_headers(run))
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for r in ranges:
        assigned.setdefault(r.topic, []).append(r.partition)
        starts.setdefault(r.topic, {})[r.partition] = r.from_offset
        ends.setdefault(r.topic, {})[r.partition] = r.until_offset
    chosen = {"assign": assigned, "startingOffsets": starts, "endingOffsets": ends}
    options |= {name: json.dumps(value) for name, value in chosen.items()}
    for name in ("subscribe", "subscribePattern", "maxOffsetsPerTrigger"):
        options.pop(name, None)
    return options


def _meets(
    connector: ConnectorConfig, tp: TopicPartition, start: int, end: int
) -> tuple[int, Damage | None]:
    """The offset after the last record before one that cannot be read, and what is there."""
    after = after_last_record(connector, tp, start, end)
    return after, examine(connector.name, consumer_config(connector, 0), tp, after)


def reason(error: Exception) -> str:
    """The line that says what happened: the last one of a Python error, or the first one of
    Spark's."""
    if CRASHED in str(error):
        return first_error(str(error))
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if isinstance(error, PythonException):
        raised = [n for n, line in enumerate(lines) if line.startswith("File ")]
        after = [line for line in lines[raised[-1] :] if _is_error(line)] if raised else []
        lines = after or lines
    elif isinstance(error, PySparkException) and len(lines) > 1:
        lines = [line for line in lines if "Exception:" in line][:1] or lines
    return (lines or [type(error).__name__])[0][:500]


def _is_error(line: str) -> bool:
    name, colon, _ = line.partition(":")
    return bool(colon) and name.replace(".", "").replace("_", "").isalnum() and "File" not in name
