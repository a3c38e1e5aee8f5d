"""Records and dead letters as the columns of calls to a producer.

Kafka's client takes one record a call. The calls are mapped over columns, so that no Python code
runs for a record whose bytes pass through; only headers are put together one by one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from semel.config import ConnectorConfig
from semel.converters import Converter
from semel.kafka.dead_letters import Header, Headers, error_headers
from semel.records import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    DeadLetter,
    Records,
    value_columns,
)
from semel.sinks.kafka.config import KEEP, KafkaConfig

ANY = -1
"""The partition that the partitioner chooses."""


class Message(NamedTuple):
    """One record: its place in the source, and what is sent."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    target: int
    timestamp: int
    headers: Headers | None

    def sent(self, callback: Callable[..., None]) -> tuple[Any, ...]:
        """What a producer's call takes after the topic."""
        return (
            self.value,
            self.key,
            self.target,
            callback,
            callback,
            self.timestamp,
            self.headers,
        )


@dataclass(frozen=True, slots=True)
class Messages:
    """What goes to one topic, by column. ``partition`` and ``offset`` say where it came from."""

    topic: str
    source: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    targets: Iterable[int]
    timestamps: Iterable[int]
    headers: Iterable[Headers | None]
    partitions: Sequence[int] = field(default=())
    offsets: Sequence[int] = field(default=())

    def send(self, producer: Producer, callback: Callable[..., None]) -> None:
        """Queue everything.

        Raises:
            KafkaException: one of them cannot be sent; those before it are queued.
        """
        calls = map(
            producer.produce,
            itertools.repeat(self.topic),
            self.values,
            self.keys,
            self.targets,
            itertools.repeat(callback),
            itertools.repeat(callback),  # the same argument under its other name
            self.timestamps,
            self.headers,
        )
        deque(calls, maxlen=0)

    def each(self) -> Iterable[Message]:
        """One record at a time."""
        return map(
            Message,
            self.partitions or itertools.repeat(-1),
            self.offsets or itertools.repeat(-1),
            self.values,
            self.keys,
            self.targets,
            self.timestamps,
            self.headers,
        )


def dead_letters(connector: ConnectorConfig, letters: Sequence[DeadLetter], task: int) -> Messages:
    """Dead letters for their topic, as Kafka Connect writes them."""
    return Messages(
        connector.dead_letter_topic,
        "",
        [x.key for x in letters],
        [x.value for x in letters],
        itertools.repeat(ANY),
        [max(0, x.timestamp or 0) for x in letters],
        [[*x.headers, *error_headers(connector, x, task)] for x in letters],
    )


class Encoder:
    """Makes messages. ``key`` and ``value`` are converters for what a transform has changed."""

    def __init__(
        self, config: KafkaConfig, *, provenance: bool, key: Converter, value: Converter
    ) -> None:
        self._config = config
        self._provenance = provenance
        self._key = key
        self._value = value

    def messages(self, records: Records, topic: str) -> Messages:
        """One topic's records, tombstones in their place between the others."""
        rows, gone = records.rows, records.tombstones
        values = self._values(rows)
        keys = self._keys(rows)
        if gone is not None and gone.num_rows:
            values = pa.chunked_array([*values.chunks, pa.nulls(gone.num_rows, pa.binary())])
            keys = pa.chunked_array([*keys.chunks, *self._keys(gone).chunks], pa.binary())
            names = [n for n in (PARTITION, OFFSET, TIMESTAMP, HEADERS) if n in gone.column_names]
            rows = pa.concat_tables([rows.select(names), gone.select(names)])
            order = np.lexsort((rows.column(OFFSET), rows.column(PARTITION)))
            rows, values, keys = rows.take(order), values.take(order), keys.take(order)
        partitions = rows.column(PARTITION).to_numpy().tolist()
        offsets = rows.column(OFFSET).to_numpy().tolist()
        keep = self._config.partitioner == KEEP
        return Messages(
            topic,
            records.topic,
            _objects(keys),
            _objects(values),
            partitions if keep else itertools.repeat(ANY),
            _timestamps(rows),
            self._headers(records.topic, rows, partitions, offsets),
            partitions,
            offsets,
        )

    def _values(self, rows: pa.Table) -> pa.ChunkedArray:
        names = value_columns(rows.column_names)
        if names == ["value"] and pa.types.is_binary(rows.schema.field("value").type):
            return rows.column("value")
        return _encoded(self._value, rows.select(names).to_struct_array())

    def _keys(self, rows: pa.Table) -> pa.ChunkedArray:
        keys = rows.column(KEY)
        if pa.types.is_binary(keys.type) or pa.types.is_null(keys.type):
            return keys.cast(pa.binary())
        return _encoded(self._key, keys)

    def _headers(
        self, source: str, rows: pa.Table, partitions: list[int], offsets: list[int]
    ) -> Iterable[Headers | None]:
        own = _headers(rows)
        if not self._provenance:
            return itertools.repeat(None) if own is None else own
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
    return pa.chunked_array([converter.encode(c) for c in values.chunks], pa.binary())


def _objects(column: pa.ChunkedArray) -> list[bytes | None]:
    found: list[bytes | None] = column.to_numpy().tolist()
    return found


def _timestamps(rows: pa.Table) -> Iterable[int]:
    """0, for a record without one, is the time of sending."""
    if TIMESTAMP not in rows.column_names:
        return itertools.repeat(0)
    stamps = pc.fill_null(rows.column(TIMESTAMP).cast(pa.int64()), 0)
    found: list[int] = pc.max_element_wise(stamps, 0).to_numpy().tolist()
    return found


def _headers(rows: pa.Table) -> list[Headers] | None:
    """The headers that each record came with; None when no record has any."""
    if HEADERS not in rows.column_names:
        return None
    column = rows.column(HEADERS).combine_chunks()
    flat = column.flatten()
    if not len(flat):
        return None
    names, values = flat.field(0).to_pylist(), flat.field(1).to_numpy(zero_copy_only=False)
    pairs = list(zip(names, values.tolist(), strict=True))
    ends = np.cumsum(pc.fill_null(column.value_lengths(), 0).to_numpy()).tolist()
    return [pairs[a:b] for a, b in itertools.pairwise([0, *ends])]
