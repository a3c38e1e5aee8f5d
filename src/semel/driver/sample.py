"""Samples a topic that has no target yet, so that all tasks agree on its columns."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
from confluent_kafka import KafkaException

from semel.config import ConnectorConfig
from semel.core import abandoned
from semel.core.errors import ConfigError, SemelError
from semel.core.ledger import TopicPartition
from semel.core.quoting import listed, named, typed
from semel.core.records import RowsRejected, one_array, united
from semel.driver import sampler
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.sinks.base import Sink
from semel.tasks.pipeline import Pipeline
from semel.tasks.transform import Transform
from semel.tasks.unplaced import sentence

log = logging.getLogger(__name__)

_RECORDS, _BYTES = 1000, 4 * 1024 * 1024
"""How much of a topic is looked at."""
_CONTACT, _PATIENCE = 2.0, 10.0
"""Seconds for Kafka to answer, and for all of a sample that is only looked at."""
_AT_ONCE = 8
"""Topics that are sampled at once: each may hold a poll in memory."""


def schemas(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    transform: Transform | None,
    positions: Mapping[TopicPartition, int],
) -> dict[str, pa.Schema]:
    """Infer the fields of values for topics whose target does not define them, and make the target.

    An empty topic is left to the task that reads its first records.
    """
    by_topic: dict[str, pa.Schema] = {}
    pipeline = Pipeline(connector, sink, target=sink.schema, transform=transform)
    if not pipeline.needs_fields:
        return by_topic
    unknown = [t for t in sorted({tp.topic for tp in positions}) if pipeline.schema(t) is None]
    for topic, sample in _samples(connector, cluster, unknown, positions):
        schema = _infer(pipeline, topic, sample)
        if schema is not None:
            by_topic[topic] = schema
        parts = [p for p in pipeline.convert(topic, sample).parts if p.rows.num_rows]
        for records in (*united(parts), *parts):
            with suppress(RowsRejected):  # the task that reads them says why
                sink.accommodate(records)
    return by_topic


def inferred(
    connector: ConnectorConfig,
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    infer: Mapping[str, Callable[[pa.Array], pa.Schema | None]],
) -> dict[str, pa.Schema]:
    """The schemas inferred from samples of values. An empty topic is left to the task that
    reads its first records."""
    by_topic: dict[str, pa.Schema] = {}
    for topic, sample in _samples(connector, cluster, sorted(infer), positions):
        schema = infer[topic](one_array(sample.column("value")))
        if schema is not None:
            by_topic[topic] = schema
    return by_topic


def row_schemas(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
) -> dict[str, pa.Schema]:
    """The columns of each topic's decoded rows, metadata included, for a DataFrame transform.

    A topic without rows in the sample is left out.
    """
    by_topic: dict[str, pa.Schema] = {}
    pipeline = Pipeline(connector, sink, target=sink.schema, frames=True)
    topics = sorted({tp.topic for tp in positions})
    for topic, sample in _samples(connector, cluster, topics, positions):
        _infer(pipeline, topic, sample)
        rows = pipeline.convert(topic, sample).records.rows
        if rows.num_rows:
            by_topic[topic] = rows.schema.remove_metadata()
    return by_topic


def warnings(connector: ConnectorConfig, sink: Sink) -> list[str]:
    """The fields of each topic's newest records for which its target has no column, in sentences.
    Nothing if Kafka and the store do not show them within a few seconds."""
    if sink.capabilities.evolves or connector.fields_unknown == "ignore":
        return []
    try:
        return abandoned.within(_PATIENCE, "a sample", lambda: _warnings(connector, sink))
    except (abandoned.Abandoned, SemelError, KafkaException) as error:
        log.info("no values were compared with the target's columns: %s", error)
        return []


def _warnings(connector: ConnectorConfig, sink: Sink) -> list[str]:
    pipeline = Pipeline(connector, sink, target=sink.schema)
    cluster = Cluster(client_config(connector, "admin"))
    partitions = [
        TopicPartition(topic, partition)
        for topic, count in cluster.matching(connector, _CONTACT).items()
        for partition in range(count)
    ]
    first, ends = cluster.earliest(partitions), cluster.latest(partitions)
    share = -(-_RECORDS // max(1, len(partitions)))
    newest = {tp: max(first[tp], ends[tp] - share) for tp in partitions if first[tp] < ends[tp]}
    sentences = []
    topics = {tp.topic: None for tp in newest}
    for topic, sample in _samples(connector, cluster, topics, newest, _PATIENCE):
        try:
            unplaced = pipeline.convert(topic, sample).unplaced
        except ConfigError as error:  # what the run would end with
            sentences.append(str(error))
        else:
            sentences += [sentence(sink, *field) for field in sorted(unplaced)]
    return sentences


def _samples(
    connector: ConnectorConfig,
    cluster: Cluster,
    topics: Iterable[str],
    positions: Mapping[TopicPartition, int],
    patience: float = sampler.PATIENCE,
) -> Iterator[tuple[str, pa.Table]]:
    """The samples of those topics that have records, in order; several are read ahead in parallel,
    because reading one is mostly waiting."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="semel-sample") as pool:
        ahead: deque[tuple[str, Future[pa.Table | None]]] = deque()
        remaining = iter(topics)
        try:
            while True:
                for topic in itertools.islice(remaining, _AT_ONCE - len(ahead)):
                    job = pool.submit(_sample, connector, cluster, topic, positions, patience)
                    ahead.append((topic, job))
                if not ahead:
                    return
                topic, job = ahead.popleft()
                if (sample := job.result()) is not None:
                    yield topic, sample
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _sample(
    connector: ConnectorConfig,
    cluster: Cluster,
    topic: str,
    positions: Mapping[TopicPartition, int],
    patience: float,
) -> pa.Table | None:
    starts = {tp: at for tp, at in positions.items() if tp.topic == topic}
    share = -(-_RECORDS // len(starts))
    latest = cluster.latest(starts)
    ends = {tp: min(latest[tp], at + share) for tp, at in starts.items()}
    if not any(starts[tp] < end for tp, end in ends.items()):
        return None
    return sampler.read(connector, starts, ends, _BYTES, patience).tables.get(topic)


def _infer(pipeline: Pipeline, topic: str, sample: pa.Table) -> pa.Schema | None:
    schema = pipeline.infer(topic, sample)
    if schema is not None:
        log.info(
            "topic %s: columns found in %d records: %s",
            *(topic, sample.num_rows, listed([f"{named(f.name)} {typed(f.type)}" for f in schema])),
        )
    return schema
