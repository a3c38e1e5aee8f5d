"""What a query or a topology must have made of all records: its SQL in one batch, or the topology
in the test driver. It holds where no record is late, and rows are updated: then the last row of
each key is that of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.ledger import QUERY, TopicPartition
from semel.core.records import value_columns
from semel.driver.planning import Plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.messages import Messages
from semel.kafka.reader import read_ranges
from semel.sinks.rereading import Viewable
from semel.streams.changelog import Topics, results_of
from semel.streams.records import Records, merged
from semel.streams.testing import TestDriver
from semel.streams.topology import Topology
from semel.tasks.microbatch import frames
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import by_topic
from semel.tasks.streams.unit import Decoder, Outputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Counter[tuple[Any, ...]]
Latest = dict[Any, Any]
"""The latest value of each key."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the target of a topology lacks, and has too much, of the results of ``records``."""

    records: int
    lost: int
    duplicated: int

    @property
    def kept(self) -> bool:
        return not self.lost and not self.duplicated


def compared(planned: Plan, topology: Topology, ends: Mapping[TopicPartition, int]) -> Comparison:
    """Compare the results of a topology with those that the test driver makes of all records up to
    these ends."""
    connector = planned.connector
    starts = dict.fromkeys(ends, 0)
    read = Topics(connector.name, topology).read
    inputs: dict[str, list[Records]] = {}
    for messages in read_ranges(connector, starts, ends):
        for poll in by_topic(messages):
            records, bad = Decoder(connector, read[poll.topic][1]).records(poll)
            assert not bad, "the drill of a topology sends no damaged records"
            inputs.setdefault(poll.topic, []).append(records)
    driver = TestDriver(topology)
    driver.pipe_all({topic: by_time(parts) for topic, parts in inputs.items()})
    cluster = Cluster(client_config(connector, "admin"))
    leaving = Outputs(connector, Topics(connector.name, topology), cluster)
    lost = surplus = 0
    for sub in topology.subs:
        for name, sink in sub.sinks.items():
            if sink.is_repartition:
                continue
            if sink.topic is None:
                expected = _latest((_hashable(r.key), r.value) for r in driver.read(name))
                actual = _rows(planned, results_of(connector.name, name), expected)
            else:
                outputs = driver.read_columns(sink.topic)
                sent = (leaving.messages(sub, name, part) for part in outputs)
                expected = _latest(pair for each in sent if each for pair in _pairs(each))
                actual = _latest(_read(connector, cluster, sink.topic))
            lost += sum(actual.get(key) != value for key, value in expected.items())
            surplus += len(actual.keys() - expected.keys())
    return Comparison(sum(len(r) for parts in inputs.values() for r in parts), lost, surplus)


def by_time(parts: Sequence[Records]) -> Records:
    """Records of several polls in the order of their times."""
    places = np.cumsum([0, *map(len, parts)])[:-1]
    together = merged(
        [p.holding(order=at + np.arange(len(p))) for p, at in zip(parts, places, strict=True)]
    )
    return together.take(np.argsort(np.asarray(together.times), kind="stable"))


def _latest(pairs: Iterable[tuple[Any, Any]]) -> Latest:
    """The latest value of each key, without those that are deleted."""
    return {key: value for key, value in dict(pairs).items() if value is not None}


def _pairs(messages: Messages) -> Iterator[tuple[Any, Any]]:
    return zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True)


def _read(connector: ConnectorConfig, cluster: Cluster, topic: str) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a topic's committed records."""
    ends = cluster.latest(TopicPartition(topic, p) for p in range(cluster.topics()[topic]))
    for messages in read_ranges(connector, dict.fromkeys(ends, 0), ends):
        yield from ((message.key(), message.value()) for message in messages)


def _rows(planned: Plan, topic: str, expected: Latest) -> Latest:
    """The rows of a table, by key, with the columns of those that are wanted."""
    if not expected:
        return {}
    key, value = next(iter(expected.items()))
    names = [name for name, _ in key] if isinstance(key, tuple) else _key_fields(planned)
    rows: Latest = {}
    assert isinstance(planned.sink, Viewable)
    with planned.sink.viewing({topic}) as (view,):
        for batch in view.rows(topic, [*names, *value]):
            for row in batch.to_pylist():
                of_row = tuple((name, row[name]) for name in names)
                place = of_row if isinstance(key, tuple) else row[names[0]]
                rows[place] = {name: row[name] for name in value}
    return rows


def _key_fields(planned: Plan) -> list[str]:
    return [planned.connector.originals["pk.fields"].strip()]


def _hashable(key: Any) -> Any:
    return tuple(key.items()) if isinstance(key, dict) else key


def recomputed(planned: Plan, spark: SparkSession) -> pa.Table:
    """The rows that the query makes of all records that the ledger has."""
    connector, sink = planned.connector, planned.sink
    assert planned.query is not None and planned.query.sql
    entries = [e for e in sink.entries() if e.topic_partition != QUERY]
    pipeline = Pipeline(connector, sink, target=sink.schema, frames=True)
    parts: dict[str, list[pa.Table]] = {topic: [] for topic in connector.topics}
    starts = {e.topic_partition: e.start_position for e in entries}
    ends = {e.topic_partition: e.position for e in entries}
    for messages in read_ranges(connector, starts, ends):
        for poll in by_topic(messages):
            raw = poll.raw(key=True, timestamp=True, headers=pipeline.wants_headers)
            parts[poll.topic].append(pipeline.convert(poll.topic, raw).records.rows)
    for topic, tables in parts.items():
        rows = pa.concat_tables(tables, promote_options="permissive")
        carried = pa.Table.from_batches(frames.carry(rows, rows.schema.remove_metadata()))
        spark.createDataFrame(carried).createOrReplaceTempView(f"`{topic}`")
    return spark.sql(planned.query.sql).toArrow()


def stored(planned: Plan, columns: list[str]) -> Rows:
    """The rows of the target."""
    rows: Rows = Counter()
    assert isinstance(planned.sink, Viewable)
    with planned.sink.viewing({QUERY.topic}) as (view,):
        for batch in view.rows(QUERY.topic, columns):
            rows.update(tuple(row[c] for c in columns) for row in batch.to_pylist())
    return rows


def differences(planned: Plan, spark: SparkSession) -> tuple[Rows, Rows]:
    """The rows that the target lacks, and those that it should not have."""
    table = recomputed(planned, spark)
    columns = value_columns(table.column_names)
    expected: Rows = Counter(tuple(row[c] for c in columns) for row in table.to_pylist())
    actual = stored(planned, columns)
    return expected - actual, actual - expected
