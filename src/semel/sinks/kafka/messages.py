"""Records and dead letters of the Kafka sink as messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from semel.config import ConnectorConfig
from semel.converters import Converter
from semel.converters.base import Writers
from semel.core.records import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    DeadLetter,
    Records,
    value_columns,
)
from semel.kafka.dead_letters import Header, Headers, error_headers
from semel.kafka.messages import Messages, headers, timestamps
from semel.sinks.flatten import VALUE
from semel.sinks.kafka.config import KEEP, KafkaConfig


def dead_letters(connector: ConnectorConfig, letters: Sequence[DeadLetter], task: int) -> Messages:
    """Dead letters for their topic, as Kafka Connect writes them."""
    return Messages(
        connector.dead_letter_topic,
        "",
        pa.chunked_array([[x.key for x in letters]], pa.binary()),
        pa.chunked_array([[x.value for x in letters]], pa.binary()),
        timestamps=[max(0, x.timestamp or 0) for x in letters],
        headers=[[*x.headers, *error_headers(connector, x, task)] for x in letters],
    )


class Encoder:
    """Makes messages. ``key`` and ``value`` are converters for what a transform has changed."""

    def __init__(
        self, config: KafkaConfig, *, provenance: bool, key: Converter, value: Converter
    ) -> None:
        self._config = config
        self._provenance = provenance
        self._key = Writers(key)
        self._value = Writers(value)

    def messages(self, parts: Sequence[Records], topic: str) -> Messages:
        """One topic's records in their order, tombstones in their place between the others."""
        tables, each, written = [], [], []
        for part in parts:
            tables.append(part.rows)
            each += self._keys(part, part.rows, topic).chunks
            written += self._values(part, topic).chunks
            if (gone := part.tombstones) is not None and gone.num_rows:
                tables.append(gone)
                each += self._keys(part, gone, topic).chunks
                written.append(pa.nulls(gone.num_rows, pa.binary()))
        keys, values = (pa.chunked_array(chunks, pa.binary()) for chunks in (each, written))
        origin, rows = parts[0].origin, tables[0]
        if len(tables) > 1:
            names = [n for n in (PARTITION, OFFSET, TIMESTAMP, HEADERS) if n in rows.column_names]
            rows = pa.concat_tables([t.select(names) for t in tables])
            order = np.lexsort((rows.column(OFFSET), rows.column(PARTITION)))
            rows, values, keys = rows.take(order), values.take(order), keys.take(order)
        partitions = rows.column(PARTITION).to_numpy().tolist()
        offsets = rows.column(OFFSET).to_numpy().tolist()
        keep = self._config.partitioner == KEEP
        return Messages(
            topic,
            origin,
            keys,
            values,
            partitions if keep else None,
            timestamps(rows),
            self._headers(origin, rows, partitions, offsets),
            partitions,
            offsets,
        )

    def _values(self, records: Records, topic: str) -> pa.ChunkedArray:
        rows = records.rows
        if records.has_fields:
            values = rows.select(value_columns(rows.column_names)).to_struct_array()
        else:
            values = rows.column(VALUE)
        return _encoded(self._value.of(topic, records.value_facts), values)

    def _keys(self, records: Records, rows: pa.Table, topic: str) -> pa.ChunkedArray:
        return _encoded(self._key.of(topic, records.key_facts), rows.column(KEY))

    def _headers(
        self, source: str, rows: pa.Table, partitions: list[int], offsets: list[int]
    ) -> Sequence[Headers | None] | None:
        own = headers(rows)
        if not self._provenance:
            return own
        config = self._config
        topic: Header = (config.topic_header, source.encode())
        names = (config.partition_header, config.offset_header)
        texts: dict[int, Header] = {p: (names[0], b"%d" % p) for p in set(partitions)}
        marks: Iterable[Headers] = (
            [topic, texts[p], (names[1], b"%d" % o)]
            for p, o in zip(partitions, offsets, strict=True)
        )
        if own is None:
            return list(marks)
        return [h + m for h, m in zip(own, marks, strict=True)]


def _encoded(converter: Converter, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Encode values. Bytes are written unchanged, whether they were read, are a field that a
    transform has made the value, or come from a program."""
    if pa.types.is_binary(values.type) or pa.types.is_null(values.type):
        return values.cast(pa.binary())
    return pa.chunked_array([converter.encode(c) for c in values.chunks], pa.binary())
