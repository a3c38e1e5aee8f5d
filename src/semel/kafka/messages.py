"""Records as columns that are handed over to a producer.

In a transaction, columns go to librdkafka as they are, if records have no more than keys and
values. Otherwise Kafka's client takes one record per call. The calls are mapped over columns, so
that no Python code runs for a record whose bytes pass through; only headers are put together one by
one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from semel.core.records import HEADERS, TIMESTAMP
from semel.kafka import bulk
from semel.kafka.dead_letters import Headers

T = TypeVar("T")

ANY = -1
"""Stands for the partition that the partitioner chooses."""


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
    """What goes to one topic, by column. ``source``, ``partitions`` and ``offsets`` are its
    origin.

    ``keys`` and ``values`` are binary. Without ``targets``, the partitioner chooses the partitions;
    without ``timestamps``, records have the time of sending.
    """

    topic: str
    source: str
    keys: pa.ChunkedArray
    values: pa.ChunkedArray
    targets: Sequence[int] | None = None
    timestamps: Sequence[int] | None = None
    headers: Sequence[Headers | None] | None = None
    partitions: Sequence[int] = field(default=())
    offsets: Sequence[int] = field(default=())

    def __len__(self) -> int:
        return len(self.values)

    @property
    def largest(self) -> int:
        """The size of the largest record in bytes, without headers."""
        keys, values = (pc.binary_length(column) for column in (self.keys, self.values))
        sizes = pc.add(pc.fill_null(keys, 0), pc.fill_null(values, 0))
        return pc.max(sizes).as_py() or 0

    def send(self, producer: Producer, callback: Callable[..., None]) -> None:
        """Queue everything; ``callback`` is called for what is not delivered.

        Raises:
            KafkaException: one of them cannot be sent; those before it are queued.
        """
        calls = map(
            producer.produce,
            itertools.repeat(self.topic),
            objects(self.values),
            objects(self.keys),
            _each(self.targets, ANY),
            itertools.repeat(callback),
            itertools.repeat(callback),  # the same argument under its other name
            _each(self.timestamps, 0),
            _each(self.headers, None),
        )
        deque(calls, maxlen=0)

    def send_in_transaction(self, producer: Producer, callback: Callable[..., None]) -> None:
        """Queue everything in a transaction, whose end tells whether all was delivered.
        ``callback`` is called for the first record if that is not, and perhaps for others.

        Raises:
            KafkaException: one of them cannot be sent; others may be queued.
        """
        others = (self.targets, self.timestamps, self.headers)
        if bulk.library() is None or any(column is not None for column in others):
            self.send(producer, callback)
            return
        # Whatever stops one record usually stops them all: the report of one tells why.
        first = replace(self, keys=self.keys.slice(0, 1), values=self.values.slice(0, 1))
        first.send(producer, callback)
        bulk.send(producer, self.topic, self.keys.slice(1), self.values.slice(1))

    def each(self) -> Iterable[Message]:
        """One record at a time."""
        return map(
            Message,
            self.partitions or itertools.repeat(-1),
            self.offsets or itertools.repeat(-1),
            objects(self.values),
            objects(self.keys),
            _each(self.targets, ANY),
            _each(self.timestamps, 0),
            _each(self.headers, None),
        )


def _each(column: Sequence[T] | None, default: T) -> Iterable[T]:
    return itertools.repeat(default) if column is None else column


def objects(column: pa.ChunkedArray) -> list[bytes | None]:
    values: list[bytes | None] = column.to_numpy().tolist()
    return values


def timestamps(rows: pa.Table) -> Sequence[int] | None:
    """The times of records, in milliseconds, with 0 for those without one; None if none has one."""
    if TIMESTAMP not in rows.column_names:
        return None
    column = rows.column(TIMESTAMP)
    if column.null_count == len(column):
        return None
    stamps = pc.fill_null(column.cast(pa.int64()), 0)
    times: list[int] = pc.max_element_wise(stamps, 0).to_numpy().tolist()
    return times


def headers(rows: pa.Table) -> list[Headers] | None:
    """The headers that each record came with; None when no record has any."""
    if HEADERS not in rows.column_names:
        return None
    column = rows.column(HEADERS).combine_chunks()
    flat = column.flatten()
    if not len(flat):
        return None
    # Many records share most of their headers: each different one becomes one object.
    names, values = (c.dictionary_encode("encode") for c in flat.flatten())
    places = names.indices.to_numpy().astype(np.int64) * len(values.dictionary)
    different = pa.array(places + values.indices.to_numpy()).dictionary_encode()
    name, value = np.divmod(different.dictionary.to_numpy(), len(values.dictionary))
    chosen = (d.dictionary.take(pa.array(n)) for d, n in ((names, name), (values, value)))
    tuples = np.empty(len(name), object)
    tuples[:] = list(zip(*(c.to_pylist() for c in chosen), strict=True))
    pairs = tuples[different.indices.to_numpy()].tolist()
    ends = np.cumsum(pc.fill_null(column.value_lengths(), 0).to_numpy()).tolist()
    return [pairs[a:b] for a, b in itertools.pairwise([0, *ends])]
