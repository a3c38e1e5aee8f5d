"""A connector's chain of transforms, on converted records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from semel.core.records import PARTITION, TIMESTAMP, ConnectRecords
from semel.tasks.rowtransform import Failed
from semel.transforms import Chain
from semel.transforms.base import Batch, Contents


def chained(
    chain: Chain,
    records: ConnectRecords,
    index: np.ndarray,
    keyed: bool,
    typed: bool,
    *,
    stamps: bool = False,
) -> tuple[ConnectRecords, np.ndarray, list[Failed], pa.Array | None]:
    """Run the chain.

    Args:
        chain: the transforms.
        records: what was read from one topic.
        index: the index of each record in the raw batch.
        keyed: whether keys come with schemas.
        typed: whether values come with schemas.
        stamps: whether the times and partitions that transforms set replace the origin's, as they
            do where the origin is not a record in Kafka.

    Returns:
        the records that are left, their indices in the raw batch, those that were refused, and
        where each goes, unless the topic alone decides it.
    """
    batch = Batch(
        records.origin,
        Contents(records.keys, keyed, records.key_facts),
        Contents(records.values, typed, records.value_facts),
        pa.repeat(pa.scalar(records.topic), len(records)),
        np.arange(len(records)),
        records.headers,
    )
    outcome = chain.apply(batch)
    failed = [
        Failed(int(index[r.index]), "TRANSFORMATION", r.exception, r.message)
        for r in outcome.refused
    ]
    made = outcome.batch
    values = made.values.array
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), records.values.type)
    origin = made.origin
    for name, chosen in ((TIMESTAMP, made.times), (PARTITION, made.places)):
        if stamps and chosen is not None:
            if name in origin.column_names:
                origin = origin.drop_columns([name])
            origin = origin.append_column(name, chosen)
    left = ConnectRecords(
        records.topic,
        origin,
        made.keys.array,
        values,
        made.headers,
        made.keys.facts,
        made.values.facts,
    )
    return left, index[made.rows], failed, None if chain.goes_by_topic else made.topics


def by_topic(records: ConnectRecords, topics: pa.Array) -> list[ConnectRecords]:
    """Records grouped by the topic they go to."""
    encoded = topics.dictionary_encode()
    places = np.asarray(encoded.indices)
    return [
        replace(records.take(pa.array(np.flatnonzero(places == number))), topic=topic)
        for number, topic in enumerate(encoded.dictionary.to_pylist())
    ]
