"""A query over streams as a plan of Structured Streaming: a DataFrame for each topic, what the
query makes of them, and how its rows come out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, SemelError, misconfigured
from semel.core.quoting import all_named, named
from semel.core.records import KEY, OFFSET, TIMESTAMP
from semel.driver.base import Run
from semel.driver.microbatch.plan import KnownTopics, first_line, raw_columns
from semel.driver.planning.programs import Query
from semel.tasks.microbatch import frames
from semel.tasks.microbatch import streams as microstreams
from semel.tasks.microbatch.streams import EVENT_TIME, Stream
from semel.tasks.microbatch.task import MicroSpec

STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""State beyond memory, and checkpoints of what has changed only."""
_ROCKSDB = "org.rocksdb.RocksDB"
_SAFE = {"spark.sql.runSQLOnFiles": "false"}
"""SQL of a configuration reads topics and the catalog's tables, and no files."""
_FORBIDDEN = ("reflect", "java_method", "try_reflect")
"""Functions that call any method in the JVM."""
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_INCIDENTAL = re.compile(
    r"#\d+L?|@[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|plan_id=\d+"
)
"""What differs from one analysis of a plan to the next."""

Source = Callable[[SparkSession, str], DataFrame]
"""Reads a topic in a session, as Spark's Kafka source gives it."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A query that can be started. ``digest`` tells it from others, ``text`` is for people, and
    ``schema`` holds the types that its columns had before Spark."""

    result: DataFrame
    mode: str
    digest: str
    text: str
    schema: pa.Schema


def prepared(spark: SparkSession) -> None:
    """Let Spark keep state in RocksDB.

    Raises:
        ConfigError: its jar is missing.
    """
    session: Any = spark
    if not session._jvm.org.apache.spark.util.Utils.classIsLoadable(_ROCKSDB):
        raise ConfigError(
            "this Spark has no rocksdbjni, which keeps the state of queries. Install PySpark with "
            "all of its jars, or add org.rocksdb:rocksdbjni to spark.jars.packages"
        )
    for name, value in STATE.items():
        spark.conf.set(name, value)


class Streams:
    """Plans the query of one run."""

    def __init__(
        self, run: Run, query: Query, topics: KnownTopics, report: Accumulator[Any]
    ) -> None:
        self._run = run
        self._query = query
        self._topics = topics
        self._report = report

    def plan(self, spark: SparkSession, source: Source) -> StreamPlan:
        """The query over what ``source`` reads of each topic.

        Raises:
            ConfigError: it does not fit its topics, or the sink.
        """
        connector = self._run.connector
        if self._query.sql:
            session = spark.newSession()
            for name, value in {**STATE, **_SAFE}.items():
                session.conf.set(name, value)
        else:
            session = spark
        streams = [self._stream(topic) for topic in connector.topics]
        timed = [self._timed(s, self._decoded(s, source(session, s.topic))) for s in streams]
        result = self._result(session, timed)
        self._check(result)
        mode = self._mode(result)
        frame: Any = result
        plan_text = frame._jdf.queryExecution().analyzed().toString()
        settings = (mode, connector.topics, connector.event_time, connector.watermark)
        text = self._query.sql or shape(plan_text)
        digest = hashlib.sha256(repr((" ".join(text.split()), *settings)).encode()).hexdigest()[:32]
        return StreamPlan(result, mode, digest, self._query.name, _agreed(streams))

    def decoded(self, topic: str, base: DataFrame) -> DataFrame:
        """The records of a topic, decoded, from rows of Spark's Kafka source."""
        return self._decoded(self._stream(topic), base)

    def _stream(self, topic: str) -> Stream:
        connector, schema = self._run.connector, self._topics.schema(topic)
        assert schema is not None
        event_time = of_topic(connector, "event.time.field", connector.event_time, topic)
        return Stream(topic, streamed(connector, topic, schema, event_time), event_time)

    def _decoded(self, stream: Stream, base: DataFrame) -> DataFrame:
        raw = raw_columns(self._run, base, key=True)
        body = _decoding(self._topics.spec, stream, self._report)
        return raw.mapInArrow(body, frames.spark_schema(stream.schema))

    def _timed(self, stream: Stream, frame: DataFrame) -> DataFrame:
        connector = self._run.connector
        delay = of_topic(connector, "watermark", connector.watermark, stream.topic)
        try:
            return frame.withWatermark(stream.event_time or TIMESTAMP, delay)
        except PySparkException as error:
            raise misconfigured(
                "watermark",
                f"connector {connector.name}: watermark={delay} of topic {named(stream.topic)} is "
                f"no interval, such as 10 minutes: {first_line(error)}",
                delay,
            ) from None

    def _result(self, session: SparkSession, dataframes: Sequence[DataFrame]) -> DataFrame:
        connector, query = self._run.connector, self._query
        try:
            if query.sql:
                result: Any = _of_sql(connector, session, query.sql, dataframes)
            else:
                assert query.function is not None
                result = query.function(*dataframes)
        except SemelError:
            raise
        except PySparkException as error:
            raise misconfigured(
                "query",
                f"connector {connector.name}: the query does not fit its topics: "
                f"{first_line(error)}",
            ) from None
        except Exception as error:
            raise ConfigError(
                f"connector {connector.name}: the query raised {type(error).__name__}: "
                f"{first_line(error)}"
            ) from error
        if not isinstance(result, DataFrame) or not result.isStreaming:
            kind = "one that is not" if isinstance(result, DataFrame) else type(result).__name__
            raise ConfigError(
                f"connector {connector.name}: the query must make a DataFrame of the streams that "
                f"it gets, not {kind}"
            )
        return result

    def _check(self, result: DataFrame) -> None:
        """Check that the target's key can be made of the result, and that columns have names of
        their own."""
        run, columns = self._run, result.columns
        twice = sorted({c for c in columns if columns.count(c) > 1})
        if twice:
            raise misconfigured(
                "query",
                f"connector {run.connector.name}: the query makes two columns named "
                f"{named(twice[0])}. Give one of them another name",
            )
        key_metadata = run.sink.capabilities.key_metadata
        if OFFSET in key_metadata and KEY not in key_metadata:
            raise ConfigError(
                f"connector {run.connector.name}: the target's key is the place of a record in "
                "Kafka, and rows of a query have none of their own. Make the key of columns or of "
                "__connect_key, or set none"
            )
        for name in sorted(key_metadata - microstreams.MADE):
            if name not in columns:
                raise misconfigured(
                    "query",
                    f"connector {run.connector.name}: the target's key is made of {named(name)}, "
                    "which the query does not make. Let the query make it, or name columns of "
                    "the result: pk.mode=record_value with pk.fields",
                )

    def _mode(self, result: DataFrame) -> str:
        connector, replaces = self._run.connector, self._run.sink.capabilities.replaces
        mode = connector.output_mode
        if mode == "update" and not replaces:
            raise misconfigured(
                "query.output.mode",
                f"connector {connector.name}: query.output.mode=update gives a row again whenever "
                "it has changed, but the sink only adds rows. Let it replace them by key "
                "(insert.mode=upsert with pk.mode=record_value and pk.fields), or set "
                "query.output.mode=append",
                mode,
            )
        if mode == "auto":
            mode = "update" if replaces and not unsupported(result, "Update") else "append"
        if why := unsupported(result, mode.capitalize()):
            raise misconfigured(
                "query.output.mode",
                f"connector {connector.name}: Spark cannot run this query with "
                f"query.output.mode={mode}: {why}",
                mode,
            )
        return mode


def _of_sql(
    connector: ConnectorConfig, session: SparkSession, sql: str, dataframes: Sequence[DataFrame]
) -> DataFrame:
    """What SQL makes of a view for each topic.

    Raises:
        ConfigError: it is no query, or would run other programs.
    """
    inside: Any = session
    state, jvm = inside._jsparkSession.sessionState(), inside._jvm
    parsed = state.sqlParser().parsePlan(sql)
    is_command = jvm.org.apache.spark.util.Utils.classForName(_COMMAND, True, False).isInstance(
        parsed
    )
    if is_command or "ScriptTransformation" in parsed.toString():
        raise misconfigured(
            "query",
            f"connector {connector.name}: query={' '.join(sql.split())[:60]}... must be a SELECT, "
            "without TRANSFORM: it reads a view for each topic",
        )
    for name in _FORBIDDEN:
        state.functionRegistry().dropFunction(
            jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name)
        )
    for topic, frame in zip(connector.topics, dataframes, strict=True):
        frame.createOrReplaceTempView(f"`{topic}`")
    return session.sql(sql)


def unsupported(result: DataFrame, mode: str) -> str | None:
    """Why Spark cannot run a query in an output mode; None if it can."""
    inside: Any = result
    jvm = inside.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    output_mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode)()
    try:
        checker.checkForStreaming(inside._jdf.queryExecution().analyzed(), output_mode)
    except (PySparkException, Py4JJavaError) as error:
        return first_line(error)
    return None


def shape(plan: str) -> str:
    """The text of an analyzed plan without what differs from one analysis to the next: ids, and
    the options of its sources."""
    lines = [
        _INCIDENTAL.sub("", line)
        for line in plan.splitlines()
        if "StreamingRelation" not in line and "MapInArrow" not in line
    ]
    return "\n".join(lines)


def of_topic(connector: ConnectorConfig, name: str, settings: Sequence[str], topic: str) -> str:
    """A setting of a topic, from one for all of them or ``topic:setting`` pairs.

    Raises:
        ConfigError: there is none, or several.
    """
    pairs = dict(setting.split(":", 1) for setting in settings if ":" in setting)
    others = [setting for setting in settings if ":" not in setting]
    if strange := sorted(pairs.keys() - set(connector.topics)):
        raise misconfigured(
            name,
            f"connector {connector.name}: {name}={','.join(settings)}: {named(strange[0])} is not "
            f"among its topics, {', '.join(connector.topics)}",
        )
    if len(others) > 1:
        raise misconfigured(
            name,
            f"connector {connector.name}: {name}={','.join(settings)}: give one for all topics, or "
            "topic:setting pairs",
        )
    default = others[0] if others else ""
    return pairs.get(topic, default or ("10 minutes" if name == "watermark" else "")).strip()


def streamed(
    connector: ConnectorConfig, topic: str, schema: pa.Schema, event_time: str
) -> pa.Schema:
    """The columns of a topic's stream: those of its rows, with the event time as a timestamp.

    Raises:
        ConfigError: the field of the event time is missing, or cannot hold a time.
    """
    if not event_time:
        return schema
    at = schema.get_field_index(event_time)
    if at < 0:
        names = all_named([n for n in schema.names if not n.startswith("__connect_")])
        raise misconfigured(
            "event.time.field",
            f"connector {connector.name}: event.time.field={event_time}: records of topic "
            f"{named(topic)} have no such field; they have {names}",
        )
    kind = schema.field(at).type
    if not microstreams.may_be_time(kind):
        raise misconfigured(
            "event.time.field",
            f"connector {connector.name}: event.time.field={event_time}: the field of topic "
            f"{named(topic)} has type {kind}. A time is a timestamp, a date, an integer "
            "(milliseconds since 1970) or a text in ISO 8601",
        )
    return schema.set(at, pa.field(event_time, EVENT_TIME))


def _agreed(streams: Iterable[Stream]) -> pa.Schema:
    """The types of columns before Spark, where all topics agree on them."""
    fields: dict[str, pa.Field | None] = {}
    for field in (f for stream in streams for f in stream.schema):
        agreed = fields.setdefault(field.name, field)
        if agreed is None or agreed.type != field.type:
            fields[field.name] = None
    return pa.schema([f for f in fields.values() if f is not None])


_Body = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _decoding(spec: MicroSpec, stream: Stream, report: Accumulator[Any]) -> _Body:
    def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from microstreams.decode(spec, stream, batches, report)

    return body
