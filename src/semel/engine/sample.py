"""What the driver finds in a sample of a topic that has no target yet, so that all tasks agree."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.engine.pipeline import Pipeline, Transform
from semel.engine.poll import by_topic
from semel.engine.reader import read_ranges
from semel.kafka import Cluster
from semel.ledger import TopicPartition
from semel.sinks.base import Sink

log = logging.getLogger(__name__)

_RECORDS = 1000


def schemas(
    connector: ConnectorConfig,
    raw: Mapping[str, str],
    sink: Sink,
    cluster: Cluster,
    transform: Transform | None,
    positions: Mapping[TopicPartition, int],
) -> dict[str, pa.Schema]:
    """Infer the values' fields of each topic whose target does not say them, and make the target.

    An empty topic is left to the task that reads its first records.
    """
    found: dict[str, pa.Schema] = {}
    pipeline = Pipeline(connector, raw, sink, target=sink.schema, transform=transform)
    unknown = [t for t in sorted({tp.topic for tp in positions}) if pipeline.schema(t) is None]
    for topic in unknown:
        mine = {tp: at for tp, at in positions.items() if tp.topic == topic}
        share = -(-_RECORDS // len(mine))
        latest = cluster.latest(mine)
        ends = {tp: min(latest[tp], at + share) for tp, at in mine.items()}
        messages = [*itertools.chain.from_iterable(read_ranges(connector, raw, mine, ends))]
        if not messages:
            continue
        batch = by_topic(messages)[0].raw(key=True, timestamp=True)
        schema = pipeline.infer(topic, batch)
        if schema is not None:
            found[topic] = schema
            fields = ", ".join(f"{f.name} {f.type}" for f in schema)
            log.info("topic %s: columns found in %d records: %s", topic, len(messages), fields)
        converted = pipeline.convert(topic, batch)
        if converted.records.rows.num_rows:
            sink.accommodate(converted.records)
    return found
