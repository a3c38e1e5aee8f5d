"""Records as the columns of calls to a producer.

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

from semel.kafka.dead_letters import Headers
from semel.records import HEADERS, TIMESTAMP

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
    """What goes to one topic, by column. ``source``, ``partitions`` and ``offsets`` are its
    origin."""

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


def objects(column: pa.ChunkedArray) -> list[bytes | None]:
    found: list[bytes | None] = column.to_numpy().tolist()
    return found


def timestamps(rows: pa.Table) -> Iterable[int]:
    """0, for a record without one, is the time of sending."""
    if TIMESTAMP not in rows.column_names:
        return itertools.repeat(0)
    stamps = pc.fill_null(rows.column(TIMESTAMP).cast(pa.int64()), 0)
    found: list[int] = pc.max_element_wise(stamps, 0).to_numpy().tolist()
    return found


def headers(rows: pa.Table) -> list[Headers] | None:
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
