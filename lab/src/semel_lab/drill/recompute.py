"""What a query over streams must have made: its SQL over all records below the positions, in
one batch. It holds where no record is late, and rows are updated: then the last row of each key is
that of the whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.core.ledger import QUERY
from semel.core.records import value_columns
from semel.driver.planning import Plan
from semel.kafka.reader import read_ranges
from semel.sinks.rereading import ShowsRows
from semel.tasks.microbatch import frames
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import by_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Counter[tuple[Any, ...]]


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
    for topic, found in parts.items():
        rows = pa.concat_tables(found, promote_options="permissive")
        carried = pa.Table.from_batches(frames.carry(rows, rows.schema.remove_metadata()))
        spark.createDataFrame(carried).createOrReplaceTempView(f"`{topic}`")
    return spark.sql(planned.query.sql).toArrow()


def stored(planned: Plan, columns: list[str]) -> Rows:
    """The rows of the target."""
    found: Rows = Counter()
    assert isinstance(planned.sink, ShowsRows)
    with planned.sink.viewing({QUERY.topic}) as (view,):
        for batch in view.rows(QUERY.topic, columns):
            found.update(tuple(row[c] for c in columns) for row in batch.to_pylist())
    return found


def differences(planned: Plan, spark: SparkSession) -> tuple[Rows, Rows]:
    """The rows that the target lacks, and those that it should not have."""
    wanted = recomputed(planned, spark)
    columns = value_columns(wanted.column_names)
    made: Rows = Counter(tuple(row[c] for c in columns) for row in wanted.to_pylist())
    there = stored(planned, columns)
    return made - there, there - made
